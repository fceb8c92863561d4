"""Identities of machines and GPUs (machine id, serial, UUID, host key), and machines that a run lists twice.

What a node reports of its identity is a claim; its SSH host key and the scheduler's id of it are the controller's own
knowledge. Two nodes fail for one identity only where nothing shows two machines. Where a node's own evidence
contradicts its claim, it fails alone: the other gets a warning at most.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, combinations
from typing import Any

from ..core.escape import one_line
from ..core.grouping import values_by_key
from ..records import environment
from ..records.documents import Document, Record
from ..records.evidence import RunEvidence
from .check import FACTS

MAX_GPUS_SHOWN = 64
MAX_COMPARED = 64
#: A node that shares GPUs with this many others, which share none with each other, lists GPUs of theirs.
MIN_ROBBED = 3

SAME = "has the same "
#: Start of the warning for a node whose GPUs another machine lists too: neither proves that it has them.
DISPUTED = "two machines list one GPU"
MACHINE, SERIAL, GPUS, HOST_KEY = "machine id", "serial", "GPU UUID", "host key"

#: {name of another node: what the two nodes share, as texts}.
Reasons = dict[str, list[str]]


@dataclass
class Twins:
    """How a node's identity relates to other nodes'. ``same``: one machine, by the evidence of both. ``claims``: only
    this node claims to be the other, or a part of it. ``open``: both list a GPU, and nothing shows which node has it.
    ``disputed``: as ``open``, for two different machines. ``claimed_by``: what they share proves nothing, or only the
    other claims it. ``contradiction``: how the node's own evidence contradicts its claims."""

    same: Reasons = field(default_factory=dict)
    claims: Reasons = field(default_factory=dict)
    open: Reasons = field(default_factory=dict)
    disputed: Reasons = field(default_factory=dict)
    claimed_by: Reasons = field(default_factory=dict)
    contradiction: str = ""


class IdentityClaim:
    """The identity that a node reports: values by kind, with the evidence that may contradict them."""

    def __init__(self, run: Document, name: str, evidence: RunEvidence) -> None:
        stages, launch = run["nodes"][name]["stages"], evidence.launches.get(name, {})
        records = {stage: record for stage, record in evidence.records.get(name, {}).items() if stage in stages}
        self.name, self.facts = name, records.get(FACTS)
        keys = [(HOST_KEY, launch["host_key"])] if launch.get("host_key") else []
        reported_values = values_by_key((*identity_values(self.facts), *keys))
        self.values = {kind: frozenset(reported_values.get(kind, ())) for kind in (MACHINE, SERIAL, GPUS, HOST_KEY)}
        #: The scheduler's name of the machine.
        self.machine = str(launch.get("machine") or "")
        reported = self.facts["environment"] if self.facts else {}
        #: UUIDs in the facts' list of GPUs, and the length of that list.
        self.listed = frozenset(uuid.lower() for uuid in environment.texts(reported, "gpus[].uuid"))
        self.gpu_count = len(environment.objects(reported, "gpus[]"))
        # ids of other vendors' tools differ from PyTorch's
        is_comparable = environment.texts(reported, "accelerator.vendor") == ["nvidia"]
        of_stages = (environment.texts(record["environment"], "devices[].uuid") for record in records.values())
        #: UUIDs of the GPUs that other stages worked on, if comparable with those of the facts.
        self.at_work = _bare(chain.from_iterable(of_stages)) if is_comparable else frozenset()
        self.hostname = next(iter(environment.texts(reported, "os.hostname")), "").lower()
        #: UUIDs of the GPUs that the node had in earlier runs.
        self.earlier = evidence.earlier_gpus.get(name, frozenset())

    @property
    def gpus(self) -> frozenset[str]:
        return self.values[GPUS]

    @property
    def evidence(self) -> tuple[list[list[str]], str]:
        """Sort key that puts nodes with equal identities side by side, whatever their names."""
        return [sorted(of_kind) for of_kind in self.values.values()], self.machine


@dataclass(frozen=True)
class ClaimPair:
    """Two nodes that share an identity. ``partners``: for each node the number of nodes that it shares GPUs with."""

    first: IdentityClaim
    second: IdentityClaim
    partners: Mapping[str, int]

    @cached_property
    def gpus(self) -> frozenset[str]:
        """UUIDs of the GPUs that both nodes list."""
        return self.first.gpus & self.second.gpus

    @cached_property
    def are_placed_apart(self) -> bool:
        """Whether the host keys, or the scheduler, show that these are two machines."""
        keys = self.first.values[HOST_KEY], self.second.values[HOST_KEY]
        nodes = self.first.machine, self.second.machine
        return (all(keys) and keys[0] != keys[1]) or (all(nodes) and nodes[0] != nodes[1])

    @cached_property
    def is_equal(self) -> bool:
        """Whether all known identities of both nodes are equal; a serial may be hidden from a node without root."""
        shared_kinds = [kind for kind in self.first.values if self.first.values[kind] and self.second.values[kind]]
        has_facts = self.first.facts is not None and self.second.facts is not None
        return has_facts and all(self.first.values[kind] == self.second.values[kind] for kind in shared_kinds)

    @cached_property
    def claimer(self) -> tuple[str, str]:
        """The node whose own evidence contradicts its claim, and how; empty if neither's or both nodes' does."""
        sides = ((self.first, self.second), (self.second, self.first))
        for contradiction, holds in CONTRADICTIONS.items():
            contradicted = [mine.name for mine, other in sides if holds(self, mine, other)]
            if len(contradicted) == 1:
                return contradicted[0], contradiction
        return "", ""


#: How a node's evidence can contradict its claim: the first rule that holds for one node of a pair decides. No other
#: node can make a rule hold for an honest node.
CONTRADICTIONS: Mapping[str, Callable[[ClaimPair, IdentityClaim, IdentityClaim], bool]] = {
    "it hides the UUIDs of its GPUs": lambda pair, mine, other: (
        bool(other.gpus and mine.gpu_count and not mine.gpus) and pair.is_equal and not pair.are_placed_apart
    ),
    "its list of GPUs lacks the UUID": lambda pair, mine, _: bool(mine.listed and pair.gpus - mine.listed),
    "it has no list of GPUs, and the other's has the UUID": lambda pair, mine, other: (
        bool(pair.gpus) and not mine.listed and pair.gpus <= other.listed
    ),
    "its stages work on other GPUs": lambda pair, mine, _: bool(pair.gpus and mine.at_work - _bare(mine.gpus)),
    "it has more UUIDs than GPUs": lambda pair, mine, _: bool(pair.gpus) and 0 < mine.gpu_count < len(mine.gpus),
    "it had other GPUs, and the other had these": lambda pair, mine, other: (
        bool(pair.gpus and mine.earlier) and pair.gpus.isdisjoint(mine.earlier) and pair.gpus <= other.earlier
    ),
    "the hostname of both is the other's name": lambda pair, mine, other: (
        bool(pair.gpus) and mine.hostname == other.hostname and _is_named(other) and not _is_named(mine)
    ),
    "it lists GPUs of many": lambda pair, mine, other: (
        bool(pair.gpus) and pair.partners[mine.name] >= MIN_ROBBED * max(1, pair.partners[other.name])
    ),
}

#: Rules (name, condition, field of Twins) for a pair of nodes: the first that holds decides. Both nodes get the field,
#: except for ``claims``: there the claimed node gets ``claimed_by``.
PAIR_RULES: tuple[tuple[str, Callable[[ClaimPair], bool], str], ...] = (
    ("one contradicts its own claim", lambda pair: bool(pair.claimer[0]), "claims"),
    ("disjoint GPUs", lambda pair: bool(pair.first.gpus and pair.second.gpus) and not pair.gpus, "claimed_by"),
    ("GPUs of one alone", lambda pair: bool(pair.first.gpus) != bool(pair.second.gpus), "claimed_by"),
    ("one GPU on two machines", lambda pair: bool(pair.gpus) and pair.are_placed_apart, "disputed"),
    ("equal GPUs", lambda pair: bool(pair.gpus) and pair.first.gpus == pair.second.gpus, "same"),
    ("some equal GPUs", lambda pair: bool(pair.gpus), "open"),
    ("two machines", lambda pair: pair.are_placed_apart, "claimed_by"),
    ("all is equal", lambda pair: pair.is_equal, "same"),
    ("something differs", lambda _: True, "claimed_by"),
)


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


def find_twins(run: Document, evidence: RunEvidence) -> Mapping[str, Twins]:
    """For each node that shares an identity with others how it relates to them."""
    twins: dict[str, Twins] = defaultdict(Twins)
    for pair, shared in _pairs(run, evidence):
        outcome = next(outcome for _, holds, outcome in PAIR_RULES if holds(pair))
        _note_relation(twins, (pair.first.name, pair.second.name), outcome, shared, pair.claimer)
    for name, launch in evidence.launches.items():
        twin = launch.get("twin")
        # The facts show one machine that worked under both names; one of the names has no other evidence.
        if not isinstance(twin, str) or twin == name or not {twin, name} <= run["nodes"].keys():
            continue
        if _has_started_stage(run, name, evidence):
            continue
        of_other = evidence.launches.get(twin, {})
        is_mutual = of_other.get("twin") == name and not _has_started_stage(run, twin, evidence)
        has_one_key = bool(launch.get("host_key")) and launch["host_key"] == of_other.get("host_key")
        reason = [f"is the same machine: it was in the run as {twin} when launched as {name}"]
        _note_relation(twins, (name, twin), "same" if is_mutual or has_one_key else "claims", reason, (name, ""))
    return twins


def names_sharing_gpus(run: Document, evidence: RunEvidence) -> set[str]:
    """The nodes that list a GPU which another node lists too. Their GPUs in earlier runs may show who has it."""
    return {claim.name for pair, _ in _pairs(run, evidence) if pair.gpus for claim in (pair.first, pair.second)}


def _note_relation(
    twins: Mapping[str, Twins], names: tuple[str, str], outcome: str, reasons: list[str], claimer: tuple[str, str]
) -> None:
    """Note in both nodes' Twins, in the field ``outcome``, what they share. ``claimer``: (node, its contradiction)."""
    for name, twin in (names, names[::-1]):
        is_claimed = outcome == "claims" and name != claimer[0]
        getattr(twins[name], "claimed_by" if is_claimed else outcome)[twin] = reasons
        if outcome == "claims" and not is_claimed:
            twins[name].contradiction = claimer[1]


def _pairs(run: Document, evidence: RunEvidence) -> list[tuple[ClaimPair, list[str]]]:
    """Pairs of nodes that share an identity, each with the shared values as text."""
    claims = {name: IdentityClaim(run, name, evidence) for name in run["nodes"]}
    owned = ((name, kind, values) for name, claim in claims.items() for kind, values in claim.values.items())
    owners = values_by_key(((kind, value), name) for name, kind, values in owned for value in values)
    shared: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (kind, value), names in owners.items():
        pairs: Iterable[Sequence[str]] = combinations(names, 2)
        if len(names) > MAX_COMPARED:  # hundreds of nodes with one cloned disk: those that are most alike
            alike = sorted(names, key=lambda name: claims[name].evidence)
            pairs = (sorted(pair, key=names.index) for pair in zip(alike, alike[1:]))
        for first, second in pairs:
            shared[first, second].append(f"{SAME}{kind} {value}")
    partners = Counter(name for names in shared if claims[names[0]].gpus & claims[names[1]].gpus for name in names)
    return [(ClaimPair(claims[first], claims[second], partners), what) for (first, second), what in shared.items()]


def bare_uuid(uuid: str) -> str:
    """A GPU's UUID in PyTorch's form, without nvidia-smi's prefix."""
    return uuid.lower().removeprefix("gpu-")


def _bare(uuids: Iterable[str]) -> frozenset[str]:
    """UUIDs in PyTorch's form, without those of GPU partitions, which are not comparable."""
    return frozenset(bare_uuid(uuid) for uuid in uuids if not uuid.lower().startswith("mig"))


def _is_named(claim: IdentityClaim) -> bool:
    """Whether the node's hostname is its name in the run."""
    return claim.hostname.partition(".")[0] == claim.name.lower().partition(".")[0]


def _has_started_stage(run: Document, name: str, evidence: RunEvidence) -> bool:
    records = evidence.records.get(name, {})
    return any(records[stage]["started_at"] is not None for stage in run["nodes"][name]["stages"] if stage in records)


def identity_values(facts: Record | None) -> list[tuple[str, str]]:
    """(kind, value) of each identity in a node's facts, in lower case, without fillers."""
    identity = identity_of(facts)
    pairs = [(MACHINE, identity.get("machine_id")), (SERIAL, identity.get("serial"))]
    pairs += [(GPUS, uuid) for uuid in identity.get("gpu_uuids", [])]
    cleaned = [(what, " ".join(value.lower().split())) for what, value in pairs if isinstance(value, str)]
    return list(dict.fromkeys((what, value) for what, value in cleaned if not is_useless(value)))


def is_useless(value: str) -> bool:
    """Whether an identity (in lower case) is a filler that many machines share."""
    return value in _USELESS_IDENTITY or len(set(value.replace("-", ""))) <= 1  # 00000000-0000-..., xxxxxxxx


def identity_of(facts: Record | None) -> dict[str, Any]:
    """Identities of the machine and its GPUs in the facts' environment, whose form nothing guarantees."""
    if facts is None:
        return {}
    claimed, gpus = _claimed(facts), facts["environment"].get("gpus")
    uuids = claimed.get("gpu_uuids")
    texts = ((key, claimed.get(key)) for key in ("machine_id", "serial"))
    identity: dict[str, Any] = {key: one_line(text, 128) for key, text in texts if isinstance(text, str)}
    if isinstance(uuids, list):
        identity["gpu_uuids"] = [one_line(uuid, 128) for uuid in uuids[:MAX_GPUS_SHOWN] if isinstance(uuid, str)]
    if isinstance(gpus, list):
        identity["gpus"] = [
            _gpu_description(index, gpu) for index, gpu in enumerate(gpus[:MAX_GPUS_SHOWN]) if isinstance(gpu, dict)
        ]
    return identity


def _claimed(facts: Record | None) -> Document:
    """The dict ``identity`` of a node's facts; empty if it is missing or no dict."""
    return next(iter(environment.objects(facts["environment"] if facts else {}, "identity")), {})


def machine_names(name: str, identity: Document) -> list[str]:
    """Names that tell the machine from others, best first: identities that are no fillers, then the node's name."""
    return [*filter(None, [best_of(identity, ("serial", "machine_id"))]), f"name {name}"]


def best_of(identity: Document, keys: Sequence[str]) -> str:
    """The first of these identities that is no manufacturer's filler; empty if all are."""
    identities = ((key, str(identity.get(key) or "").strip()) for key in keys)
    return next((f"{key} {value}" for key, value in identities if value and not is_useless(value.lower())), "")


def gpu_of(identity: Document, part: str) -> Document:
    """The GPU that a part names, such as gpu:3, in an identity of `identity_of`; empty for other parts."""
    return next((gpu for gpu in identity.get("gpus", ()) if f"gpu:{gpu['index']}" == part), {})


def _gpu_description(position: int, gpu: Document) -> dict[str, Any]:
    index = gpu.get("index")
    description: dict[str, Any] = {"index": index if type(index) is int else position}
    for key, names in (
        ("model", ("model", "name")),
        ("serial", ("serial",)),
        ("uuid", ("uuid",)),
        ("slot", ("slot",)),
        ("pci", ("pci_address", "pci", "bus_id")),
    ):
        text = next((gpu[name] for name in names if isinstance(gpu.get(name), str)), "")
        if text and text.lower() not in _USELESS_IDENTITY:
            description[key] = one_line(text, 96)
    module = gpu.get("module_id")
    if "slot" not in description and type(module) is int:  # the socket of an SXM board
        description["slot"] = f"module {module}"
    return description


def repeated_gpus(facts: Record | None) -> list[str]:
    """UUIDs that a node lists for several GPUs: it has fewer GPUs than it says."""
    claimed, gpus = _claimed(facts).get("gpu_uuids"), facts["environment"].get("gpus") if facts else None
    lists = [
        claimed if isinstance(claimed, list) else [],
        [gpu.get("uuid") for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else [],
    ]
    counted = (Counter(uuid.lower() for uuid in uuids if isinstance(uuid, str)) for uuids in lists)
    repeated = (uuid for counts in counted for uuid, count in counts.items() if count > 1 and not is_useless(uuid))
    return sorted({one_line(uuid, 128) for uuid in repeated})


def models_of(facts: Record | None) -> list[str]:
    """The models of the node's GPUs, one for each GPU that the facts list with a name."""
    return [gpu["model"] for gpu in identity_of(facts).get("gpus", []) if "model" in gpu]
