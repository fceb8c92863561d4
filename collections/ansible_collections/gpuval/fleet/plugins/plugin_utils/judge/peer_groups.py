"""Peer groups: the nodes that each GPU, link or node is compared with, in this judgement and in earlier ones.

A run that is judged again with less evidence, or repeated on a few nodes (``--limit``), is compared with the larger
group of the earlier judgement: a node that was slow beside forty is not excused by being alone.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, NamedTuple

from ...module_utils.hardware.pci import GPU_VENDORS
from ..core import units
from ..core.grouping import values_by_key
from ..records import environment
from ..records.documents import Document, Record
from . import peer_statistics
from .check import Check, Subject, revision_of
from .entries import Entry, PartResult, entry_of, expected_parts, not_applicable, not_to_judge
from .peer_statistics import NormalNoise, Peers, Tails, two_modes

#: Values that nodes must share to be compared: SKU, number of GPUs, workload and others.
GroupKey = tuple[str, ...]
#: Key in ``PeerGroup.parts`` for the statistics of all parts together.
ALL_PARTS = ""
#: Fields of PeerGroup with the relative distances from the median that chance explains.
_REACH = ("repeats", "reach", "normal", "doubtful")
#: Key of a peer group: (meaning of the figure, values that the nodes share, their software or None for any).
_Key = tuple["FigureMeaning", GroupKey, "GroupKey | None"]


class FigureMeaning(NamedTuple):
    """What a compared figure means; only figures of the same meaning are compared."""

    check: str
    metric: str
    unit: str
    relative_to: str
    same_part: bool

    @classmethod
    def of(cls, check: Check) -> FigureMeaning:
        return cls(check.name, check.metric, check.unit or "", check.relative_to or "", check.same_part)


@dataclass(frozen=True)
class Modes:
    """The nodes of a group whose figures form two populations. ``certain``: the difference is no chance."""

    worse: Sequence[PeerSample]
    better: Sequence[PeerSample]
    certain: bool


@dataclass(frozen=True)
class PeerGroup:
    """Statistics of a group of nodes that are compared by one figure. ``nodes``: their number; ``kind``: what they
    share.

    ``parts``: statistics of all parts under ALL_PARTS, or with ``same_part`` of each part under its name. Relative
    distances from the median: ``repeats`` is explained by repeats of one measurement, beyond ``reach`` a figure is no
    chance in a fleet with long tails. Beyond ``normal`` a whole node is no normal noise, and beyond ``doubtful`` it is
    measured again; both are 0 if unknown. ``modes``: set if the nodes are two populations. If that is certain,
    statistics are those of the larger one, or of the better of two equal ones. ``earlier``: from an earlier judgement.
    """

    nodes: int
    kind: str
    parts: Mapping[str, Peers | None]
    repeats: float = 0.0
    reach: float = 0.0
    normal: float = 0.0
    doubtful: float = 0.0
    modes: Modes | None = None
    earlier: bool = False

    @classmethod
    def of(
        cls, check: Check, samples: Sequence[PeerSample], kind: str, tails: tuple[Tails, Tails] | None = None
    ) -> PeerGroup:
        """The peer group of these nodes' samples. ``kind``: what the nodes share, as text. ``tails``: tails of whole
        nodes and of their parts, from which follows what chance explains."""
        errors = [error for sample in samples for error in sample.errors]
        floor = statistics.median(errors) if errors else 0.0
        margin = check.margin
        levels = {} if check.relative_to else levels_of(check, samples)
        modes = modes_of(check, samples, levels)
        main = samples
        if modes is not None and modes.certain:
            main = modes.worse if len(modes.worse) > len(modes.better) else modes.better
            levels = levels_of(check, main)
        reaches = (0.0, 0.0, 0.0)
        if tails and len(main) > check.min_peers:
            reaches = _reaches(check, main, levels, floor, *tails)
        group = cls(len(samples), " ".join(kind.split()), {}, floor, *reaches, modes)
        values = values_of(check, main)
        # Among few nodes, unwidened limits would leave out a healthy node; among many, a bad third must be left out.
        few = 0 < group.nodes < peer_statistics.FEW_TO_LEAVE_OUT
        deviations = peer_statistics.widened(check.deviations, group.nodes, _few(check)) if few else check.deviations
        return replace(group, parts=peers_by_part(values, margin, deviations, floor_ratio=floor))

    def limit(self, check: Check, peers: Peers) -> float:
        """The distance from the median of ``peers``, in the figures' unit, beyond which a part's figure is no chance.
        Noise between repeats is normal and known; only the rest may have tails that few nodes do not show."""
        repeats = min(self.repeats * abs(peers.median), peers.deviation)
        rest = math.sqrt(peers.deviation**2 - repeats**2)
        chance = check.deviations * math.hypot(repeats, peer_statistics.widened(rest, max(1, self.nodes), _few(check)))
        return max(chance, self.reach * abs(peers.median))

    def limit_to_warn(self, check: Check, peers: Peers) -> float:
        """The distance from the median, in the unit of the figures, from which an outlier gets a warning."""
        few = 0 if check.relative_to else peer_statistics.FEW_NODES_TO_WARN
        deviations = peer_statistics.SHARE_TO_WARN * check.deviations
        return peer_statistics.widened(deviations, max(1, self.nodes), few) * peers.deviation

    def level_of(self, check: Check, sample: PeerSample) -> float | None:
        """The median of the node's parts relative to the group, 1 at the group's median; None if it is unknown."""
        pairs = ((value, self.peers_of(part)) for part, _, value in sample.compared(check))
        ratios = [value / peers.median for value, peers in pairs if peers is not None]
        return statistics.median(ratios) if ratios else None

    @property
    def together(self) -> Peers | None:
        return self.parts.get(ALL_PARTS)

    def peers_of(self, part: str) -> Peers | None:
        return self.together if ALL_PARTS in self.parts else self.parts.get(part)


def _few(check: Check) -> float:
    return peer_statistics.FEW_NODES_OF_PARTS if check.relative_to else peer_statistics.FEW_NODES


def values_of(check: Check, samples: Iterable[PeerSample]) -> dict[str, list[float]]:
    """The values to compare from all nodes, ``{part: values}``; without ``same_part`` all are under ALL_PARTS."""
    compared = (values for sample in samples for values in sample.compared(check))
    return values_by_key((_key_of(check, part), value) for part, _, value in compared)


def _key_of(check: Check, part: str) -> str:
    return part if check.same_part else ALL_PARTS


def ratios_of(check: Check, samples: Sequence[PeerSample]) -> list[dict[str, float]]:
    """For each sample ``{part: ratio}``: the part's value relative to the median over all nodes."""
    middles = {part: statistics.median(its) for part, its in values_of(check, samples).items()}
    return [
        {part: value / middle for part, _, value in sample.compared(check) if (middle := middles[_key_of(check, part)])}
        for sample in samples
    ]


def levels_of(check: Check, samples: Sequence[PeerSample]) -> dict[str, float]:
    """``{node: level}``: the median of the node's parts, each relative to the median over all nodes (1 is usual)."""
    ratios = zip(samples, ratios_of(check, samples), strict=True)
    return {sample.subject.name: statistics.median(of_parts.values()) for sample, of_parts in ratios if of_parts}


def ratios_within(check: Check, samples: Sequence[PeerSample]) -> list[tuple[str, float]]:
    """(node name, ratio) of every part: its value relative to the median of its node, and that again relative to its
    median over all nodes (with ``same_part`` the median of this part)."""
    ratios = zip(samples, ratios_of(replace(check, relative_to="node"), samples), strict=True)
    return [(sample.subject.name, ratio) for sample, of_parts in ratios for ratio in of_parts.values()]


def modes_of(check: Check, samples: Sequence[PeerSample], levels: Mapping[str, float]) -> Modes | None:
    """The two populations that these nodes form; None if they are one, or the check cannot tell which is better.
    ``levels``: the speed of each node by `levels_of`."""
    if check.relative_to is not None or (check.max_below is not None and check.max_above is not None):
        return None
    leveled = [sample for sample in samples if levels.get(sample.subject.name)]
    modes = two_modes([levels[sample.subject.name] for sample in leveled], check.margin)
    if modes is None:
        return None
    *numbers, certain = modes
    lower, upper = ([leveled[number] for number in its] for its in numbers)
    return Modes(lower, upper, certain) if check.max_below is not None else Modes(upper, lower, certain)


def _reaches(
    check: Check,
    samples: Sequence[PeerSample],
    levels: Mapping[str, float],
    repeats: float,
    of_nodes: Tails,
    of_parts: Tails,
) -> tuple[float, float, float]:
    """``reach``, ``normal`` and ``doubtful`` of a PeerGroup of enough nodes. ``levels``: the speed of each node by
    `levels_of`. ``of_nodes``, ``of_parts``: the tails of whole nodes and of their parts. ``repeats``: the deviation of
    parts that repeats of one measurement explain."""
    reach, speeds = 0.0, [*levels.values()]
    if not check.relative_to and (deviations := of_nodes.reach(len(samples))) and (peers := Peers.of(speeds)):
        reach = deviations * peers.deviation
    if check.scope != "node" and (deviations := of_parts.reach(len(samples))):
        peers = Peers.of([ratio for _, ratio in ratios_within(check, samples)])
        rest = peers.deviation**2 - repeats**2 if peers else 0.0
        reach = max(reach, deviations * math.sqrt(max(0.0, rest)))
    if check.relative_to:
        return reach, 0.0, 0.0
    noise, peers = NormalNoise.of(speeds, check.margin), Peers.without_the_far(speeds, check.margin, check.deviations)
    doubtful = noise.doubtful_limit(peers.deviation) if peers else math.inf
    is_known = noise.count and not of_nodes.are_long(peer_statistics.CERTAIN)
    return reach, noise.limit / noise.middle if is_known else 0.0, doubtful if math.isfinite(doubtful) else 0.0


def peers_by_part(
    values: Mapping[str, Sequence[float]], margin: float, deviations: float, *, floor_ratio: float = 0.0
) -> dict[str, Peers | None]:
    """The statistics of each part in ``values`` (``{part: figures}``). A part has at least the relative deviation of
    all parts together, as it may seem narrow by chance. ``margin`` and ``floor_ratio`` are relative to the median."""
    far = functools.partial(Peers.without_the_far, margin=margin, deviations=deviations)
    parts = {part: far(figures, floor_ratio=floor_ratio) for part, figures in values.items()}
    if ALL_PARTS in parts:
        return parts
    together = far([value / peers.median for part, peers in parts.items() if peers for value in values[part]])
    ratio = together.deviation / abs(together.median) if together else 0.0
    return {
        part: peers and replace(peers, deviation=max(peers.deviation, ratio * abs(peers.median)))
        for part, peers in parts.items()
    }


@dataclass
class PeerHistory:
    """The largest peer groups that judgements of a run had: one for each figure, values that nodes share, software."""

    groups: dict[_Key, PeerGroup] = field(default_factory=dict)

    @classmethod
    def of(cls, documents: Iterable[Document]) -> PeerHistory:
        """The peer groups of an earlier judgement, from ``standings`` of its document (``gpuval.judging/1``)."""
        history = cls()
        for row in documents:
            meaning = FigureMeaning(*(row[name] for name in FigureMeaning._fields))
            alike = None if row["alike"] is None else tuple(row["alike"])
            parts = {part: Peers(*figures) for part, figures in row["parts"].items()}
            reach = {name: row.get(name, 0.0) for name in _REACH}
            group = PeerGroup(row["nodes"], row["kind"], parts, earlier=True, **reach)
            history.groups[meaning, tuple(row["group"]), alike] = group
        return history

    def documents(self) -> list[dict[str, Any]]:
        return [
            {
                **meaning._asdict(),
                "group": list(key),
                "alike": None if alike is None else list(alike),
                **{name: getattr(group, name) for name in ("nodes", "kind", *_REACH)},
                "parts": {part: list(astuple(peers)) for part, peers in group.parts.items() if peers is not None},
            }
            for (meaning, key, alike), group in self.groups.items()
        ]

    def larger(self, check: Check, key: GroupKey, nodes: int) -> PeerGroup | None:
        """The peer group of an earlier judgement if it had more than ``nodes`` nodes, of any software; else None."""
        before = self.groups.get((FigureMeaning.of(check), key, None))
        return before if before is not None and before.nodes > nodes else None

    def largest(self, check: Check, key: GroupKey, alike: GroupKey | None, now: PeerGroup) -> PeerGroup:
        """The larger of the present peer group (``now``) and the earlier one with this key; it is kept for later
        judgements. ``alike``: the software that the nodes share, None for any."""
        full_key = (FigureMeaning.of(check), key, alike)
        before = self.groups.get(full_key)
        if before is not None and before.nodes > now.nodes:
            return before
        if now.nodes > check.min_peers:
            self.groups[full_key] = now
        return now

    def sizes(self, check: Check) -> dict[GroupKey, int]:
        """The number of nodes of each peer group in the history, ``{values that the nodes share: nodes}``."""
        meaning = FigureMeaning.of(check)
        return {key: group.nodes for (of, key, alike), group in self.groups.items() if of == meaning and alike is None}


FINGERPRINT = "fingerprints."
PartFigures = list[tuple[str, float]]
#: Smallest and largest absolute value of a figure, in any unit: beyond these, ratios overflow.
LEAST, MOST = 1e-50, 1e50


@dataclass(frozen=True)
class PeerSample:
    """A node's figures that a check compares, as (part, figure in the check's unit). ``errors``: relative standard
    errors of the parts' figures, from repeats."""

    subject: Subject
    record: Record
    group: GroupKey
    alike: GroupKey
    figures: Sequence[tuple[str, float]]
    errors: Sequence[float]
    #: Results of parts that are judged without peers: their figure is no number, or has another unit.
    settled: Sequence[PartResult]
    #: Results of parts that report no spread or error. They count only if the node has peers.
    unknown: Sequence[PartResult] = ()
    #: Number of parts (GPUs, links) that the node reports to have, if the check names it in ``parts_from``.
    parts: int | None = None
    #: Revision of the metric's definition by which the figures were measured.
    revision: int = 1

    def of_first_revision(self, check: Check) -> PeerSample:
        """The node's sample with the metric by its first definition (revision 1), for limits that are meant for it."""
        figures, settled = figures_of(check, self.subject, self.record, 1)
        return replace(self, figures=figures, settled=settled, errors=(), revision=1)

    def of_attempt(self, check: Check, attempt: Record) -> PeerSample:
        """The node's sample with the figures of an earlier attempt at the stage."""
        figures, settled = figures_of(check, self.subject, attempt, self.revision)
        return replace(self, record=attempt, figures=figures, errors=(), settled=settled, unknown=())

    def measured_before(self, check: Check) -> PeerSample:
        """The sample with the figures of the last complete earlier attempt without other work; empty without one."""
        attempts = (attempt for attempt in reversed(self.record["attempts"]) if is_repetition(attempt, self.record))
        measured = (figures_of(check, self.subject, attempt, self.revision)[0] for attempt in attempts)
        return replace(self, figures=next(filter(None, measured), ()))

    @property
    def reported(self) -> set[str]:
        return {part for part, _ in self.figures} | {one.part for one in self.settled}

    def compared(self, check: Check) -> list[tuple[str, float, float]]:
        """(part, figure, value to compare): the figure, or with ``relative_to`` its ratio to the node's median."""
        if check.relative_to is None:
            return [(part, value, value) for part, value in self.figures]
        middle = statistics.median(value for _, value in self.figures) if self.figures else 0.0
        return [(part, value, value / middle) for part, value in self.figures] if middle else []


def sample_of(check: Check, subject: Subject) -> PeerSample | list[Entry]:
    """The node's figures that a check compares with its peers; or entries that explain why it is not compared."""
    open_entries = not_applicable(check, subject) or not_to_judge(check, subject)
    if not open_entries and check.relative_to:
        open_entries = too_few_parts(check, subject)
    if open_entries:
        return open_entries
    record = subject.records[check.stage]
    group, unreported = group_key(subject, record, check.group_by)
    alike, unreported_too = values_at(record, check.alike)
    for path in (*unreported, *unreported_too):
        return [entry_of(check, "missing", f"{check.stage} does not report its {path}")]
    revision = newest_revision(check, subject, record)
    figures, settled = figures_of(check, subject, record, revision)
    errors, unknown = _errors(check, subject, record, {part for part, _ in figures}, revision)
    parts = expected_parts(check, subject, record)[0] if check.parts_from else None
    group = (*group, *revision_words(revision))
    return PeerSample(subject, record, group, alike, figures, errors, settled, unknown, parts, revision)


def newest_revision(check: Check, subject: Subject, record: Record) -> int:
    return max(map(revision_of, subject.metrics(record, check.metric, check.scope, None)), default=1)


def revision_words(revision: int) -> GroupKey:
    """The end of a peer group's key for later revisions of a metric's definition; empty for 1, as in old documents."""
    return () if revision == 1 else (f"revision {revision}",)


def too_few_parts(check: Check, subject: Subject) -> list[Entry]:
    """The entry for a node with too few parts to compare with each other; empty if it has enough."""
    count, _ = expected_parts(check, subject, subject.records[check.stage])
    if count is None or count >= peer_statistics.MIN_PARTS:
        return []
    return [entry_of(check, "skipped", f"{count} of a kind: a comparison needs {peer_statistics.MIN_PARTS}")]


def group_key(subject: Subject, record: Record, paths: Sequence[str]) -> tuple[GroupKey, list[str]]:
    """The values that nodes must share to be compared, and the paths for which the node reports no value."""
    unreported: list[str] = []
    if subject.accelerator in GPU_VENDORS:
        unreported += ["number of GPUs"] if subject.gpus is None else []
        unreported += ["model of GPU"] if subject.kind in ("", "auto") else []
    values, more = values_at(record, paths)
    count = "" if subject.gpus is None else f"{subject.gpus} GPUs"
    return (subject.kind, count, record["workload"], *values), [*unreported, *more]


def values_at(record: Record, paths: Sequence[str]) -> tuple[GroupKey, list[str]]:
    """The values at these paths in a record's environment or fingerprints, and the paths without a value."""
    values = tuple(
        str(record["fingerprints"].get(path.removeprefix(FINGERPRINT), ""))
        if path.startswith(FINGERPRINT)
        else ", ".join(sorted(set(environment.texts(record["environment"], path))))
        for path in paths
    )
    return values, [path for path, value in zip(paths, values, strict=True) if not value]


def figures_of(check: Check, subject: Subject, record: Record, revision: int) -> tuple[PartFigures, list[PartResult]]:
    """The figure of each part in the check's unit, and a result for each part without a valid one: reported twice, no
    number, another unit, or a part that the node does not have."""
    figures: PartFigures = []
    settled: list[PartResult] = []
    metrics = subject.metrics(record, check.metric, check.scope, revision)
    times = Counter(metric["scope"] for metric in metrics)
    count = None if check.scope == "node" else expected_parts(check, subject, record)[0]
    for metric in metrics:
        part, value, unit = metric["scope"], metric["value"], metric["unit"]
        if not times[part]:
            continue
        wrong = _invalid_part(check, part, times[part], len(times), count)
        if wrong:
            times[part] = 0
            settled.append(PartResult(part, None, value, unit, wrong))
        elif value is None:
            settled.append(PartResult(part, False, None, unit, f"{check.metric} is not a number"))
        elif value and not LEAST < abs(value) < MOST:
            reason = f"{check.metric} is {value:g} {unit}: no such figure exists"
            settled.append(PartResult(part, False, value, unit, reason))
        elif unit == check.unit:
            figures.append((part, value))
        else:
            try:
                figures.append((part, units.to_float(units.convert(value, unit, check.unit or ""))))
            except units.UnitError as error:
                settled.append(PartResult(part, None, value, unit, f"{check.metric}: {error}"))
    # sorted by length first, which puts gpu:9 before gpu:10
    return sorted(figures, key=lambda end: (len(end[0]), end)), sorted(settled, key=lambda end: (len(end[0]), end[0]))


def is_repetition(attempt: Record, record: Record) -> bool:
    """Whether an earlier attempt repeats the record's measurement: both succeeded, without other work on the GPUs."""
    alone = not any(environment.accelerator_users(one["environment"]) for one in (attempt, record))
    are_whole = attempt["state"] == record["state"] == "success" and not attempt.get("unrelated")
    return alone and are_whole and not attempt.get("of_round")


def _invalid_part(check: Check, part: str, times: int, parts: int, count: int | None) -> str:
    """Why the figure of a part (gpu:3) is invalid; empty if it is valid. ``times``: how often the node reports it;
    ``parts``: number of parts that have it; ``count``: number of parts of the node."""
    if times > 1:
        return f"{check.metric} of {part} is reported twice: ambiguous"
    if count is not None and check.scope == "link":
        return f"{check.metric} of {parts} links, and the node has {count}" if parts > count else ""
    if count is not None and not is_part_of(part, count):
        return f"{check.metric} of {part}, and the node has {count}"
    return ""


def is_part_of(part: str, count: int) -> bool:
    """Whether ``part`` is one of ``count`` parts that are numbered from 0 (gpu:7 of 8); true for the node itself."""
    number = part.partition(":")[2]
    return number == str(int(number)) and int(number) < count if number.isdecimal() else not number


def _errors(
    check: Check, subject: Subject, record: Record, parts: set[str], revision: int
) -> tuple[list[float], list[PartResult]]:
    """The relative standard errors of the parts' figures, and a result for each part that reports none. From revision 2
    of the metric on, the node reports the error; where it does not, the SKU's known spread replaces it."""
    if check.spread_from is None:
        return [], []
    errors_of = errors_by_part(check, subject, record, revision)
    errors, unsure = [errors_of[part] for part in sorted(parts & errors_of.keys())], sorted(parts - errors_of.keys())
    if revision > 1:
        usual = subject.known_spreads.get((check.metric, revision))
        return [*errors, *([] if usual is None else [usual] * len(unsure))], []
    reason = f"{check.stage} reported no {check.spread_from}"
    return errors, [PartResult(part, None, None, "", f"{reason} of {part}") for part in unsure]


def errors_by_part(check: Check, subject: Subject, record: Record, revision: int) -> dict[str, float]:
    """``{part: relative standard error of its figure}``, without parts that report neither error nor spread of repeats.
    The error of a median follows from the spread of its repeats, at least ``check.repeats``."""
    name, factor = check.spread_from or "", peer_statistics.MEDIAN_ERROR / check.repeats**0.5
    if revision > 1:
        name, factor = name.replace("_spread_", "_uncertainty_"), 1.0
    reported = subject.metrics(record, name, check.scope)
    return {one["scope"]: factor * one["value"] for one in reported if one["value"] is not None and one["value"] >= 0}
