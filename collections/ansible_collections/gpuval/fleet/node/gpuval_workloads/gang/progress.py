"""A member prints the progress of its own ranks: only the gang's first rank prints, and silence counts as a stall."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..common.stall import Beat
from .threads import Periodic

PRINT_SECONDS = 30.0


def progress(beats: Mapping[int, tuple[Beat, str]], slots: int) -> str:
    """The progress of the member's ranks by their heartbeats.

    The text changes only while the slowest rank advances: a stalled rank must not look alive.
    """
    if len(beats) < slots:
        return f"{len(beats)} of {slots} ranks have begun"
    ticks, device_done = (
        min(getattr(beat, counter) for beat, _ in beats.values()) for counter in ("ticks", "device_done")
    )
    device = f", its device {device_done}" if device_done else ""
    return f"{slots} of {slots} ranks are at work; the last one has counted {ticks} steps of progress{device}"


def progress_printer(text_of: Callable[[], str]) -> Periodic:
    """Enter it: a thread prints what ``text_of`` returns now and then, if it has changed."""
    last_text = ""

    def look() -> None:
        nonlocal last_text
        text = text_of()
        if text != last_text:
            last_text = text
            print(text, flush=True)

    return Periodic(PRINT_SECONDS, look, "progress")
