"""What ranks print that a launcher keeps in files of the member's: a thread puts it into the member's own log."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from pathlib import Path

FORWARD_SECONDS = 0.5
#: Of each file at one time, and in the end.
MOST_BYTES = 1 << 20


class Forwarder:
    """Enter it: what comes into the files of a folder is printed as it comes, and the rest when it is left."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._done = folder, threading.Event()
        self._read: dict[Path, int] = {}
        self._thread = threading.Thread(target=self._run, name="forwarding", daemon=True)

    def __enter__(self) -> Forwarder:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(timeout=5)
        self._forward(is_last=True)

    def _run(self) -> None:
        while not self._done.wait(FORWARD_SECONDS):
            self._forward(is_last=False)

    def _forward(self, *, is_last: bool) -> None:
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
