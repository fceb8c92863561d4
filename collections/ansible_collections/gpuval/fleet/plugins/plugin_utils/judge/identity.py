"""What tells a machine and its GPUs apart, and machines that are listed twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.escape import one_line
from ..records.documents import Record
from ..records.evidence import Evidence
from .subject import FACTS

MAX_GPUS_SHOWN = 64


#: Other nodes that are the same machine, each with the reasons.
Twins = Mapping[str, Sequence[str]]
SAME = "has the same "

_USELESS_IDENTITY = frozenset(
    """
    0|none|null|n/a|[n/a]|na|nil|unknown|default|default string|empty|invalid|unspecified|uninitialized
    |not specified|not available|not applicable|not provided|not settable|no asset tag|no asset information
    |to be filled by o.e.m.|to be filled by oem|o.e.m.|oem|serial number|system serial number|chassis serial number
    |base board serial number|0123456789|123456789|1234567890
    """.strip()
    .replace("\n", "")
    .replace("    ", "")
    .split("|")
)


def find_twins(run: Mapping[str, Any], evidence: Evidence) -> Mapping[str, Twins]:
    """Node -> the other nodes of the run that are the same machine, each with the reasons."""
    owners: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, expected in run["nodes"].items():
        facts = evidence.records.get(name, {}).get(FACTS) if FACTS in expected["stages"] else None
        for key in identity_values(facts):
            owners[key].append(name)
    twins: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for (what, value), names in owners.items():
        for name in names if len(names) > 1 else ():
            for other in names:
                if other != name:
                    twins[name][other].append(f"{SAME}{what} {value}")
    for name, launch in evidence.launches.items():
        twin = launch.get("twin")
        # The facts tell a machine that worked under both names; here one of the two names has nothing else.
        if not isinstance(twin, str) or twin == name or not {twin, name} <= run["nodes"].keys():
            continue
        if _began(run, name, evidence):
            continue
        for one, its_twin in ((name, twin), (twin, name)):
            twins[one][its_twin].append(f"is the same machine: it was in the run as {twin} when launched as {name}")
    return twins


def _began(run: Mapping[str, Any], name: str, evidence: Evidence) -> bool:
    records = evidence.records.get(name, {})
    return any(records[stage]["started_at"] is not None for stage in run["nodes"][name]["stages"] if stage in records)


def identity_values(facts: Record | None) -> list[tuple[str, str]]:
    identity = identity_of(facts)
    pairs = [("machine id", identity.get("machine_id")), ("serial", identity.get("serial"))]
    pairs += [("GPU UUID", uuid) for uuid in identity.get("gpu_uuids", [])]
    known = [(what, " ".join(value.lower().split())) for what, value in pairs if isinstance(value, str)]
    return list(dict.fromkeys((what, value) for what, value in known if not is_useless(value)))


def is_useless(value: str) -> bool:
    """Whether an identity, in lower case, is a filler that many machines share."""
    return value in _USELESS_IDENTITY or len(set(value.replace("-", ""))) <= 1  # 00000000-0000-..., xxxxxxxx


def identity_of(facts: Record | None) -> dict[str, Any]:
    """What tells the machine and its GPUs apart, from the environment of the facts, whose form nothing guarantees."""
    if facts is None:
        return {}
    environment = facts["environment"]
    found = environment.get("identity")
    identity: dict[str, Any] = {}
    if isinstance(found, dict):
        for key in ("machine_id", "serial"):
            if isinstance(found.get(key), str):
                identity[key] = one_line(found[key], 128)
        uuids = found.get("gpu_uuids")
        if isinstance(uuids, list):
            identity["gpu_uuids"] = [one_line(uuid, 128) for uuid in uuids[:MAX_GPUS_SHOWN] if isinstance(uuid, str)]
    gpus = environment.get("gpus")
    if isinstance(gpus, list):
        identity["gpus"] = [
            _gpu(index, gpu) for index, gpu in enumerate(gpus[:MAX_GPUS_SHOWN]) if isinstance(gpu, dict)
        ]
    return identity


def _gpu(position: int, gpu: Mapping[str, Any]) -> dict[str, Any]:
    index = gpu.get("index")
    shown: dict[str, Any] = {"index": index if type(index) is int else position}
    for key, names in (
        ("model", ("model", "name")),
        ("serial", ("serial",)),
        ("pci", ("pci_address", "pci", "bus_id")),
    ):
        text = next((gpu[name] for name in names if isinstance(gpu.get(name), str)), "")
        if text and text.lower() not in _USELESS_IDENTITY:
            shown[key] = one_line(text, 96)
    return shown


def models_of(facts: Record | None) -> list[str]:
    """What the GPUs of the node are called, one for each that the facts list with a name."""
    return [gpu["model"] for gpu in identity_of(facts).get("gpus", []) if "model" in gpu]
