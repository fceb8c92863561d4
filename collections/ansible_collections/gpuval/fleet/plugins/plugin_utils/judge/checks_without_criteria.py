"""The checks that need no criteria: launch, other work on the GPUs, changed evidence, accelerator, identity of the
machine, order of the GPUs, and copied measurements: no two machines take exactly the same time for everything."""

import functools
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ...module_utils.hardware.pci import GPU_VENDORS
from ..core import units
from ..core.escape import one_line
from ..core.text import natural_order, some_of
from ..records import environment, launch_errors
from ..records.documents import LAUNCHED, Document, Record
from ..records.evidence import RunEvidence
from ..records.failure_classes import AGAIN, NOT_MEASURED_AGAIN
from .check import FACTS, Subject
from .entries import Entry, own_entry
from .identity import DISPUTED, SAME, Twins, bare_uuid, identity_values, repeated_gpus
from .subjects import count_of

IN_USE = "accelerators_in_use"


def launch_check(name: str, launch: Document | None, records: Mapping[str, Record]) -> Entry:
    """The check of the launch. A record of work that began proves the launch, even if the connection broke."""
    state = str(launch.get("state", "unknown")) if launch else "never started"
    began = any(record["started_at"] is not None for record in records.values())
    message = one_line(launch.get("message") or "", 400) if launch else ""
    if state in LAUNCHED or began:
        reason = f"{state}: {message}" if message else state
        return own_entry("launch", "", "launch", "pass", value=state, expected="started", reason=reason)
    described = launch_errors.described(launch or {"state": "unknown"})
    word = one_line(described["class"], 40)
    reason = state if word in (state, "not_started", "launch_failed", "plan_refused") else f"{state} ({word})"
    if described["message"]:
        reason += f": {one_line(described['message'], 400)}"
    remedy = one_line(described["remedy"], 1000).replace("{node}", name)
    if "validate again" not in remedy:  # a probe's remedy is its own
        remedy = f"{remedy}, {AGAIN.format(node=name)}"
    return own_entry("launch", "", "launch", "missing", value=word, expected="started", reason=reason, remedy=remedy)


def interruption_checks(name: str, launch: Document) -> list[Entry]:
    """A warning for each time that the node was lost and came back, and for a second measurement that did not start."""
    lost = ("interrupted", "interrupted in mid-run: ", "one attempt without a loss of the node")
    again = (NOT_MEASURED_AGAIN, "", "a second measurement of what differs from the peers")
    return [
        own_entry(
            kind, "", "launch", "warn", severity="advisory", value=one_line(item["class"], 40), expected=expected,
            reason=f"{begin}{one_line(item.get('message') or '', 400)}",
            remedy=one_line(item.get("remedy") or "", 1000).replace("{node}", name),
        )
        for item in launch.get("interruptions", ())
        for kind, begin, expected in [again if item["class"] == NOT_MEASURED_AGAIN else lost]
    ]  # fmt: skip


def no_stage_checks(stages: Sequence[str]) -> list[Entry]:
    check = own_entry(
        "stages", "", "state", "missing", expected="at least one stage", reason="the node was asked to run no stage",
        remedy="choose a profile or tags that leave at least one stage",
    )  # fmt: skip
    return [] if stages else [check]


def changed_and_exempt_checks(changed: tuple[Sequence[str], str] | None, expected: Document) -> list[Entry]:
    """A check against records that changed since an earlier judgement, so that the verdict cannot improve; and skipped
    checks of exempt stages. ``changed``: (these stages, earlier verdict); ``expected``: the node's part of run.json."""
    exempt = [
        own_entry(f"{stage}_state", stage, "state", "skipped", expected=f"nothing: {reason}", reason=reason)
        for stage, reason in expected.get("exempt", {}).items()
    ]
    if changed is None:
        return exempt
    stages, verdict = changed
    check = own_entry(
        "evidence_unchanged", "", "identity", "fail" if verdict == "FAIL" else "missing", value=verdict,
        expected="the records that were judged",
        reason=f"{verdict} when the run ended; changed or removed since: {some_of(stages)}",
        remedy="judge on the controller of the run, which keeps what it judged; find out who changed the record",
    )  # fmt: skip
    return [check, *exempt]


def in_use_checks(name: str, stage: str, record: Record | None) -> list[Entry]:
    """A check that the stage ran without other work on the accelerators: beside other work its speed proves nothing."""
    users = environment.accelerator_users(record["environment"]) if record else ""
    check = own_entry(
        IN_USE, stage, "identity", "missing", expected="no other work on the accelerators",
        reason=f"other work on the accelerators at the end of {stage}: {one_line(users, 400)}",
        remedy=f"end that work, or keep the node free, {AGAIN.format(node=name)}",
    )  # fmt: skip
    return [check] if users else []


def accelerator_check(subject: Subject, facts: Record | None) -> Entry:
    """The check of the accelerator that was used. A CPU replaces GPUs only if the inventory says ``cpu``, or without
    GPU hardware; beside nodes with GPUs the inventory must say it, since GPUs vanish from the PCI bus without power."""
    declared = f"sku {subject.sku}"
    if subject.declared_gpus:
        declared = f"{'' if subject.sku == 'auto' else f'{declared} with '}{subject.declared_gpus} GPUs"
    install = "install or repair the GPU driver and look for the devices (lspci); for a CPU node, set gpuval_sku: cpu"

    entry = functools.partial(own_entry, "accelerator", FACTS, "identity", value=subject.accelerator, expected=declared)
    if subject.sku == "cpu":
        return entry("pass", "declared cpu")
    if subject.accelerator == "unknown":
        remedy = "let the facts stage run and succeed, or set gpuval_sku: cpu"
        return entry("missing", "no facts say what the node has", remedy)
    if subject.accelerator in GPU_VENDORS:
        return entry("pass", f"{subject.accelerator} found")
    if subject.sku != "auto" or subject.declared_gpus:
        reason = f"the inventory declares {declared}, but no usable GPU was found: a CPU never stands in for a GPU"
        return entry("fail", reason, install)
    hardware = count_of(facts["metrics"] if facts else (), "gpu_hardware_count")
    if hardware is None:
        reason = "looks like a CPU node, but gpu_hardware_count does not prove that it has no GPU hardware"
        return entry("missing", reason, install)
    if hardware > 0:
        reason = f"{units.number_text(hardware)} GPU devices on the PCI bus, none of them usable"
        return entry("fail", reason, install)
    if subject.expects_gpus:
        remedy = "look for its GPUs with lspci, and at the power of their board; for a CPU node, set gpuval_sku: cpu"
        return entry("missing", f"no GPU hardware, but {subject.expects_gpus}", remedy)
    return entry("pass", "a CPU node: no GPU hardware")


_COMPARE_GPUS = "compare nvidia-smi -L on both nodes with the serials of their GPUs, then validate both again"
#: (relation of a node to one with the same identity, a field of Twins; verdict; message; remedy, empty: the usual one).
_TWIN_OUTCOMES = (
    ("same", "fail", "one machine listed twice: {reason}", ""),
    ("claims", "fail", "one machine listed twice: {reason}{contradiction}", ""),
    ("open", "missing", "two nodes list one GPU: {reason}", _COMPARE_GPUS),
    ("disputed", "warn", f"{DISPUTED}: {{reason}}", _COMPARE_GPUS),
    ("claimed_by", "warn", "{reason}; the other evidence of the two differs", ""),
)


def identity_checks(name: str, facts: Record | None, twins: Twins) -> list[Entry]:
    listed_twice = launch_errors.NAMED["same_machine_twice"].remedy.replace("{node}", name)

    def entry(verdict: str, reason: str, check: str = "identity", **fields: Any) -> Entry:
        return own_entry(check, FACTS, "identity", verdict, expected="unique in the run", reason=reason, **fields)

    repeated = repeated_gpus(facts)
    if repeated:
        reason = f"the node lists the GPU UUID {some_of(repeated, 3)} more than once"
        remedy = "compare nvidia-smi -L with the GPUs in the machine: one of them is counted twice"
        return [entry("fail", reason, "gpu_uuids", value=some_of(repeated, 3), remedy=remedy)]
    for outcome, verdict, sentence, remedy in _TWIN_OUTCOMES:
        twin_reasons = getattr(twins, outcome)
        if twin_reasons:
            named, reason = _named(twin_reasons)
            text = sentence.format(reason=reason, contradiction=twins.contradiction and f": {twins.contradiction}")
            fields = {"severity": "advisory"} if verdict == "warn" else {"class": "same_machine_twice"}
            return [entry(verdict, text, value=named, remedy=remedy or listed_twice, **fields)]
    if facts is None or identity_values(facts):
        return [entry("pass", "unique in the run")] if facts else []
    remedy = "make sure that /etc/machine-id is not empty and that the facts may read it"
    return [entry("missing", "no machine id, serial or GPU UUID is known", severity="advisory", remedy=remedy)]


def _named(twin_reasons: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """Names of the nodes that share an identity with this one, and what the first of them shares."""
    names = sorted(twin_reasons, key=lambda name: (sorted(twin_reasons[name]), natural_order(name)))
    first, *more = sorted(twin_reasons[names[0]])[:3]
    shared = one_line(", ".join([first, *(other.removeprefix(SAME) for other in more)]), 240)
    named = some_of(names)
    more_names = named.removeprefix(names[0]).removeprefix(", ")
    return named, f"{names[0]} (and {more_names}) {shared}" if more_names else f"{names[0]} {shared}"


GPU_ORDER = "gpu_order"


def gpu_order_checks(subject: Subject, stage: str, record: Record | None, identity: Document) -> list[Entry]:
    """A check for a stage that numbers the GPUs otherwise than the facts: its gpu:3 is not the GPU with that serial."""
    of_facts = {bare_uuid(gpu["uuid"]): gpu["index"] for gpu in identity.get("gpus", ()) if "uuid" in gpu}
    devices = environment.objects(record["environment"], "devices[]") if record else []
    of_stage = {bare_uuid(gpu["uuid"]): gpu.get("index") for gpu in devices if isinstance(gpu.get("uuid"), str)}
    if not of_facts or (subject.accelerator != "nvidia" and of_facts.keys().isdisjoint(of_stage)):
        return []  # tools of other vendors and PyTorch may have different ids
    moved = [
        f"its gpu:{index} is {f'gpu:{of_facts[uuid]}' if uuid in of_facts else 'none'} of the facts"
        for uuid, index in of_stage.items()
        if of_facts.get(uuid) != index
    ]
    check = own_entry(
        GPU_ORDER, stage, "identity", "missing", expected="the GPUs in the order of the facts",
        reason=f"{stage} numbers the GPUs otherwise: {one_line(some_of(moved), 300)}",
        remedy="unset CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER on the node and in the stage's environment; if a GPU "
        f"was replaced since the facts, run the facts again: new run id, --limit {subject.name}",
    )  # fmt: skip
    return [check] if moved else []


def renumbered(checks: Iterable[Document]) -> set[str]:
    """The stages of a node whose GPU numbers differ from those of the facts: their GPUs cannot be named by serial."""
    return {check["stage"] for check in checks if check["name"] == GPU_ORDER}


def without_parts(checks: Sequence[Entry]) -> list[Entry]:
    """The checks of a node, in which those of a renumbered stage name the whole node instead of a part."""
    stages = renumbered(checks)
    return [
        {**check, "part": "node", "reason": f"{check['part']} as {check['stage']} numbers it: {check['reason']}"}
        if check["stage"] in stages and check["part"].startswith("gpu:")
        else check
        for check in checks
    ]


#: If this many figures, of this many digits each, are equal on two nodes, that is no coincidence.
MIN_FIGURES, MIN_DIGITS = 3, 6
#: Stages that report no measurements: machines of one kind report the same there.
UNMEASURED = (FACTS, "image")


def find_copies(
    run: Document, evidence: RunEvidence, twins: Mapping[str, Twins] = MappingProxyType({})
) -> dict[str, dict[str, list[str]]]:
    """``{node: {stage: other nodes with the same measurements}}``, without nodes that claim the node's identity."""
    owners: dict[tuple[str, bytes], list[str]] = defaultdict(list)
    for name, expected in run["nodes"].items():
        for stage in sorted(set(expected["stages"]) - set(expected.get("gang_stages", ()))):  # members share figures
            record = evidence.records.get(name, {}).get(stage)
            figures = _digest_of_timed_figures(record) if record and stage not in UNMEASURED else b""
            if figures:
                owners[stage, figures].append(name)
    copies: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for (stage, _), names in owners.items():
        for name in names if len(names) > 1 else ():
            candidates = (other for other in names if other != name)
            copied = [other for other in candidates if other not in twins or name not in twins[other].claims]
            if copied:
                copies[name][stage] = copied
    return copies


def _digest_of_timed_figures(record: Record) -> bytes:
    """A digest of the measurements, the same for equal ones; empty if there are too few."""
    figures = sorted(
        (metric["name"], metric["scope"], float(metric["value"]))
        for metric in record["metrics"]
        if metric["value"] is not None and units.is_timed(metric["unit"])
        for mantissa in [repr(abs(metric["value"])).partition("e")[0]]
        if len(mantissa.replace(".", "").strip("0")) >= MIN_DIGITS
    )
    return hashlib.sha256(repr(figures).encode()).digest() if len(figures) >= MIN_FIGURES else b""


def copy_checks(copies: Mapping[str, list[str]]) -> list[Entry]:
    """A check for each stage in which other nodes have the node's own measurements. ``copies``: {stage: such nodes}."""
    names = {stage: sorted(copied, key=natural_order) for stage, copied in copies.items()}
    return [
        own_entry(
            f"{stage}_figures", stage, "identity", "missing", value=named, expected="measurements of its own",
            reason=f"the same measurements to the last digit as {named}: one record is a copy",
            remedy="find out what wrote the records on these nodes, then validate them again under a new run id",
        )
        for stage, named in ((stage, some_of(copied)) for stage, copied in names.items())
    ]  # fmt: skip
