"""The entries of a report: one check's verdict on a node or a part. Each failed part has its own; missing parts share
one; if all pass, one entry shows the part nearest to the limit."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...module_utils.hardware.pci import GPU_VENDORS
from ..core import units
from ..core.stages import DEPTHS
from ..core.text import some_of
from ..records import environment
from ..records.documents import UNFINISHED, Document, Record
from ..records.failure_classes import speaks_of_node
from .check import Check, Subject, revision_of

MAX_PARTS = 1_000_000
MAX_FAILED_PARTS = 64
MAX_NAMED_PARTS = 16
MAX_GANG_NAME = 64
MAX_MESSAGE = 400

Entry = dict[str, Any]
#: (first part that did not report a figure, text on what is missing); None if all parts did.
Absent = tuple[str, str] | None
_FACTS_FIRST = "fix the facts stage, which reports what the node has, then validate again"


class PartResult(NamedTuple):
    """A check's result on one part, such as gpu:3. ``passed``: None if evidence is missing. ``margin``: distance from
    the limit; of parts that pass, the report shows the one with the least."""

    part: str
    passed: bool | None
    value: float | int | str | None
    unit: str
    reason: str | Callable[[], str]
    margin: float = math.inf

    @property
    def text(self) -> str:
        """The reason as text, made only when it is shown."""
        return self.reason if isinstance(self.reason, str) else self.reason()


class _EntryFields:
    """Holds an entry's fields. Dictionaries of a class's instances share keys: 200 bytes for each instead of 470."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        for name, value in fields.items():
            setattr(self, name, value)


def entry_of(check: Check, verdict: str, reason: str, **fields: Any) -> Entry:
    """The report's entry for a criterion; advice that fails is a warning. ``fields`` replace those of the criterion."""
    shown = "warn" if verdict == "fail" and not check.required else verdict
    declared = {name: getattr(check, name) for name in ("metric", "severity", "expected", "source", "remedy")}
    own = {**declared, "unit": check.unit or "", **fields}
    return own_entry(check.name, check.stage, check.kind, shown, reason, **own)


def own_entry(
    name: str, stage: str, kind: str, verdict: str, reason: str = "", remedy: str = "", **fields: Any
) -> Entry:
    """The report's entry for a check that no criteria file defines."""
    own = {
        "name": name, "stage": stage, "metric": None, "kind": kind, "severity": "required", "verdict": verdict,
        "part": "node", "value": None, "unit": "", "expected": "", "reason": reason,
        "source": "what a run needs as proof", "remedy": remedy, **fields,
    }  # fmt: skip
    return vars(_EntryFields(own))


def entries_of(check: Check, results: Sequence[PartResult], absent: Absent = None, **fields: Any) -> list[Entry]:
    """The report's entries for a check's results on parts, each with ``fields``. ``absent``: first part without
    figure."""

    def entry(verdict: str, result: PartResult) -> Entry:
        shown = {"part": result.part, "value": result.value, "unit": result.unit}
        return entry_of(check, verdict, result.text, **shown, **fields)

    failed = [result for result in results if result.passed is False]
    unknown = [result for result in results if result.passed is None]
    entries = [entry("fail", result) for result in failed[:MAX_FAILED_PARTS]]
    if len(failed) > MAX_FAILED_PARTS:
        entries[-1]["reason"] += f"; {len(failed) - MAX_FAILED_PARTS} more parts fail too"
    if unknown:
        entries.append(entry("missing", unknown[0]))
        if len(unknown) > 1:
            entries[-1]["reason"] += f"; so are {len(unknown) - 1} more parts"
    if absent is not None:
        part, reason = absent
        remedy = f"read the log of {check.stage}: it says why the figure is missing; then validate again"
        entries.append(entry_of(check, "missing", reason, part=part, remedy=remedy, **fields))
    if not entries:
        entries.append(entry("pass", min(results, key=lambda result: result.margin)))
        if len(results) > 1:
            entries[0]["reason"] = f"the worst of {len(results)}: {entries[0]['reason']}"
    return entries


#: Metrics in which the search for the bad node of a gang reports what it found about one node.
SEARCH_METRICS = ("fabric_suspect_count", "fabric_untested_count", "fabric_bad_link_count")


def verdict_and_class(checks: Sequence[Entry]) -> dict[str, Any]:
    """``verdict`` and ``class`` (None for PASS) by these checks; INCOMPLETE if no required work passed."""
    failed, missing, passed = (required_checks(checks, verdict) for verdict in ("fail", "missing", "pass"))
    if any(map(speaks_of_node, failed)):
        verdict = "FAIL"
    elif failed or missing or all(check["kind"] in ("launch", "identity") for check in passed):
        verdict = "INCOMPLETE"
    else:
        return {"verdict": "PASS", "class": None}
    return {"verdict": verdict, "class": deciding_class(headline({"checks": checks}))}


def required_checks(checks: Iterable[Document], *verdicts: str) -> list[Document]:
    return [check for check in checks if check["severity"] == "required" and check["verdict"] in verdicts]


def deciding_class(check: Document | None) -> str:
    """The failure class by which a check decides: of a launch, of a stage's end, or the check's name."""
    if check is None:
        return "nothing_proven"
    return str(check["value"] if check["kind"] == "launch" else check.get("class") or check["name"])


def headline(node: Document) -> Document | None:
    """The check that decided against the node: the first required one that failed, else the first that is missing. If
    another part is the cause of the first, that part's own failed check comes first. Among missing ones, a search's
    findings about this node come before what all members of its gang share."""
    failed, missing = (required_checks(node["checks"], verdict) for verdict in ("fail", "missing"))
    failed.sort(key=lambda check: not speaks_of_node(check))
    cause = failed[0].get("cause") if failed else None
    failed.sort(key=lambda check: bool(cause) and check["part"] != cause)
    of_search = [check for check in missing if check["metric"] in SEARCH_METRICS and check["value"] is not None]
    return next(iter([*failed, *of_search, *missing]), None)


def not_applicable(check: Check, subject: Subject) -> list[Entry]:
    """The entry of a node that the check does not apply to; empty if it applies."""
    outside = _why_not_applicable(check, subject)
    if outside is None:
        return []
    return [entry_of(check, *outside, **({"remedy": _FACTS_FIRST} if outside[0] == "missing" else {}))]


def _why_not_applicable(check: Check, subject: Subject) -> tuple[str, str] | None:
    applies = check.applies
    if applies.profile and subject.profile not in applies.profile:
        return "skipped", f"applies to the profile {_either(applies.profile)}, this is {subject.profile}"
    if DEPTHS.index(subject.depth) < DEPTHS.index(applies.depth):
        deepest = f"{subject.depth}, of the profile {subject.profile}"
        return "skipped", f"applies from the depth {applies.depth} on, this is {deepest}"
    if applies.sku and subject.skus.isdisjoint(applies.sku):
        return "skipped", f"applies to {_either(applies.sku)}, this is {subject.catalogue_sku or subject.sku}"
    record = subject.records.get(check.stage)
    workload = subject.workloads.get(check.stage, record["workload"] if record else None)
    if applies.workload and workload is not None and workload not in applies.workload:
        return "skipped", f"applies to the workload {_either(applies.workload)}, this is {workload}"
    if applies.accelerator:
        if subject.accelerator == "unknown":
            return "missing", f"applies to {_either(applies.accelerator)}, and the accelerator of this node is unknown"
        kinds = {subject.accelerator, "gpu"} if subject.accelerator in GPU_VENDORS else {subject.accelerator}
        if kinds.isdisjoint(applies.accelerator):
            return "skipped", f"applies to {_either(applies.accelerator)}, this is {subject.accelerator}"
    gpus, gpu_counts = subject.gpus, ""
    if applies.gpu_count and gpus not in applies.gpu_count:
        gpu_counts = f"{_either([str(count) for count in applies.gpu_count])} GPUs"
    elif applies.gpus_at_least and (gpus is None or gpus < applies.gpus_at_least):
        gpu_counts = f"{applies.gpus_at_least} GPUs or more"
    if gpu_counts and gpus is None:
        return "missing", f"applies to {gpu_counts}, and the GPU count of this node is unknown"
    return ("skipped", f"applies to {gpu_counts}, this node has {gpus}") if gpu_counts else None


def _either(names: Sequence[str]) -> str:
    return " or ".join(names)


def no_record(check: Check, subject: Subject) -> list[Entry]:
    """The entry of a node whose stage has no usable record yet; empty if its record can be judged."""
    record = subject.records.get(check.stage)
    if record is not None and record["state"] not in UNFINISHED:
        return []
    reason = f"no record of {check.stage}" if record is None else f"{check.stage} has not ended"
    return [entry_of(check, "missing", reason, remedy="")]  # the check of the stage's end has the remedy


def not_to_judge(check: Check, subject: Subject) -> list[Entry]:
    """The entry that explains why the stage's figures are not judged; empty if they are."""
    open_entries = no_record(check, subject)
    if open_entries:
        return open_entries
    record = subject.records[check.stage]
    for name, expected_values in check.applies.fingerprints:
        reason_apart = _other_fingerprint(check, subject, record, name, expected_values)
        if reason_apart is not None:
            return [entry_of(check, *reason_apart)]
    if check.scope == "link" and subject.gpus in (0, 1):  # without two GPUs there is no link
        counted = {metric["value"] for metric in subject.metrics(record, check.parts_from or "", "node")}
        return [entry_of(check, "skipped", "one part has no links")] if counted == {0} else []
    return []


def is_held(check: Check, subject: Subject) -> bool:
    """Whether the node's figure is judged by the check: the check applies, and the stage ran as the check requires."""
    return check.stage in subject.records and not (not_applicable(check, subject) or not_to_judge(check, subject))


def _other_fingerprint(
    check: Check, subject: Subject, record: Record, name: str, expected_values: Sequence[str]
) -> tuple[str, str] | None:
    """Verdict and reason if a limit was measured with other settings than the node's. The run's settings decide what is
    expected. A node that works otherwise than they ask for lacks evidence, and is not exempt."""
    shown = record["fingerprints"].get(name)
    asks = subject.setups.get(check.stage, {}).get(name)
    limit = f"applies to {name} {_either(expected_values)}"
    if asks is not None and asks.isdisjoint(expected_values):
        return "skipped", f"{limit}, this run asks for {_either(sorted(asks))}"
    if shown is None:
        return "missing", f"{limit}, and {check.stage} reported no {name}"
    if shown in expected_values:
        return None
    if asks is not None:
        return "missing", f"{name} is {shown}, but this run asks for {_either(sorted(asks))}: the limit cannot be held"
    if not check.required:
        return "skipped", f"{limit}, this is {shown}"
    return "warn", f"{limit}, this is {shown}, and no setting of the run tells which is right: not judged"


#: Valid reasons for a missing figure. A driver's error, or an interrupted reading, is none.
EXCUSE = re.compile(
    r"not supported|not permitted|not there|does not have it|has no error counters|does not (?:report|tell) it"
    r"|retire pages instead|which is not read|not measured on|this chip has no|has no fp8|no fp8 product",
    re.IGNORECASE,
)


def excused(check: Check, entries: list[Entry], subject: Subject, record: Record) -> list[Entry]:
    """The entries, with missing ones as advice if the record says why the node cannot have the figure. Failed entries
    stay. A precision that the SKU's data sheet lists is never excused."""
    if all(entry["verdict"] != "missing" for entry in entries):
        return entries
    excluded = {f"left_out.{precision}" for precision in subject.precisions}
    paths = [path for path in check.excused_by if path not in excluded]
    why = [text for path in paths for text in environment.texts(record["environment"], path)]
    if why and all(EXCUSE.search(text) for text in why):
        for entry in entries:
            if entry["verdict"] == "missing":
                entry["severity"] = "advisory"
                entry["reason"] += f" ({why[0]})"
    return entries


def with_gang(check: Check, entries: list[Entry], record: Record) -> list[Entry]:
    """The entries with the gang's name for a figure of a whole gang, and the stage's message where the check shows it.
    A gang's failed figure implicates no member: it is missing evidence for each of them."""
    message = " ".join(str(record["message"]).split())[:MAX_MESSAGE] if check.tells_message else ""
    for entry in entries:
        if entry["verdict"] not in ("fail", "warn", "missing"):
            continue
        if message:
            entry["reason"] = f"{message} ({entry['reason']})"
            if entry["verdict"] == "missing" and check.kind == "min" and record["state"] == "success":
                entry["remedy"] = check.remedy  # the stage's message has the reason why it left the figure out
        if check.of_gang:
            entry["reason"] = f"{gang_of(record) or 'a gang'}: {entry['reason']}"
            if entry["verdict"] == "fail":
                entry["verdict"] = "missing"
    return entries


def gang_of(record: Record) -> str:
    """The record's gang as text, empty without one; a record's environment is not trusted."""
    gang = record["environment"].get("gang")
    name = gang.get("name") if isinstance(gang, dict) else None
    if not isinstance(gang, dict) or not isinstance(name, str) or not name:
        return ""
    nodes = gang.get("nodes")
    count = f" of {nodes} nodes" if type(nodes) is int and 1 < nodes <= MAX_PARTS else ""
    return f"gang {name[:MAX_GANG_NAME]}{count}"


def lacking(check: Check, subject: Subject, record: Record, reported: Collection[str]) -> Absent:
    """The first part that did not report the check's metric, and a text on what is missing; None if all parts did."""
    if check.scope == "node":
        return None if reported else ("node", f"{check.stage} reported no {_figure_name(check, subject, record)}")
    count, why = expected_parts(check, subject, record)
    if count is None:
        return "node", why
    if check.scope == "link":
        short = count - len(reported)
        return ("node", f"{short} of {count} links reported no {check.metric}") if short > 0 else None
    absent = [part for part in (f"{check.scope}:{index}" for index in range(count)) if part not in reported]
    if not absent:
        return None
    figure = _figure_name(check, subject, record)
    return absent[0], f"no {figure} of {some_of(absent, MAX_NAMED_PARTS)} ({count} expected)"


def _figure_name(check: Check, subject: Subject, record: Record) -> str:
    """The check's metric, with the revision of its definition if the record has another one."""
    revisions = {revision_of(metric) for metric in subject.metrics(record, check.metric, check.scope, None)}
    return f"{check.metric} of revision {check.revision}" if revisions - {check.revision} else check.metric


def expected_parts(check: Check, subject: Subject, record: Record) -> tuple[int | None, str]:
    """How many parts must report; else None, and why their number is unknown."""
    value: Any
    if check.parts_from is not None:
        counts = {metric["value"] for metric in subject.metrics(record, check.parts_from, "node")}
        source = f"{check.parts_from}, which tells how many parts must report,"
        if len(counts) != 1:
            return None, f"{source} {'has several values' if counts else 'is missing'}"
        value = counts.pop()
    elif check.scope != "gpu":
        return None, f"the number of {check.scope}s that must report is unknown"
    elif subject.gpus is not None:
        value = subject.gpus
        source = "gpu_count of the facts" if subject.declared_gpus is None else "the declared GPU count"
    else:
        return None, "the number of GPUs that must report is unknown: none declared, and the facts have no gpu_count"
    if value is None or value != int(value) or not 1 <= value <= MAX_PARTS:
        return None, f"{source} is {units.human(value, '')}: no parts to judge"
    return int(value), ""
