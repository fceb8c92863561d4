"""Replaces files in one step. Also packed into the runner and the workloads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Optional, Union


def replace_file(
    path: Path,
    data: Union[bytes, Iterable[bytes]],
    mode: Optional[int] = None,
    *,
    owner: Optional[tuple[int, int]] = None,
    is_durable: bool = False,
) -> None:
    """Replace a file atomically: a reader sees the old or the new content, complete. Raises OSError, leaving no draft.
    `data` may come in pieces. `mode`: permission bits, else the umask applies to 0666; `owner`: user id and group id.
    If `is_durable`, data and directory entry are on disk on return."""
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(draft, flags, 0o666 if mode is None else mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if owner is not None:
                os.fchown(descriptor, *owner)
            if mode is not None:
                os.fchmod(descriptor, mode)
            stream.writelines([data] if isinstance(data, bytes) else data)
            if is_durable:
                stream.flush()
                os.fsync(descriptor)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if is_durable:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
