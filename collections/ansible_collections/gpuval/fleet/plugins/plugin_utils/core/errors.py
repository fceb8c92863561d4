"""Errors that an operator can act on, and messages for errors of the disk. Their base also runs on nodes."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from ...module_utils.errors import GpuvalError

__all__ = ["GpuvalError", "SettingError", "disk_problem"]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_OURS = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ESTALE)


class SettingError(GpuvalError, ValueError):
    """A setting, or a file that a setting names, cannot be used; the message says what to change."""


def subject_of(error: BaseException | None) -> str:
    """What failed (node, store, site, ...): attribute `subject` of an error or of its causes; empty without one."""
    return getattr(error, "subject", "") or (subject_of(error.__cause__ or error.__context__) if error else "")


def reason_of(error: Exception) -> str:
    """The reason in an error about a file, as text without error number and path."""
    return getattr(error, "strerror", None) or str(error)


def disk_problem(error: OSError, folders: Mapping[str, Path]) -> str:
    """The message for an error of the disk: what happened, and which setting to change; empty for other errors.
    ``folders``: {setting: folder in use that it chooses}."""
    path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else None
    not_made = error.errno == errno.ENOENT and path in folders.values()  # no folder can be made there, as in /proc
    if error.errno not in (*_FULL, *_NOT_OURS) and not not_made:
        return ""
    within = [name for name, folder in folders.items() if path and (path == folder or folder in path.parents)]
    chosen = " or ".join(within or folders) or "gpuval_results_dir or gpuval_state_dir"
    happened = f"{path}: {error.strerror}" if path else error.strerror
    if error.errno in _FULL:
        return f"{happened}: free space, or set {chosen} to a folder on another disk"
    return f"{happened}: set {chosen} to a folder that you can write, or give {path or 'it'} to your user"
