"""What tells a machine and its GPUs apart, and machines that are listed twice.

What a node says of its identity is a claim. Two nodes fail for one identity only where the evidence of both agrees as a
whole; a node that claims a part of another's fails alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from ..core.escape import one_line
from ..records.documents import Record
from ..records.evidence import Evidence
from .subject import FACTS

MAX_GPUS_SHOWN = 64
MAX_COMPARED = 64


SAME = "has the same "
MACHINE, SERIAL, GPUS = "machine id", "serial", "GPU UUID"
#: GPUs are the hardware that is paid for; a machine id is copied with a disk, a serial is sometimes that of a batch.
_WEIGHTS = {MACHINE: 1, SERIAL: 1, GPUS: 2}

#: Reasons by the name of another node.
Reasons = dict[str, list[str]]


@dataclass
class Twins:
    """How a node's identity stands to that of others.

    ``same``: one machine, by the evidence of both. ``claims``: this node alone claims to be the other, or a part of it.
    ``open``: both list a GPU, and nothing shows which of them has it. ``claimed_by``: others' claims, which this node's
    own evidence contradicts.
    """

    same: Reasons = field(default_factory=dict)
    claims: Reasons = field(default_factory=dict)
    open: Reasons = field(default_factory=dict)
    claimed_by: Reasons = field(default_factory=dict)


@dataclass(frozen=True)
class _Claim:
    """What a node says of its identity: values by kind, and of its GPUs those that its list of GPUs confirms."""

    values: Mapping[str, frozenset[str]]
    confirmed: frozenset[str]
    gpus: int

    @property
    def excess(self) -> bool:
        """It has more UUIDs than GPUs."""
        return 0 < self.gpus < len(self.values[GPUS])


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
    """The nodes whose identity is that of others, or a part of it."""
    claims: dict[str, _Claim] = {}
    owners: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, expected in run["nodes"].items():
        facts = evidence.records.get(name, {}).get(FACTS) if FACTS in expected["stages"] else None
        for key in identity_values(facts):
            owners[key].append(name)
        claims[name] = _claim(facts)
    shared: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (what, value), names in owners.items():
        for pair in _pairs(names):
            shared[pair].append(f"{SAME}{what} {value}")
    twins: dict[str, Twins] = defaultdict(Twins)
    disputed = [pair for pair in shared if not _agree(claims[pair[0]], claims[pair[1]])]
    for pair in shared.keys() - set(disputed):
        for name, other in (pair, pair[::-1]):
            twins[name].same[other] = shared[pair]
    partners = Counter(name for pair in disputed for name in pair)
    for pair in disputed:
        gpus = claims[pair[0]].values[GPUS] & claims[pair[1]].values[GPUS]
        for name, other in (pair, pair[::-1]):
            mine, its = _suspicion(claims, name, other, partners), _suspicion(claims, other, name, partners)
            if mine > its and (gpus or mine[0]):
                twins[name].claims[other] = shared[pair]
            elif mine == its and gpus:
                twins[name].open[other] = shared[pair]
            else:  # the other claims; or they have a machine id or serial in common, and hardware of their own
                twins[name].claimed_by[other] = shared[pair]
    for name, launch in evidence.launches.items():
        twin = launch.get("twin")
        # The facts tell a machine that worked under both names; here one of the two names has nothing else.
        if not isinstance(twin, str) or twin == name or not {twin, name} <= run["nodes"].keys():
            continue
        if _began(run, name, evidence):
            continue
        reason = [f"is the same machine: it was in the run as {twin} when launched as {name}"]
        of_twin = evidence.launches.get(twin, {})
        mutual = of_twin.get("twin") == name and not _began(run, twin, evidence)
        if mutual or (launch.get("host_key") and launch["host_key"] == of_twin.get("host_key")):
            twins[name].same[twin] = twins[twin].same[name] = reason
        else:
            twins[name].claims[twin] = reason
            twins[twin].claimed_by[name] = reason
    return twins


def _pairs(names: list[str]) -> Iterable[tuple[str, str]]:
    """Pairs of nodes to compare: all, but of the hundreds that one disk was cloned to each with the next one."""
    return combinations(names, 2) if len(names) <= MAX_COMPARED else zip(names, [*names[1:], names[0]])


def _claim(facts: Record | None) -> _Claim:
    values: dict[str, set[str]] = {kind: set() for kind in _WEIGHTS}
    for kind, value in identity_values(facts):
        values[kind].add(value)
    listed = facts["environment"].get("gpus") if facts else None
    gpus = [gpu for gpu in listed if isinstance(gpu, dict)] if isinstance(listed, list) else []
    confirmed = {" ".join(str(gpu["uuid"]).lower().split()) for gpu in gpus if gpu.get("uuid")}
    return _Claim({kind: frozenset(found) for kind, found in values.items()}, frozenset(confirmed), len(gpus))


def _agree(one: _Claim, other: _Claim) -> bool:
    """Whether two nodes are one machine by the evidence of both. A serial may be hidden from one that is not root."""
    if bool(one.values[GPUS]) != bool(other.values[GPUS]):
        return False
    known = [kind for kind in _WEIGHTS if one.values[kind] and other.values[kind]]
    equal = sum(_WEIGHTS[kind] for kind in known if one.values[kind] == other.values[kind])
    return equal > 0 and 2 * equal >= sum(_WEIGHTS[kind] for kind in known)


def _suspicion(claims: Mapping[str, _Claim], name: str, other: str, partners: Mapping[str, int]) -> tuple[int, ...]:
    """How much speaks for it that the claim on what both have is this node's."""
    mine, its = claims[name], claims[other]
    gpus = mine.values[GPUS] & its.values[GPUS]
    return (
        bool(its.values[GPUS]) and not mine.values[GPUS],
        bool(gpus - mine.confirmed) and gpus <= its.confirmed,
        mine.excess,
        bool(gpus) and mine.values[GPUS] > its.values[GPUS],
        partners[name],
    )


def _began(run: Mapping[str, Any], name: str, evidence: Evidence) -> bool:
    records = evidence.records.get(name, {})
    return any(records[stage]["started_at"] is not None for stage in run["nodes"][name]["stages"] if stage in records)


def identity_values(facts: Record | None) -> list[tuple[str, str]]:
    identity = identity_of(facts)
    pairs = [(MACHINE, identity.get("machine_id")), (SERIAL, identity.get("serial"))]
    pairs += [(GPUS, uuid) for uuid in identity.get("gpu_uuids", [])]
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


def machine_names(name: str, identity: Mapping[str, Any]) -> list[str]:
    """What tells a machine apart from others, the best first: an identity that is no filler, and the node's name."""
    return [*filter(None, [best_of(identity, ("serial", "machine_id"))]), f"name {name}"]


def best_of(identity: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The first of these identities that is none of the fillers of manufacturers; empty without any."""
    found = ((key, str(identity.get(key) or "").strip()) for key in keys)
    return next((f"{key} {value}" for key, value in found if value and not is_useless(value.lower())), "")


def _gpu(position: int, gpu: Mapping[str, Any]) -> dict[str, Any]:
    index = gpu.get("index")
    shown: dict[str, Any] = {"index": index if type(index) is int else position}
    for key, names in (
        ("model", ("model", "name")),
        ("serial", ("serial",)),
        ("uuid", ("uuid",)),
        ("slot", ("slot",)),
        ("pci", ("pci_address", "pci", "bus_id")),
    ):
        text = next((gpu[name] for name in names if isinstance(gpu.get(name), str)), "")
        if text and text.lower() not in _USELESS_IDENTITY:
            shown[key] = one_line(text, 96)
    module = gpu.get("module_id")
    if "slot" not in shown and type(module) is int:  # the socket of an SXM board
        shown["slot"] = f"module {module}"
    return shown


def repeated_gpus(facts: Record | None) -> list[str]:
    """UUIDs of GPUs that a node lists more than once: fewer devices than it says."""
    environment = facts["environment"] if facts else {}
    found = environment.get("identity")
    listed = found.get("gpu_uuids") if isinstance(found, dict) else None
    gpus = environment.get("gpus")
    lists = [
        listed if isinstance(listed, list) else [],
        [gpu.get("uuid") for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else [],
    ]
    repeated = {
        one_line(uuid, 128)
        for texts in lists
        for uuid, count in Counter(text.lower() for text in texts if isinstance(text, str)).items()
        if count > 1 and not is_useless(uuid)
    }
    return sorted(repeated)


def models_of(facts: Record | None) -> list[str]:
    """What the GPUs of the node are called, one for each that the facts list with a name."""
    return [gpu["model"] for gpu in identity_of(facts).get("gpus", []) if "model" in gpu]
