"""Class ``unsteady``: a part whose speed differs between two measurements of one run by more than repeats explain.

Two attempts measure the same, and so do two stages that ran one command. What has happened once is INCOMPLETE; it is a
fault of the node where a further measurement, or an earlier run, shows it again on the same part. Pure.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ..core import units
from ..core.text import some_of
from ..records.documents import Record
from ..records.failure_classes import class_named
from .check import FACTS, Check, Subject
from .entries import Entry, own_entry
from .identity import best_of, gpu_of, identity_of, machine_names
from .kinds.base import JudgeContext
from .peer_groups import errors_by_part, figures_of, is_repetition, newest_revision

UNSTEADY = "unsteady"
#: Relative change up to which a figure is steady, if healthy nodes do not show a spread.
MARGIN = 0.1
MAX_NAMED = 16


class AttemptFigure(NamedTuple):
    """The figure of one part in one attempt, and its relative error as repeats explain it."""

    value: float
    error: float


#: Verdicts by ``UnsteadyPart.beyond``: of a change seen once, and of one that was seen again.
VERDICTS = (("pass", "missing"), ("warn", "missing"), ("missing", "missing"), ("missing", "fail"))


class UnsteadyPart(NamedTuple):
    """A part whose figure changed by more than its repeats explain. ``size``: the largest change, as a logarithm.
    ``beyond``: 0 if healthy peers changed as much, 1 if they may, 2 if they did in another figure only, 3 if not."""

    beyond: int
    times: int
    size: float
    metric: str
    text: str


def checks(
    subject: Subject,
    stage: str,
    criteria: Sequence[Check],
    earlier: Mapping[str, Collection[str]],
    context: JudgeContext,
) -> list[Entry]:
    """An entry for each part that is unsteady, or for the node if most parts are. ``earlier``: for each machine or GPU
    the runs in which it was unsteady. ``context``: changes that other nodes showed. A change within these decides
    nothing; it is missing evidence if a further attempt, or an earlier run, shows it again."""
    record = subject.records.get(stage)
    records = _measurements(subject, record) if record is not None else []
    if len(records) < 2:
        return []
    levels = context.tails[subject.kind][0]
    deviations = levels.deviations[subject.name]
    parts: dict[str, UnsteadyPart | None] = {}
    for metric, check in _speeds(criteria).items():
        healthy = levels.healthy_changes(subject.name, metric)
        for part, series in _figures_by_part(subject, check, records).items():
            changes = [(_change(*pair, check), *pair) for pair in itertools.pairwise(series)]
            size, *values = max(changes, default=(0.0,))
            best = (max if check.max_above is None else min)(series)  # whenever the slow attempt was, it counts once
            texts = " and then ".join(units.human(one.value, check.unit or "") for one in values)
            of_peers = [min(change * deviations.get(metric, 0.0), MARGIN) for change in healthy]
            beyond = sum(size > most for most in of_peers)
            least = of_peers[-1] if beyond == len(of_peers) else 0.0
            times = max(1, sum(_change(best, one, check) > least for one in series))
            finding = UnsteadyPart(beyond, times, size, metric, f"{metric} of {part} made {texts}")
            parts[part] = max(filter(None, (parts.get(part), finding if size else None)), default=None)
    unsteady_parts = {part: finding for part, finding in parts.items() if finding}
    for kind in sorted({part.partition(":")[0] for part in unsteady_parts}):
        of_kind, alike = ([part for part in of if part.partition(":")[0] == kind] for of in (parts, unsteady_parts))
        if len(alike) > 1 and 2 * len(alike) > len(of_kind):
            worst = max(unsteady_parts.pop(part) for part in alike)
            whole_node = worst._replace(text=f"{len(alike)} of {len(of_kind)} {kind}s: {worst.text}")
            unsteady_parts["node"] = max(whole_node, unsteady_parts.get("node", whole_node))
    return [_entry(subject, stage, *one, earlier) for one in itertools.islice(unsteady_parts.items(), MAX_NAMED)]


def _measurements(subject: Subject, record: Record) -> list[Record]:
    """Records that measured the same, oldest first: earlier stages with its command, passed attempts, last record."""
    attempts = [attempt for attempt in record["attempts"] if is_repetition(attempt, record)]
    commands = [
        other for other in subject.records.values()
        if record["command"] and other["command"] == record["command"] and other["stage"] < record["stage"]
        and other["workload"] == record["workload"] and is_repetition(other, record)
    ]  # fmt: skip
    return [*commands, *attempts, record]


def _speeds(criteria: Sequence[Check]) -> dict[str, Check]:
    """For each metric of a speed that may be measured again the required comparison, or else the SKU's floor."""
    speeds = [check for check in criteria if check.required and check.retry and units.is_timed(check.unit or "")]
    kinds = [
        [one for one in speeds if one.kind == "min" and one.catalogue_sku],
        [one for one in speeds if one.kind == "outlier" and one.peers == "fleet"],
    ]
    return {check.metric: check for of_kind in kinds for check in of_kind if not check.of_gang}


def _figures_by_part(subject: Subject, check: Check, records: Sequence[Record]) -> dict[str, list[AttemptFigure]]:
    series: dict[str, list[AttemptFigure]] = defaultdict(list)
    revision = min(newest_revision(check, subject, record) for record in records)
    for record in records:
        errors = errors_by_part(check, subject, record, revision)
        for part, value in figures_of(check, subject, record, revision)[0]:
            if value > 0:
                unknown = MARGIN / (check.deviations * math.sqrt(2)) if check.spread_from else 0.0
                series[part].append(AttemptFigure(value, errors.get(part, unknown)))
    return series


def _change(first: AttemptFigure, second: AttemptFigure, check: Check) -> float:
    """The relative change between two figures; 0 if repeats explain it."""
    change = abs(math.log(second.value / first.value))
    margin = check.margin if check.kind == "outlier" else MARGIN
    return change if change > max(margin, check.deviations * math.hypot(first.error, second.error)) else 0.0


def _entry(
    subject: Subject, stage: str, part: str, finding: UnsteadyPart, earlier: Mapping[str, Collection[str]]
) -> Entry:
    """The entry of an unsteady part. ``earlier``: for each machine or GPU the runs in which it was unsteady."""
    runs = next((earlier[name] for name in _identities(subject, part) if earlier.get(name)), ())
    again = f"also in run {some_of(sorted(runs))}" if runs else ""
    again = "again in a further attempt" if finding.times > 1 else again
    verdict = VERDICTS[finding.beyond][bool(again)]
    is_excused = verdict in ("pass", "warn")
    excuse = ": no more than two measurements of healthy peers differ" if is_excused else ""
    apart = units.number_text(100 * math.expm1(finding.size))
    reason = f"{finding.text}, {apart} % apart, which repeats do not explain{f'; {again}' if again else excuse}"
    row = class_named(UNSTEADY)
    return own_entry(
        UNSTEADY, stage, "outlier", verdict, reason, severity="advisory" if is_excused else "required",
        metric=finding.metric, part=part, expected="the same speed whenever it is measured",
        remedy=row.remedy.replace("{node}", subject.name) if row else "", source="the attempts of this run",
    )  # fmt: skip


def _identities(subject: Subject, part: str) -> list[str]:
    """The identities under which runs remember a fault of the part (judge/actions.py)."""
    identity = identity_of(subject.records.get(FACTS))
    machines = machine_names(subject.name, identity)
    if not part.startswith("gpu:"):
        return machines
    gpu = best_of(gpu_of(identity, part), ("serial", "uuid"))
    return [*([f"gpu {gpu}"] if gpu else []), *(f"{machine} {part}" for machine in machines)]
