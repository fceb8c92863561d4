"""Explains why the records of a run cannot be read from the store, and what to do about it."""

from contextlib import suppress
from datetime import datetime

from ...module_utils.store import SKEWED, StoreError
from ..records import launch_errors
from ..records.evidence import UNREAD
from ..runs.folder import RunFolder, read_object

#: Max seconds between a node writing a record and its arrival on the controller, if the clocks of both agree.
ARRIVAL_SECONDS = 300.0


def in_words(error: StoreError, folder: RunFolder) -> tuple[str, str]:
    """The reason and the remedy for records that could not be read because of a store error."""
    text = f"{error}{_whose_clock(folder) if error.code == SKEWED else ''}"
    return text, launch_errors.classify("", f"{UNREAD}: {text}").steps


def _whose_clock(folder: RunFolder) -> str:
    """Text on whose clock is wrong, the store's or this controller's; empty if no node sent a record. Compares the
    times in nodes' records with the times of the files here, which may be later but never earlier."""
    apart: dict[str, float] = {}
    for path in folder.path.glob("nodes/*/*.json"):
        written = str(read_object(path).get("updated_at", ""))
        with suppress(ValueError, OSError):
            seconds = path.stat().st_mtime - datetime.fromisoformat(written.replace("Z", "+00:00")).timestamp()
            apart[path.parent.name] = min(seconds, apart.get(path.parent.name, seconds), key=abs)
    agree = sum(abs(seconds) < ARRIVAL_SECONDS for seconds in apart.values())
    ahead = sum(seconds <= -ARRIVAL_SECONDS for seconds in apart.values())
    if 2 * agree > len(apart):
        return f"; {agree} of {len(apart)} node(s) agree with this controller: the store's clock is wrong"
    if 2 * ahead > len(apart):
        return f"; {ahead} of {len(apart)} node(s) are ahead of this controller: this controller's clock is wrong"
    return "; whose clock is wrong is unknown: compare them" if apart else ""
