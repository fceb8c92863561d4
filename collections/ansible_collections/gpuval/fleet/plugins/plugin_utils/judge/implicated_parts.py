"""Which part of a node explains what is wrong with it: figures that one part explains are one finding. Pure.

A slow GPU slows its links, and all GPUs wait for it in training. The part that explains most failed or warned figures
comes first, then the next by what is left. Of equals the smaller counts: link, GPU, NUMA node, host, GPU switch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ..core import extensions
from ..core.grouping import values_by_key
from ..core.stage_traits import traits_of_stages
from ..records import environment, launch_errors
from ..records.documents import Record
from .check import FACTS, Check, Subject
from .entries import Entry

HOST, HOST_MEMORY, GPU_SWITCH = "host", "host memory", "GPU switch"
#: Kinds of figures that stages declare (``implicates`` in ``files/stage.yml``): those that the node's slowest GPU or
#: link determines, since all GPUs wait for it, copies between host and GPUs, links between GPUs, memory of the host.
WAITING, HOST_COPIES, GPU_LINKS, MEMORY_OF_HOST = "slowest_gpu", "host_copies", "gpu_links", "host_memory"
#: If this share of a node's GPUs (or of their links) is slow, the host (or the GPU switch) is the cause.
MOST = 0.75


@dataclass(frozen=True)
class Symptom:
    """A figure that failed or warned: ``number`` is its index among the node's checks. ``ends``: the parts that it is
    about: for a link both ends, for a figure of the whole node none."""

    number: int
    part: str
    metric: str
    ends: frozenset[str]

    def is_of(self, *kinds: str) -> bool:
        """Whether the metric is one of these kinds of figures."""
        return not _kinds_of(self.metric).isdisjoint(kinds)


@extensions.cached
def _kinds_of(metric: str) -> frozenset[str]:
    """The kinds of figures (``implicates`` of any stage) that the metric is one of."""
    kinds = (pair for traits in traits_of_stages().values() for pair in traits.implicates.items())
    return frozenset(kind for kind, patterns in kinds if any(fnmatchcase(metric, pattern) for pattern in patterns))


@dataclass(frozen=True)
class PartLayout:
    """The number of the node's GPUs, and which GPUs belong to each NUMA node."""

    gpus: int = 0
    numa_nodes: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of_subject(cls, subject: Subject) -> "PartLayout":
        facts = subject.records.get(FACTS)
        evidence = facts["environment"] if facts else {}
        numa_by_address = {
            str(device.get("address")): device.get("numa_node")
            for device in environment.objects(evidence, "pci_accelerators[]")
        }
        gpus = enumerate(environment.objects(evidence, "gpus[]"))
        numbered = ((numa_by_address.get(str(gpu.get("pci_address"))), gpu.get("index", at)) for at, gpu in gpus)
        by_numa = values_by_key((number, f"gpu:{index}") for number, index in numbered if isinstance(number, int))
        return cls(int(subject.gpus or 0), {f"NUMA node {number}": frozenset(its) for number, its in by_numa.items()})


@dataclass(frozen=True)
class Suspect:
    """A part that may be the cause, and the indexes of the checks that its fault explains."""

    part: str
    explains: frozenset[int]


def suspect_parts(checks: Sequence[Entry], layout: PartLayout) -> list[Suspect]:
    """The parts that each explain two or more checks of a node, most explained checks first."""
    symptoms = [
        _symptom(number, check)
        for number, check in enumerate(checks)
        if check["verdict"] in ("fail", "warn") and check["metric"] and not check["metric"].startswith("gang_")
    ]
    suspects: list[Suspect] = []
    while len(symptoms) > 1:
        candidates = [suspect for rule in _RULES for suspect in rule(symptoms, layout)]
        best = max(candidates, key=lambda suspect: len(suspect.explains), default=None)  # among equals the first
        if best is None or len(best.explains) < 2:
            break
        suspects.append(best)
        symptoms = [symptom for symptom in symptoms if symptom.number not in best.explains]
    return suspects


def _symptom(number: int, check: Entry) -> Symptom:
    """The check of this index, and the parts that may cause its failure: both ends of a link, no part of a node."""
    part, metric = str(check["part"]), str(check["metric"])
    kind, _, name = part.partition(":")
    ends = {"link": [end.partition(":")[0] for end in name.split(">")], "node": []}.get(kind, [part])
    return Symptom(number, part, metric, frozenset(_part_named(end) for end in ends))


def _part_named(end: str) -> str:
    """The name of the part at a link's end, or of a rank: gpu1 and rank:1 become gpu:1."""
    for prefix in ("gpu", "rank"):
        index = end.removeprefix(prefix).lstrip(":")
        if end.startswith(prefix) and index.isdecimal():
            return f"gpu:{index}"
    return end


def _check_indexes(symptoms: Iterable[Symptom]) -> frozenset[int]:
    return frozenset(symptom.number for symptom in symptoms)


def _waiting(symptoms: Sequence[Symptom], ends: frozenset[str]) -> frozenset[int]:
    """Indexes of checks for which all GPUs wait, so that a slow GPU or link explains them; empty for other ``ends``."""
    return _check_indexes(symptom for symptom in symptoms if _are_gpus(ends) and symptom.is_of(WAITING))


def _are_gpus(ends: frozenset[str]) -> bool:
    return all(end.startswith("gpu:") for end in ends)


def _links(symptoms: Sequence[Symptom], layout: PartLayout) -> Iterator[Suspect]:
    """Links between two parts as suspects, each with the figures that name both its ends."""
    names: dict[frozenset[str], str] = {}
    for symptom in symptoms:
        if len(symptom.ends) > 1:
            names.setdefault(symptom.ends, symptom.part)
    for ends, name in names.items():
        of_link = _check_indexes(symptom for symptom in symptoms if symptom.ends == ends)
        yield Suspect(name, of_link | _waiting(symptoms, ends))


def _parts(symptoms: Sequence[Symptom], layout: PartLayout) -> Iterator[Suspect]:
    """Suspects: GPUs, NICs and disks that a figure of their own names, or the links to two or more others."""
    for end in dict.fromkeys(end for symptom in symptoms for end in sorted(symptom.ends)):
        touching = [symptom for symptom in symptoms if end in symptom.ends]
        far_ends = {other for symptom in touching for other in symptom.ends if other != end}
        is_named = any(symptom.ends == {end} and not symptom.is_of(WAITING) for symptom in touching)
        if is_named or len(far_ends) > 1:
            part = touching[0].part if not end.startswith("gpu:") and touching[0].ends == {end} else end
            yield Suspect(part, _check_indexes(touching) | _waiting(symptoms, frozenset((end,))))


def _numa_nodes(symptoms: Sequence[Symptom], layout: PartLayout) -> Iterator[Suspect]:
    """Suspects: NUMA nodes of which all GPUs, and no others, copy slowly between host and device."""
    slow = frozenset(end for symptom in symptoms if symptom.is_of(HOST_COPIES) for end in symptom.ends)
    copying = _check_indexes(symptom for symptom in symptoms if symptom.is_of(HOST_COPIES, MEMORY_OF_HOST))
    for name, gpus in layout.numa_nodes.items():
        if len(gpus) > 1 and slow == gpus and len(layout.numa_nodes) > 1:
            yield Suspect(name, copying)


def _host(symptoms: Sequence[Symptom], layout: PartLayout) -> Iterator[Suspect]:
    """The host as a suspect, if most GPUs or the whole node copy slowly to or from it, or its memory is slow."""
    of_memory = _check_indexes(symptom for symptom in symptoms if symptom.is_of(MEMORY_OF_HOST))
    copies = [symptom for symptom in symptoms if symptom.is_of(HOST_COPIES)]
    slow = {end for symptom in copies for end in symptom.ends}
    of_all = [symptom for symptom in copies if symptom.part == "node"]
    if of_all or (layout.gpus > 1 and len(slow) >= MOST * layout.gpus):
        yield Suspect(HOST_MEMORY if of_memory else HOST, of_memory | _check_indexes(copies))
    elif of_memory:
        yield Suspect(HOST_MEMORY, of_memory)


def _gpu_switch(symptoms: Sequence[Symptom], layout: PartLayout) -> Iterator[Suspect]:
    """The GPU switch as a suspect, if most links between GPUs, or their total, are slow."""
    pairs = {symptom.ends for symptom in symptoms if len(symptom.ends) > 1 and _are_gpus(symptom.ends)}
    of_all = any(symptom.part == "node" and symptom.is_of(GPU_LINKS) for symptom in symptoms)
    if of_all or (layout.gpus > 3 and len(pairs) >= MOST * layout.gpus * (layout.gpus - 1) / 2):
        explained = (symptom for symptom in symptoms if symptom.ends in pairs or symptom.is_of(GPU_LINKS, WAITING))
        yield Suspect(GPU_SWITCH, _check_indexes(explained))


#: Finders of suspects, those of smaller parts first.
_RULES: Sequence[Callable[[Sequence[Symptom], PartLayout], Iterator[Suspect]]] = (
    _links, _parts, _numa_nodes, _host, _gpu_switch,
)  # fmt: skip


def of_the_node(check: Check, subject: Subject, entries: list[Entry]) -> list[Entry]:
    """The entries of a check; if all of several GPUs fail it alike, one entry that names the node instead."""
    far = [one for one in entries if one["verdict"] in ("fail", "warn") and one["part"].startswith("gpu:")]
    if check.scope != "gpu" or len(far) < 2 or len({one["part"] for one in far}) != subject.gpus:
        return entries
    if len(far) < len(entries):  # entries of missing parts would be lost
        return entries
    return [{**far[0], "part": "node", "reason": f"all {len(far)} GPUs, {far[0]['part']}: {far[0]['reason']}"}]


def beside_other_work(check: Check, record: Record | None, entries: list[Entry]) -> list[Entry]:
    """The entries of a check. A low speed proves nothing beside other work, or if the stage yielded to such work."""
    if not check.retry or record is None or all(one["verdict"] not in ("fail", "warn") for one in entries):
        return entries
    gave_way = record["state"] == "cancelled" and launch_errors.classify("", record["message"]).name == "foreign_work"
    if not (gave_way or environment.accelerator_users(record["environment"])):
        return entries
    return [
        {**one, "verdict": "missing", "reason": f"measured beside other work; {one['reason']}"}
        if one["verdict"] in ("fail", "warn")
        else one
        for one in entries
    ]


def follow_the_fleet(checks: list[Entry], criteria: Iterable[Check]) -> list[Entry]:
    """The checks of a node. A part that is an outlier in its node, but not in the fleet, becomes a warning. Eight parts
    of a node show less of the usual differences than the parts of eight nodes."""
    outliers = [check for check in criteria if check.kind == "outlier"]
    fleet_checks = {check.metric: check.name for check in outliers if check.peers == "fleet" and check.relative_to}
    in_node = {check.name for check in outliers if check.peers == "node"}
    for entry in checks:
        if entry["name"] not in in_node or entry["verdict"] != "fail":
            continue
        of_fleet = [one["verdict"] for one in checks if one["name"] == fleet_checks.get(entry["metric"])]
        if "pass" in of_fleet and set(of_fleet) <= {"pass", "warn"}:  # too few nodes to compare: no pass
            reason = f"{entry['reason']}; parts of other nodes differ as much"
            entry.update(verdict="warn", severity="advisory", reason=reason)
    return checks


def name_the_cause(checks: Sequence[Entry], subject: Subject) -> list[Entry]:
    """The checks of a node, each with its ``cause``: the other part that explains it, if any. A figure for which all
    GPUs wait becomes a warning if the part itself failed in the same stage."""
    causes = {
        number: suspect.part
        for suspect in suspect_parts(checks, PartLayout.of_subject(subject))
        for number in suspect.explains
        if checks[number]["part"] != suspect.part
    }
    named: list[Entry] = []
    for number, check in enumerate(checks):
        entry = _explained(check, causes[number], checks) if number in causes else check
        excused = entry["severity"] != check["severity"]
        if not excused or all(other["name"] != entry["name"] or other["verdict"] != "warn" for other in named):
            named.append(entry)
    return named


def _explained(check: Entry, cause: str, checks: Sequence[Entry]) -> Entry:
    """The check, with the part that explains it as its cause."""
    entry, stage = {**check, "cause": cause}, check["stage"]
    proofs = [rival for rival in checks if rival["part"] == cause and rival["verdict"] in ("fail", "warn")]
    proof = min(proofs, key=lambda rival: (rival["stage"] != stage, rival["verdict"] != "fail"), default=None)
    if entry["part"] != "node" or proof is None:
        return entry
    entry["reason"] = f"all GPUs wait for {cause} ({proof['name']}); {entry['reason']}"
    if proof["verdict"] == "fail" and proof["stage"] == stage:
        entry |= {"verdict": "warn", "severity": "advisory"}
    return entry
