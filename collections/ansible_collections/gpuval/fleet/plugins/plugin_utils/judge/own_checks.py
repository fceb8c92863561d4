"""The checks that need no criteria: launch, the end of every stage, the accelerator, and the identity of a machine."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...module_utils.hardware.pci import GPU_VENDORS
from ..core import units
from ..core.escape import one_line
from ..core.text import natural_order, some_of
from ..records import environment, launch_errors
from ..records.documents import Problem, Record
from ..records.states import FAILED_STATES, LAUNCHED, RUN_ENDED
from ..runs import datasets, plans, settings
from .entries import Entry, gang_of, own_entry
from .identity import SAME, Twins, identity_values, repeated_gpus
from .subject import FACTS, Subject
from .subjects import count_of

IMAGE, IN_USE, GPU_ORDER = "image", "accelerators_in_use", "gpu_order"
WRONG_DIGEST, NO_PACKAGE, DISK_FULL, NO_IMAGE = "wrong_digest", "no_package", "disk_full", "no_image"
#: Faults of a stage that says no and proves nothing by it.
NO_RCLONE, STORE_INCOMPLETE, NO_SERVER = BLAMELESS_FAILURES = "no_rclone", "store_incomplete", "no_server"
#: No last record came of these, so that a lost contact with the node explains them.
OPEN_STATES = ("missing", "pending", "running")

_VALIDATE = "validate again"
_AGAIN = f"then {_VALIDATE} with --limit {{node}}"
#: By stage and what it says in its environment (`fault`) when the store, the registry or the archive is to blame.
_BLAMELESS = {
    (IMAGE, "delivery"): f"check that the image exists and can be pulled: fix the cause named above, {_AGAIN}",
    ("loading", NO_RCLONE): f"install rclone as named above, {_AGAIN}",
    ("inference", NO_SERVER): f"install the packages named above, {_AGAIN}",
    ("loading", STORE_INCOMPLETE): f"bring the model into the store (`make models`), {_AGAIN}",
    ("loading", "store_away"): f"correct gpuval_s3_read_access_key (`make prepare` tests it and its secret), {_AGAIN}",
}
_NO_IMAGE = f"bring the image to the node as named above, {_AGAIN}"
_FREE_SPACE = "free space on the node where the message says, or set gpuval_node_dir or gpuval_models_dir, " + _AGAIN
_WITH_OTHERS = "validate again with others of its kind: with --limit alone a node is in no gang"
_OF_GANG = f"fix the node or link that the message and the search name, then {_WITH_OTHERS}"
_AGAIN_WITH_ALL = "run the job again on all of its nodes"
_OF_GANG_JOB = (
    f"read nodes/NODE/{{stage}}.log of the node that the message names, fix the cause, then {_AGAIN_WITH_ALL}"
)
#: Classes of launches in a gang whose own remedy is better.
_REFUSED_GANG = (NO_PACKAGE, NO_IMAGE, "other_run", "foreign_work")
_STATE_REMEDY = {
    "failure": f"read nodes/{{node}}/{{stage}}.log, fix the cause named above, {_AGAIN}",
    "crash": f"read the end of nodes/{{node}}/{{stage}}.log and the kernel log of the node, {_AGAIN}",
    "timeout": "read in nodes/{node}/{stage}.log where it stopped; raise the time limit if it is healthy but slow",
    "skipped": f"fix the stage that it waited for, {_AGAIN}",
    "cancelled": f"{_VALIDATE} with --limit {{node}}",
    "pending": f"raise gpuval_deadline_seconds (the run ended before the stage began), {_AGAIN}",
    "running": f"raise gpuval_deadline_seconds (the run ended before the stage did), {_AGAIN}",
    "missing": f"check that the node is up and reaches the store, {_AGAIN}",
}


def launch_check(name: str, launch: Mapping[str, Any] | None, records: Mapping[str, Record]) -> Entry:
    """A record of work that began proves the launch, whatever became of the connection that made it."""
    state = str(launch.get("state", "unknown")) if launch else "never started"
    began = any(record["started_at"] is not None for record in records.values())
    message = one_line(launch.get("message") or "", 400) if launch else ""
    if state in LAUNCHED or began:
        reason = f"{state}: {message}" if message else state
        return own_entry("launch", "", "launch", "pass", value=state, expected="started", reason=reason)
    known = launch_errors.described(launch or {"state": "unknown"})
    word = one_line(known["class"], 40)
    reason = state if word in (state, "not_started", "launch_failed", "plan_refused") else f"{state} ({word})"
    if known["message"]:
        reason += f": {one_line(known['message'], 400)}"
    remedy = one_line(known["remedy"], 1000).replace("{node}", name)
    if "validate again" not in remedy:  # a probe's remedy is its own
        remedy = f"{remedy}, {_AGAIN.format(node=name)}"
    return own_entry("launch", "", "launch", "missing", value=word, expected="started", reason=reason, remedy=remedy)


def no_stage_check() -> Entry:
    return own_entry(
        "stages", "", "state", "missing", expected="at least one stage", reason="the node was asked to run no stage",
        remedy="choose a profile or tags that leave at least one stage",
    )  # fmt: skip


def changed_check(stages: Sequence[str], verdict: str) -> Entry:
    """A node whose records are not those that it was judged on; its ``verdict`` of then is the best it can have."""
    return own_entry(
        "evidence_unchanged", "", "identity", "fail" if verdict == "FAIL" else "missing", value=verdict,
        expected="the records that were judged",
        reason=f"{verdict} when the run ended; changed or removed since: {some_of(stages)}",
        remedy="judge on the controller of the run, which keeps what it judged; find out who changed the record",
    )  # fmt: skip


def exempt_check(stage: str, reason: str) -> Entry:
    """A stage of gangs that nothing is expected of; without an entry it would vanish."""
    return own_entry(f"{stage}_state", stage, "state", "skipped", expected=f"nothing: {reason}", reason=reason)


def state_check(
    name: str,
    stage: str,
    record: Record | None,
    problems: Sequence[Problem],
    contact: Mapping[str, Any] | None = None,
    *,
    of_gang: bool = False,
    cleaned: bool = False,
    resume: str = "",
) -> Entry:
    """The end of a stage; `contact` says why the node could not be asked for its records, if it could not.

    ``of_gang``: the stage is one that nodes run together; its failure implicates none of them. ``cleaned``: the run was
    ended by a clean; ``resume``: what resumes it, if it has not ended.
    """
    state = record["state"] if record else "missing"
    refused = [problem["reason"] for problem in problems if problem["stage"] == stage]
    ended = state in OPEN_STATES and cleaned
    if ended:
        reason = f"{state}: {RUN_ENDED}"
    elif record is None:
        reason = refused[0] if refused else "no record"
    else:
        message = one_line(record["message"])
        reason = message if state == "success" else f"{state}: {message}" if message else state
    verdict = "pass" if state == "success" else "fail" if state in FAILED_STATES else "missing"
    remedy = "" if verdict == "pass" else _STATE_REMEDY["cancelled" if ended else state].format(node=name, stage=stage)
    if stage not in settings.SHIPPED_STAGES and not stage.startswith(datasets.STAGE):
        remedy = remedy.replace(_VALIDATE, "repeat the command")  # that of a job may be `make job`
    if state == "failure" and stage.startswith(datasets.STAGE):
        known = launch_errors.classify("", reason)
        remedy = known.remedy.format(node=name) if known.name == WRONG_DIGEST else remedy
    if record and verdict == "fail" and of_gang:  # the first to fail is often healthy
        verdict, reason = "missing", f"{gang_of(record) or 'a gang'}: {reason}"
    if verdict == "missing" and of_gang:
        shipped = stage in settings.SHIPPED_STAGES
        remedy = _OF_GANG if shipped else _OF_GANG_JOB.format(stage=stage)
        if (known := launch_errors.classify("", reason)).name in _REFUSED_GANG:
            remedy = f"{known.steps}, then {_WITH_OTHERS if shipped else _AGAIN_WITH_ALL}"
    fault = str(record["environment"].get("fault")) if record and state in ("crash", "failure") else ""
    fault = fault if state == "crash" or fault in BLAMELESS_FAILURES else ""
    kind = plans.LOADING if stage.startswith(datasets.STAGE) else stage
    if state == "crash" and verdict == "fail" and launch_errors.classify("", reason).name == DISK_FULL:
        verdict, remedy = "missing", _FREE_SPACE.format(node=name)  # a full disk is no broken one
    if lacks_image(record) and not of_gang:
        verdict, remedy = "missing", _NO_IMAGE.format(node=name)
    elif (kind, fault) in _BLAMELESS:
        verdict, remedy = "missing", _BLAMELESS[kind, fault].format(node=name)  # no evidence about the node
    if record and verdict == "fail" and environment.accelerator_users(record["environment"]):
        verdict = "missing"  # that work may have ended it
    if contact and explains(contact, state):
        why = "its pod ended" if contact.get("pod") else "the node was unreachable"
        why = "its runner ended" if str(contact["class"]).startswith("runner_") else why
        reason += f"; {why} ({contact['class']}): {contact['message']}"
        remedy = str(contact["remedy"]).replace("{node}", name)
    elif resume and state in OPEN_STATES:
        reason, remedy = f"{reason}; the run has not ended", resume
    return own_entry(
        f"{stage}_state", stage, "state", verdict, value=state, expected="success", reason=reason, remedy=remedy
    )


def lacks_image(record: Mapping[str, Any] | None) -> bool:
    """Whether a stage proves nothing about the node, and a retry is no use: its image is not there. One that the
    work claims after it began does not count."""
    if record is None or record["state"] != "crash" or record["environment"].get("fault") != NO_IMAGE:
        return False
    return record["stage"] == IMAGE or (record["exit_code"] is None and record["signal"] is None)


def in_use_checks(name: str, stage: str, record: Record | None) -> list[Entry]:
    """A stage beside other work on the accelerators proves nothing, be it slow, fast or broken off."""
    named = environment.accelerator_users(record["environment"]) if record else ""
    if not named:
        return []
    entry = own_entry(
        IN_USE, stage, "identity", "missing", expected="no other work on the accelerators",
        reason=f"other work on the accelerators at the end of {stage}: {one_line(named, 400)}",
        remedy=f"end that work, or keep the node free, {_AGAIN.format(node=name)}",
    )  # fmt: skip
    return [entry]


def gpu_order_checks(subject: Subject, stage: str, record: Record | None, identity: Mapping[str, Any]) -> list[Entry]:
    """A stage that numbers the GPUs otherwise than the facts: its gpu:3 is not the one whose serial would be named."""
    known = {_bare(gpu["uuid"]): gpu["index"] for gpu in identity.get("gpus", ()) if "uuid" in gpu}
    devices = environment.objects(record["environment"], "devices[]") if record else []
    seen = {_bare(one["uuid"]): one.get("index") for one in devices if isinstance(one.get("uuid"), str)}
    if not known or (subject.accelerator != "nvidia" and known.keys().isdisjoint(seen)):
        return []  # tools of other vendors and PyTorch may have different ids
    moved = [
        f"its gpu:{index} is {f'gpu:{known[uuid]}' if uuid in known else 'none'} of the facts"
        for uuid, index in seen.items()
        if known.get(uuid) != index
    ]
    if not moved:
        return []
    entry = own_entry(
        GPU_ORDER, stage, "identity", "missing", expected="the GPUs in the order of the facts",
        reason=f"{stage} numbers the GPUs otherwise: {one_line(some_of(moved), 300)}",
        remedy="unset CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER on the node and in the stage's environment; if a GPU "
        f"was replaced since the facts, run the facts again: new run id, --limit {subject.name}",
    )  # fmt: skip
    return [entry]


def renumbered(checks: Iterable[Mapping[str, Any]]) -> set[str]:
    """The stages of a node whose numbers of GPUs are not those of the facts: no GPU of theirs is named by serial."""
    return {check["stage"] for check in checks if check["name"] == GPU_ORDER}


def without_parts(checks: Sequence[Entry]) -> list[Entry]:
    """The checks of a node; those of a renumbered stage are on the node as a whole."""
    stages = renumbered(checks)
    return [
        {**one, "part": "node", "reason": f"{one['part']} as {one['stage']} numbers it: {one['reason']}"}
        if one["stage"] in stages and one["part"].startswith("gpu:")
        else one
        for one in checks
    ]


def _bare(uuid: str) -> str:
    """A UUID as PyTorch has it, without nvidia-smi's prefix."""
    return uuid.lower().removeprefix("gpu-")


def explains(contact: Mapping[str, Any], state: str) -> bool:
    """Whether a lost contact tells why a stage has no better end; in a pod that is ended it says `cancelled`."""
    return state in OPEN_STATES or (state == "cancelled" and bool(contact.get("pod")))


def accelerator_check(subject: Subject, facts: Record | None) -> Entry:
    """A CPU stands in for a GPU only where the inventory says cpu, or where there is no GPU hardware at all.

    All GPUs of a node vanish from the PCI bus together when their board has no power, so among nodes with GPUs the
    inventory has to say it.
    """
    declared = f"sku {subject.sku}"
    if subject.declared_gpus:
        count = f"{subject.declared_gpus} GPUs"
        declared = count if subject.sku == "auto" else f"{declared} with {count}"
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
    hardware = count_of(facts, "gpu_hardware_count")
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


def identity_checks(name: str, facts: Record | None, twins: Twins) -> list[Entry]:
    listed_twice = launch_errors.NAMED["same_machine_twice"].remedy.replace("{node}", name)

    def entry(verdict: str, reason: str, check: str = "identity", **fields: Any) -> Entry:
        return own_entry(check, FACTS, "identity", verdict, expected="unique in the run", reason=reason, **fields)

    repeated = repeated_gpus(facts)
    if repeated:
        reason = f"the node lists the GPU UUID {some_of(repeated, 3)} more than once"
        remedy = "compare nvidia-smi -L with the GPUs in the machine: one of them is counted twice"
        return [entry("fail", reason, "gpu_uuids", value=some_of(repeated, 3), remedy=remedy)]
    if twins.same or twins.claims:
        others, reason = _named(twins.same or twins.claims)
        return [entry("fail", f"one machine listed twice: {reason}", value=others, remedy=listed_twice)]
    if twins.open:
        others, reason = _named(twins.open)
        remedy = "compare nvidia-smi -L on both nodes with the serials of their GPUs, then validate both again"
        return [entry("missing", f"two nodes list one GPU: {reason}", value=others, remedy=remedy)]
    if twins.claimed_by:
        others, reason = _named(twins.claimed_by)
        reason = f"{reason}; the other evidence of the two differs"
        return [entry("warn", reason, severity="advisory", value=others, remedy=listed_twice)]
    if facts is None:
        return []
    if identity_values(facts):
        return [entry("pass", "unique in the run")]
    remedy = "make sure that /etc/machine-id is not empty and that the facts may read it"
    return [entry("missing", "no machine id, serial or GPU UUID is known", severity="advisory", remedy=remedy)]


def _named(others: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """The names of other nodes, and what the first of them has in common with this one."""
    names = sorted(others, key=natural_order)
    first, *more = sorted(others[names[0]])[:3]
    same = one_line(", ".join([first, *(other.removeprefix(SAME) for other in more)]), 240)
    named = some_of(names)
    more_names = named.removeprefix(names[0]).removeprefix(", ")
    return named, f"{names[0]} (and {more_names}) {same}" if more_names else f"{names[0]} {same}"
