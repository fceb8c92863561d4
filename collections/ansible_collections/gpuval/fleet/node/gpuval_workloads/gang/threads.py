"""Threads in the program of one node of a gang: an asyncio loop, forwarding of the ranks' output, progress lines."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path

from ..common.periodic import Periodic
from ..common.stall import Beat


class LoopThread:
    """Runs a coroutine in a thread of its own, with an asyncio loop of its own, until it is done or cancelled."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, main: Coroutine) -> None:
        self._main = self.loop.create_task(main)
        self._thread.start()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def cancel(self, seconds: float) -> None:
        """Cancel the coroutine, and wait at most ``seconds`` for its end."""
        with suppress(RuntimeError):  # the loop is closed: it has ended
            self.loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join(seconds)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        with suppress(asyncio.CancelledError):
            self.loop.run_until_complete(self._main)
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self.loop.close()


FORWARD_SECONDS = 0.5
#: Maximum bytes to print of each of the ranks' output files, each time and at the end.
MOST_BYTES = 1 << 20


class Forwarder(Periodic):
    """Context that prints new lines of the files in ``folder`` while it is open, and unfinished lines at its end."""

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


PRINT_SECONDS = 30.0


def progress(beats: Mapping[int, tuple[Beat, str]], slots: int) -> str:
    """Return the progress of a node's ``slots`` ranks as text, from ``{local rank: (heartbeat, process state)}``. The
    text changes only while the slowest rank advances, so that a stalled rank does not look alive."""
    if len(beats) < slots:
        return f"{len(beats)} of {slots} ranks have begun"
    ticks, device_done = (
        min(getattr(beat, counter) for beat, _ in beats.values()) for counter in ("ticks", "device_done")
    )
    device = f", its device {device_done}" if device_done else ""
    return f"{slots} of {slots} ranks are at work; the last one has counted {ticks} steps of progress{device}"


def progress_printer(text_of: Callable[[], str]) -> Periodic:
    """Return a context in which a thread prints the text of ``text_of`` every 30 s if it has changed."""
    last_text = ""

    def look() -> None:
        nonlocal last_text
        text = text_of()
        if text != last_text:
            last_text = text
            print(text, flush=True)

    return Periodic(PRINT_SECONDS, look, "progress")
