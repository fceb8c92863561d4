"""Finds and names a rank that stalls while the others wait for it, before a time limit ends the whole stage.

Every rank writes a heartbeat to a small file once a second, from a thread beside its work: its count of progress, the
progress of its device, and where in the code its main thread is. The launcher reads all heartbeats and the processes'
states. A rank that no other waits for, or whose main thread moves, does not stall: a slow compilation is no stall.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .periodic import Periodic
from .processes import is_child, process_state

STALL_VARIABLE = "GPUVAL_STALL_SECONDS"
STALL_SECONDS = 60.0
BEAT_FILE = "beat-{rank}.json"

_BEAT_SECONDS = 1.0
_BEAT_BYTES = 4096
_MOVING_FACTOR = 5
_FRAMES_SHOWN = 3
_MAX_FRAMES = 300
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_STOPPED = frozenset("Tt")
GONE = frozenset("ZX?")


@dataclass(frozen=True)
class Beat:
    """A rank's heartbeat: its number, the counted progress, and where in the code the main thread is, as a number
    (``place``) and in words. ``device_done`` counts the events that the device has passed, if any."""

    pid: int
    number: int
    ticks: int
    place: int
    stands_in: str
    is_in_collective: bool
    patience_seconds: float
    device_done: int = 0


class RankProgress:
    """Counts a rank's progress. A thread writes heartbeats with the count and the main thread's place in the code."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._main = threading.main_thread().ident or 0
        self._ticks = 0
        self._patience = 0.0
        self._queue: tuple[int, Sequence[Any], Callable[[], object]] = (0, (), bool)
        self._device_done = 0
        self._done = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._tell, name="heartbeat", daemon=True).start()

    def stop(self) -> None:
        self._done.set()

    def tick(self) -> None:
        """Count one step of progress; between two collectives, all ranks must count the same."""
        self._ticks += 1

    def follow(self, events: Sequence[Any], select: Callable[[], object]) -> None:
        """Report as progress the events that the device has passed (by their ``query``), beside all earlier events.

        The events are in the queue's order, and each is recorded before it is added to the list, which may grow. All
        ranks must give the same number. ``select`` sets the device of the heartbeat thread before each query: with
        another device set, CUDA would allocate memory there.
        """
        completed, before, _ = self._queue
        self._queue = (completed + len(before), events, select)  # in one step: the heartbeat thread reads it meanwhile

    def device_done(self) -> int:
        """Return how many events the device has passed; if the query fails, the last known number."""
        completed, events, select = self._queue
        with suppress(Exception):  # a lost device raises errors of any type: the work itself reports them
            if events:
                select()
            self._device_done = completed + passed(events)
        return self._device_done

    @contextmanager
    def patience(self, seconds: float):
        """Return a context in which the rank counts as stalled only after ``seconds``, for work known to be long."""
        self._patience = seconds
        try:
            yield
        finally:
            self._patience = 0.0

    def _tell(self) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        number = 0
        while not self._done.is_set():
            number += 1
            beat = Beat(os.getpid(), number, self._ticks, *where(self._main), self._patience, self.device_done())
            with suppress(OSError):  # a full disk: this heartbeat is missing
                os.pwrite(file, json.dumps(vars(beat)).encode()[:_BEAT_BYTES].ljust(_BEAT_BYTES), 0)
            self._done.wait(_BEAT_SECONDS)
        os.close(file)


def passed(events: Sequence[Any]) -> int:
    """Return how many of the events the device has passed, by querying few of them."""
    low, high = 0, len(events)
    while low < high:
        middle = (low + high) // 2
        if events[middle].query():
            low = middle + 1
        else:
            high = middle
    return low


def where(thread: int) -> tuple[int, str, bool]:
    """Return where in the code a thread is: a number that changes when it moves, words, and if in a collective."""
    frame = sys._current_frames().get(thread)
    places: list[tuple[int, int]] = []
    words: list[str] = []
    is_in_collective = False
    while frame is not None and len(places) < _MAX_FRAMES:
        code = frame.f_code
        places.append((id(code), frame.f_lasti))
        is_in_collective = is_in_collective or code.co_filename.endswith(_COLLECTIVES)
        if len(words) < _FRAMES_SHOWN:
            words.append(f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})")
        frame = frame.f_back
    return hash(tuple(places)), ", called by ".join(words), is_in_collective


def read_beat(path: Path) -> Beat | None:
    """Return a rank's last heartbeat; None if its file is missing or malformed."""
    try:
        beat = Beat(**json.loads(path.read_text(encoding="utf-8")))
        numbers = (beat.pid, beat.number, beat.ticks, beat.place, beat.patience_seconds, beat.device_done)
    except (OSError, ValueError, TypeError):
        return None
    return beat if all(isinstance(value, (int, float)) for value in numbers) and beat.pid > 1 else None


@dataclass
class _Seen:
    """Last heartbeat and process state of a rank, and for how many seconds the process was stopped, sent no heartbeat
    (``silent``), did not move in its code (``still``) and made no progress (``idle``)."""

    beat: Beat
    state: str
    stopped: float = 0.0
    silent: float = 0.0
    still: float = 0.0
    idle: float = 0.0

    def update(self, beat: Beat, state: str, seconds: float) -> None:
        """Add the next heartbeat and process state, `seconds` after the last ones."""
        is_heard = beat.number != self.beat.number
        has_ticked = (beat.ticks, beat.device_done) != (self.beat.ticks, self.beat.device_done)
        has_moved = has_ticked or beat.place != self.beat.place
        self.stopped = self.stopped + seconds if state in _STOPPED else 0.0
        self.silent = 0.0 if is_heard else self.silent + seconds
        self.still = 0.0 if has_moved else self.still + seconds
        self.idle = 0.0 if has_ticked else self.idle + seconds
        self.beat, self.state = beat, state


class StallJudge:
    """Decides for the launcher whether a rank stalls. Pure: gets heartbeats, and the seconds between them."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit = limit_seconds
        self._seen: dict[int, _Seen] = {}

    def look(self, beats: Mapping[int, tuple[Beat, str]], seconds: float) -> tuple[int, str] | None:
        """Add all ranks' last heartbeats and process states; return the rank that stalls and what it does, else None.

        A stopped process stalls. Else no rank may count progress, and one rank must be behind: it is silent, its device
        is behind, it is outside of the collective in which the others are, or its progress is the lowest. That rank
        stalls when its main thread has not moved for the limit, or has moved in a loop for five times as long.
        """
        for rank, (beat, state) in beats.items():
            if rank in self._seen:
                self._seen[rank].update(beat, state, seconds)
            else:
                self._seen[rank] = _Seen(beat, state)
        for rank, view in sorted(self._seen.items()):
            if view.stopped >= self._limit:
                return rank, f"has been stopped (process state {view.state}) for {view.stopped:.0f} s"
        if len(self._seen) < 2 or min(view.idle for view in self._seen.values()) < self._limit:
            return None
        for rank in self._behind():
            view = self._seen[rank]
            limit = max(self._limit, view.beat.patience_seconds)
            if view.still >= limit or view.idle >= max(_MOVING_FACTOR * self._limit, view.beat.patience_seconds):
                driver = ", in the kernel, often in a driver" if view.state == "D" else ""
                return rank, (
                    f"has made no progress for {view.idle:.0f} s while others wait for it (process state "
                    f"{view.state}{driver}); it stands in {view.beat.stands_in}"
                )
        return None

    def _behind(self) -> Sequence[int]:
        alive = {rank: view for rank, view in self._seen.items() if view.state not in GONE}
        silent = [rank for rank, view in alive.items() if view.silent >= self._limit]
        if silent and len(silent) < len(alive):
            return silent
        # Hosts run ahead of their GPUs, then wait anywhere for work of a peer's GPU: compare the devices first.
        late = _least({rank: view.beat.device_done for rank, view in alive.items()})
        if late:
            return late
        # Timed work counts differently on each rank; ranks in a collective wait for those outside.
        elsewhere = [rank for rank, view in alive.items() if not view.beat.is_in_collective]
        if 0 < len(elsewhere) < len(alive):
            return elsewhere
        return _least({rank: view.beat.ticks for rank, view in alive.items()})


def _least(counts: Mapping[int, int]) -> list[int]:
    """Return the ranks with the lowest count; none if all counts are equal."""
    least = min(counts.values(), default=0)
    late = [rank for rank, count in counts.items() if count == least]
    return late if len(late) < len(counts) else []


class RankWatcher(Periodic):
    """Watches the ranks from a thread of the launcher; kills a rank that stalls, which ends all ranks."""

    def __init__(self, directory: Path, processes: int, name_of) -> None:
        super().__init__(_BEAT_SECONDS, self._check, "watch of the ranks")
        self._directory, self._processes, self._name_of = directory, processes, name_of
        self._judge, self._last_look = StallJudge(stall_seconds(os.environ)), time.monotonic()
        self.verdict: str | None = None

    def _check(self) -> bool:
        # A launcher that was frozen (a paused container) saw nothing: the gap counts as one interval.
        now = time.monotonic()
        seconds, self._last_look = min(now - self._last_look, 2 * _BEAT_SECONDS), now
        stall = self._judge.look(self._look(), seconds)
        if stall is None:
            return False
        rank, words = stall
        beat = read_beat(self._directory / BEAT_FILE.format(rank=rank))
        self.verdict = f"{self._name_of(rank, beat.pid if beat else None)} {words}"
        print(self.verdict, file=sys.stderr, flush=True)
        if beat and is_child(beat.pid):
            with suppress(OSError):
                os.kill(beat.pid, signal.SIGKILL)
        return True

    def _look(self) -> dict[int, tuple[Beat, str]]:
        beats = {rank: read_beat(self._directory / BEAT_FILE.format(rank=rank)) for rank in range(self._processes)}
        return {
            rank: (beat, process_state(beat.pid) if is_child(beat.pid) else "?")
            for rank, beat in beats.items()
            if beat is not None
        }


def stall_seconds(environ: Mapping[str, str]) -> float:
    """Return the seconds after which a rank stalls: ``GPUVAL_STALL_SECONDS`` if it is a number above 0, else 60."""
    try:
        seconds = float(environ.get(STALL_VARIABLE, ""))
    except ValueError:
        return STALL_SECONDS
    return seconds if 0 < seconds < float("inf") else STALL_SECONDS
