"""Creates and removes a stage's scratch directory, with its secrets and a temporary directory of a short name."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from gpuval_node.redaction import SecretRedactor, secrets_of_run

from gpuval_runner.environment import GANG_FILE, GANG_RECORDS_FILE, StagePaths
from gpuval_runner.errors import StoreFileError
from gpuval_runner.files import read_bounded, read_object, write_atomically
from gpuval_runner.layout import CACHE_MARK, NodeDirectory
from gpuval_runner.plan import NodePlan, Stage
from gpuval_runner.store import MAX_STORE_BYTES

#: Bytes of the longest TMPDIR: a socket's path has at most 107 bytes (unix(7)), and multiprocessing adds about 35.
LONGEST_TEMPORARY = 68
SHORT_BASE = Path("/tmp")  # noqa: S108 - the name is made with mode 0700 and must be ours
#: File in a scratch directory that lists the stage's folders in other file systems, one a line (storage/targets.py).
OUTSIDE_FILE, MAX_OUTSIDE_BYTES = "outside", 1 << 16
#: File in the scratch directory with a stage's secrets; the program of a job's steps reads and removes the file.
SECRETS_FILE = "secrets.json"
#: Minimum length of a secret in characters: the controller refuses shorter secrets.
SHORTEST = 4
#: End of the names of secret variables that output may show: user names are common words and parts of node names.
USERNAME = "_USERNAME"


def load_secrets(directory: NodeDirectory, plan: NodePlan, stage: Stage, environ: Mapping[str, str]) -> dict[str, str]:
    """Return a stage's secrets by variable name: from the file that the launch put on the node, in a pod from
    `environ`. Raises ``StoreFileError`` if one is missing."""
    values = environ if plan.runtime == "pod" else read_object(directory.secrets(stage.name), MAX_STORE_BYTES)
    secrets = {name: values.get(name) for name in stage.secrets}
    missing = [name for name, value in secrets.items() if not isinstance(value, str) or not value]
    if missing:
        raise StoreFileError(f"secret {', '.join(missing)} is not on this node: validate again")
    return {name: str(value) for name, value in secrets.items()}


def secret_redactor(directory: NodeDirectory, secrets: Mapping[str, str]) -> SecretRedactor:
    """Return a redactor for a stage's output. It hides the stage's secrets and the run's, as in printed store URLs."""
    values = [value for name, value in secrets.items() if not name.endswith(USERNAME)]
    return SecretRedactor(values, secrets_of_run(directory.root), SHORTEST)


def temporary_directory(work: Path) -> Path:
    """Return the TMPDIR of a scratch directory: inside the directory, or in /tmp if that name would be too long."""
    inside = work / "tmp"
    if len(str(inside).encode()) <= LONGEST_TEMPORARY:
        return inside
    return SHORT_BASE / f"gpuval-{hashlib.sha256(str(work).encode()).hexdigest()[:12]}"


def make(work: Path) -> Path:
    """Create an empty scratch directory and return its temporary directory. Raises ``OSError``."""
    remove(work)
    temporary = temporary_directory(work)
    for directory in (work, work / "cache"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary.mkdir(mode=0o700, exist_ok=temporary.parent == work)
    return temporary


def prepare(places: StagePaths, gang: str, secrets: Mapping[str, str]) -> None:
    """Create a stage's scratch directory, with its gang's JSON (empty for none) and its secrets, and the model cache. A
    new model cache gets a mark: clean removes only marked caches. Raises ``OSError``."""
    make(places.work)
    if gang:
        write_gang(places.work, gang, places.run)
    if secrets:
        write_atomically(places.work / SECRETS_FILE, json.dumps(secrets).encode())
    places.models.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # a full disk: without its mark, the cache stays when the node is cleaned
        if not any(places.models.iterdir()):
            (places.models / CACHE_MARK).touch(mode=0o600)


def write_gang(work: Path, document: str, source: Path) -> None:
    """Write the gang's document into the scratch directory `work`; for the gang's leader also the URLs of the members'
    records, from the store file in the folder `source`. Raises ``OSError``."""
    files = {GANG_FILE: document}
    store = read_object((source / "store.json").resolve(), MAX_STORE_BYTES)
    if isinstance(store.get("members"), dict):
        authority = (source / store["ca_file"]).read_text(encoding="utf-8") if store.get("ca_file") else ""
        files[GANG_RECORDS_FILE] = json.dumps({"urls": store["members"], "ca": authority})
    for name, text in files.items():
        path = work / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)  # for the container's user; the directory's mode limits access


def remove(work: Path) -> list[str]:
    """Remove a scratch directory, its temporary directory, and the folders elsewhere that the stage listed; returns
    what could not be removed and why."""
    return [problem for path in (*_outside(work), temporary_directory(work), work) for problem in remove_tree(path)]


def _outside(work: Path) -> list[Path]:
    """Return the folders that a stage listed for removal, if named after this run and node: other folders must stay."""
    try:
        lines = read_bounded(work / OUTSIDE_FILE, MAX_OUTSIDE_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    name = f"gpuval-{work.parents[2].name}-{work.parents[1].name}"  # work: BASE/RUN_ID/NODE/work/STAGE
    return [path for path in map(Path, lines) if path.is_absolute() and path.name == name]


def remove_tree(directory: Path) -> list[str]:
    """Remove a directory tree, never through a link or into another file system; returns what could not be removed.
    Opens each level by descriptor: a folder that another user swaps for a link meanwhile is not followed."""
    try:
        parent = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{directory}: {error.strerror}"]
    try:
        return _remove(directory, parent)
    finally:
        os.close(parent)


def _remove(path: Path, parent: int, device: Optional[int] = None) -> list[str]:
    """Remove an entry of the directory with the descriptor `parent`, with all its content on the same device; `path`
    is for messages. Returns what could not be removed."""
    try:
        if not stat.S_ISDIR(os.stat(path.name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(path.name, dir_fd=parent)
            return []
        handle = os.open(path.name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    problems: list[str] = []
    try:
        status = os.fstat(handle)
        if device is not None and status.st_dev != device:
            return [f"{path}: another file system is mounted here"]
        if stat.S_IMODE(status.st_mode) & 0o700 != 0o700:
            Path(f"/proc/self/fd/{handle}").chmod(0o700)
        listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
        try:
            for name in os.listdir(listing):  # noqa: PTH208 - Path takes no descriptor
                problems += _remove(path / name, listing, status.st_dev)
        finally:
            os.close(listing)
        os.rmdir(path.name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except RecursionError:  # only this branch stays
        problems = [f"{str(path)[:200]}: nested too deeply: remove it with rm -rf"]
    except OSError as error:
        problems = problems or [f"{path}: {error.strerror}"]
    finally:
        os.close(handle)
    return problems


def empty_directory(directory: Path) -> list[str]:
    """Remove all entries of a directory; returns what could not be removed."""
    return [problem for entry in list(directory.iterdir()) for problem in remove_tree(entry)]
