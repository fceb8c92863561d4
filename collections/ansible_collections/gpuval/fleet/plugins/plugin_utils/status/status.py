"""The status of a run from what the store has of it: states, order and expected ends of its nodes. Pure.

All ages are seconds by the store's clock, so a wrong clock of a controller or a reader does not matter.
"""

from __future__ import annotations

import fnmatch
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from ..records import launch_errors
from ..records.brief import StageBrief
from ..records.states import FAILED_STATES, FINAL_STATES, LAUNCHED
from ..runs.folder import DEADLINE_SLACK_SECONDS
from ..runs.state import BEFORE_WORK, LOST_SECONDS, Seen

#: In the order in which nodes are shown: those that need attention first.
STATES = ("failed", "not started", "lost", "incomplete", "silent", "running", "waiting", "done")
ACCEPTED = ("PASS", "PARTIAL")
BAD = frozenset({"failed", "not started", "lost", "incomplete", "silent"})
_OF_VERDICT = {"FAIL": "failed", "INCOMPLETE": "incomplete", "PASS": "done"}

#: A node is silent after so many heartbeats without one, if that is longer than the run's own limit.
SILENT_HEARTBEATS = 3
DEFAULT_HEARTBEAT_SECONDS, DEFAULT_SILENCE_SECONDS = 10.0, 90.0
#: After the end of its watch a controller may collect and judge for this long.
JUDGING_SECONDS = 900.0


@dataclass(frozen=True)
class StoredStatus:
    """All that the store has of a run. `moment`: the store's time. `watch`: gpuval.watch/1, and when it was stored;
    `verdict`: gpuval.verdict/1. `briefs` by node and stage; `refused`: records that are no evidence."""

    run: Mapping[str, Any]
    moment: datetime
    briefs: Mapping[str, Mapping[str, StageBrief]] = field(default_factory=dict)
    watch: Mapping[str, Any] | None = None
    watch_modified: datetime | None = None
    verdict: Mapping[str, Any] | None = None
    refused: Sequence[str] = ()
    #: gpuval.gangs/1, and when it was stored; its newest round, which is a run of its own.
    gangs: Mapping[str, Any] | None = None
    gangs_modified: datetime | None = None
    round: StoredStatus | None = None
    #: The state of the run and its controllers, where run.json keeps them.
    controller: Seen | None = None


@dataclass(frozen=True)
class Ahead:
    """Expected seconds left; a lower bound, not `exact`, where a stage has no expected duration."""

    seconds: float
    exact: bool = True


@dataclass(frozen=True)
class NodeStatus:
    """One node. `age`: seconds since its last heartbeat or its launch, None without both. `ahead` is None where no end
    can be expected."""

    name: str
    state: str
    stage: str
    stage_state: str
    age: float | None
    elapsed: float | None
    expected: float | None
    ahead: Ahead | None
    message: str
    stages: Mapping[str, str]
    attempts: Mapping[str, int]
    #: Of a launch that failed; ``{node}`` stands for the name.
    remedy: str = ""

    @property
    def over_time(self) -> bool:
        """Its stage takes longer than expected."""
        return self.elapsed is not None and self.expected is not None and self.elapsed > self.expected

    @property
    def matters(self) -> bool:
        return self.state in BAD or (self.state == "running" and self.over_time)


@dataclass(frozen=True)
class Status:
    """The run: `nodes` in the order in which they are shown. `left`: seconds to the deadline; `end`: the expected one;
    `heartbeat_age`: seconds since its controller's last heartbeat."""

    known: StoredStatus
    nodes: tuple[NodeStatus, ...]
    run_seconds: float
    left: float
    end: Ahead | None
    watched: bool
    heartbeat_age: float | None
    #: The newest round of its gangs.
    round: Status | None = None

    @property
    def ended(self) -> bool:
        return self.known.run["finished_at"] is not None

    @property
    def verdict(self) -> str | None:
        verdict = final_verdict(self.known)
        return verdict["verdict"] if verdict else None

    @property
    def at_work(self) -> int:
        return sum(node.state in ("running", "silent", "waiting") for node in self.nodes)

    @property
    def over(self) -> bool:
        """Nothing more is expected: the run has ended, or no node works and no controller watches."""
        if self.ended or self.never_started:
            return True
        if self.known.controller and self.known.controller.name in BEFORE_WORK:
            return False
        if self.at_gangs:
            return False
        late = self.left < -DEADLINE_SLACK_SECONDS
        return not (self.watched or self.judging) and (self.at_work == 0 or late)

    @property
    def overdue(self) -> bool:
        """Its deadline has passed: no controller resumes it. Gangs have until the deadline of their last round."""
        controller, nodes = self.known.controller, self.known.run["nodes"].values()
        together = any(node.get("gang_stages") for node in nodes)
        return self.left < 0 and (not together or (controller is not None and controller.overdue))

    @property
    def never_started(self) -> bool:
        """It failed before any node began."""
        return self.known.controller is not None and self.known.controller.never_started

    @property
    def judging(self) -> bool:
        """Its controller's watch has ended; it may still collect and judge."""
        if _deserted(self.known):
            return False
        watch = self.known.watch
        ages = [age for age in (self.heartbeat_age or 0.0, self.gangs_age) if age is not None]
        return watch is not None and watch["state"] == "ended" and min(ages) < JUDGING_SECONDS

    @property
    def gangs_age(self) -> float | None:
        """Seconds since the controller's last update of the gangs, or of their newest round; None without gangs."""
        stored = self.known
        if stored.gangs is None or stored.gangs_modified is None:
            return None
        ages = [_seconds(stored.moment, stored.gangs_modified)]
        if self.round is not None and self.round.heartbeat_age is not None:
            ages.append(self.round.heartbeat_age)
        return min(ages)

    @property
    def at_gangs(self) -> bool:
        """Its gangs are at work: they have not ended, and their controller sent a heartbeat recently."""
        age = self.gangs_age
        if self.ended or age is None or self.known.gangs is None or self.known.gangs["ended_at"]:
            return False
        if _deserted(self.known):
            return False
        return age < JUDGING_SECONDS

    @property
    def accepted(self) -> bool:
        """It is still on, or it passed."""
        return self.verdict in ACCEPTED if self.over else True


def _deserted(stored: StoredStatus) -> bool:
    """No controller works on it any more: its process on this host is gone."""
    return stored.controller is not None and stored.controller.attended is False


def final_verdict(stored: StoredStatus) -> Mapping[str, Any] | None:
    """The verdict of a run that has ended; one from before its end does not count."""
    ended, verdict = stored.run["finished_at"], stored.verdict
    return verdict if ended and verdict and verdict["judged_at"] >= ended else None


def status_of(stored: StoredStatus) -> Status:
    run, watch = stored.run, stored.watch
    passed = _seconds(stored.moment, stored.watch_modified) if stored.watch_modified else 0.0
    if watch:
        run_seconds, begun = watch["run_seconds"] + passed, watch["begun_seconds"] + passed
    else:
        begun = run_seconds = max(0.0, _seconds(stored.moment, datetime.fromisoformat(run["created_at"])))
    verdict = final_verdict(stored)
    verdicts = verdict["nodes"] if verdict else {}
    nodes = [_node(name, stored, verdicts.get(name)) for name in run["nodes"]]
    seconds_left = float(run["deadline_seconds"]) - begun
    ended = run["finished_at"] is not None
    if ended:
        nodes = [replace(node, ahead=None) for node in nodes]
    else:
        nodes = _in_turn(nodes, watch["window"]["nodes"] if watch else 0)
    ahead = [node.ahead for node in nodes if node.ahead is not None]
    open_ended = any(node.ahead is None and node.state in ("silent", "running", "waiting") for node in nodes)
    end = None
    if ahead and not ended:
        end = Ahead(max(one.seconds for one in ahead), all(one.exact for one in ahead) and not open_ended)
    return Status(
        known=stored,
        nodes=tuple(sorted(nodes, key=lambda node: STATES.index(node.state))),
        run_seconds=run_seconds,
        left=seconds_left,
        end=end,
        watched=watch is not None and watch["state"] == "watching" and passed < LOST_SECONDS and not _deserted(stored),
        heartbeat_age=passed if watch else None,
        round=status_of(stored.round) if stored.round is not None else None,
    )


def _node(name: str, stored: StoredStatus, verdict: str | None) -> NodeStatus:
    stages = stored.run["nodes"][name]["stages"]
    briefs = stored.briefs.get(name, {})
    watched = (stored.watch or {}).get("nodes", {}).get(name, {})
    launch = watched.get("launch") or {}
    expected, heartbeat = _expectations(stored.watch, watched)
    states = {stage: briefs[stage].state if stage in briefs else "missing" for stage in stages}
    ages = [_seconds(stored.moment, one.modified) for one in briefs.values()]
    launched = _launched_seconds(stored, launch)
    age = min([*ages, *([] if launched is None else [launched])], default=None)
    state = _state(stored, states, briefs, watched, age, heartbeat)
    if verdict is not None and state not in ("not started", "lost"):
        state = _OF_VERDICT[verdict]
    stage = _stage_shown(state, states)
    brief = briefs.get(stage)
    elapsed = None
    if brief and brief.state == "running" and brief.duration_seconds is not None:
        elapsed = brief.duration_seconds + _seconds(stored.moment, brief.modified)
    return NodeStatus(
        name=name,
        state=state,
        stage=stage,
        stage_state=states.get(stage, ""),
        age=age,
        elapsed=elapsed,
        expected=expected.get(stage),
        ahead=_ahead(state, stages, states, expected, stage, elapsed),
        message=_message(state, launch, brief, verdict),
        stages=states,
        attempts={stage: one.attempt for stage, one in briefs.items()},
        remedy=str(launch.get("remedy") or "") if state == "not started" else "",
    )


def _launched_seconds(state: StoredStatus, launch: Mapping[str, Any]) -> float | None:
    """Seconds since a node's launch: by the controller's clock until the document was stored, then by the store's."""
    if launch.get("state") not in LAUNCHED or not state.watch or not state.watch_modified or not launch.get("at"):
        return None
    try:
        at, stored = (datetime.fromisoformat(text) for text in (launch["at"], state.watch["updated_at"]))
        return max(0.0, _seconds(stored, at)) + _seconds(state.moment, state.watch_modified)
    except (TypeError, ValueError):
        return None


def _expectations(
    watch: Mapping[str, Any] | None, watched: Mapping[str, Any]
) -> tuple[Mapping[str, float | None], float]:
    plans = watch["plans"] if watch else []
    index = watched.get("plan") or 0  # a waiting node has no plan yet, and gets one like the others
    if index >= len(plans):
        return {}, DEFAULT_HEARTBEAT_SECONDS
    plan = plans[index]
    return plan["stages"], plan["heartbeat_seconds"]


def _state(
    stored: StoredStatus,
    states: Mapping[str, str],
    briefs: Mapping[str, StageBrief],
    watched: Mapping[str, Any],
    age: float | None,
    heartbeat: float,
) -> str:
    if any(state in FAILED_STATES for state in states.values()):
        return "failed"
    launch = watched.get("launch") or {}
    if states and all(state in FINAL_STATES for state in states.values()):
        return "done" if all(state == "success" for state in states.values()) else "incomplete"
    began = any(one.started for one in briefs.values())
    ended = stored.run["finished_at"] is not None
    if not began and launch.get("state") not in LAUNCHED and launch.get("state") not in (None, "unknown"):
        return "not started"
    contact = launch.get("contact") or {}
    if contact.get("class") == "lost_contact" or str(contact.get("message", "")).startswith(launch_errors.LOST):
        return "lost"
    if ended:
        return "incomplete" if began else "not started"
    if not began and launch.get("state") not in LAUNCHED:
        return "waiting"
    limit = (stored.watch or {}).get("silence_seconds") or DEFAULT_SILENCE_SECONDS
    return "silent" if age is not None and age > max(limit, SILENT_HEARTBEATS * heartbeat) else "running"


def _stage_shown(state: str, states: Mapping[str, str]) -> str:
    """The stage to show: the one that failed, else the running one, else the next one or the last."""
    orders = [FAILED_STATES, ("running",)] if state == "failed" else [("running",), ("cancelled", "skipped")]
    for group in (*orders, ("pending", "missing")):
        for stage, its_state in states.items():
            if its_state in group:
                return stage if group != ("pending", "missing") or state not in ("not started", "waiting") else ""
    return list(states)[-1] if states else ""


def _message(state: str, launch: Mapping[str, Any], brief: StageBrief | None, verdict: str | None) -> str:
    contact = launch.get("contact") or {}
    if state == "not started":
        message = launch.get("message") or "the node was never started"
        word = launch.get("class")
        return f"{launch.get('state', 'unknown')}{f' ({word})' if word else ''}: {message}"
    if contact.get("message") and state in ("lost", "silent", "running"):
        return f"{contact.get('class')}: {contact['message']}"
    if verdict in ("FAIL", "INCOMPLETE") and (brief is None or brief.state == "success"):
        return f"{verdict} by its checks: the report says which"
    if brief is not None and brief.message:
        return brief.message
    if state == "silent" and brief is None:
        return "it was launched, but no record has arrived"
    if state == "running" and launch.get("store_reachable") is False:
        return "cannot reach the store: its controller fetches its records"
    return ""


def _ahead(
    state: str,
    stages: Sequence[str],
    states: Mapping[str, str],
    expected: Mapping[str, float | None],
    stage: str,
    elapsed: float | None,
) -> Ahead | None:
    """The time that a node still needs; also of a failed one, whose other stages may continue."""
    open_stages = [name for name in stages if states[name] not in FINAL_STATES]
    if state in ("silent", "lost", "not started", "incomplete", "done") or not open_stages:
        return None
    seconds, exact = 0.0, True
    for name in open_stages:
        of_it = expected.get(name)
        exact = exact and of_it is not None
        spent = elapsed or 0.0 if name == stage and states[name] == "running" else 0.0
        exact = exact and not (of_it is not None and spent > of_it)
        seconds += max(0.0, (of_it or 0.0) - spent)
    if seconds == 0.0 and not exact:
        return None
    return Ahead(seconds, exact)


def _in_turn(nodes: Sequence[NodeStatus], places: int) -> list[NodeStatus]:
    """The nodes, with the expected ends of waiting ones after those at work: `places` at once, 0 is all."""
    working = [node.ahead for node in nodes if node.state in ("running", "silent", "failed") and node.ahead]
    hidden = sum(node.state == "silent" or (node.state == "running" and node.ahead is None) for node in nodes)
    free = sorted(ahead.seconds for ahead in working)
    exact = all(ahead.exact for ahead in working)
    if places:  # a silent node keeps its place for an unknown time
        free = free + [0.0] * max(0, places - len(free) - hidden)
    heapq.heapify(free)
    result = []
    for node in nodes:
        if node.state != "waiting" or node.ahead is None:
            result.append(node)
            continue
        begins = 0.0
        if places:
            if not free:
                result.append(replace(node, ahead=None))
                continue
            begins = heapq.heappop(free)
            heapq.heappush(free, begins + node.ahead.seconds)
        time = node.ahead
        result.append(replace(node, ahead=Ahead(begins + time.seconds, time.exact and (exact or begins == 0.0))))
    return result


def chosen(status: Status, patterns: Sequence[str]) -> Sequence[NodeStatus]:
    """The nodes of these names, which may have ``*`` and ``?``; all without any. Raises KeyError for a name without a
    node."""
    if not patterns:
        return status.nodes
    for name in patterns:
        if not any(fnmatch.fnmatchcase(node.name, name) for node in status.nodes):
            raise KeyError(name)
    return [node for node in status.nodes if any(fnmatch.fnmatchcase(node.name, name) for name in patterns)]


def _seconds(moment: datetime, earlier: datetime) -> float:
    """Seconds from `earlier` to `moment`; 0 for what was written while the store was listed."""
    return max(0.0, (moment - earlier).total_seconds())
