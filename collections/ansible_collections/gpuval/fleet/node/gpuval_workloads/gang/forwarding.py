"""What ranks print that a launcher keeps in files of the member's: a thread puts it into the member's own log."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from .threads import Periodic

FORWARD_SECONDS = 0.5
#: Of each file at one time, and in the end.
MOST_BYTES = 1 << 20


class Forwarder(Periodic):
    """Enter it: what comes into the files of a folder is printed as it comes, and the rest when it is left."""

    def __init__(self, folder: Path) -> None:
        super().__init__(FORWARD_SECONDS, self._forward, "forwarding")
        self._folder = folder
        self._read: dict[Path, int] = {}
        folder.mkdir(mode=0o700, exist_ok=True)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._forward(is_last=True)

    def _forward(self, *, is_last: bool = False) -> None:
        for path in sorted(self._folder.iterdir()):
            with suppress(OSError):
                self._forward_file(path, is_last)

    def _forward_file(self, path: Path, is_last: bool) -> None:
        begin = self._read.get(path, 0)
        with path.open("rb") as file:
            left_out = path.stat().st_size - begin - MOST_BYTES
            if is_last and left_out > 0:
                print(f"[{left_out} bytes of {path.name} are left out]", flush=True)
                begin += left_out
            file.seek(begin)
            data = file.read(MOST_BYTES)
        if not is_last and len(data) < MOST_BYTES:
            data = data[: data.rfind(b"\n") + 1]  # the rest of the line comes later
        self._read[path] = begin + len(data)
        if data:
            sys.stdout.write(data.decode("utf-8", "replace"))
            sys.stdout.flush()
