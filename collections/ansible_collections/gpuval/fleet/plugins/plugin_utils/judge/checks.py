"""One criterion held against what one node measured.

Every part (node, GPU, rank, link) is judged on its own. A part that fails has an entry of its own; parts that are
missing share one entry that names them; when all pass, one entry shows the part nearest to the limit.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import units
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.text import some_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import peer_statistics
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.criteria import Applies, Check
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import environment

FACTS = "facts"
GPU_VENDORS = ("nvidia", "amd", "gaudi")
NOT_DECLARED = "count not declared"
UNFINISHED = ("pending", "running")
MAX_PARTS = 1_000_000
MAX_FAILED_PARTS = 64
MAX_NAMED_PARTS = 16
MAX_GANG_NAME = 64
MAX_MESSAGE = 400

Entry = dict[str, Any]
Metric = Mapping[str, Any]


@dataclass
class Subject:
    """A node as its criteria see it; ``records`` holds only the stages that the node was asked to run."""

    name: str
    profile: str
    sku: str
    accelerator: str
    declared_gpus: int | None
    detected_gpus: int | None
    records: Mapping[str, Mapping[str, Any]]
    #: SKU of the catalogue by the facts; what is compared with what between nodes (the SKU, else the GPUs' models).
    catalogue_sku: str | None = None
    kind: str = ""
    _indexes: dict[int, dict[str, list[Metric]]] = field(default_factory=dict)

    def metrics(self, record: Mapping[str, Any], name: str, scope: str) -> list[Metric]:
        """The metrics of that name in that kind of scope."""
        index = self._indexes.get(id(record))
        if index is None:
            index = self._indexes[id(record)] = {}
            for metric in record["metrics"]:
                index.setdefault(metric["name"], []).append(metric)
        found = index.get(name, [])
        if scope == "node":
            return [metric for metric in found if metric["scope"] == "node"]
        return [metric for metric in found if metric["scope"].startswith(f"{scope}:")]

    @property
    def skus(self) -> set[str]:
        """What checks for a SKU go by: the declared one, and that of the catalogue."""
        return {self.sku, self.catalogue_sku} - {None}

    @property
    def gpus(self) -> int | None:
        """GPUs that must take part: those declared, else those that the facts found."""
        return self.detected_gpus if self.declared_gpus is None else self.declared_gpus


@dataclass(frozen=True)
class Judged:
    """One part against the limit; ``passed`` None is missing. Of passing parts the least ``margin`` is the worst."""

    part: str
    passed: bool | None
    value: float | int | str | None
    unit: str
    reason: str | Callable[[], str]
    margin: float = math.inf

    @property
    def text(self) -> str:
        """The reason, put into words only where it is shown."""
        return self.reason if isinstance(self.reason, str) else self.reason()


def hold(check: Check, subject: Subject) -> list[Entry]:
    """The entries of ``check`` for the node."""
    outside = not_applicable(check, subject)
    if outside is not None:
        verdict, reason = outside
        return [entry_of(check, verdict, "node", reason=reason)]
    target: float | str | None = check.value
    if check.value_from is not None:
        if check.value_from == "gpu_count" and subject.declared_gpus is None:
            return [entry_of(check, "skipped", "node", reason=NOT_DECLARED)]
        if subject.gpus is None:
            return [entry_of(check, "missing", "node", reason="nothing says how many GPUs the node has")]
        target = subject.gpus
    expected = describe(check, target)
    open_entries = not_to_judge(check, subject, expected)
    if open_entries:
        return open_entries
    record = subject.records[check.stage]
    if check.kind == "outlier":
        few = too_few_parts(check, subject, record)
        if few:
            return few
    earlier = list(_earlier_failures(check, target, subject, record))
    judged, missing = _measured(check, target, subject, record)
    entries = excused(check, entries_of(check, [*earlier, *judged], missing, expected), record)
    return with_gang(check, entries, record) if check.of_gang or check.tells_message else entries


def not_to_judge(check: Check, subject: Subject, expected: str) -> list[Entry]:
    """The entry that says why the node's record of the stage is not held against the check; empty where it is."""
    record = subject.records.get(check.stage)
    open_reason = not_ended(check.stage, record)
    if record is None or open_reason:
        return [entry_of(check, "missing", "node", reason=open_reason, expected=expected)]
    outside = _other_algorithm(check, record)
    if outside is not None:
        verdict, reason = outside
        return excused(check, [entry_of(check, verdict, "node", reason=reason)], record)
    if check.scope == "link" and _is_alone(check, subject, record):
        return [entry_of(check, "skipped", "node", reason="one part has no links")]
    return []


def too_few_parts(check: Check, subject: Subject, record: Mapping[str, Any]) -> list[Entry]:
    """The entry of a node that has too few parts to compare them with each other; empty where it has enough."""
    count, _ = expected_parts(check, subject, record)
    if count is None or count >= peer_statistics.MIN_PARTS:
        return []
    reason = f"{count} of a kind: nothing to compare with below {peer_statistics.MIN_PARTS}"
    return [entry_of(check, "skipped", "node", reason=reason)]


def _is_alone(check: Check, subject: Subject, record: Mapping[str, Any]) -> bool:
    """Whether the stage counted no links, and the node has no two GPUs that could have one."""
    counted = {metric["value"] for metric in subject.metrics(record, check.parts_from or "", "node")}
    return counted == {0} and subject.gpus in (0, 1)


def not_ended(stage: str, record: Mapping[str, Any] | None) -> str:
    """Why a stage can prove nothing yet; empty when it can."""
    if record is None:
        return f"no record of {stage}"
    return f"{stage} has not ended" if record["state"] in UNFINISHED else ""


def _measured(
    check: Check, target: float | str | None, subject: Subject, record: Mapping[str, Any]
) -> tuple[list[Judged], tuple[str, str] | None]:
    if isinstance(target, str):
        return [_fingerprint(check, target, record)], None
    return _parts(check, target, subject, record)


#: Why a good node cannot have a figure. A driver's error, or a reading that broke off, is no such reason.
EXCUSE = re.compile(
    r"not supported|not permitted|not there|does not have it|does not (?:report|tell) it|retire pages instead"
    r"|which is not read|not measured on|this chip has no|has no fp8|no fp8 product",
    re.IGNORECASE,
)


def excused(check: Check, entries: list[Entry], record: Mapping[str, Any]) -> list[Entry]:
    """What is missing is advice where the node says why it could not have it; what failed stays as it is."""
    why = [text for path in check.excused_by for text in environment.texts(record["environment"], path)]
    if why and all(EXCUSE.search(text) for text in why):
        for entry in entries:
            if entry["verdict"] == "missing":
                entry["severity"] = "advisory"
                entry["reason"] += f" ({why[0]})"
    return entries


def with_gang(check: Check, entries: list[Entry], record: Mapping[str, Any]) -> list[Entry]:
    """What does not hold for a gang is evidence that each member lacks: who is to blame the figure cannot say."""
    message = " ".join(str(record["message"]).split())[:MAX_MESSAGE] if check.tells_message else ""
    for entry in entries:
        if entry["verdict"] not in ("fail", "warn", "missing"):
            continue
        if message:
            entry["reason"] = f"{message} ({entry['reason']})"
        if check.of_gang:
            entry["reason"] = f"{gang_of(record) or 'a gang'}: {entry['reason']}"
            if entry["verdict"] == "fail":
                entry["verdict"] = "missing"
    return entries


def gang_of(record: Mapping[str, Any]) -> str:
    """The gang that a record says it is of, in words; empty without one. What a node tells has no form for certain."""
    gang = record["environment"].get("gang")
    name = gang.get("name") if isinstance(gang, dict) else None
    if not isinstance(name, str) or not name:
        return ""
    nodes = gang.get("nodes")
    count = f" of {nodes} nodes" if type(nodes) is int and 1 < nodes <= MAX_PARTS else ""
    return f"gang {name[:MAX_GANG_NAME]}{count}"


def entries_of(check: Check, judged: Sequence[Judged], missing: tuple[str, str] | None, expected: str) -> list[Entry]:
    failed = [one for one in judged if one.passed is False]
    unknown = [one for one in judged if one.passed is None]
    entries = [_from_judged(check, one, "fail", expected) for one in failed[:MAX_FAILED_PARTS]]
    if len(failed) > MAX_FAILED_PARTS:
        entries[-1]["reason"] += f"; {len(failed) - MAX_FAILED_PARTS} more parts fail too"
    if unknown:
        entries.append(_from_judged(check, unknown[0], "missing", expected))
        if len(unknown) > 1:
            entries[-1]["reason"] += f"; so are {len(unknown) - 1} more parts"
    if missing is not None:
        part, reason = missing
        entries.append(entry_of(check, "missing", part, reason=reason, expected=expected))
    if not entries:
        worst = min(judged, key=lambda one: one.margin)
        entry = _from_judged(check, worst, "pass", expected)
        if len(judged) > 1:
            entry["reason"] = f"the worst of {len(judged)}: {worst.text}"
        entries.append(entry)
    return entries


def _from_judged(check: Check, one: Judged, verdict: str, expected: str) -> Entry:
    return entry_of(check, verdict, one.part, reason=one.text, expected=expected, value=one.value, unit=one.unit)


def entry_of(
    check: Check,
    verdict: str,
    part: str,
    *,
    reason: str,
    expected: str | None = None,
    value: float | int | str | None = None,
    unit: str | None = None,
) -> Entry:
    return {
        "name": check.name,
        "stage": check.stage,
        "metric": check.metric,
        "kind": check.kind,
        "severity": check.severity,
        "verdict": "warn" if verdict == "fail" and not check.required else verdict,
        "part": part,
        "value": value,
        "unit": unit if unit is not None else check.unit or "",
        "expected": describe(check, check.value) if expected is None else expected,
        "reason": reason,
        "source": check.source,
        "remedy": check.remedy,
    }


def own_entry(name: str, stage: str, kind: str, verdict: str, **fields: Any) -> Entry:
    """The entry of a check that needs no criteria file."""
    entry: Entry = {
        "name": name, "stage": stage, "metric": None, "kind": kind, "severity": "required", "verdict": verdict,
        "part": "node", "value": None, "unit": "", "expected": "", "reason": "", "source": "what a run needs as proof",
        "remedy": "",
    }  # fmt: skip
    entry.update(fields)
    return entry


def not_applicable(check: Check, subject: Subject) -> tuple[str, str] | None:
    applies = check.applies
    if applies.profile and subject.profile not in applies.profile:
        return "skipped", f"applies to the profile {_any_of(applies.profile)}, this is {subject.profile}"
    if applies.sku and subject.skus.isdisjoint(applies.sku):
        return "skipped", f"applies to {_any_of(applies.sku)}, this is {subject.catalogue_sku or subject.sku}"
    workload = subject.records.get(check.stage, {}).get("workload")
    if applies.workload and workload is not None and workload not in applies.workload:
        return "skipped", f"applies to the workload {_any_of(applies.workload)}, this is {workload}"
    if applies.accelerator:
        if subject.accelerator == "unknown":
            return "missing", f"applies to {_any_of(applies.accelerator)}, and nothing says what this node is"
        kinds = {subject.accelerator, "gpu"} if subject.accelerator in GPU_VENDORS else {subject.accelerator}
        if kinds.isdisjoint(applies.accelerator):
            return "skipped", f"applies to {_any_of(applies.accelerator)}, this is {subject.accelerator}"
    wanted = _other_gpus(applies, subject.gpus)
    if wanted and subject.gpus is None:
        return "missing", f"applies to {wanted}, and nothing says how many this node has"
    return ("skipped", f"applies to {wanted}, this node has {subject.gpus}") if wanted else None


def _other_gpus(applies: Applies, gpus: int | None) -> str:
    """How many GPUs the check is for, where the node has not so many or nothing says how many; empty where it fits."""
    if applies.gpu_count and gpus not in applies.gpu_count:
        return f"{_any_of([str(count) for count in applies.gpu_count])} GPUs"
    if applies.gpus_at_least and (gpus is None or gpus < applies.gpus_at_least):
        return f"{applies.gpus_at_least} GPUs or more"
    return ""


def _other_algorithm(check: Check, record: Mapping[str, Any]) -> tuple[str, str] | None:
    """A limit holds for the transport and the algorithm that it was measured with."""
    for name, wanted in check.applies.fingerprints:
        found = record["fingerprints"].get(name)
        if found is None:
            return "missing", f"applies to {name} {_any_of(wanted)}, and {check.stage} reported no {name}"
        if found not in wanted:
            return "skipped", f"applies to {name} {_any_of(wanted)}, this is {found}"
    return None


def _any_of(names: Sequence[str]) -> str:
    return " or ".join(names)


@functools.lru_cache(maxsize=4096)
def describe(check: Check, target: float | str | None) -> str:
    """The limit in words."""
    unit = check.unit or ""
    if check.kind == "min":
        return f"at least {_figure(target, unit)}"
    if check.kind == "max":
        return f"at most {_figure(target, unit)}"
    if check.kind == "within":
        return f"{_figure(check.low, unit)} to {_figure(check.high, unit)}"
    if check.kind == "equal":
        if check.value_from is not None:
            return f"{check.value_from} as declared" + (f": {_figure(target, unit)}" if target is not None else "")
        return target if isinstance(target, str) else f"exactly {_figure(target, unit)}"
    if check.kind == "outlier":
        sides = ((check.max_below, "under"), (check.max_above, "over"))
        allowed = " and ".join(f"{units.number_text(most * 100)} % {way}" for most, way in sides if most is not None)
        if check.peers == "node":
            return f"at most {allowed} the median of its peers"
        among = "its neighbours, as on other nodes" if check.relative_to else "its peers in the fleet"
        return f"at most {allowed} the median of {among}, or {units.number_text(check.deviations)} deviations"
    if check.kind == "baseline":
        sides = ((check.max_below, "under"), (check.max_above, "over"))
        allowed = " and ".join(f"{units.number_text(most * 100)} % {way}" for most, way in sides if most is not None)
        return f"at most {allowed} the baseline, or {units.number_text(check.deviations)} of its deviations"
    if check.kind == "same":
        return "the same on all GPUs of the node" if check.peers == "node" else "the same on all nodes of its kind"
    change = f"{units.number_text((check.min_change or 0) * 100)} %"
    return f"{check.direction} by at least {change} from {check.baseline_metric}"


def _figure(value: Any, unit: str) -> str:
    return units.human(value, unit)


def _fingerprint(check: Check, target: str, record: Mapping[str, Any]) -> Judged:
    found = record["fingerprints"].get(check.metric)
    if found is None:
        return Judged("node", None, None, "", f"{check.stage} reported no fingerprint {check.metric}")
    passed = found == target
    return Judged("node", passed, found, "", f"{check.metric} is {found}" + ("" if passed else f", not {target}"))


def _parts(
    check: Check, target: float | None, subject: Subject, record: Mapping[str, Any]
) -> tuple[list[Judged], tuple[str, str] | None]:
    """Every reported part judged, and the parts that did not report as (part, reason)."""
    metrics = subject.metrics(record, check.metric, check.scope)
    if check.kind == "trend" and record["state"] not in ("success", "failure"):
        return [], ("node", f"{check.stage} ended in {record['state']} before its last figure")
    if check.kind == "outlier":
        judged = _beside_peers(check, metrics)
    else:
        judged = [_judge(check, target, metric, subject, record) for metric in metrics]
    return judged, lacking(check, subject, record, {metric["scope"] for metric in metrics})


def lacking(
    check: Check, subject: Subject, record: Mapping[str, Any], reported: Collection[str]
) -> tuple[str, str] | None:
    """The parts that did not report the check's metric as (part, reason)."""
    if check.scope == "node":
        return None if reported else ("node", f"{check.stage} reported no {check.metric}")
    count, why = expected_parts(check, subject, record)
    if count is None:
        return "node", why
    if check.scope == "link":
        short = count - len(reported)
        return ("node", f"{short} of {count} links reported no {check.metric}") if short > 0 else None
    lacking_parts = [part for part in (f"{check.scope}:{index}" for index in range(count)) if part not in reported]
    if not lacking_parts:
        return None
    reason = f"no {check.metric} of {some_of(lacking_parts, MAX_NAMED_PARTS)} ({count} expected)"
    return lacking_parts[0], reason


def expected_parts(check: Check, subject: Subject, record: Mapping[str, Any]) -> tuple[int | None, str]:
    """How many parts must report; else None, and why nobody knows."""
    if check.parts_from is not None:
        found = subject.metrics(record, check.parts_from, "node")
        counts = {metric["value"] for metric in found}
        what = f"{check.parts_from}, which says how many parts must report,"
        if not counts:
            return None, f"{what} is missing"
        if len(counts) > 1:
            return None, f"{what} has several values"
        return _part_count(counts.pop(), what)
    if check.scope != "gpu":
        return None, f"nothing says how many {check.scope}s must report"
    if subject.declared_gpus is not None:
        return _part_count(subject.declared_gpus, "the declared GPU count")
    if subject.detected_gpus is not None:
        return _part_count(subject.detected_gpus, "gpu_count of the facts")
    return None, "nothing says how many GPUs must report: none declared, and the facts have no gpu_count"


def _part_count(value: Any, what: str) -> tuple[int | None, str]:
    if value is None or value != int(value) or not 1 <= value <= MAX_PARTS:
        return None, f"{what} is {units.human(value, '')}: no parts to judge"
    return int(value), ""


def _judge(check: Check, target: float | None, metric: Metric, subject: Subject, record: Mapping[str, Any]) -> Judged:
    part, value = metric["scope"], metric["value"]
    unit = check.unit or metric["unit"]
    if value is None:
        return Judged(part, False, None, metric["unit"], f"{check.metric} is not a number")
    if check.kind == "trend":
        return _trend(check, metric, subject, record)
    number: float | int | Fraction = value
    convert = _number
    if unit != metric["unit"]:
        try:
            number = units.convert(value, metric["unit"], unit)
        except units.UnitError as error:
            return Judged(part, None, value, metric["unit"], f"{check.metric}: {error}")
        convert = units.exact
    shown = value if number is value else units.to_float(number)
    if check.kind == "within":
        low, high = convert(check.low), convert(check.high)
        passed, margin = low <= number <= high, min(number - low, high - number)
        limit = low if number < low else high
    else:
        limit = convert(target)
        difference = number - limit
        passed = {"min": difference >= 0, "max": difference <= 0, "equal": difference == 0}[check.kind]
        margin = -difference if check.kind == "max" else difference
    order = (number > limit) - (number < limit)
    reason = functools.partial(_said, check, shown, unit, target, order=order, passed=passed)
    return Judged(part, passed, shown, unit, reason, units.to_float(margin))


def _beside_peers(check: Check, metrics: Sequence[Metric]) -> list[Judged]:
    """Every part against the median of all; a part that is no number fails, and is nobody's peer."""
    units_seen = {metric["unit"] for metric in metrics if metric["value"] is not None}
    if len(units_seen) > 1:
        reason = f"{check.metric} has several units: {', '.join(sorted(units_seen))}"
        return [Judged(metric["scope"], None, metric["value"], metric["unit"], reason) for metric in metrics]
    group = peer_statistics.Peers.of([metric["value"] for metric in metrics if metric["value"] is not None])
    return [_beside(check, metric, group) for metric in metrics]


def _beside(check: Check, metric: Metric, group: peer_statistics.Peers | None) -> Judged:
    part, value, unit = metric["scope"], metric["value"], metric["unit"]
    if value is None:
        return Judged(part, False, None, unit, f"{check.metric} is not a number")
    if group is None:
        return Judged(
            part, None, value, unit, f"fewer than {peer_statistics.MIN_PARTS} figures, or a median of 0, to compare"
        )
    passed = not group.accuses(value, check.max_below, check.max_above, check.deviations)
    reason = functools.partial(_said_beside, check, value, unit, group)
    return Judged(part, passed, value, unit, reason, -group.badness(value, check.max_below, check.max_above))


def _said_beside(check: Check, value: float, unit: str, group: peer_statistics.Peers) -> str:
    change = group.change(value)
    way = "under" if change < 0 else "over"
    return (
        f"{check.metric} {units.human(value, unit)}, {units.number_text(abs(change) * 100)} % {way} the median "
        f"{units.human(group.median, unit)} of {group.count}"
    )


def _number(value: Any) -> Any:
    return value


def _said(check: Check, value: float, unit: str, target: float | None, *, order: int, passed: bool) -> str:
    """A figure beside its limit; ``order`` is -1, 0 or 1 as the figure is under, at or over it."""
    text = units.human(value, unit)
    if check.kind == "within":
        if passed:
            return f"{check.metric} {text}, in bounds"
        return f"{check.metric} {text} ({value!r}), {'under' if order < 0 else 'over'} {describe(check, None)}"
    limit = units.human(target, unit)
    if limit == text and order:
        text, limit = f"{value!r} {unit}".rstrip(), f"{target!r} {unit}".rstrip()
    if check.kind == "equal":
        return f"{check.metric} is {text}" if passed else f"{check.metric} is {text}, not {limit}"
    relation = {-1: "under the limit of", 0: "at the limit of", 1: "over the limit of"}[order]
    return f"{check.metric} {text}, {relation} {limit}"


def _trend(check: Check, metric: Metric, subject: Subject, record: Mapping[str, Any]) -> Judged:
    part, value = metric["scope"], metric["value"]
    baselines = [
        one for one in subject.metrics(record, check.baseline_metric or "", check.scope) if one["scope"] == part
    ]
    if not baselines:
        return Judged(part, None, value, metric["unit"], f"{check.stage} reported no {check.baseline_metric}")
    judged = [_change(check, metric, baseline) for baseline in baselines]
    return min(judged, key=lambda one: (one.passed is not False, one.passed is not None, one.margin))


def _change(check: Check, metric: Metric, baseline: Metric) -> Judged:
    part, unit = metric["scope"], metric["unit"]
    start = baseline["value"]
    if start is None:
        return Judged(part, False, metric["value"], unit, f"{check.baseline_metric} is not a number")
    try:
        end = units.convert(metric["value"], unit, baseline["unit"])
    except units.UnitError as error:
        return Judged(part, None, metric["value"], unit, f"{check.metric}: {error}")
    first = units.exact(start)
    if first == 0:
        return Judged(part, None, metric["value"], unit, f"{check.baseline_metric} is 0: no relative change exists")
    change = (end - first) / abs(first)
    wanted = -change if check.direction == "falling" else change
    passed = wanted > 0 and wanted >= units.exact(check.min_change or 0)
    way = "fell" if change < 0 else "rose"
    moved = f"{way} by {units.number_text(abs(change) * 100)} %" if change else "did not change"
    figures = f"from {units.number_text(start)} to {units.number_text(end)}"
    reason = f"{check.metric} {moved} {figures}"
    if not passed:
        reason += f", not {describe(check, None)}"
    return Judged(part, passed, metric["value"], unit, reason, units.to_float(wanted))


def _earlier_failures(
    check: Check, target: float | str | None, subject: Subject, record: Mapping[str, Any]
) -> Iterator[Judged]:
    """What failed in an earlier attempt and may not be measured again stays failed."""
    if not check.required or check.retry:
        return
    for attempt in record["attempts"]:
        if attempt["state"] in UNFINISHED or (check.of_gang and attempt.get("of_round")):
            continue  # a gang that failed as a whole is cured where it runs again without whom the search found
        judged, _ = _measured(check, target, subject, attempt)
        for one in judged:
            if one.passed is False:
                place = f"round {attempt['of_round']}" if attempt.get("of_round") else f"attempt {attempt['attempt']}"
                reason = f"{place}: {one.text}; such a result is never retried into PASS"
                yield Judged(one.part, False, one.value, one.unit, reason)
