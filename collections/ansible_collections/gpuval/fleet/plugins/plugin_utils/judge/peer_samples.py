"""What one node reports to be compared with its peers: its figures, and the group that it belongs to."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...module_utils.hardware.pci import GPU_VENDORS
from ..core import units
from ..records import environment
from ..records.documents import Record
from . import peer_statistics
from .check import Check
from .entries import Entry, PartResult, entry_of, expected_parts, not_applicable, not_to_judge
from .peer_groups import GroupKey
from .subject import Subject, revision_of

FINGERPRINT = "fingerprints."
#: No hardware has figures beyond these, in any unit; their ratios would not be numbers.
LEAST, MOST = 1e-50, 1e50


@dataclass(frozen=True)
class PeerSample:
    """What one node reported: by part its figure in the unit of the check, and how well repeats know it.

    ``errors``: of figures the relative standard error, of those whose repeats show it.
    """

    subject: Subject
    record: Record
    group: GroupKey
    alike: GroupKey
    figures: Sequence[tuple[str, float]]
    errors: Sequence[float]
    #: Parts that are judged without peers: not a number, another unit.
    settled: Sequence[PartResult]
    #: Parts that do not report their spread or error, which is missing only where there are peers.
    unknown: Sequence[PartResult] = ()
    #: How many parts it reports to have, where the check asks (parts_from).
    parts: int | None = None
    #: Of the definition of its figures.
    revision: int = 1

    def of_first_revision(self, check: Check) -> PeerSample:
        """The same node by the figures that limits and known figures of revision 1 are for."""
        figures, settled = figures_of(check, self.subject, self.record, 1)
        return replace(self, figures=figures, settled=settled, errors=(), revision=1)

    @property
    def reported(self) -> set[str]:
        return {part for part, _ in self.figures} | {one.part for one in self.settled}

    def compared(self, check: Check) -> list[tuple[str, float, float]]:
        """(part, figure, what is compared)"""
        if check.relative_to is None:
            return [(part, value, value) for part, value in self.figures]
        middle = statistics.median(value for _, value in self.figures) if self.figures else 0.0
        return [(part, value, value / middle) for part, value in self.figures] if middle else []


def sample_of(check: Check, subject: Subject, expected: str) -> PeerSample | list[Entry]:
    """The node's sample, or the entries that tell why it is not compared."""
    open_entries = not_applicable(check, subject, expected) or not_to_judge(check, subject, expected)
    if not open_entries and check.relative_to:
        open_entries = too_few_parts(check, subject, expected)
    if open_entries:
        return open_entries
    record = subject.records[check.stage]
    group, unreported = group_key(subject, record, check.group_by)
    alike, unreported_too = values_at(record, check.alike)
    for path in (*unreported, *unreported_too):
        reason = f"{check.stage} does not report its {path}"
        return [entry_of(check, "missing", reason, expected)]
    revision = newest_revision(check, subject, record)
    figures, settled = figures_of(check, subject, record, revision)
    errors, unknown = _errors(check, subject, record, {part for part, _ in figures}, revision)
    parts = expected_parts(check, subject, record)[0] if check.parts_from else None
    group = (*group, *revision_words(revision))
    return PeerSample(subject, record, group, alike, figures, errors, settled, unknown, parts, revision)


def newest_revision(check: Check, subject: Subject, record: Record) -> int:
    """The revision of the definition by which the record has the check's metric."""
    return max(map(revision_of, subject.metrics(record, check.metric, check.scope, None)), default=1)


def revision_words(revision: int) -> GroupKey:
    """What sets figures of later revisions apart from the first ones, which were compared before there were others."""
    return () if revision == 1 else (f"revision {revision}",)


def too_few_parts(check: Check, subject: Subject, expected: str) -> list[Entry]:
    """The entry of a node that has too few parts to compare them with each other; empty where it has enough."""
    count, _ = expected_parts(check, subject, subject.records[check.stage])
    if count is None or count >= peer_statistics.MIN_PARTS:
        return []
    reason = f"{count} of a kind: a comparison needs {peer_statistics.MIN_PARTS}"
    return [entry_of(check, "skipped", reason, expected)]


def group_key(subject: Subject, record: Record, paths: Iterable[str]) -> tuple[GroupKey, list[str]]:
    """What nodes must share to be compared, and what of it the node does not report."""
    unreported = []
    if subject.accelerator in GPU_VENDORS:
        if subject.gpus is None:
            unreported.append("number of GPUs")
        if subject.kind in ("", "auto"):
            unreported.append("model of GPU")
    values, more = values_at(record, paths)
    count = "" if subject.gpus is None else f"{subject.gpus} GPUs"
    return (subject.kind, count, record["workload"], *values), [*unreported, *more]


def values_at(record: Record, paths: Iterable[str]) -> tuple[GroupKey, list[str]]:
    """The values at paths of the environment, or of fingerprints; and the paths without any."""
    values, unreported = [], []
    for path in paths:
        if path.startswith(FINGERPRINT):
            text = str(record["fingerprints"].get(path.removeprefix(FINGERPRINT), ""))
        else:
            text = ", ".join(sorted(set(environment.texts(record["environment"], path))))
        values.append(text)
        if not text:
            unreported.append(path)
    return tuple(values), unreported


def figures_of(
    check: Check, subject: Subject, record: Record, revision: int
) -> tuple[list[tuple[str, float]], list[PartResult]]:
    """By part its figure in the unit of the check, and the parts without a valid one: one figure for each part, and
    none of a part that the node cannot have."""
    figures: list[tuple[str, float]] = []
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
    return sorted(figures, key=_part_order), sorted(settled, key=lambda end: _part_order((end.part, 0.0)))


def earlier_figures(check: Check, sample: PeerSample) -> list[list[tuple[str, float]]]:
    """The figures of the earlier attempts that measured them to the end, without other work beside them."""
    attempts = (attempt for attempt in sample.record["attempts"] if is_repetition(attempt, sample.record))
    return [figures for one in attempts if (figures := figures_of(check, sample.subject, one, sample.revision)[0])]


def is_repetition(attempt: Record, record: Record) -> bool:
    """Whether an earlier attempt is a measurement beside that of the record: both passed, with no other work beside."""
    alone = not any(environment.accelerator_users(one["environment"]) for one in (attempt, record))
    are_whole = attempt["state"] == record["state"] == "success" and not attempt.get("unrelated")
    return alone and are_whole and not attempt.get("of_round")


def _invalid_part(check: Check, part: str, times: int, parts: int, count: int | None) -> str:
    """Why what the node reported of the part is no figure of it; empty where it is one."""
    if times > 1:
        return f"{check.metric} of {part} is reported twice: ambiguous"
    if count is not None and check.scope == "link":
        return f"{check.metric} of {parts} links, and the node has {count}" if parts > count else ""
    if count is not None and not is_part_of(part, count):
        return f"{check.metric} of {part}, and the node has {count}"
    return ""


def is_part_of(part: str, count: int) -> bool:
    """Whether gpu:7 is one of so many: they count from 0 on. The node itself is no such part."""
    number = part.partition(":")[2]
    return number == str(int(number)) and int(number) < count if number.isdecimal() else not number


def _part_order(figure: tuple[str, float]) -> tuple[int, str, float]:
    """gpu:9 before gpu:10, in whichever order they were reported."""
    return len(figure[0]), figure[0], figure[1]


def _errors(
    check: Check, subject: Subject, record: Record, parts: set[str], revision: int
) -> tuple[list[float], list[PartResult]]:
    """The relative standard errors of the parts' figures, where enough repeats show them; and the parts without one.

    A median has that of so many normal repeats of the reported spread at least. A later revision reports its own; where
    its repeats are too few for one, the spread of the SKU stands for it, where that is known.
    """
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
    """By part the relative standard error of its figure, where its repeats show it."""
    name, factor = check.spread_from or "", peer_statistics.MEDIAN_ERROR / check.repeats**0.5
    if revision > 1:
        name, factor = name.replace("_spread_", "_uncertainty_"), 1.0
    reported = subject.metrics(record, name, check.scope)
    return {one["scope"]: factor * one["value"] for one in reported if one["value"] is not None and one["value"] >= 0}
