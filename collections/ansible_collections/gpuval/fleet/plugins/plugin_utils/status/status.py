"""Where a run stands, from what the store has of it: states, order, expected ends, and the lines that tell. Pure.

All ages are seconds by the store's clock: when it last took a node's record in, held against what time it has. So a
controller, or a reader, whose clock is wrong says the same.
"""

from __future__ import annotations

import fnmatch
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import one_line
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.text import some_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import lines as stage_lines
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.brief import StageBrief
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.states import FINAL_STATES, LAUNCHED
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import DEADLINE_SLACK_SECONDS
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.decisions import clock

BROKEN = frozenset({"failure", "crash", "timeout"})
#: In the order in which nodes are shown: what somebody has to look at comes first.
STATES = ("failed", "not started", "lost", "incomplete", "silent", "running", "waiting", "done")
BAD = frozenset({"failed", "not started", "lost", "incomplete", "silent"})
_OF_VERDICT = {"FAIL": "failed", "INCOMPLETE": "incomplete", "PASS": "done"}

#: A node is silent after so many heartbeats without one, if that is longer than the run's own limit.
SILENT_HEARTBEATS = 3
DEFAULT_HEARTBEAT_SECONDS, DEFAULT_SILENCE_SECONDS = 10.0, 90.0
#: A controller that watches gives a sign once a minute; after so many seconds without one it is taken for gone.
UNWATCHED_SECONDS = 150.0
#: One that has watched to the end may be busy for so long with collecting and judging.
JUDGING_SECONDS = 900.0
#: Nodes cancel by themselves at the deadline, and their last records may be on the way.

#: A table of more nodes shows only those that matter, and of these at most so many.
WHOLE_TABLE_NODES = 40
MOST_ROWS = 100
MESSAGE_CHARACTERS = 110
MAX_NAMES = 8


@dataclass(frozen=True)
class Known:
    """All that the store has of a run. `moment`: what time it has. `watch`: gpuval.watch/1, and when it took it in;
    `verdict`: gpuval.verdict/1. `briefs` by node and stage; `refused` are records that are no evidence."""

    run: Mapping[str, Any]
    moment: datetime
    briefs: Mapping[str, Mapping[str, StageBrief]] = field(default_factory=dict)
    watch: Mapping[str, Any] | None = None
    watch_modified: datetime | None = None
    verdict: Mapping[str, Any] | None = None
    refused: Sequence[str] = ()
    #: gpuval.gangs/1, and when the store took it in; its newest round, which is a run of its own.
    gangs: Mapping[str, Any] | None = None
    gangs_modified: datetime | None = None
    round: Known | None = None


@dataclass(frozen=True)
class Ahead:
    """Seconds to go; not `exact` where something has no expectation, so that it is the least."""

    seconds: float
    exact: bool = True


@dataclass(frozen=True)
class NodeStatus:
    """One node. `age`: seconds since its last sign or its launch, None without both. `ahead` is None where nothing can
    be expected."""

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

    @property
    def over_time(self) -> bool:
        """Its stage takes longer than was expected of it."""
        return self.elapsed is not None and self.expected is not None and self.elapsed > self.expected

    @property
    def matters(self) -> bool:
        return self.state in BAD or (self.state == "running" and self.over_time)


@dataclass(frozen=True)
class Status:
    """The run: `nodes` in the order in which they are shown. `left`: seconds to the deadline; `end`: expected."""

    known: Known
    nodes: tuple[NodeStatus, ...]
    run_seconds: float
    left: float
    end: Ahead | None
    watched: bool
    sign_age: float | None
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
        """Nothing more is to be expected: it has ended, or nobody works or watches any more."""
        if self.ended:
            return True
        if self.at_gangs:
            return False
        late = self.left < -DEADLINE_SLACK_SECONDS
        return not (self.watched or self.judging) and (self.at_work == 0 or late)

    @property
    def judging(self) -> bool:
        """Its controller has watched it to the end, and may still collect and judge."""
        watch = self.known.watch
        ages = [age for age in (self.sign_age or 0.0, self.gangs_age) if age is not None]
        return bool(watch) and watch["state"] == "ended" and min(ages) < JUDGING_SECONDS

    @property
    def gangs_age(self) -> float | None:
        """Seconds since the controller last told of the gangs, or of their newest round; None without gangs."""
        known = self.known
        if known.gangs is None or known.gangs_modified is None:
            return None
        ages = [_seconds(known.moment, known.gangs_modified)]
        if self.round is not None and self.round.sign_age is not None:
            ages.append(self.round.sign_age)
        return min(ages)

    @property
    def at_gangs(self) -> bool:
        """Its gangs have not ended, and their controller has given a sign not long ago."""
        age = self.gangs_age
        if self.ended or age is None or self.known.gangs is None or self.known.gangs["ended_at"]:
            return False
        return age < JUDGING_SECONDS

    @property
    def accepted(self) -> bool:
        """It goes on, or was passed."""
        return self.verdict in ("PASS", "PARTIAL") if self.over else True

    def conclusion(self) -> str:
        """The run's state in one line."""
        run_id = self.known.run["run_id"]
        if self.verdict:
            counts = self.known.verdict["counts"]
            told = ", ".join(f"{counts.get(word, 0)} {word}" for word in ("PASS", "FAIL", "INCOMPLETE"))
            return f"run {run_id} has ended: {self.verdict} ({told})"
        if self.ended:
            return f"run {run_id} has ended, and the store has no verdict of it: `make report` judges it"
        if self.over:
            told = "its controller gives no sign: `make report` judges what the store has"
            return f"run {run_id} was never ended, and {told}"
        return f"run {run_id} goes on"


def final_verdict(known: Known) -> Mapping[str, Any] | None:
    """Of a run that has ended; what was judged on the way is none."""
    ended, verdict = known.run["finished_at"], known.verdict
    return verdict if ended and verdict and verdict["judged_at"] >= ended else None


def status_of(known: Known) -> Status:
    """Where the run stands."""
    run, watch = known.run, known.watch
    passed = _seconds(known.moment, known.watch_modified) if known.watch_modified else 0.0
    if watch:
        run_seconds, begun = watch["run_seconds"] + passed, watch["begun_seconds"] + passed
    else:
        begun = run_seconds = max(0.0, _seconds(known.moment, datetime.fromisoformat(_utc(run["created_at"]))))
    verdict = final_verdict(known)
    verdicts = verdict["nodes"] if verdict else {}
    nodes = [_node(name, known, verdicts.get(name)) for name in run["nodes"]]
    left = float(run["deadline_seconds"]) - begun
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
        known=known,
        nodes=tuple(sorted(nodes, key=lambda node: STATES.index(node.state))),
        run_seconds=run_seconds,
        left=left,
        end=end,
        watched=bool(watch) and watch["state"] == "watching" and passed < UNWATCHED_SECONDS,
        sign_age=passed if watch else None,
        round=status_of(known.round) if known.round is not None else None,
    )


def _node(name: str, known: Known, verdict: str | None) -> NodeStatus:
    stages = known.run["nodes"][name]["stages"]
    briefs = known.briefs.get(name, {})
    told = (known.watch or {}).get("nodes", {}).get(name, {})
    launch = told.get("launch") or {}
    expected, heartbeat = _expectations(known.watch, told)
    states = {stage: briefs[stage].state if stage in briefs else "missing" for stage in stages}
    signs = [_seconds(known.moment, one.modified) for one in briefs.values()]
    launched = _launched_seconds(known, launch)
    age = min([*signs, *([] if launched is None else [launched])], default=None)
    state = _state(known, states, briefs, told, age, heartbeat)
    if verdict is not None and state not in ("not started", "lost"):
        state = _OF_VERDICT[verdict]
    stage = _stage_shown(state, states)
    shown = briefs.get(stage)
    elapsed = None
    if shown and shown.state == "running" and shown.duration_seconds is not None:
        elapsed = shown.duration_seconds + _seconds(known.moment, shown.modified)
    return NodeStatus(
        name=name,
        state=state,
        stage=stage,
        stage_state=states.get(stage, ""),
        age=age,
        elapsed=elapsed,
        expected=expected.get(stage),
        ahead=_ahead(state, stages, states, expected, stage, elapsed),
        message=_message(state, launch, shown, verdict),
        stages=states,
        attempts={stage: one.attempt for stage, one in briefs.items()},
    )


def _launched_seconds(known: Known, launch: Mapping[str, Any]) -> float | None:
    """Since a node was launched: by the controller's clock until it told of that, by the store's from then on."""
    if launch.get("state") not in LAUNCHED or not known.watch or not known.watch_modified or not launch.get("at"):
        return None
    try:
        at, told = (datetime.fromisoformat(_utc(text)) for text in (launch["at"], known.watch["updated_at"]))
        return max(0.0, _seconds(told, at)) + _seconds(known.moment, known.watch_modified)
    except (TypeError, ValueError):
        return None


def _expectations(watch: Mapping[str, Any] | None, told: Mapping[str, Any]) -> tuple[Mapping[str, float | None], float]:
    plans = watch["plans"] if watch else []
    place = told.get("plan") or 0  # one that waits has no plan yet, and will have one like the others
    if place >= len(plans):
        return {}, DEFAULT_HEARTBEAT_SECONDS
    plan = plans[place]
    return plan["stages"], plan["heartbeat_seconds"]


def _state(
    known: Known,
    states: Mapping[str, str],
    briefs: Mapping[str, StageBrief],
    told: Mapping[str, Any],
    age: float | None,
    heartbeat: float,
) -> str:
    if any(state in BROKEN for state in states.values()):
        return "failed"
    launch = told.get("launch") or {}
    if states and all(state in FINAL_STATES for state in states.values()):
        return "done" if all(state == "success" for state in states.values()) else "incomplete"
    began = any(one.started for one in briefs.values())
    ended = known.run["finished_at"] is not None
    if not began and launch.get("state") not in LAUNCHED and launch.get("state") not in (None, "unknown"):
        return "not started"
    if (launch.get("contact") or {}).get("class") == "lost_contact":
        return "lost"
    if ended:
        return "incomplete" if began else "not started"
    if not began and launch.get("state") not in LAUNCHED:
        return "waiting"
    limit = (known.watch or {}).get("silence_seconds") or DEFAULT_SILENCE_SECONDS
    return "silent" if age is not None and age > max(limit, SILENT_HEARTBEATS * heartbeat) else "running"


def _stage_shown(state: str, states: Mapping[str, str]) -> str:
    """The stage that tells most: the one that broke, else the one at work, else the next one or the last."""
    orders = [BROKEN, ("running",)] if state == "failed" else [("running",), ("cancelled", "skipped")]
    for wanted in (*orders, ("pending", "missing")):
        for stage, its_state in states.items():
            if its_state in wanted:
                return stage if wanted != ("pending", "missing") or state not in ("not started", "waiting") else ""
    return list(states)[-1] if states else ""


def _message(state: str, launch: Mapping[str, Any], shown: StageBrief | None, verdict: str | None) -> str:
    contact = launch.get("contact") or {}
    if state == "not started":
        said = launch.get("message") or "the node was never started"
        word = launch.get("class")
        return f"{launch.get('state', 'unknown')}{f' ({word})' if word else ''}: {said}"
    if contact.get("message") and state in ("lost", "silent", "running"):
        return f"{contact.get('class')}: {contact['message']}"
    if verdict in ("FAIL", "INCOMPLETE") and (shown is None or shown.state == "success"):
        return f"{verdict} by its checks: the report says which"
    if shown is not None and shown.message:
        return shown.message
    if state == "silent" and shown is None:
        return "it was launched, and no record of it has come"
    if state == "running" and launch.get("store_reachable") is False:
        return "cannot reach the store: its records come by its controller"
    return ""


def _ahead(
    state: str,
    stages: Sequence[str],
    states: Mapping[str, str],
    expected: Mapping[str, float | None],
    stage: str,
    elapsed: float | None,
) -> Ahead | None:
    """What is still expected of a node; of one that fails, too, since its other stages may go on."""
    open_stages = [one for one in stages if states[one] not in FINAL_STATES]
    if state in ("silent", "lost", "not started", "incomplete", "done") or not open_stages:
        return None
    seconds, exact = 0.0, True
    for one in open_stages:
        of_it = expected.get(one)
        exact = exact and of_it is not None
        done = elapsed or 0.0 if one == stage and states[one] == "running" else 0.0
        exact = exact and not (of_it is not None and done > of_it)
        seconds += max(0.0, (of_it or 0.0) - done)
    if seconds == 0.0 and not exact:
        return None
    return Ahead(seconds, exact)


def _in_turn(nodes: Sequence[NodeStatus], places: int) -> list[NodeStatus]:
    """With those that wait for their turn put behind those at work: `places` at once, 0 is all."""
    working = [node for node in nodes if node.state in ("running", "silent", "failed") and node.ahead is not None]
    hidden = sum(node.state == "silent" or (node.state == "running" and node.ahead is None) for node in nodes)
    free = sorted(node.ahead.seconds for node in working)
    exact = all(node.ahead.exact for node in working)
    if places:  # a node that says nothing keeps its place for who knows how long
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
        own = node.ahead
        result.append(replace(node, ahead=Ahead(begins + own.seconds, own.exact and (exact or begins == 0.0))))
    return result


def chosen(status: Status, wanted: Sequence[str]) -> Sequence[NodeStatus]:
    """The nodes of these names, which may hold ``*`` and ``?``; all without any. Raises KeyError for one that fits no
    node."""
    if not wanted:
        return status.nodes
    for name in wanted:
        if not any(fnmatch.fnmatchcase(node.name, name) for node in status.nodes):
            raise KeyError(name)
    return [node for node in status.nodes if any(fnmatch.fnmatchcase(node.name, name) for name in wanted)]


def head_lines(status: Status) -> list[str]:
    """The run, who watches it, how far each stage is, what waits, when it may end."""
    run, moment = status.known.run, status.known.moment
    lines = [
        f"run {run['run_id']}, profile {one_line(run['profile'], 40)}, {len(run['nodes'])} node(s), opened "
        f"{one_line(run['created_at'], 40)}" + ("" if status.ended else f", {clock(status.run_seconds)} ago")
    ]
    if not status.ended:
        lines.append(_watch_line(status))
    lines += [*count_lines(status), *_waiting_line(status)]
    if not status.ended and not status.at_gangs:
        lines.append(_end_line(status, moment))
    return [*lines, *gang_lines(status)]


def gang_lines(status: Status) -> list[str]:
    """Who works together, which round is on and how far it is, who was left out; nothing of a run without gangs."""
    gangs = status.known.gangs
    if gangs is None:
        return []
    formed = some_of(f"{name} of {len(members)} nodes" for name, members in gangs["gangs"].items())
    ended = f", ended {one_line(gangs['ended_at'], 40)}" if gangs["ended_at"] else ""
    lines = [f"gangs: {one_line(formed, 400) or 'none could be formed'}, {len(gangs['rounds'])} round(s){ended}"]
    left_out = list(gangs["left_out"].items())
    lines += [f"left out of the gangs: {name}: {one_line(why, 160)}" for name, why in left_out[:MAX_NAMES]]
    if len(left_out) > MAX_NAMES:
        lines.append(f"... and {len(left_out) - MAX_NAMES} more that were left out")
    for name, found in list(gangs["findings"].items())[:MAX_NAMES]:
        counts = Counter(found["nodes"].values())
        lines.append(f"searched gang {name}: " + ", ".join(f"{count} {word}" for word, count in counts.most_common()))
    if gangs["ended_at"] or status.ended or not gangs["rounds"]:
        return lines
    newest, of_it = gangs["rounds"][-1], status.round
    if newest["ended_at"]:
        return [*lines, f"round {newest['name']}: ended; the next one is prepared"]
    if of_it is None:
        return [*lines, f"round {newest['name']}: its nodes are not launched yet"]
    lines.append(
        f"round {newest['name']}: {len(of_it.nodes)} node(s) in {len(newest['gangs'])} gang(s), begun "
        f"{clock(of_it.run_seconds)} ago"
    )
    if not of_it.watched:
        lines.append(f"  {_watch_line(of_it)}")
    lines += [f"  {line}" for line in (*count_lines(of_it), _end_line(of_it, status.known.moment))]
    return [*lines, *(f"  {line}" for line in table_lines(of_it, of_it.nodes, whole=False))]


def _watch_line(status: Status) -> str:
    if status.sign_age is None:
        return "its controller has told nothing yet: no node was launched, or it is of an earlier version"
    if status.watched:
        return f"its controller watches it (last sign {clock(status.sign_age)} ago)"
    if status.at_gangs:
        return f"its controller has its gangs at work (last sign {clock(status.gangs_age or 0.0)} ago)"
    if status.known.watch and status.known.watch["state"] == "ended":
        return f"its controller has watched it to the end ({clock(status.sign_age)} ago), and has not judged it yet"
    return (
        f"NOBODY WATCHES IT: its controller gave the last sign {clock(status.sign_age)} ago; nodes go on by themselves"
    )


def _end_line(status: Status, moment: datetime) -> str:
    if status.left < 0:
        return f"the deadline passed {clock(-status.left)} ago"
    told = f"deadline {_at(moment, status.left)} (in {clock(status.left)})"
    if status.end is None:
        return f"expected end not known; {told}"
    mark = "" if status.end.exact else "not before "
    late = ": later than the deadline, which cancels what is open" if status.end.seconds > status.left else ""
    return f"expected end {mark}{_at(moment, status.end.seconds)} (in {clock(status.end.seconds)}){late}; {told}"


def count_lines(status: Status) -> list[str]:
    """Nodes by state, and states by stage."""
    by_state = Counter(node.state for node in status.nodes)
    lines = ["nodes: " + (", ".join(f"{by_state[word]} {word}" for word in STATES if by_state[word]) or "none")]
    stages: dict[str, Counter[str]] = {}
    for node in status.nodes:
        for stage, state in node.stages.items():
            stages.setdefault(stage, Counter())[state] += 1
    parts = []
    for stage, counts in stages.items():
        open_count = counts.pop("missing", 0) + counts.pop("pending", 0)
        said = [f"{count} {state}" for state, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
        if open_count:
            said.append(f"{open_count} open")
        parts.append(f"{stage} {', '.join(said)}")
    return [*lines, *([f"stages: {' | '.join(parts)}"] if parts else [])]


def _waiting_line(status: Status) -> list[str]:
    waiting = [node.name for node in status.nodes if node.state == "waiting"]
    if not waiting or status.ended:
        return []
    places = status.known.watch["window"]["nodes"] if status.known.watch else 0
    limit = f" ({places} at once)" if places else ""
    return [f"waiting for their turn{limit}: {some_of(waiting)}"]


def table_lines(status: Status, nodes: Sequence[NodeStatus], *, whole: bool) -> list[str]:
    """A line for each node; of many nodes those that matter, unless all are asked for."""
    rows = list(nodes)
    notes = []
    if not whole and len(rows) > WHOLE_TABLE_NODES:
        rows = [node for node in nodes if node.matters]
        hidden = len(nodes) - len(rows)
        if len(rows) > MOST_ROWS:
            notes.append(f"... and {len(rows) - MOST_ROWS} more that need a look (ALL=1 shows all)")
            rows = rows[:MOST_ROWS]
        if hidden:
            notes.append(f"{hidden} node(s) with nothing to tell are not shown (ALL=1 shows all)")
    if not rows:
        return notes
    table = [("node", "state", "stage", "heard", "progress", "expected end (UTC)", "message")]
    table += [_row(node, status.known.moment) for node in rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]) - 1)]
    lines = [
        "  ".join([*(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in table
    ]
    return [*lines, *notes]


def _row(node: NodeStatus, moment: datetime) -> tuple[str, ...]:
    attempt = node.attempts.get(node.stage, 1)
    stage = node.stage + (f" #{attempt}" if attempt > 1 else "")
    if node.stage_state in FINAL_STATES and node.stage_state != "success":
        stage += f" {node.stage_state}"
    heard = "-" if node.age is None else f"{clock(node.age)} ago"
    end = "-"
    if node.ahead is not None:
        end = ("" if node.ahead.exact else "not before ") + _at(moment, node.ahead.seconds)
    message = one_line(node.message, MESSAGE_CHARACTERS)
    return (node.name, node.state, stage or "-", heard, _progress(node), end, message)


def _progress(node: NodeStatus) -> str:
    done = sum(state in FINAL_STATES for state in node.stages.values())
    stages = f"{done}/{len(node.stages)}"
    if node.elapsed is None:
        return stages
    if not node.expected:
        return f"{stages}, {clock(node.elapsed)}"
    if node.over_time:
        return f"{stages}, {clock(node.elapsed)} of {clock(node.expected)}: over time"
    return f"{stages}, {clock(node.elapsed)} of {clock(node.expected)} ({node.elapsed / node.expected:.0%})"


def done_lines(status: Status, nodes: Iterable[NodeStatus]) -> list[str]:
    """The lines of the stages that these nodes have done, stage by stage."""
    lines: dict[str, list[str]] = {}
    for node in sorted(nodes, key=lambda one: one.name):
        for stage, state in node.stages.items():
            if state == "success":
                lines.setdefault(stage, []).append(done_line(status, node.name, stage))
    return [line for of_stage in lines.values() for line in of_stage]


def done_line(status: Status, node: str, stage: str) -> str:
    one = status.known.briefs[node][stage]
    return stage_lines.stage_line(node, stage, one.figures, one.duration_seconds)


def changes(before: Status, after: Status, nodes: Sequence[NodeStatus], *, lines: bool) -> list[str]:
    """What is new since an earlier look: ends and begins of stages, and nodes that fell silent or were given up.

    With `lines` the stages that were done are told by their own lines.
    """
    old = {node.name: node for node in before.nodes}
    told = []
    for node in nodes:
        known = old.get(node.name)
        for stage, state in node.stages.items():
            attempt = node.attempts.get(stage, 1)
            if state in ("missing", "pending"):
                continue
            if known and (known.stages.get(stage), known.attempts.get(stage, 1)) == (state, attempt):
                continue
            if lines and state == "success":
                told.append(done_line(after, node.name, stage))
            else:
                told.append(_change(after, node.name, stage, state, attempt))
        if known is None:
            told.append(f"{node.name}: has joined the run")
        elif node.state != known.state and (node.state in BAD - {"failed"} or known.state in ("silent", "lost")):
            said = f": {node.message}" if node.message and node.state in BAD else ""
            told.append(one_line(f"{node.name}: {node.state}{said}", 4 * MESSAGE_CHARACTERS))
    return told


def round_changes(before: Status, after: Status) -> list[str]:
    """What is new of the gangs: a round that began, and what its nodes have done since the last look."""
    if after.round is None:
        return []
    run, told = after.round.known.run, []
    known = before.round if before.round and before.round.known.run["run_id"] == run["run_id"] else None
    if known is None:
        told.append(f"round {one_line(run['run_id'], 80)}: {len(run['nodes'])} node(s) work together")
        known = replace(after.round, nodes=tuple(replace(node, stages={}) for node in after.round.nodes))
    return told + changes(known, after.round, after.round.nodes, lines=False)


def _change(status: Status, node: str, stage: str, state: str, attempt: int) -> str:
    one = status.known.briefs[node][stage]
    line = f"{node} {stage}: {state}"
    if attempt > 1:
        line += f" (attempt {attempt})"
    if state in FINAL_STATES and one.duration_seconds is not None:
        line += f" after {one.duration_seconds:.1f} s"
    return f"{line}: {one.message}" if one.message else line


def progress_line(status: Status) -> str:
    """A line for each look of those who watch."""
    counts = count_lines(status)
    parts = [f"{status.known.moment:%H:%M:%S} {counts[0]}", *counts[1:]]
    if status.end is not None:
        parts.append(
            f"expected end {'' if status.end.exact else 'not before '}{_at(status.known.moment, status.end.seconds)}"
        )
    if not status.watched and not status.ended:
        parts.append(_watch_line(status))
    return " | ".join(parts)


def _at(moment: datetime, seconds: float) -> str:
    return f"{moment + timedelta(seconds=seconds):%H:%M:%S}"


def _seconds(moment: datetime, earlier: datetime) -> float:
    """From `earlier` to `moment`; what was written while the store was listed is of now."""
    return max(0.0, (moment - earlier).total_seconds())


def _utc(text: str) -> str:
    return text.replace("Z", "+00:00")
