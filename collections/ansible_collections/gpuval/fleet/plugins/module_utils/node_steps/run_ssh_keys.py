"""Writes the SSH keys of a run's multi-node stages into `ssh/` of its folder. They grant access to no account."""

from __future__ import annotations

from typing import Any, TypedDict

from ..node_directory import NodeError, base_directory, check_private, make_private, write_private


class KeysAnswer(TypedDict, total=False):
    #: Folder with the keys, and names of files that were written or removed.
    directory: str
    files: list[str]


def run_ssh_keys(module: Any, directory: str, run_id: str, node: str, files: dict[str, str]) -> KeysAnswer:
    """Make the folder `ssh/` of a run hold exactly `files`, content by name."""
    for name in (run_id, node, *files):
        if not name or name.startswith(".") or "/" in name:
            raise NodeError(f"{name!r} is not a name")
    base = base_directory(directory)
    folder = base / run_id / node / "ssh"
    try:
        for path in (base, folder.parents[1], folder.parent, folder):
            if path.exists() or path.is_symlink():
                check_private(path)
        wrong, odd = changes(folder, files)
        touched = sorted([*wrong, *odd])
        if touched and not module.check_mode:
            for path in (base, folder.parents[1], folder.parent, folder):
                make_private(path)
            for name in [*odd, *wrong]:  # one after the other: what cannot be done leaves the next files as they are
                (folder / name).unlink(missing_ok=True)  # a new file has the right mode
                if name in files:
                    write_private(folder / name, files[name].encode())
    except OSError as error:
        raise NodeError(f"{folder}: {error.strerror}. Free space there, or set gpuval_node_dir.") from error
    return {"changed": bool(touched), "directory": str(folder), "files": touched}


def changes(folder, files):
    """Return the names in `files` (content by name) that a folder lacks or has otherwise, and its other names."""
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    wrong = [name for name, text in files.items() if name not in present or not has_content(folder / name, text)]
    return wrong, sorted(present - set(files))


def has_content(path, text):
    try:
        return path.stat().st_mode & 0o777 == 0o600 and path.read_bytes() == text.encode()
    except OSError:
        return False
