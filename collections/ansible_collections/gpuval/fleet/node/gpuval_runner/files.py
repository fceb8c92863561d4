"""Writes files atomically and reads files of bounded size."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from gpuval_node.atomic_file import replace_file


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file in one step; on return, data and directory entry are synced to disk. Raises ``OSError``."""
    replace_file(path, data, 0o600, is_durable=True)


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes; a path that is a link is refused. Raises ``FileNotFoundError``, or
    another ``OSError``, also for a larger file."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is not a regular file")
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise OSError(f"{path} is larger than {limit} bytes")
    return data


def read_json(path: Path, limit: int) -> Any:
    """Read a JSON file of at most `limit` bytes. Raises ``OSError`` or ``ValueError``."""
    try:
        return json.loads(read_bounded(path, limit))
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None


def read_object(path: Path, limit: int) -> dict[str, Any]:
    """Read a JSON object of at most `limit` bytes; an empty one if the file is missing or damaged."""
    try:
        document = read_json(path, limit)
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def file_stamp(path: Path) -> Any:
    """Return modification time, size and inode of a file (of a link itself), to notice a change; None if missing."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def to_json(document: Any) -> bytes:
    """Return compact, strict ASCII JSON. Raises ``ValueError`` for a number that is not finite."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def digest(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    import hashlib  # loads OpenSSL, and a launch and most stages need no digest

    return hashlib.sha256(data).hexdigest()


def write_result(document: Any) -> bool:
    """Write a stage's result to the path in its environment. Returns False outside a stage. Raises ``OSError``."""
    result_file = os.environ.get("GPUVAL_RESULT_FILE")
    if result_file:
        write_atomically(Path(result_file), to_json(document))
    return bool(result_file)
