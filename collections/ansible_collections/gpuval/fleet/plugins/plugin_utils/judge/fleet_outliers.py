"""Checks of kind ``outlier`` with ``peers: fleet``: each part beside those of all nodes of its kind. Pure.

Nodes are compared that have the same SKU, number of GPUs and workload, and the same values of the check's ``group_by``;
of these first the ones that are ``alike`` (the same software), where there are enough. The centre is the median of all
their parts, the spread the scaled median absolute deviation, and never less than what the repeats of each figure let
expect; both are taken again without those that are far off, so that a bad rack moves neither. With ``relative_to:
node`` a part is first divided by the median of its node, so that what a whole node is faster or slower by does not
hide the one part that is slower than its neighbours.

A node that does not tell what it needs to be compared is missing evidence; one that is alone of its kind is not
compared. So taking a figure away from a node never makes that node PASS.
"""

from __future__ import annotations

import functools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import units
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.text import some_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import peer_statistics
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.agreement import Agreement, Group, majority
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.checks import (
    GPU_VENDORS,
    UNFINISHED,
    Entry,
    Judged,
    Subject,
    describe,
    entries_of,
    entry_of,
    excused,
    expected_parts,
    lacking,
    not_applicable,
    not_to_judge,
    too_few_parts,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.criteria import Check
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.peer_history import EVERY, Crowd, Stood
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import environment

FINGERPRINT = "fingerprints."
#: Figures beyond these (in any unit) are none of hardware; their ratios would not be numbers.
LEAST, MOST = 1e-50, 1e50
#: The standard error of a median of n normal values is this times their deviation, over the root of n.
MEDIAN_ERROR = 1.2533


@dataclass(frozen=True)
class Told:
    """What one node told: by part its figure in the unit of the check, and the spread of its repeats."""

    subject: Subject
    record: Mapping[str, Any]
    group: Group
    alike: Group
    figures: Sequence[tuple[str, float]]
    spreads: Sequence[float]
    #: Parts that are judged without peers: no number, another unit.
    settled: Sequence[Judged]
    #: Parts that do not tell their spread, which is missing only where there are peers.
    unknown: Sequence[Judged] = ()
    #: How many parts it says that it has, where the check asks (parts_from).
    parts: int | None = None

    @property
    def own_median(self) -> float:
        return statistics.median(value for _, value in self.figures)

    def held(self, check: Check) -> list[tuple[str, float, float]]:
        """(part, figure, what is compared)"""
        if check.relative_to is None:
            return [(part, value, value) for part, value in self.figures]
        middle = self.own_median if self.figures else 0.0
        return [(part, value, value / middle) for part, value in self.figures] if middle else []


def between_nodes(
    subjects: Mapping[str, Subject],
    stages: Mapping[str, Sequence[str]],
    checks: Iterable[Check],
    agreement: Agreement,
    stood: Stood | None = None,
) -> None:
    """Put the entries of all such checks into ``agreement``; ``stages`` are those that each node was asked to run.

    ``stood`` is where groups lay before; what they are now is added.
    """
    stood = Stood() if stood is None else stood
    for check in checks:
        if check.kind == "outlier" and check.peers == "fleet":
            asked = [subjects[name] for name in sorted(subjects) if check.stage in stages[name]]
            _stand(check, asked, agreement, stood)


def _stand(check: Check, subjects: Iterable[Subject], agreement: Agreement, stood: Stood) -> None:
    expected = describe(check, None)
    groups: dict[Group, list[Told]] = defaultdict(list)
    for subject in subjects:
        found = tell(check, subject, expected)
        if isinstance(found, Told):
            groups[found.group].append(found)
        else:
            agreement.nodes[subject.name][check.name] = found
    others = _with_enough(check, groups, stood)
    for group in sorted(groups):
        of_group = _of_one_size(check, groups[group], expected, agreement)
        by_software: dict[Group, list[Told]] = defaultdict(list)
        for told in of_group:
            by_software[told.alike].append(told)
        all_now = crowd_of(check, of_group, " ".join(group))
        everybody = stood.widest(check, group, None, all_now)
        if everybody.nodes <= check.min_peers and others[group]:
            _apart(check, of_group, others[group], expected, agreement)
            continue
        levels = _levels(check, of_group, everybody) if len(by_software) > 1 else {}
        for alike in sorted(by_software):
            members = by_software[alike]
            kind = " ".join([*group, *alike])
            now = replace(all_now, kind=" ".join(kind.split())) if len(by_software) == 1 else None
            own = stood.widest(check, group, alike, now or crowd_of(check, members, kind))
            if own.nodes > check.min_peers:
                _compare(check, members, own, expected, agreement, behind=_behind(check, alike, levels))
            else:
                doubt = _other_software(check, alike, by_software, everybody)
                _compare(check, members, everybody, expected, agreement, doubt=doubt)


def _other_software(check: Check, alike: Group, by_software: Mapping[Group, Sequence[Told]], everybody: Crowd) -> str:
    """Why a node that is far off may be none the worse: those that it is held against have other software."""
    if not check.alike:
        return ""
    others = {other: len(members) for other, members in by_software.items() if other != alike}
    if not others:
        return "" if everybody.nodes <= check.min_peers else f"its {_software(check, alike)} may be new since"
    most = max(sorted(others), key=lambda other: others[other])
    return f"its {_software(check, alike)} is not the {_software(check, most)} of {others[most]} others"


def _software(check: Check, alike: Group) -> str:
    return ", ".join(f"{path} {value}" for path, value in zip(check.alike, alike, strict=True))


def _levels(check: Check, of_group: Sequence[Told], everybody: Crowd) -> dict[Group, list[float]]:
    """By software how fast each node is, relative to all; what is relative to the node already says nothing of that."""
    levels: dict[Group, list[float]] = defaultdict(list)
    for told in of_group if check.relative_to is None else ():
        places = ((value, everybody.beside(part)) for part, _, value in told.held(check))
        ratios = [value / place.median for value, place in places if place is not None]
        if ratios:
            levels[told.alike].append(statistics.median(ratios))
    return levels


def _behind(check: Check, alike: Group, levels: Mapping[Group, Sequence[float]]) -> str:
    """Why nodes of one software cannot be accepted for being alike: as a group they are behind those of all other.

    Empty where they are not, and where they are the majority.
    """
    own = levels.get(alike, ())
    rest = [level for other, its in levels.items() if other != alike for level in its]
    if not own or len(rest) <= check.min_peers or len(rest) < len(own):
        return ""
    margin = min(most for most in (check.max_below, check.max_above) if most is not None)
    usual = peer_statistics.Peers.without_the_far(rest, margin, check.deviations)
    if usual is None:
        return ""
    error = MEDIAN_ERROR * usual.deviation * (1 / len(own) + 1 / len(rest)) ** 0.5
    middle = statistics.median(own)
    if not replace(usual, deviation=error).accuses(middle, check.max_below, check.max_above, check.deviations):
        return ""
    change = usual.change(middle)
    most = max(sorted(other for other in levels if other != alike), key=lambda other: len(levels[other]))
    far = f"{units.number_text(abs(change) * 100)} % {'under' if change < 0 else 'over'}"
    return (
        f"{check.metric} of {len(own)} nodes with {_software(check, alike)} is {far} that of "
        f"{len(rest)} others (most with {_software(check, most)}): "
        "software or nodes, nobody can say"
    )


#: SKU, number of GPUs and workload; the values of ``group_by`` come after.
_KIND = 3


def _with_enough(check: Check, groups: Mapping[Group, Sequence[Told]], stood: Stood) -> dict[Group, str]:
    """By group what others of its kind are, which do have enough nodes to be compared; empty where there are none."""
    sizes = stood.groups(check)
    for group, members in groups.items():
        sizes[group] = max(sizes.get(group, 0), len(members))
    enough = [group for group in sorted(sizes) if sizes[group] > check.min_peers]
    return {
        group: "; ".join(
            f"{sizes[other]} nodes have {' '.join(other[_KIND:])}"
            for other in enough
            if other[:_KIND] == group[:_KIND] and other != group
        )
        for group in groups
    }


def _apart(check: Check, members: Sequence[Told], others: str, expected: str, agreement: Agreement) -> None:
    """Of these few by their ``group_by`` nobody knows what is usual, although of others of the kind it is known."""
    for told in members:
        own = f"{' and '.join(check.group_by)} is {' '.join(told.group[_KIND:])}"
        reason = f"nothing to compare with: {own}, of fewer than {check.min_peers + 1} nodes, while {others}"
        agreement.nodes[told.subject.name][check.name] = [
            *excused(check, _entries(check, told, None, expected) if told.settled else [], told.record),
            entry_of(check, "missing", "node", reason=reason, expected=expected),
        ]


def _of_one_size(check: Check, members: Sequence[Told], expected: str, agreement: Agreement) -> list[Told]:
    """Those with as many parts as most: nodes of one kind have as many links, and each is one voice more."""
    counts = [told.parts for told in members if told.parts is not None]
    most = majority([str(count) for count in counts])
    kept = []
    for told in members:
        if told.parts is None or len(counts) == 1 or str(told.parts) == most:
            kept.append(told)
            continue
        of_all = "of no majority" if most is None else f"{most} on most of the {len(counts)} nodes of its kind"
        reason = f"{check.parts_from} is {told.parts}, {of_all}: nothing to compare"
        agreement.nodes[told.subject.name][check.name] = [
            entry_of(check, "missing", "node", reason=reason, expected=expected)
        ]
    return kept


def tell(check: Check, subject: Subject, expected: str) -> Told | list[Entry]:
    """What the node told, or the entries that say why it is not compared."""
    outside = not_applicable(check, subject)
    if outside is not None:
        verdict, reason = outside
        return [entry_of(check, verdict, "node", reason=reason)]
    open_entries = not_to_judge(check, subject, expected)
    if open_entries:
        return open_entries
    record = subject.records[check.stage]
    few = too_few_parts(check, subject, record) if check.relative_to else []
    if few:
        return few
    group, untold = group_of(check, subject, record, check.group_by)
    alike, untold_too = values_of(record, check.alike)
    for path in (*untold, *untold_too):
        return [entry_of(check, "missing", "node", reason=f"{check.stage} does not say its {path}", expected=expected)]
    figures, settled = figures_of(check, subject, record)
    spreads, unknown = _spreads(check, subject, record, {part for part, _ in figures})
    parts = expected_parts(check, subject, record)[0] if check.parts_from else None
    return Told(subject, record, group, alike, figures, spreads, settled, unknown, parts)


def group_of(
    check: Check, subject: Subject, record: Mapping[str, Any], paths: Iterable[str]
) -> tuple[Group, list[str]]:
    """What nodes must share to be compared, and what of it the node does not tell."""
    untold = []
    if subject.accelerator in GPU_VENDORS:
        if subject.gpus is None:
            untold.append("number of GPUs")
        if subject.kind in ("", "auto"):
            untold.append("model of GPU")
    values, more = values_of(record, paths)
    count = "" if subject.gpus is None else f"{subject.gpus} GPUs"
    return (subject.kind, count, record["workload"], *values), [*untold, *more]


def values_of(record: Mapping[str, Any], paths: Iterable[str]) -> tuple[Group, list[str]]:
    values, untold = [], []
    for path in paths:
        if path.startswith(FINGERPRINT):
            found = str(record["fingerprints"].get(path.removeprefix(FINGERPRINT), ""))
        else:
            found = ", ".join(sorted(set(environment.texts(record["environment"], path))))
        values.append(found)
        if not found:
            untold.append(path)
    return tuple(values), untold


def figures_of(
    check: Check, subject: Subject, record: Mapping[str, Any]
) -> tuple[list[tuple[str, float]], list[Judged]]:
    """By part its figure in the unit of the check, and the parts that have none: one figure for each, and none of a
    part that the node cannot have."""
    figures: list[tuple[str, float]] = []
    settled: list[Judged] = []
    metrics = subject.metrics(record, check.metric, check.scope)
    times = Counter(metric["scope"] for metric in metrics)
    count = None if check.scope == "node" else expected_parts(check, subject, record)[0]
    for metric in metrics:
        part, value, unit = metric["scope"], metric["value"], metric["unit"]
        if not times[part]:
            continue
        wrong = _no_vote(check, part, times[part], len(times), count)
        if wrong:
            times[part] = 0
            settled.append(Judged(part, None, value, unit, wrong))
        elif value is None:
            settled.append(Judged(part, False, None, unit, f"{check.metric} is not a number"))
        elif value and not LEAST < abs(value) < MOST:
            settled.append(
                Judged(part, False, value, unit, f"{check.metric} is {value:g} {unit}: no such figure exists")
            )
        elif unit == check.unit:
            figures.append((part, value))
        else:
            try:
                figures.append((part, units.to_float(units.convert(value, unit, check.unit or ""))))
            except units.UnitError as error:
                settled.append(Judged(part, None, value, unit, f"{check.metric}: {error}"))
    return sorted(figures, key=_part_order), sorted(settled, key=lambda one: _part_order((one.part, 0.0)))


def _no_vote(check: Check, part: str, times: int, parts: int, count: int | None) -> str:
    """Why what the node told of the part is no figure of it; empty where it is one."""
    if times > 1:
        return f"{check.metric} of {part} is told twice: nobody can say which counts"
    if count is not None and check.scope == "link":
        return f"{check.metric} of {parts} links, and the node has {count}" if parts > count else ""
    if count is not None and not one_of(part, count):
        return f"{check.metric} of {part}, and the node has {count}"
    return ""


def one_of(part: str, count: int) -> bool:
    """Whether gpu:7 is one of so many: they count from 0 on. The node itself is no such part."""
    number = part.partition(":")[2]
    return number == str(int(number)) and int(number) < count if number.isdecimal() else not number


def _part_order(figure: tuple[str, float]) -> tuple[int, str, float]:
    """gpu:9 before gpu:10, whichever order the node told them in."""
    return len(figure[0]), figure[0], figure[1]


def _spreads(
    check: Check, subject: Subject, record: Mapping[str, Any], parts: set[str]
) -> tuple[list[float], list[Judged]]:
    """The spreads of the repeats, and the parts that do not tell theirs."""
    if check.spread_from is None:
        return [], []
    told = subject.metrics(record, check.spread_from, check.scope)
    known = {one["scope"]: one["value"] for one in told if one["value"] is not None and one["value"] >= 0}
    reason = f"{check.stage} reported no {check.spread_from}"
    unknown = [Judged(part, None, None, "", f"{reason} of {part}") for part in sorted(parts - known.keys())]
    return [known[part] for part in sorted(parts & known.keys())], unknown


def crowd_of(check: Check, members: Sequence[Told], kind: str) -> Crowd:
    """Where the parts of these nodes lie."""
    spreads = [spread for told in members for spread in told.spreads]
    floor = MEDIAN_ERROR * statistics.median(spreads) / check.repeats**0.5 if spreads else 0.0
    values: dict[str, list[float]] = defaultdict(list)
    for told in members:
        for part, _, compared in told.held(check):
            values[part if check.same_part else EVERY].append(compared)
    margin = min(most for most in (check.max_below, check.max_above) if most is not None)
    crowd = Crowd(len(members), " ".join(kind.split()), {})
    # Of a few healthy nodes the widest would be left out; of more, a third that is bad must be.
    deviations = crowd.deviations(check) if 0 < crowd.nodes < peer_statistics.FEW_TO_LEAVE_OUT else check.deviations
    parts = {
        part: peer_statistics.Peers.without_the_far(figures, margin, deviations, floor_ratio=floor)
        for part, figures in values.items()
    }
    if check.same_part:
        parts = as_wide_as_all(parts, values, margin, deviations)
    return replace(crowd, parts=parts)


def as_wide_as_all(
    parts: Mapping[str, peer_statistics.Peers | None],
    values: Mapping[str, Sequence[float]],
    margin: float,
    deviations: float,
) -> dict[str, peer_statistics.Peers | None]:
    """The parts with no less a deviation than all have together: of many places one seems narrow by chance."""
    relative = [value / group.median for part, group in parts.items() if group is not None for value in values[part]]
    together = peer_statistics.Peers.without_the_far(relative, margin, deviations)
    ratio = 0.0 if together is None else together.deviation / abs(together.median)
    return {
        part: group and replace(group, deviation=max(group.deviation, ratio * abs(group.median)))
        for part, group in parts.items()
    }


def _compare(
    check: Check,
    members: Sequence[Told],
    crowd: Crowd,
    expected: str,
    agreement: Agreement,
    *,
    doubt: str = "",
    behind: str = "",
) -> None:
    if crowd.nodes <= check.min_peers:
        reason = f"{crowd.nodes} of its kind ({crowd.kind}): nothing to compare with below {check.min_peers + 1} nodes"
        for told in members:
            # What needs no peers is said all the same.
            verdicts = _entries(check, told, None, expected) if told.settled else []
            absent = lacking(check, told.subject, told.record, _reported(told))
            if absent is not None and not verdicts:
                verdicts = [entry_of(check, "missing", absent[0], reason=absent[1], expected=expected)]
            agreement.nodes[told.subject.name][check.name] = excused(check, verdicts, told.record) or [
                entry_of(check, "skipped", "node", reason=reason)
            ]
        return
    wrong = []
    for told in members:
        entries = excused(check, _entries(check, told, crowd, expected, doubt), told.record)
        if behind:
            entries = [one for one in entries if one["verdict"] != "pass"]
            entries.append(entry_of(check, "missing", "node", reason=behind, expected=expected))
        agreement.nodes[told.subject.name][check.name] = entries
        parts = [entry["part"] for entry in entries if entry["verdict"] in ("fail", "warn")]
        if parts:
            wrong.append(f"{told.subject.name} {some_of(parts, 1)}")
    said = f"{crowd.kind}: {check.metric} of {crowd.nodes} nodes"
    everybody = crowd.parts.get(EVERY)
    if everybody is not None:
        said += f", median {_shown(check, everybody.median)}, deviation {_percent(everybody)}"
    if wrong:
        said += f"; far off: {some_of(wrong)}"
    if behind:
        said += f"; {behind}"
    of_all = "fail" if wrong else "missing" if behind else "pass"
    agreement.fleet.append(entry_of(check, of_all, "fleet", reason=said, expected=expected))


def _reported(told: Told) -> set[str]:
    return {part for part, _ in told.figures} | {one.part for one in told.settled}


def _entries(check: Check, told: Told, crowd: Crowd | None, expected: str, doubt: str = "") -> list[Entry]:
    judged = list(told.settled)
    if crowd is not None:
        held = [*_earlier(check, told, crowd), *_beside(check, told, crowd)]
        judged += [*told.unknown, *(_doubted(one, doubt) if doubt and one.passed is False else one for one in held)]
    return entries_of(check, judged, lacking(check, told.subject, told.record, _reported(told)), expected)


def _doubted(one: Judged, doubt: str) -> Judged:
    """Far off beside nodes that are not quite its kind: that is evidence of nothing, in its favour either."""
    return replace(one, passed=None, reason=f"{one.text}; {doubt}: software or node, nobody can say")


def _beside(check: Check, told: Told, crowd: Crowd, before: str = "") -> list[Judged]:
    """The parts that are too far off, and of the others the one that is nearest to it."""
    held = told.held(check)
    if not held:
        why = f"{check.metric}: the median of the node is 0, nothing is relative to it"
        return [Judged(part, None, value, check.unit or "", why) for part, value in told.figures]
    failed: list[Judged] = []
    worst, nearest = None, float("-inf")
    for part, value, compared in held:
        group = crowd.beside(part)
        if group is None:
            why = f"{check.metric}: fewer than {peer_statistics.MIN_PARTS} peers, or a median of 0"
            failed.append(Judged(part, None, value, check.unit or "", why))
            continue
        said = functools.partial(_said, check, value, compared, crowd, group, before)
        if group.accuses(compared, check.max_below, check.max_above, crowd.deviations(check)):
            failed.append(Judged(part, False, value, check.unit or "", said))
            continue
        badness = group.badness(compared, check.max_below, check.max_above)
        if badness > nearest:
            worst, nearest = Judged(part, True, value, check.unit or "", said, -badness), badness
    return [*failed, *([worst] if worst is not None else [])]


def _earlier(check: Check, told: Told, crowd: Crowd) -> list[Judged]:
    """What was too far off in an earlier attempt, of a figure that may not be measured again."""
    if not check.required or check.retry:
        return []
    failed: list[Judged] = []
    for attempt in told.record["attempts"]:
        if attempt["state"] not in UNFINISHED:
            figures, settled = figures_of(check, told.subject, attempt)
            then = Told(told.subject, attempt, told.group, told.alike, figures, (), settled)
            before = f"attempt {attempt['attempt']}: "
            failed += [one for one in (*settled, *_beside(check, then, crowd, before)) if one.passed is False]
    return failed


def _said(check: Check, value: float, compared: float, crowd: Crowd, group: peer_statistics.Peers, before: str) -> str:
    change = group.change(compared)
    way = "under" if change < 0 else "over"
    figure = f"{before}{check.metric} {units.human(value, check.unit or '')}, {units.number_text(abs(change) * 100)} %"
    if check.relative_to:
        text = f"{figure} {way} its neighbours, beside {group.count} good parts of {crowd.nodes} nodes"
    else:
        text = f"{figure} {way} the median {_shown(check, group.median)} of {crowd.nodes} nodes"
    text += f" ({crowd.kind}{', judged before' if crowd.earlier else ''}), which differ by {_percent(group)}"
    return text + ("; such a result is never retried into PASS" if before else "")


def _shown(check: Check, median: float) -> str:
    return units.number_text(median) if check.relative_to else units.human(median, check.unit or "")


def _percent(group: peer_statistics.Peers) -> str:
    return f"{units.number_text(100 * group.deviation / abs(group.median))} %"
