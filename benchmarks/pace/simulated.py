"""Simulated time, a store in memory, and nodes that work by their plans: around the controller's own code."""

from __future__ import annotations

import heapq
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ansible_collections.gpuval.fleet.plugins.module_utils.store import Entry
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import exchange, watch
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.decisions import NodeView
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.placement import (
    Event,
    LaunchEnd,
    Placement,
    PlannedAttempt,
)

#: A launch over SSH: 100 nodes take as long beyond their plans as benchmarks/fleet measured (docs/design/figures.md).
LAUNCH_SECONDS, LAUNCHES_AT_ONCE = 4.0, 12
#: A launch and a fetch of a node that is gone.
NO_ANSWER_SECONDS = 30.0
HEARTBEAT_SECONDS = 10.0
#: Simulated seconds when the clock begins.
BEGIN = 1e6
#: Of all real times the simulated ones lie so far back: a record from the future would be refused.
PAST = timedelta(hours=12)


class Clock:
    """Simulated time, and the work that is due at some of it."""

    def __init__(self) -> None:
        self.now = BEGIN
        self._zero = datetime.now(timezone.utc) - PAST - timedelta(seconds=self.now)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        #: Real seconds that the simulation itself took.
        self.own_seconds = 0.0
        self._is_open = False

    def moment(self, at: float | None = None) -> datetime:
        return self._zero + timedelta(seconds=self.now if at is None else at)

    def text(self, at: float | None = None) -> str:
        return self.moment(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._order), work))

    def run(self, until: float, stop: Callable[[], object]) -> None:
        """Do what is due, until then, or until there is a reason to stop."""
        with self.simulating():
            while self._due and self._due[0][0] <= until and not stop():
                self.now, _, work = heapq.heappop(self._due)
                work()
            if not stop():
                self.now = max(self.now, until)

    @contextmanager
    def simulating(self) -> Iterator[None]:
        began, outermost = time.process_time(), not self._is_open
        self._is_open = True
        yield
        if outermost:
            self._is_open = False
            self.own_seconds += time.process_time() - began

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Real time passes in simulated time too."""
        began = time.perf_counter()
        yield
        self.now += time.perf_counter() - began

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The controller's code sees simulated time."""
        clock = self

        class Moment(datetime):
            @classmethod
            def now(cls, _zone: Any = None) -> datetime:
                return clock.moment()

        with ExitStack() as patches:
            patches.enter_context(mock.patch("time.monotonic", lambda: clock.now))
            patches.enter_context(mock.patch.object(run_folder, "datetime", Moment))
            patches.enter_context(mock.patch.object(watch, "datetime", Moment))
            patches.enter_context(mock.patch.object(exchange, "upload", lambda *_: 200))
            yield


class MemoryStore:
    """The part of a store that a watch uses."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._objects, self._version = clock, {}, itertools.count()  # type: ignore[var-annotated]

    def list(self, prefix: str) -> list[Entry]:
        return [entry for key, (entry, _) in self._objects.items() if key.startswith(prefix)]

    def get(self, key: str, *, max_bytes: int) -> bytes:
        return self._objects[key][1][:max_bytes]

    def get_if_there(self, key: str, *, max_bytes: int) -> bytes | None:
        return self.get(key, max_bytes=max_bytes) if key in self._objects else None

    def put(self, key: str, data: bytes, _type: str = "") -> None:
        self._objects[key] = Entry(key, str(next(self._version)), len(data), self._clock.moment()), data

    def backend(self) -> SimpleNamespace:
        return SimpleNamespace(store=lambda: self, guard=lambda *_: lambda _now: [])


class Bandwidth:
    """What the store gives to all that read from it, in equal shares, and a node at most."""

    def __init__(self, clock: Clock, bytes_per_second: float, of_a_node: float) -> None:
        self._clock, self._all, self._each = clock, bytes_per_second, of_a_node
        self._left: dict[int, tuple[float, Callable[[], None]]] = {}
        self._number, self._turn, self._since = itertools.count(), 0, clock.now

    def read(self, count: float, then: Callable[[], None]) -> None:
        self._advance()
        self._left[next(self._number)] = (count, then)
        self._plan()

    def _rate(self) -> float:
        return min(self._each, self._all / max(1, len(self._left)))

    def _advance(self) -> None:
        done = self._rate() * (self._clock.now - self._since)
        self._left = {number: (left - done, then) for number, (left, then) in self._left.items()}
        self._since = self._clock.now

    def _plan(self) -> None:
        self._turn += 1
        if self._left:
            seconds = max(0.0, min(left for left, _ in self._left.values()) / self._rate())
            self._clock.after(seconds, lambda turn=self._turn: self._finish(turn))  # type: ignore[misc]

    def _finish(self, turn: int) -> None:
        if turn != self._turn:  # another has begun or ended meanwhile
            return
        self._advance()
        ended = [number for number, (left, _) in self._left.items() if left < 1]
        for then in [self._left.pop(number)[1] for number in ended]:
            then()
        self._plan()


@dataclass(frozen=True)
class Outcome:
    """What becomes of a stage: so long it works, and then its record gets these fields."""

    seconds: float
    fields: Mapping[str, Any]


#: By run, node, stage of the plan and attempt.
Outcomes = Callable[[Mapping[str, Any], str, Mapping[str, Any], int], Outcome]


@dataclass
class Fleet:
    """Nodes, and all that they share."""

    clock: Clock
    store: MemoryStore
    bandwidth: Bandwidth
    outcomes: Outcomes
    #: Bytes that a stage reads from the store before it works.
    reads: Mapping[str, float]
    #: By node when it goes away for good.
    ends_at: Mapping[str, float] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)

    def is_gone(self, name: str) -> bool:
        return self.clock.now >= self.ends_at.get(name, float("inf"))


class SimulatedPlacement(Placement):
    """Launches over SSH that take their time, a few at once; nodes that work by their plans."""

    def __init__(
        self, fleet: Fleet, folder: RunFolder, workloads: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        self._fleet, self._folder, self._workloads, self._settings = fleet, folder, workloads, settings
        self._run = folder.read_run()
        self.present = self.everyone = set(self._run["nodes"])
        self._events: list[Event] = []
        self._waiting: list[tuple[NodeView, PlannedAttempt]] = []
        self._at_work = 0
        #: Members of each gang that have been launched: work begins with the last of them.
        self._joined: dict[str, list[Callable[[], None]]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._events or self._waiting or self._at_work)

    def launch(self, view: NodeView, attempt: PlannedAttempt, seconds: float) -> None:
        self._waiting.append((view, attempt))
        self._launch_next()

    def _launch_next(self) -> None:
        while self._waiting and self._at_work < LAUNCHES_AT_ONCE:
            view, attempt = self._waiting.pop(0)
            self._at_work += 1
            gone = self._fleet.is_gone(view.name)
            self._fleet.clock.after(
                NO_ANSWER_SECONDS if gone else LAUNCH_SECONDS, lambda item=(view, attempt): self._launched(*item)
            )  # type: ignore[misc]

    def _launched(self, view: NodeView, attempt: PlannedAttempt) -> None:
        self._at_work -= 1
        self._launch_next()
        name = view.name
        if self._fleet.is_gone(name):
            message = f"ssh: connect to host {name} port 22: Connection timed out"
            self._events.append(LaunchEnd(name, "launch", failed=True, unreachable=True, message=message))
            return
        launch = attempt.launch(name, self._folder.read_launch(name))
        path = self._folder.plan_file(name)
        if not path.exists():
            settings = plans.PlanSettings.of(self._run, name, created_at=run_folder.now(), **self._settings)
            plan = plans.build(settings, self._run["nodes"][name]["stages"], self._workloads)
            run_folder.write_json(path, plans.without_members(plan))
        plan = self._folder.read_plan(name)
        launch |= {"state": "started", "message": "", "runner": "alive", "nonce": plan["nonce"], "machine": name}
        self._folder.write_launch(name, launch)
        self._events.append(LaunchEnd(name, "launch", started=True))
        if attempt.number > 1:
            plan = plans.for_attempt(plan, launch["stages"], attempt.number)
        work = Work(self._fleet, self._run, view, plan)
        gang = plans.gang_of(self._run, name)
        waiting = self._joined.setdefault(gang["name"] if gang else name, [])
        waiting.append(work.next_stage)
        if not gang or len(waiting) == len(gang["members"]):
            for start in waiting:
                start()
            waiting.clear()

    def fetch(self, view: NodeView, *, by_store: bool) -> None:
        gone = self._fleet.is_gone(view.name)
        message = f"ssh: connect to host {view.name} port 22: Connection timed out" if gone else ""
        ended = LaunchEnd(view.name, "fetch", failed=gone, unreachable=gone, message=message)
        self._fleet.clock.after(NO_ANSWER_SECONDS if gone else 1.0, lambda: self._events.append(ended))

    def wait(self, seconds: float) -> list[Event]:
        clock = self._fleet.clock
        clock.run(clock.now + max(0.0, seconds), lambda: self._events)
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        return


class Work:
    """One attempt of a node's plan. A record is written at every change of state and on a heartbeat."""

    def __init__(self, fleet: Fleet, run: Mapping[str, Any], view: NodeView, plan: Mapping[str, Any]) -> None:
        self._fleet, self._run, self._node, self._plan = fleet, run, view.name, plan
        self._stages, self._stage = iter(plan["stages"]), {}  # type: ignore[var-annotated]
        self._earlier, self._ended = dict(view.records), {}  # type: ignore[var-annotated]
        self._began = 0.0

    def next_stage(self) -> None:
        self._stage = next(self._stages, {})
        if not self._stage:
            return
        self._began = self._fleet.clock.now
        if any(self._ended.get(need, "success") != "success" for need in self._stage["needs"]):
            self._put(state="skipped", started_at=None, finished_at=self._fleet.clock.text(), duration_seconds=None)
            self.next_stage()
            return
        self._beat(self._stage)
        count = self._fleet.reads.get(self._stage["name"], 0)
        if count:
            self._fleet.bandwidth.read(count, self._work)
        else:
            self._work()

    def _beat(self, stage: Mapping[str, Any]) -> None:
        if stage is self._stage and not self._fleet.is_gone(self._node):
            self._put(state="running", duration_seconds=round(self._fleet.clock.now - self._began, 3))
            self._fleet.clock.after(HEARTBEAT_SECONDS, lambda: self._beat(stage))

    def _work(self) -> None:
        outcome = self._fleet.outcomes(self._run, self._node, self._stage, self._plan["attempt"])
        self._fleet.clock.after(outcome.seconds, lambda: self._end(outcome))

    def _end(self, outcome: Outcome) -> None:
        if self._fleet.is_gone(self._node):
            return
        clock, stage = self._fleet.clock, self._stage["name"]
        seconds = round(clock.now - self._began, 3)
        self._fleet.seconds[stage] = max(self._fleet.seconds[stage], seconds)
        fields = {"state": "success", "exit_code": 0, **outcome.fields}
        self._ended[stage] = fields["state"]
        self._put(finished_at=clock.text(), duration_seconds=seconds, **fields)
        self.next_stage()

    def _put(self, **fields: Any) -> None:
        clock, stage, attempt = self._fleet.clock, self._stage, self._plan["attempt"]
        earlier = self._earlier.get(stage["name"])
        attempts = [*earlier["attempts"], {**earlier, "attempts": []}] if earlier else []
        record = {
            "schema": "gpuval.record/1", "run_id": self._run["run_id"], "node": self._node, "stage": stage["name"],
            "workload": stage["workload"], "attempt": attempt, "message": "", "started_at": clock.text(self._began),
            "updated_at": clock.text(), "finished_at": None, "command": stage["command"], "image": stage["image"],
            "exit_code": None, "signal": None, "metrics": [], "fingerprints": {}, "environment": {}, "artifacts": [],
            "attempts": attempts, "nonce": self._plan["nonce"], **fields,
        }  # fmt: skip
        key = f"{self._run['folder']}/records/{stage['name']}/{self._node}.json"
        self._fleet.store.put(key, json.dumps(record).encode())


def drawn(*key: object) -> random.Random:
    return random.Random(" ".join(map(str, key)))  # noqa: S311 - simulated noise, no secret
