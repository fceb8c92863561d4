"""Stages that number the GPUs of a node otherwise than its facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..core.escape import one_line
from ..core.text import some_of
from ..records import environment
from ..records.documents import Record
from .entries import Entry, own_entry
from .identity import bare_uuid
from .subject import Subject

GPU_ORDER = "gpu_order"


def gpu_order_checks(subject: Subject, stage: str, record: Record | None, identity: Mapping[str, Any]) -> list[Entry]:
    """A stage that numbers the GPUs otherwise than the facts: its gpu:3 is not the one whose serial would be named."""
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
    if not moved:
        return []
    check = own_entry(
        GPU_ORDER, stage, "identity", "missing", expected="the GPUs in the order of the facts",
        reason=f"{stage} numbers the GPUs otherwise: {one_line(some_of(moved), 300)}",
        remedy="unset CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER on the node and in the stage's environment; if a GPU "
        f"was replaced since the facts, run the facts again: new run id, --limit {subject.name}",
    )  # fmt: skip
    return [check]


def renumbered(checks: Iterable[Mapping[str, Any]]) -> set[str]:
    """The stages of a node whose numbers of GPUs are not those of the facts: no GPU of theirs is named by serial."""
    return {check["stage"] for check in checks if check["name"] == GPU_ORDER}


def without_parts(checks: Sequence[Entry]) -> list[Entry]:
    """The checks of a node; those of a renumbered stage are on the node as a whole."""
    stages = renumbered(checks)
    return [
        {**check, "part": "node", "reason": f"{check['part']} as {check['stage']} numbers it: {check['reason']}"}
        if check["stage"] in stages and check["part"].startswith("gpu:")
        else check
        for check in checks
    ]
