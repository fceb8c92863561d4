"""Hostfiles of gangs for MPI jobs. Those of earlier gangs, listed by path and digest in `results/.hostfiles.json`, are
removed so that no job starts with them. Other files, and changed ones, stay."""

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path

from ..core import files
from ..runs import folder

FILE = ".hostfiles.json"
MODE = 0o644


def path_of(target: Path, gang: str, gangs: int) -> Path:
    """The path of a gang's hostfile: ``target``, with the gang's name appended if the number of ``gangs`` is not 1."""
    return target if gangs == 1 else target.with_name(f"{target.name}.{gang}")


def stale(results: Path, target: Path, keep: Collection[Path] = ()) -> list[Path]:
    """Hostfiles at or beside ``target`` that belong to earlier gangs and are unchanged. ``keep``: paths that stay."""
    paths = []
    for name, digest in _known_digests(results).items():
        path = Path(name)
        ours = path.parent == target.parent and (path == target or path.name.startswith(f"{target.name}."))
        if ours and path not in keep and path.is_file() and _digest(path.read_bytes()) == digest:
            paths.append(path)
    return sorted(paths)


def write(results: Path, texts: Mapping[Path, str], stale_paths: Collection[Path]) -> None:
    """Remove stale hostfiles, record the new digests, then write the new files."""
    for path in stale_paths:
        path.unlink(missing_ok=True)
    new = {str(path): _digest(text.encode()) for path, text in texts.items()}
    digests = {name: digest for name, digest in _known_digests(results).items() if Path(name).is_file()}
    if new or digests:
        folder.write_json(results / FILE, {**digests, **new})
    for path, text in texts.items():
        if not same(path, text):
            files.replace(path, text.encode(), MODE)


def same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


def _known_digests(results: Path) -> dict[str, str]:
    try:
        read = folder.read_json(results / FILE)
    except (OSError, ValueError):
        return {}
    return {name: digest for name, digest in read.items() if isinstance(digest, str)} if isinstance(read, dict) else {}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
