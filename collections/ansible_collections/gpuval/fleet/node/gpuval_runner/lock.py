"""The lock that gives a run one runner on a node; the kernel releases it when its holder dies."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import IO, Any, Optional

from gpuval_node.node_directory import take_lock

from gpuval_runner.clock import now
from gpuval_runner.errors import LockHeldError


def take(path: Path, wait_seconds: float = 2.0, **details: Any) -> IO[bytes]:
    """Take the lock file at `path`; returns the open file, which releases the lock when it is closed. Pid, time and
    `details` are written to the file. It is never removed: two runners could lock two files of one name. The short wait
    lets readers of the file finish. Raises ``LockHeldError`` naming the holder, or ``OSError``."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if not take_lock(handle, time.monotonic() + wait_seconds):
        pid, since = (_read_details(handle).get(name, "unknown") for name in ("pid", "since"))
        os.close(handle)
        remedy = "wait for it, or end it with 'cancel'"
        raise LockHeldError(f"{path.parent} is held by runner pid {pid} since {since}: {remedy}")
    text = json.dumps({"pid": os.getpid(), "since": now(), **details}) + "\n"
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)
    except OSError:  # a full disk: the lock is held, but its file does not name the holder
        os.ftruncate(handle, 0)
    return os.fdopen(handle, "rb", buffering=0)


def holder(path: Path) -> Optional[dict[str, Any]]:
    """Return the details that the holder of a lock file wrote (perhaps none), or None when the lock is free."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_details(handle)
    finally:
        os.close(handle)
    return None


def wait_until_free(path: Path, seconds: float) -> None:
    """Wait until no process holds the lock file, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    while holder(path) is not None and time.monotonic() < deadline:
        time.sleep(0.1)


def _read_details(handle: int) -> dict[str, Any]:
    try:
        value = json.loads(os.pread(handle, 4096, 0))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
