"""Computes a run's status from its documents in the store: states, order and expected ends of its nodes. Pure. All ages
are seconds by the store's clock, so that a wrong clock of a controller or a reader does not matter."""

import fnmatch
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..core.node_ranges import names_of
from ..records import launch_errors
from ..records.brief import StageBrief
from ..records.documents import FAILED_STATES, FINAL_STATES, LAUNCHED
from ..runs.folder import DEADLINE_SLACK_SECONDS
from ..runs.state import BEFORE_WORK, LOST_SECONDS, Seen

#: States of nodes in the order of the table: nodes that need attention first.
STATES = ("failed", "not started", "lost", "incomplete", "silent", "running", "waiting", "done")
ACCEPTED = ("PASS", "PARTIAL")
BAD = frozenset({"failed", "not started", "lost", "incomplete", "silent"})
_OF_VERDICT = {"FAIL": "failed", "INCOMPLETE": "incomplete", "PASS": "done"}

#: Number of missed heartbeats after which a node is silent, unless the run's own limit is longer.
SILENT_HEARTBEATS = 3
DEFAULT_HEARTBEAT_SECONDS, DEFAULT_SILENCE_SECONDS = 10.0, 90.0
#: Seconds for which a controller may collect and judge after the end of its watch.
JUDGING_SECONDS = 900.0


@dataclass(frozen=True)
class StoredStatus:
    """A run's documents in the store. `moment`: the store's time; `watch`: gpuval.watch/1, stored at `watch_modified`;
    `verdict`: gpuval.verdict/1; `briefs`: {node: {stage: short record}}; `refused`: messages about invalid records."""

    run: Mapping[str, Any]
    moment: datetime
    briefs: Mapping[str, Mapping[str, StageBrief]] = field(default_factory=dict)
    watch: Mapping[str, Any] | None = None
    watch_modified: datetime | None = None
    verdict: Mapping[str, Any] | None = None
    refused: Sequence[str] = ()
    #: The document gpuval.gangs/1, when it was stored, and the newest round of gangs, which has a run id of its own.
    gangs: Mapping[str, Any] | None = None
    gangs_modified: datetime | None = None
    round: "StoredStatus | None" = None
    #: The state of the run, and the controllers that work on it, by run.json; None if it names no state.
    controller: Seen | None = None


@dataclass(frozen=True)
class Ahead:
    """Expected seconds until a node or run ends; if not `exact`, a lower bound: a stage has no expected duration."""

    seconds: float
    exact: bool = True


class NodeStatus:
    """The status of a node. `age`: seconds since its last heartbeat or its launch, None without both; `ahead`: time to
    its expected end, None if none can be expected; `remedy`: for a failed launch, with ``{node}`` for its name."""

    def __init__(self, name: str, stored: StoredStatus, verdict: str | None) -> None:
        briefs, watch = stored.briefs.get(name, {}), stored.watch or {}
        watched = watch.get("nodes", {}).get(name, {})
        launch = watched.get("launch") or {}
        # A waiting node has no plan yet, and will get a plan like other nodes.
        plans = watch.get("plans", [])[watched.get("plan") or 0 :]
        plan: Mapping[str, Any] = plans[0] if plans else {"stages": {}, "heartbeat_seconds": DEFAULT_HEARTBEAT_SECONDS}
        stages = stored.run["nodes"][name]["stages"]
        self.name = name
        self.stages = {stage: briefs[stage].state if stage in briefs else "missing" for stage in stages}
        self.attempts = {stage: brief.attempt for stage, brief in briefs.items()}
        ages = [_seconds(stored.moment, brief.modified) for brief in briefs.values()]
        launched = _launched_seconds(stored, launch)
        self.age = min(ages if launched is None else [launched, *ages], default=None)
        self.state = self._state(stored, launch, plan["heartbeat_seconds"])
        if verdict is not None and self.state not in ("not started", "lost"):
            self.state = _OF_VERDICT[verdict]
        self.stage = _stage_shown(self.state, self.stages)
        brief = briefs.get(self.stage)
        self.elapsed: float | None = None
        if brief and brief.state == "running" and brief.duration_seconds is not None:
            self.elapsed = brief.duration_seconds + _seconds(stored.moment, brief.modified)
        self.expected = plan["stages"].get(self.stage)
        self.ahead = self._ahead(plan["stages"])
        self.message = _message(self.state, launch, brief, verdict)
        self.remedy = str(launch.get("remedy") or "") if self.state == "not started" else ""

    @property
    def over_time(self) -> bool:
        return self.elapsed is not None and self.expected is not None and self.elapsed > self.expected

    @property
    def matters(self) -> bool:
        return self.state in BAD or (self.state == "running" and self.over_time)

    def _state(self, stored: StoredStatus, launch: Mapping[str, Any], heartbeat_seconds: float) -> str:
        reached = set(self.stages.values())
        if reached & FAILED_STATES:
            return "failed"
        if reached and reached <= FINAL_STATES:
            return "done" if reached == {"success"} else "incomplete"
        began = any(brief.started for brief in stored.briefs.get(self.name, {}).values())
        is_waiting = not began and launch.get("state") not in LAUNCHED
        if is_waiting and launch.get("state") not in (None, "unknown"):
            return "not started"
        contact = launch.get("contact") or {}
        if contact.get("class") == "lost_contact" or str(contact.get("message", "")).startswith(launch_errors.LOST):
            return "lost"
        if stored.run["finished_at"] is not None:
            return "incomplete" if began else "not started"
        if is_waiting:
            return "waiting"
        silence_seconds = (stored.watch or {}).get("silence_seconds") or DEFAULT_SILENCE_SECONDS
        limit = max(silence_seconds, SILENT_HEARTBEATS * heartbeat_seconds)
        return "silent" if self.age is not None and self.age > limit else "running"

    def _ahead(self, expected: Mapping[str, float | None]) -> Ahead | None:
        """The time that the node still needs, None if unknown; also for a failed node, whose other stages may continue.
        `expected`: {stage: usual seconds, None if unknown}."""
        open_stages = [name for name, reached in self.stages.items() if reached not in FINAL_STATES]
        if self.state in ("silent", "lost", "not started", "incomplete", "done") or not open_stages:
            return None
        seconds, exact = 0.0, True
        for name in open_stages:
            usual = expected.get(name)
            spent = self.elapsed or 0.0 if name == self.stage and self.stages[name] == "running" else 0.0
            exact = exact and usual is not None and spent <= usual
            seconds += max(0.0, (usual or 0.0) - spent)
        return Ahead(seconds, exact) if seconds or exact else None


class Status:
    """The status of a run. `nodes`: in the order of the table; `left`: seconds to the deadline; `end`: expected end of
    the run; `heartbeat_age`: seconds since the controller's last heartbeat; `round`: its newest multi-node round."""

    def __init__(self, stored: StoredStatus) -> None:
        run, watch = stored.run, stored.watch
        passed = _seconds(stored.moment, stored.watch_modified) if stored.watch_modified else 0.0
        if watch:
            self.run_seconds, begun = watch["run_seconds"] + passed, watch["begun_seconds"] + passed
        else:
            opened_at = datetime.fromisoformat(run["created_at"])
            begun = self.run_seconds = max(0.0, _seconds(stored.moment, opened_at))
        verdict = final_verdict(stored)
        verdicts = verdict["nodes"] if verdict else {}
        nodes = [NodeStatus(name, stored, verdicts.get(name)) for name in run["nodes"]]
        _expect_ends(nodes, watch["window"]["nodes"] if watch else 0, has_ended=run["finished_at"] is not None)
        open_ended = any(node.ahead is None and node.state in ("silent", "running", "waiting") for node in nodes)
        self.known = stored
        self.nodes = tuple(sorted(nodes, key=lambda node: STATES.index(node.state)))
        self.left = float(run["deadline_seconds"]) - begun
        self.end: Ahead | None = None
        if ahead := [node.ahead for node in nodes if node.ahead is not None]:
            self.end = Ahead(max(time.seconds for time in ahead), all(time.exact for time in ahead) and not open_ended)
        is_watching = watch is not None and watch["state"] == "watching"
        self.watched = is_watching and passed < LOST_SECONDS and not _deserted(stored)
        self.heartbeat_age = passed if watch else None
        self.round: Status | None = Status(stored.round) if stored.round is not None else None

    @property
    def ended(self) -> bool:
        return self.known.run["finished_at"] is not None

    @property
    def verdict(self) -> str | None:
        verdict = final_verdict(self.known)
        return verdict["verdict"] if verdict else None

    @property
    def over(self) -> bool:
        """Whether the run is over: it has ended, or no node works and no controller watches."""
        if self.ended or self.never_started:
            return True
        if (self.known.controller and self.known.controller.name in BEFORE_WORK) or self.at_gangs:
            return False
        at_work = any(node.state in ("running", "silent", "waiting") for node in self.nodes)
        return not (self.watched or self.judging) and (not at_work or self.left < -DEADLINE_SLACK_SECONDS)

    @property
    def overdue(self) -> bool:
        """Whether the run's deadline has passed, so that no controller resumes it; for a run with gangs, the deadline
        of their last round."""
        controller, nodes = self.known.controller, self.known.run["nodes"].values()
        together = any(node.get("gang_stages") for node in nodes)
        return self.left < 0 and (not together or (controller is not None and controller.overdue))

    @property
    def never_started(self) -> bool:
        """Whether the run failed before any node began."""
        return self.known.controller is not None and self.known.controller.never_started

    @property
    def judging(self) -> bool:
        """Whether the watch has ended while the controller may still collect and judge."""
        watch = self.known.watch
        ages = [age for age in (self.heartbeat_age or 0.0, self.gangs_age) if age is not None]
        has_ended = watch is not None and watch["state"] == "ended"
        return has_ended and min(ages) < JUDGING_SECONDS and not _deserted(self.known)

    @property
    def gangs_age(self) -> float | None:
        """Seconds since the controller's last update of the gangs, or of their newest round; None without gangs."""
        if self.known.gangs_modified is None:
            return None
        age = _seconds(self.known.moment, self.known.gangs_modified)
        of_round = self.round.heartbeat_age if self.round else None
        return age if of_round is None else min(age, of_round)

    @property
    def at_gangs(self) -> bool:
        """Whether gangs are at work: they have not ended, and their controller sent a heartbeat recently."""
        age, gangs = self.gangs_age, self.known.gangs
        is_open = not self.ended and gangs is not None and not gangs["ended_at"]
        return is_open and age is not None and age < JUDGING_SECONDS and not _deserted(self.known)

    @property
    def accepted(self) -> bool:
        """Whether the run still works, or has passed."""
        return self.verdict in ACCEPTED if self.over else True


def _deserted(stored: StoredStatus) -> bool:
    """Whether no controller works on the run any more: its process, which ran on this host, is gone."""
    return stored.controller is not None and stored.controller.attended is False


def final_verdict(stored: StoredStatus) -> Mapping[str, Any] | None:
    """The verdict of a run that has ended; a verdict from before the end does not count."""
    ended, verdict = stored.run["finished_at"], stored.verdict
    return verdict if ended and verdict and verdict["judged_at"] >= ended else None


def _launched_seconds(state: StoredStatus, launch: Mapping[str, Any]) -> float | None:
    """Seconds since a node's launch, None if unknown: by the controller's clock until it stored the watch document,
    then by the store's clock."""
    if launch.get("state") not in LAUNCHED or not state.watch or not state.watch_modified or not launch.get("at"):
        return None
    try:
        at, stored = (datetime.fromisoformat(text) for text in (launch["at"], state.watch["updated_at"]))
        return max(0.0, _seconds(stored, at)) + _seconds(state.moment, state.watch_modified)
    except (TypeError, ValueError):
        return None


def _stage_shown(state: str, states: Mapping[str, str]) -> str:
    """The stage to show: the one that failed, else the running one, else the next one or the last."""
    groups = [FAILED_STATES, ("running",)] if state == "failed" else [("running",), ("cancelled", "skipped")]
    for group in (*groups, ("pending", "missing")):
        for stage, reached in states.items():
            if reached in group:
                return "" if group == ("pending", "missing") and state in ("not started", "waiting") else stage
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


def _expect_ends(nodes: Sequence[NodeStatus], max_at_work: int, *, has_ended: bool) -> None:
    """Add the wait for a free slot to the expected end (`ahead`) of waiting nodes; None if it is unknown. A run that
    has ended expects no end. `max_at_work`: maximum number of nodes at work at the same time, 0: all."""
    working = [node.ahead for node in nodes if node.state in ("running", "silent", "failed") and node.ahead]
    hidden = sum(node.state == "silent" or (node.state == "running" and node.ahead is None) for node in nodes)
    exact = all(ahead.exact for ahead in working)
    # A silent node keeps its slot for an unknown time.
    free = [ahead.seconds for ahead in working] + [0.0] * max(0, max_at_work - len(working) - hidden)
    heapq.heapify(free)
    for node in nodes:
        time = node.ahead
        if has_ended or (time is not None and node.state == "waiting" and max_at_work and not free):
            node.ahead = None
        elif node.state == "waiting" and time is not None and max_at_work:
            node.ahead = Ahead(free[0] + time.seconds, time.exact and (exact or free[0] == 0.0))
            heapq.heapreplace(free, node.ahead.seconds)


def chosen(status: Status, patterns: Sequence[str]) -> Sequence[NodeStatus]:
    """The nodes that match these names, which may contain ``*`` and ``?`` and ranges; without names all nodes. Raises
    KeyError for a name that no node matches, SettingError for a wrong range."""
    patterns = [name for pattern in patterns for name in names_of(pattern)]
    if not patterns:
        return status.nodes
    for name in patterns:
        if not any(fnmatch.fnmatchcase(node.name, name) for node in status.nodes):
            raise KeyError(name)
    return [node for node in status.nodes if any(fnmatch.fnmatchcase(node.name, name) for name in patterns)]


def _seconds(moment: datetime, earlier: datetime) -> float:
    """Seconds from `earlier` to `moment`; 0 if `earlier` is later, as for objects written during the listing."""
    return max(0.0, (moment - earlier).total_seconds())
