"""The lines that show a run's status: head, table, changes, progress. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from datetime import datetime, timedelta
from typing import Any

from ..core.escape import one_line
from ..core.grouping import values_by_key
from ..core.text import some_of, table
from ..records.brief import stage_line
from ..records.documents import FINAL_STATES
from ..runs.state import WORKING
from ..watch.decisions import clock
from .status import BAD, STATES, Ahead, NodeStatus, Status

#: Maximum number of rows in the table; with more nodes, it shows only nodes that need attention.
WHOLE_TABLE_NODES = 40
MAX_ROWS = 100
MESSAGE_CHARACTERS = 110
MAX_NAMES = 8


def ended_line(run_id: str, verdict: Mapping[str, Any]) -> str:
    counts = verdict["counts"]
    counts_text = ", ".join(f"{counts.get(word, 0)} {word}" for word in ("PASS", "FAIL", "INCOMPLETE"))
    return f"run {run_id} has ended: {verdict['verdict']} ({counts_text})"


def conclusion(status: Status) -> str:
    run_id, verdict = status.known.run["run_id"], status.known.verdict
    if status.verdict and verdict:
        return ended_line(run_id, verdict)
    if status.never_started and status.known.controller:
        reason = one_line(status.known.controller.reason, 600).rstrip(".")
        return f"run {run_id} failed before any node began: {reason}. Fix that, then `make validate` again"
    if status.ended:
        return f"run {run_id} has ended without a verdict in the store: judge it with `make report`"
    if status.over:
        advice = "judge it with `make report`" if status.overdue else _resume(status)
        return f"run {run_id} was never ended, and its controller is lost: {advice}"
    return f"run {run_id} is in progress"


def head_lines(status: Status) -> list[str]:
    """Lines on the run, its controller, the progress of each stage, waiting nodes, and the expected end."""
    run, moment = status.known.run, status.known.moment
    lines = [
        f"run {run['run_id']}, profile {one_line(run['profile'], 40)}, {len(run['nodes'])} node(s), opened "
        f"{one_line(run['created_at'], 40)}" + ("" if status.ended else f", {clock(status.run_seconds)} ago")
    ]
    if not status.ended:
        lines.append(_watch_line(status))
    if status.never_started:
        return lines
    lines += count_lines(status)
    waiting = [node.name for node in status.nodes if node.state == "waiting"]
    if waiting and not status.ended:
        places = status.known.watch["window"]["nodes"] if status.known.watch else 0
        lines.append(f"waiting for their turn{f' ({places} at once)' if places else ''}: {some_of(waiting)}")
    if not status.ended and not status.at_gangs:
        lines.append(_end_line(status, moment))
    return [*lines, *gang_lines(status)]


def gang_lines(status: Status) -> list[str]:
    """Lines on a run's gangs, the current round and its progress, and nodes left out; none for a run without gangs."""
    if (gangs := status.known.gangs) is None:
        return []
    formed = some_of(f"{name} of {len(members)} nodes" for name, members in gangs["gangs"].items())
    ended = f", ended {one_line(gangs['ended_at'], 40)}" if gangs["ended_at"] else ""
    lines = [f"gangs: {one_line(formed, 400) or 'none could be formed'}, {len(gangs['rounds'])} round(s){ended}"]
    left_out = list(gangs["left_out"].items())
    lines += [f"left out of the gangs: {name}: {one_line(why, 160)}" for name, why in left_out[:MAX_NAMES]]
    if len(left_out) > MAX_NAMES:
        lines.append(f"... and {len(left_out) - MAX_NAMES} more left out")
    for name, finding in list(gangs["findings"].items())[:MAX_NAMES]:
        counts = Counter(finding["nodes"].values())
        lines.append(f"searched gang {name}: " + ", ".join(f"{count} {word}" for word, count in counts.most_common()))
    if gangs["ended_at"] or status.ended or not gangs["rounds"]:
        return lines
    newest, latest = gangs["rounds"][-1], status.round
    if newest["ended_at"]:
        return [*lines, f"round {newest['name']}: ended; the next one is being prepared"]
    if latest is None:
        return [*lines, f"round {newest['name']}: its nodes are not launched yet"]
    size = f"{len(latest.nodes)} node(s) in {len(newest['gangs'])} gang(s)"
    lines.append(f"round {newest['name']}: {size}, begun {clock(latest.run_seconds)} ago")
    of_round = [] if latest.watched else [_watch_line(latest)]
    of_round += [*count_lines(latest), _end_line(latest, status.known.moment)]
    return lines + [f"  {line}" for line in (*of_round, *table_lines(latest, latest.nodes, complete=False))]


def _watch_line(status: Status) -> str:
    controller = status.known.controller
    if controller and controller.name != WORKING and not status.at_gangs:
        return one_line(controller.line(), 600)
    if status.heartbeat_age is None:
        return "no heartbeat of the controller yet: no node was launched, or it is of an earlier version"
    if status.watched:
        owner = f": {one_line(controller.who(), 200)}" if controller and controller.workers else ""
        return f"its controller watches it (last heartbeat {clock(status.heartbeat_age)} ago){owner}"
    if status.at_gangs:
        return f"its controller runs its gangs (last heartbeat {clock(status.gangs_age or 0.0)} ago)"
    if status.known.watch and status.known.watch["state"] == "ended":
        return f"the watch ended {clock(status.heartbeat_age)} ago; its controller has not judged the run yet"
    age = clock(status.heartbeat_age)
    if status.overdue:
        return f"controller lost: last heartbeat {age} ago; its deadline has passed: judge it with `make report`"
    return f"controller lost: last heartbeat {age} ago; nodes continue: {_resume(status)}"


def _resume(status: Status) -> str:
    """How to resume a run whose controller is lost, for messages; the store alone may not tell the command."""
    controller = status.known.controller
    return controller.resume if controller and controller.resume else "its command resumes it"


def _end_line(status: Status, moment: datetime) -> str:
    if status.left < 0:
        return f"the deadline passed {clock(-status.left)} ago"
    deadline = f"deadline {_at(moment, Ahead(status.left))} (in {clock(status.left)})"
    if status.end is None:
        return f"expected end unknown; {deadline}"
    late = ": after the deadline, which cancels open stages" if status.end.seconds > status.left else ""
    return f"expected end {_at(moment, status.end)} (in {clock(status.end.seconds)}){late}; {deadline}"


def count_lines(status: Status) -> list[str]:
    by_state = Counter(node.state for node in status.nodes)
    lines = ["nodes: " + (", ".join(f"{by_state[word]} {word}" for word in STATES if by_state[word]) or "none")]
    stages: dict[str, Counter[str]] = {}
    for node in status.nodes:
        for stage, state in node.stages.items():
            stages.setdefault(stage, Counter())[state] += 1
    parts = []
    for stage, counts in stages.items():
        open_count = counts.pop("missing", 0) + counts.pop("pending", 0)
        ordered = [*sorted(counts.items(), key=lambda item: (-item[1], item[0])), ("open", open_count)]
        parts.append(f"{stage} {', '.join(f'{count} {state}' for state, count in ordered if count)}")
    return [*lines, *([f"stages: {' | '.join(parts)}"] if parts else [])]


def table_lines(status: Status, nodes: Sequence[NodeStatus], *, complete: bool) -> list[str]:
    """A table with a line for each node; of many nodes only those that need attention, unless `complete`."""
    rows = list(nodes)
    notes = []
    if not complete and len(rows) > WHOLE_TABLE_NODES:
        rows = [node for node in nodes if node.matters]
        hidden = len(nodes) - len(rows)
        if len(rows) > MAX_ROWS:
            notes.append(f"... and {len(rows) - MAX_ROWS} more that need attention (ALL=1 shows all)")
            rows = rows[:MAX_ROWS]
        if hidden:
            notes.append(f"{hidden} node(s) without problems are not shown (ALL=1 shows all)")
    if not rows:
        return notes
    # Each remedy once, with its first node.
    remedies = {node.remedy: node.name for node in reversed(rows) if node.remedy}
    notes = [f"{name}: {one_line(text.replace('{node}', name), 1200)}" for text, name in remedies.items()][::-1] + notes
    head = ("node", "state", "stage", "heard", "progress", "expected end (UTC)", "message")
    return [*table([head, *(_row(node, status.known.moment) for node in rows)]), *notes]


def _row(node: NodeStatus, moment: datetime) -> tuple[str, ...]:
    attempt = node.attempts.get(node.stage, 1)
    stage = node.stage + (f" #{attempt}" if attempt > 1 else "")
    state = node.stages.get(node.stage)
    if state in FINAL_STATES and state != "success":
        stage += f" {state}"
    heard = "-" if node.age is None else f"{clock(node.age)} ago"
    end = "-" if node.ahead is None else _at(moment, node.ahead)
    message = one_line(node.message, MESSAGE_CHARACTERS)
    return (node.name, node.state, stage or "-", heard, _progress(node), end, message)


def _progress(node: NodeStatus) -> str:
    ended = sum(state in FINAL_STATES for state in node.stages.values())
    stages = f"{ended}/{len(node.stages)}"
    if node.elapsed is None:
        return stages
    if not node.expected:
        return f"{stages}, {clock(node.elapsed)}"
    share = ": over time" if node.over_time else f" ({node.elapsed / node.expected:.0%})"
    return f"{stages}, {clock(node.elapsed)} of {clock(node.expected)}{share}"


def done_lines(status: Status, nodes: Iterable[NodeStatus]) -> list[str]:
    """The lines of these nodes' successful stages, stage by stage."""
    named = sorted(nodes, key=lambda node: node.name)
    done = ((stage, node) for node in named for stage, state in node.stages.items() if state == "success")
    return [done_line(status, node, stage) for stage, of_stage in values_by_key(done).items() for node in of_stage]


def done_line(status: Status, node: NodeStatus, stage: str) -> str:
    brief = status.known.briefs[node.name][stage]
    return stage_line(node.name, stage, brief.figures, brief.duration_seconds)


def changes(before: Status, after: Status, nodes: Sequence[NodeStatus], *, lines: bool) -> list[str]:
    """Lines on the changes from status `before` to `after`: stages that began or ended, nodes that became silent or
    lost. With `lines` a successful stage has its own line."""
    old = {node.name: node for node in before.nodes}
    texts = []
    for node in nodes:
        earlier = old.get(node.name)
        for stage, state in node.stages.items():
            attempt = node.attempts.get(stage, 1)
            is_known = earlier and (earlier.stages.get(stage), earlier.attempts.get(stage, 1)) == (state, attempt)
            if is_known or state in ("missing", "pending"):
                continue
            as_line = lines and state == "success"
            texts.append((done_line if as_line else _change)(after, node, stage))
        if earlier is None:
            texts.append(f"{node.name}: joined the run")
        elif node.state != earlier.state and (node.state in BAD - {"failed"} or earlier.state in ("silent", "lost")):
            message = f": {node.message}" if node.message and node.state in BAD else ""
            texts.append(one_line(f"{node.name}: {node.state}{message}", 4 * MESSAGE_CHARACTERS))
    return texts


def round_changes(before: Status, after: Status) -> list[str]:
    """Lines on the changes of gangs from status `before` to `after`: a new round, and stages of its nodes."""
    if after.round is None:
        return []
    run, texts = after.round.known.run, []
    earlier = before.round if before.round and before.round.known.run["run_id"] == run["run_id"] else None
    if earlier is None:
        texts.append(f"round {one_line(run['run_id'], 80)}: {len(run['nodes'])} node(s) work together")
        earlier = copy(after.round)
        earlier.nodes = tuple(map(copy, after.round.nodes))
        for node in earlier.nodes:
            node.stages = {}
    return texts + changes(earlier, after.round, after.round.nodes, lines=False)


def _change(status: Status, node: NodeStatus, stage: str) -> str:
    brief, state, attempt = status.known.briefs[node.name][stage], node.stages[stage], node.attempts.get(stage, 1)
    line = f"{node.name} {stage}: {state}"
    if attempt > 1:
        line += f" (attempt {attempt})"
    if state in FINAL_STATES and brief.duration_seconds is not None:
        line += f" after {brief.duration_seconds:.1f} s"
    return f"{line}: {brief.message}" if brief.message else line


def progress_line(status: Status) -> str:
    counts = count_lines(status)
    parts = [f"{status.known.moment:%H:%M:%S} {counts[0]}", *counts[1:]]
    if status.end is not None:
        parts.append(f"expected end {_at(status.known.moment, status.end)}")
    if not status.watched and not status.ended:
        parts.append(_watch_line(status))
    return " | ".join(parts)


def _at(moment: datetime, ahead: Ahead) -> str:
    return f"{'' if ahead.exact else 'not before '}{moment + timedelta(seconds=ahead.seconds):%H:%M:%S}"
