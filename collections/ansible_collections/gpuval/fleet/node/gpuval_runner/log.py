"""A stage's log: bounded, head and tail kept, readable at any time. Also reads and writes the runner's own log."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path

from gpuval_runner.clock import now
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.text import one_line

_MARKER = re.compile(rb"\n\[gpuval: (\d+) bytes of output cut here\]\n")
_MARKER_ROOM = 80
_COPY_BYTES = 1 << 16
LOG_END_BYTES = 4096


def note(text: str) -> None:
    """Write a line to the runner's own log, its standard error."""
    with contextlib.suppress(OSError):  # a full disk under runner.log must not end the run
        print(f"{now()} {one_line(text, 1000)}", file=sys.stderr, flush=True)


def log_end(directory: NodeDirectory, position: int = 0) -> str:
    """Return the last 4096 bytes of runner.log as text, without what lies before the byte `position`."""
    try:
        with directory.runner_log.open("rb") as stream:
            stream.seek(max(position, stream.seek(0, os.SEEK_END) - LOG_END_BYTES))
            return stream.read(LOG_END_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


class CappedLog:
    """Appends output to a file of at most `limit` bytes; an existing file is continued. When the file is full, its
    middle is replaced, in one step, by a line with the number of bytes cut: the first quarter and at least the last
    quarter of `limit` stay, and readers never see a partial file. :attr:`lost_bytes` counts output that could not be
    written, as on a full disk."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.lost_bytes = 0
        self.last_error = ""
        self._limit = limit
        self._head = limit // 4
        self._tail = limit * 3 // 8
        self._handle = -1
        self._size = 0

    def write(self, data: bytes) -> None:
        """Append data; never raises ``OSError``."""
        room = max(1, self._limit - self._head - self._tail - _MARKER_ROOM)
        for start in range(0, len(data), room):
            unwritten = memoryview(data)[start : start + room]
            try:
                self._open()
                if self._size + len(unwritten) > self._limit:
                    self._cut_middle()
                while unwritten:
                    written = os.write(self._handle, unwritten)
                    self._size += written
                    unwritten = unwritten[written:]
            except OSError as error:
                self.lost_bytes += len(unwritten)
                self.last_error = error.strerror or str(error)
                self.close()

    def line(self, text: str) -> None:
        """Append a line that the runner itself writes, after a line break if the stage's output did not end in one."""
        ends_line = True
        with contextlib.suppress(OSError):
            self._open()
            ends_line = self._size == 0 or os.pread(self._handle, 1, self._size - 1) == b"\n"
        self.write((b"" if ends_line else b"\n") + f"[gpuval] {text}\n".encode("utf-8", "replace"))

    def _open(self) -> None:
        if self._handle < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._handle = os.open(self.path, flags, 0o600)
            self._size = os.fstat(self._handle).st_size

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _cut_middle(self) -> None:
        head = os.pread(self._handle, self._head, 0)
        earlier = _MARKER.match(os.pread(self._handle, _MARKER_ROOM, self._head))
        middle = self._head + (earlier.end() if earlier else 0)
        tail = max(middle, self._size - self._tail)
        tail += os.pread(self._handle, min(4096, self._tail // 4), tail).find(b"\n") + 1  # cut between lines
        cut = tail - middle + (int(earlier.group(1)) if earlier else 0)
        temporary = self.path.with_name(f".{self.path.name}.cut")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(temporary, flags, 0o600), "wb") as stream:
                stream.write(head + b"\n[gpuval: %d bytes of output cut here]\n" % cut)
                position = tail
                while position < self._size:
                    piece = os.pread(self._handle, min(_COPY_BYTES, self._size - position), position)
                    stream.write(piece)
                    position += len(piece)
            temporary.replace(self.path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self.close()
        self._open()
