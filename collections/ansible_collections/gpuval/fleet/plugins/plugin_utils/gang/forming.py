"""Form gangs: nodes that passed and are alike, in gangs of a given size; the others with a reason."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

LEAST = 2
MAX_NAME = 40
NOT_HERE = "not a host of this command (inventory, gpuval_hosts, --limit)"
JOINED = "joined the run late and is not a host of this command: validate it with nodes of its kind in a new run"


@dataclass(frozen=True)
class Candidate:
    """A node that may join a gang, after its own stages. ``software``: versions that must be the same on all members,
    by component; an empty one is unknown. ``labels``: those of the inventory (rack, ...), and ``sku``."""

    node: str
    verdict: str
    address: str
    slots: int
    reason: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)
    #: Python packages that multi-node stages need and the node's image lacks.
    missing: str = ""
    #: Whether the SKU is certain: declared, or found by facts that saw working accelerators.
    proven: bool = True
    #: Its clique in an NVLink domain, empty if unknown; None for an SKU without domains of several nodes.
    clique: str | None = None


@dataclass
class Formation:
    """For each gang its members in the inventory's order, the leader first; for other nodes why they are in none."""

    gangs: dict[str, list[Candidate]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def form(candidates: Sequence[Candidate], size: int = 0, group_by: Sequence[str] = ("sku",)) -> Formation:
    """Form gangs of ``size`` nodes (0: of all that are alike), each of nodes with the same labels of ``group_by``.
    Nodes with other software than most of their group are left out; if no version has more than half of the nodes, it
    is unknown which is right, and the group has no gang. Raises ``ValueError`` for a size of 1 or below 0."""
    if size < 0 or size == 1:
        raise ValueError(f"gangs of {size}: a gang has {LEAST} nodes or more; 0 takes all")
    formation = Formation()
    groups: dict[tuple[str, ...], list[Candidate]] = {}
    for candidate in candidates:
        reason = _why_unfit(candidate)
        if reason:
            formation.left_out[candidate.node] = reason
        else:
            groups.setdefault(tuple(candidate.labels.get(key, "") for key in group_by), []).append(candidate)
    for key, group in groups.items():
        alike = _alike(group, formation)
        for number, members in enumerate(_portions(alike, size), 1):
            if len(members) < LEAST:
                for member in members:
                    formation.left_out[member.node] = _why_alone(key, group_by)
                continue
            words = [word for word, by in zip(key, group_by, strict=True) if word and (by != "sku" or len(groups) > 1)]
            several = [str(number)] if size and len(alike) > size else []
            formation.gangs[_unique_name([*words, *several], formation.gangs)] = members
    return formation


def alone(candidates: Sequence[Candidate], group_by: Sequence[str] = ("sku",)) -> list[str]:
    """Names of nodes that alone have their SKU, whatever their verdicts: no multi-node test is expected of them. Other
    labels exempt no node: a mistyped one would let it pass untested. Nor is a node exempt where SKUs work together
    (``group_by`` without ``sku``), or while the SKU of a failed node is unknown: it may be the same."""
    if "sku" not in group_by or any(one.verdict != "PASS" and not one.proven for one in candidates):
        return []
    counted = Counter(one.labels.get("sku", "") for one in candidates)
    return [one.node for one in candidates if counted[one.labels.get("sku", "")] == 1]


def _why_unfit(candidate: Candidate) -> str:
    if candidate.verdict != "PASS":
        reason = f": {candidate.reason}" if candidate.reason else ""
        return f"its own stages ended {candidate.verdict}{reason}"
    if candidate.missing:
        return f"multi-node stages need Python packages that the node's image lacks: {candidate.missing}"
    if not candidate.address:
        return "it has no address for the others: set gpuval_gang_address"
    if candidate.slots < 1:
        return "it has no processes to give"
    return ""


def _alike(group: Sequence[Candidate], formation: Formation) -> list[Candidate]:
    """The members with the most common software, found for one component after the other; the others are left out."""
    nodes = list(group)
    for part in sorted({part for candidate in group for part in candidate.software}):
        counted = Counter(candidate.software.get(part, "") for candidate in nodes)
        if len(counted) < 2:
            continue
        (common, most), *_ = counted.most_common()
        rest = len(nodes) - most
        for candidate in nodes if most <= rest else [c for c in nodes if c.software.get(part, "") != common]:
            version = candidate.software.get(part) or "an unknown one"
            formation.left_out[candidate.node] = (
                f"its {part} is {version}, {most} others have {common or 'an unknown one'}"
                if most > rest
                else f"no {part} is on more than half of the nodes (here: {version}); install the same on all nodes"
            )
        nodes = [candidate for candidate in nodes if candidate.node not in formation.left_out]
    return nodes


def _portions(members: list[Candidate], size: int) -> list[list[Candidate]]:
    """Split members into gangs of ``size``; a remainder that is too small for a gang joins the last one."""
    if not size:
        return [members] if members else []
    portions = [members[start : start + size] for start in range(0, len(members), size)]
    if len(portions) > 1 and len(portions[-1]) < LEAST:
        portions[-2:] = [portions[-2] + portions[-1]]
    return portions


def _why_alone(key: Sequence[str], group_by: Sequence[str]) -> str:
    labels = ", ".join(f"{by} {word}" if word else f"no label {by}" for by, word in zip(group_by, key, strict=True))
    hint = "; gpuval_gang_group_by selects the labels" if any(by != "sku" for by in group_by) else ""
    return f"no other node to form a gang with{f' ({labels}{hint})' if labels else ''}"


def _unique_name(words: Sequence[str], names: Collection[str]) -> str:
    """A name for a gang's files and keys that is not among ``names``, made from ``words``."""
    base = re.sub(r"[^a-z0-9-]+", "-", "-".join(words).lower()).strip("-")[:MAX_NAME].strip("-") or "all"
    name, number = base, 1
    while name in names:
        number += 1
        name = f"{base}-{number}"
    return name
