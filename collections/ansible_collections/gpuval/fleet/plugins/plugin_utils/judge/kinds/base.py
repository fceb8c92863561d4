"""Base classes of the kinds of checks, and the evidence that they need besides a node's own records."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core import units
from ...records.documents import UNFINISHED, NodeMetric, Record
from ..baseline import Baseline
from ..check import Check, Subject
from ..entries import (
    Absent,
    Entry,
    PartResult,
    entries_of,
    entry_of,
    excused,
    lacking,
    no_record,
    not_applicable,
    not_to_judge,
    with_gang,
)
from ..peer_groups import GroupKey, PeerHistory, PeerSample, too_few_parts
from ..peer_statistics import Tails

#: The value to compare with: a number, or a fingerprint's text; None if the kind needs none.
Target = float | str | None
Results = list[PartResult]
Metrics = Sequence[NodeMetric]


@dataclass
class JudgeContext:
    """The evidence besides a node's own records, and the results of comparing nodes. ``fleet``: the fleet's entries.
    ``nodes``: for each node its entries by the name of the check."""

    criteria: Sequence[Check]
    baseline: Baseline | None = None
    history: PeerHistory = field(default_factory=PeerHistory)
    #: For each stage the criteria that apply to it, the same for all nodes.
    of_stages: dict[str, list[Check]] = field(default_factory=dict)
    fleet: list[Entry] = field(default_factory=list)
    #: ``samples``: each check's figures, before the comparison. ``tails``: by SKU, of whole nodes and of their parts.
    samples: dict[str, dict[GroupKey, list[PeerSample]]] = field(default_factory=lambda: defaultdict(dict))
    tails: dict[str, tuple[Tails, Tails]] = field(default_factory=lambda: defaultdict(lambda: (Tails(), Tails())))
    #: For each node and stage the checks by which the whole node is behind: two stages are two measurements.
    behind: dict[str, dict[str, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    nodes: dict[str, dict[str, list[Entry]]] = field(default_factory=lambda: defaultdict(dict))
    #: For each node the stages to measure again, because a figure is far from that of its peers.
    doubtful: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: For each node the checks of kind ``same`` that found no peers with the same ``group_by``.
    alone: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: For each node the warnings about figures that no criterion compares and that differ from other nodes'.
    figures: Mapping[str, Sequence[Entry]] = field(default_factory=dict)


class CheckKind(ABC):
    """One kind of check, the ``kind`` of ``schemas/criteria.schema.json``, where its fields are declared."""

    name: str
    #: Whether the kind compares parts or nodes with each other: a figure of a whole gang is then of no use.
    compares = False

    def problem(self, check: Check) -> str | None:
        """The check's mistake that the schema cannot express, None if it has none."""
        return None

    @abstractmethod
    def describe(self, check: Check, target: Target) -> str:
        """The check's limit as text. ``target``: the value that a figure is compared with."""

    def metrics(self, check: Check) -> set[str]:
        """Names of the metrics that the check reads in the stage's records."""
        names = (check.metric, check.baseline_metric, check.parts_from, check.spread_from, check.samples_from)
        return {name for name in names if name is not None}

    def needs_peers(self, check: Check) -> bool:
        """Whether the check compares nodes, by ``compare``, instead of judging each node alone."""
        return False

    def survey(self, check: Check, subjects: Sequence[Subject], context: JudgeContext) -> None:  # noqa: B027  (most need none)
        """Put these nodes' figures into the context, before any check compares nodes."""

    def compare(self, check: Check, subjects: Sequence[Subject], context: JudgeContext) -> None:
        """Compare these nodes, and put the entries of each node and of the fleet into the context."""
        raise NotImplementedError

    @abstractmethod
    def judge(self, check: Check, subject: Subject, context: JudgeContext) -> list[Entry]:
        """Judge one node alone; returns its entries."""


class MetricKind(CheckKind):
    """A kind that judges every part (node, GPU, rank, link) by its own figure."""

    def judge(self, check: Check, subject: Subject, context: JudgeContext) -> list[Entry]:
        outside = not_applicable(check, subject)
        if any(entry["verdict"] == "skipped" for entry in outside):
            return [] if check.where_reported else outside
        if no_record(check, subject):
            failed = self.failed_so_far(check, subject)
            if failed or check.where_reported:
                return failed
        if outside and not check.where_reported:  # a fault counts even if the node's hardware is unknown
            return outside
        target, expected = check.value, check.expected
        if check.value_from is not None:
            target, verdict, reason = _declared_target(check.value_from, subject)
            if target is None:
                return [entry_of(check, verdict, reason)]
            expected = self.describe(check, target)
        open_entries = not_to_judge(check, subject) or (too_few_parts(check, subject) if self.compares else [])
        record = subject.records.get(check.stage)
        if open_entries or record is None:
            is_silent = check.where_reported and record and not subject.metrics(record, check.metric, check.scope)
            return [] if is_silent else [{**entry, "expected": expected} for entry in open_entries]
        results, absent = self.results(check, target, subject, record)
        earlier = earlier_failures(check, record, lambda attempt: self.results(check, target, subject, attempt)[0])
        judged_instead = _scopes(subject, record, check.unless_reported, check.scope)
        results = [each for each in (*earlier, *results) if each.part not in judged_instead]
        absent = None if check.where_reported else absent
        if not results and absent is None:
            return []
        entries = entries_of(check, results, absent, expected=expected)
        return with_gang(check, excused(check, entries, subject, record), record)

    def failed_so_far(self, check: Check, subject: Subject) -> list[Entry]:
        """Entries of what already failed in a stage that never ended and may not be measured again. Otherwise a node
        that a fault stopped would be INCOMPLETE, like one that is only late."""
        record = subject.records.get(check.stage)
        if record is None or not check.required or check.retry or check.value_from is not None:
            return []

        def failed(attempt: Record) -> list[PartResult]:
            results, _ = self.results(check, check.value, subject, attempt)
            return [each for each in results if each.passed is False and each.value is not None]

        now = failed(record) if check.kind == "max" else []  # a count above its limit does not fall
        failures = [*earlier_failures(check, record, failed), *now]
        return with_gang(check, entries_of(check, failures), record) if failures else []

    def results(self, check: Check, target: Target, subject: Subject, record: Record) -> tuple[Results, Absent]:
        """The results of all parts that reported, and the first part that did not, with the reason."""
        revision = None if self.compares else check.revision
        metrics = subject.metrics(record, check.metric, check.scope, revision)
        judged = [
            one._replace(passed=None, reason=f"{few}; {one.text}")
            if one.passed is False and one.value is not None and (few := too_little(check, subject, record, one.part))
            else one
            for one in self.judge_parts(check, target, metrics, subject, record)
        ]
        judged_instead = _scopes(subject, record, check.unless_reported, check.scope)
        return judged, lacking(check, subject, record, judged_instead.union(metric["scope"] for metric in metrics))

    @abstractmethod
    def judge_parts(self, check: Check, target: Target, metrics: Metrics, subject: Subject, record: Record) -> Results:
        """The result of each metric, one for each part."""


def _scopes(subject: Subject, record: Record, metric: str | None, scope: str) -> set[str]:
    """The parts (gpu:3) of a record that report this metric; empty for metric None."""
    return {each["scope"] for each in subject.metrics(record, metric, scope)} if metric else set()


def _declared_target(value_from: str, subject: Subject) -> tuple[Target, str, str]:
    """The value that the owner declares for a check; without one the verdict and the reason."""
    if value_from == "gpu_temperature_max":
        return subject.gpu_temperature_max, "skipped", "no limit declared"
    if value_from == "gpu_count":
        return subject.declared_gpus, "skipped", "count not declared"
    gpus = subject.gpus
    if gpus is not None and value_from == "gpu_pairs":
        gpus *= gpus - 1
    return gpus, "missing", "the GPU count of this node is unknown"


def too_little(check: Check, subject: Subject, record: Record, part: str) -> str:
    """Why a part's failure is no evidence: it has fewer samples than the check asks for. Empty if it has enough."""
    if check.samples_from is None:
        return ""
    counted = [
        metric for scope in {"node", check.scope} for metric in subject.metrics(record, check.samples_from, scope)
    ]
    counts = [one["value"] for one in counted if one["scope"] in ("node", part) and one["value"] is not None]
    few = min(counts, default=check.min_samples)
    if few >= check.min_samples:
        return ""
    return f"{check.samples_from} is {units.number_text(few)}, fewer than {check.min_samples}: too little work"


def without_too_little(check: Check, subject: Subject, record: Record, entries: Sequence[Entry]) -> list[Entry]:
    """A node's entries of a check that compares parts (GPUs, links) with peers; failures of parts with too few samples
    in the stage's record are missing evidence instead."""
    few = {entry["part"]: too_little(check, subject, record, entry["part"]) for entry in entries}
    return [
        {**entry, "verdict": "missing", "reason": f"{few[entry['part']]}; {entry['reason']}"}
        if entry["verdict"] == "fail" and few[entry["part"]]
        else entry
        for entry in entries
    ]


def earlier_failures(check: Check, record: Record, results: Any) -> Iterator[PartResult]:
    """Parts that failed in an earlier attempt and may not be measured again, as results: they stay failed. If the work
    itself failed, attempts contradict each other and leave the part open. ``results`` judges one attempt's parts."""
    if not check.required:
        return
    passed, outcome = (None, "unsteady") if check.retry else (False, "such a result is never retried into PASS")
    for attempt in record["attempts"]:
        if check.retry and attempt["state"] != "failure":
            continue
        unfinished = attempt["state"] in UNFINISHED
        if unfinished and check.kind != "max":  # a count above its limit does not fall
            continue
        if check.of_gang and attempt.get("of_round"):
            continue  # a failed gang runs again without the nodes that the search implicates
        origin = f"round {attempt['of_round']}" if attempt.get("of_round") else f"attempt {attempt['attempt']}"
        for result in results(attempt):
            if result.passed is False and not (unfinished and (result.value is None or result.unit != "count")):
                yield result._replace(passed=passed, reason=f"{origin}: {result.text}; {outcome}")


def allowance(check: Check) -> str:
    """The allowed deviation as text: "5 % under and 3 % over"."""
    sides = ((check.max_below, "under"), (check.max_above, "over"))
    return " and ".join(f"{units.number_text(most * 100)} % {way}" for most, way in sides if most is not None)
