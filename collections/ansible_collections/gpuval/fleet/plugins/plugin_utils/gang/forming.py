"""Who works together: of the nodes that passed those that are alike, in gangs of a size; the others with a reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LEAST = 2
MAX_NAME = 40
NOT_HERE = "it is no host of this command (inventory, gpuval_hosts, --limit)"
JOINED = "it joined the run and is no host of this command: validate it with others of its kind in a run of their own"


@dataclass(frozen=True)
class Candidate:
    """A node as it stands after its own stages.

    ``software`` are versions that all members must have alike, by what they are of; an empty one is not known.
    ``labels`` are of the inventory (rack, ...), with ``sku`` among them.
    """

    node: str
    verdict: str
    address: str
    slots: int
    reason: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)
    #: Whether what the labels say is known: declared, or told by facts that found what the node is to have.
    proven: bool = True


@dataclass(frozen=True)
class Gang:
    """Members in the inventory's order: the first leads."""

    name: str
    members: tuple[Candidate, ...]


@dataclass
class Formation:
    """The gangs, and by node why one is in none."""

    gangs: list[Gang] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def form(candidates: Sequence[Candidate], size: int = 0, group_by: Sequence[str] = ("sku",)) -> Formation:
    """Form gangs of ``size`` nodes (0: of all that are alike), each of nodes with the same labels of ``group_by``.

    Raises ``ValueError`` for a size of 1 or less than 0. In a group those whose software is another than that of most
    are left out by name; where no software has more than half of the nodes, nobody can say which is right, and the
    group has no gang.
    """
    if size < 0 or size == 1:
        raise ValueError(f"gangs of {size}: a gang has {LEAST} nodes or more; 0 takes all")
    formation = Formation()
    groups: dict[tuple[str, ...], list[Candidate]] = {}
    for candidate in candidates:
        reason = _unfit(candidate)
        if reason:
            formation.left_out[candidate.node] = reason
        else:
            groups.setdefault(tuple(candidate.labels.get(key, "") for key in group_by), []).append(candidate)
    taken: set[str] = set()
    for key, group in groups.items():
        alike = _alike(group, formation)
        for number, members in enumerate(_shared_out(alike, size), 1):
            if len(members) < LEAST:
                for member in members:
                    formation.left_out[member.node] = _alone(key, group_by)
                continue
            words = [word for word, by in zip(key, group_by, strict=True) if word and (by != "sku" or len(groups) > 1)]
            several = [str(number)] if size and len(alike) > size else []
            formation.gangs.append(Gang(_named([*words, *several], taken), tuple(members)))
    return formation


def alone(candidates: Sequence[Candidate], group_by: Sequence[str] = ("sku",)) -> list[str]:
    """Nodes that no other one, fit or not, has the SKU of: they were never meant to work with others.

    Other labels exempt nobody: one that is missing or mistyped would accept a node of whose network nothing is known;
    nor is anybody exempt where SKUs work together (``group_by`` without ``sku``). One that did not pass and whose SKU
    nobody knows, since it was never reached or its accelerators do not work, may be like any: then nobody is alone.
    """
    if "sku" not in group_by or any(one.verdict != "PASS" and not one.proven for one in candidates):
        return []
    counted = Counter(one.labels.get("sku", "") for one in candidates)
    return [one.node for one in candidates if counted[one.labels.get("sku", "")] == 1]


def _unfit(candidate: Candidate) -> str:
    if candidate.verdict != "PASS":
        told = f": {candidate.reason}" if candidate.reason else ""
        return f"its own stages ended {candidate.verdict}{told}"
    if not candidate.address:
        return "it has no address for the others: set gpuval_gang_address"
    if candidate.slots < 1:
        return "it has no processes to give"
    return ""


def _alike(group: Sequence[Candidate], formation: Formation) -> list[Candidate]:
    """Those that have the software of most, one kind of software after the other."""
    left = list(group)
    for what in sorted({what for candidate in group for what in candidate.software}):
        counted = Counter(candidate.software.get(what, "") for candidate in left)
        if len(counted) < 2:
            continue
        (common, most), *_ = counted.most_common()
        others = len(left) - most
        for candidate in left if most <= others else [c for c in left if c.software.get(what, "") != common]:
            own = candidate.software.get(what) or "an unknown one"
            formation.left_out[candidate.node] = (
                f"its {what} is {own}, {most} others have {common or 'an unknown one'}"
                if most > others
                else f"no {what} is that of most: its own is {own}; bring all nodes to one"
            )
        left = [candidate for candidate in left if candidate.node not in formation.left_out]
    return left


def _shared_out(members: list[Candidate], size: int) -> list[list[Candidate]]:
    """In portions of the size; what is left over at the end and too few for a gang joins the last."""
    if not size:
        return [members] if members else []
    portions = [members[start : start + size] for start in range(0, len(members), size)]
    if len(portions) > 1 and len(portions[-1]) < LEAST:
        portions[-2:] = [portions[-2] + portions[-1]]
    return portions


def _alone(key: Sequence[str], group_by: Sequence[str]) -> str:
    told = ", ".join(f"{by} {word}" if word else f"no label {by}" for by, word in zip(group_by, key, strict=True))
    why = "; gpuval_gang_group_by says what must be alike" if any(by != "sku" for by in group_by) else ""
    return f"no other node can work with it{f' ({told}{why})' if told else ''}"


def _named(words: Sequence[str], taken: set[str]) -> str:
    """A name for files and keys, another one each time."""
    base = re.sub(r"[^a-z0-9-]+", "-", "-".join(words).lower()).strip("-")[:MAX_NAME].strip("-") or "all"
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    taken.add(name)
    return name
