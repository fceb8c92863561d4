"""One action for each node that is not accepted, by ``failures/ladders.yml`` and by what earlier runs found."""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core import extensions, yaml_file
from ..core.errors import SettingError
from ..core.paths import COLLECTION
from ..core.text import meant
from ..records.documents import RUN_ENDED, Document
from ..records.failure_classes import NODE, OF_MACHINE, all_classes, class_named, subject_of
from .checks_without_criteria import IN_USE
from .entries import deciding_class, headline, required_checks
from .identity import best_of, gpu_of, machine_names
from .stage_end import OPEN_STATES
from .unsteady import UNSTEADY

FILE = COLLECTION / "failures/ladders.yml"
#: Names of ladders of repair steps: for checks of a user's own, and for missing evidence.
OWN_CHECK, RETEST = "own_check", "retest"
#: Actions, mildest first: of several faults of a node the gravest action counts.
ACTIONS = ("retest", "reboot", "inspect", "replace_gpu", "replace_cable", "replace_node", "contact_vendor")
#: If more GPUs of a node have the same fault, its cause is what they share: board, power, cooling, driver.
MAX_GPUS_REPLACED = 2
MAX_FAULTS = 32

#: For each (failure class, machine or GPU) the earlier runs that found this fault there.
Earlier = Mapping[tuple[str, str], Collection[str]]


@dataclass(frozen=True)
class NodeFault:
    """A fault of a node. ``of``: the machine or GPU, by an identity that stays the same between runs. ``subject``: what
    the failure class is about: node, GPU, network and the like."""

    word: str
    part: str
    of: str
    subject: str

    def document(self) -> dict[str, str]:
        """The fault as report.json keeps it for later runs; without ``subject`` if that is the failure class's own."""
        subject = {} if self.subject == subject_of(self.word) else {"subject": self.subject}
        return {"class": self.word, "of": self.of, **subject}

    @property
    def steps(self) -> Sequence[str]:
        """The repair steps, mildest first. Only a fault of a GPU leads to a replaced GPU. If the machine is not at
        fault, or evidence is missing, the step is to fix the named cause and validate again."""
        row = class_named(self.word)
        ladder = row.ladder if row else OWN_CHECK
        is_of_machine = self.subject in OF_MACHINE and self.subject == subject_of(self.word)
        steps: Sequence[str] = shipped()["ladders"][ladder if is_of_machine else RETEST]["steps"]
        if _is_gpu(self.part):
            return steps
        return [step for step in steps if step != "replace_gpu"] or ["inspect"]


@functools.cache
def shipped() -> Document:
    """The shipped rules: the repair steps of each ladder, and for how many days faults of earlier runs count."""
    return yaml_file.shipped(FILE, "actions")


def check_ladders() -> None:
    """Raise SettingError if a failure class of an extension has an action that is no ladder."""
    ladders = shipped()["ladders"]
    for row in all_classes():
        if row.ladder not in ladders:
            near = meant(row.ladder, ladders) or f"; they are {', '.join(ladders)}"
            raise SettingError(f"{extensions.SETTING}: class '{row.name}': no action {row.ladder}{near}")


def lacked_gpus(earlier: Earlier, declared: Callable[[str, str], str] = lambda _run, _machine: "") -> dict[str, str]:
    """For each machine that earlier runs rejected for missing GPUs, a text on the last such run that declared a number.
    ``declared(run, machine)``: the number of GPUs that the run declared; empty for none."""
    words = {}
    for (word, machine), runs in earlier.items():
        if word == "accelerator":
            runs_declared = [(run, declared(run, machine)) for run in sorted(runs, reverse=True)]
            run, expectation = next((one for one in runs_declared if one[1]), runs_declared[0])
            words[machine] = f"run {run}{f', which declared {expectation},' if expectation else ''} missed its GPUs"
    return words


def found_earlier(earlier: Earlier) -> dict[str, Document]:
    """Findings of earlier runs as keyword arguments of ``verdict.judge``."""
    unsteady = {of: runs for (word, of), runs in earlier.items() if word == UNSTEADY}
    return {"lacked_gpus": lacked_gpus(earlier), "unsteady": unsteady}


def assign(report: Document, earlier: Earlier) -> None:
    """Set ``action`` in each node of the report that did not pass, except nodes that may still pass."""
    shared = _shared(report["nodes"])
    for node in report["nodes"]:
        if node["verdict"] != "PASS" and not (report["run"].get("resume") and _is_open(node)):
            node["action"] = action_of(node, earlier, shared)


def excused_changes(report: Document) -> dict[str, list[dict[str, str]]]:
    """For each node its faults, with changes of speed that are excused since healthy nodes changed as much: they count
    as faults once a later run finds them again."""
    shared, faults_by_node = _shared(report["nodes"]), defaultdict(list)
    for node in report["nodes"]:
        for check in node["checks"]:
            if check["name"] == UNSTEADY and check["severity"] == "advisory":
                where = _where(node, check["part"], 1, _machine_identity(node, shared), shared)
                faults_by_node[node["name"]].append(NodeFault(UNSTEADY, *where, NODE).document())
    decided = {node["name"]: node["action"]["faults"] for node in report["nodes"] if "action" in node}
    return {name: [*decided.get(name, ()), *faults][:MAX_FAULTS] for name, faults in faults_by_node.items()}


def _is_open(node: Document) -> bool:
    """Whether the only fault known of the node is a stage that has not ended."""
    check = headline(node)
    return check is not None and node["class"] in {f"{check['stage']}_{state}" for state in OPEN_STATES}


def action_of(node: Document, earlier: Earlier, shared: Collection[str]) -> dict[str, Any]:
    """The gravest action for the node's faults. ``shared``: identities that several machines have, which name none."""
    faults, chosen = _faults(node, shared)[:MAX_FAULTS], []
    for fault in faults:
        runs = sorted(earlier.get((fault.word, fault.of), ())) if fault.subject == NODE else []
        steps = fault.steps
        chosen.append((ACTIONS.index(steps[min(len(runs), len(steps) - 1)]), fault, runs))
    gravest, first, runs = max(chosen, key=lambda choice: choice[0])
    parts = [fault.part for rank, fault, _ in chosen if rank == gravest and fault.part != "node"]
    return {
        "name": ACTIONS[gravest],
        "class": first.word,
        "parts": list(dict.fromkeys(parts)),
        "earlier_runs": runs,
        "faults": [fault.document() for fault in faults],
    }


def _faults(node: Document, shared: Collection[str]) -> list[NodeFault]:
    """The faults that decided against the node, each once. ``shared``: identities that several machines have."""
    machine, checks, first = _machine_identity(node, shared), _deciding_checks(node["checks"]), headline(node)
    if not checks:
        word = node["class"] or "nothing_proven"
        return [NodeFault(word, "node", machine, subject_of(word, failed=False))]
    # the node's own class is that of the check that decided its verdict
    words = (str((check is first and node["class"]) or deciding_class(check)) for check in checks)
    found = [(word, str(one.get("cause") or one["part"]), one["verdict"]) for word, one in zip(words, checks)]
    gpus = Counter(word for word, part, _ in found if _is_gpu(part))
    faults = (
        NodeFault(word, *_where(node, part, gpus[word], machine, shared), subject_of(word, failed=verdict == "fail"))
        for word, part, verdict in found
    )
    return list(dict.fromkeys(faults))


def _deciding_checks(checks: Iterable[Document]) -> list[Document]:
    """The required checks that decided against a node: all that failed; else the first that other work on the GPUs, or
    a clean, left open; else all missing evidence, without figures of stages that ended badly."""
    checks = list(checks)
    missing = required_checks(checks, "missing")
    from_outside = [check for check in missing if check["name"] == IN_USE or RUN_ENDED in check["reason"]]
    ended_badly = {check["stage"] for check in missing if check["kind"] == "state"}
    ends = [check for check in missing if check["kind"] == "state" or check["stage"] not in ended_badly]
    return required_checks(checks, "fail") or from_outside[:1] or ends


def _is_gpu(part: str) -> bool:
    return part.startswith("gpu:")


def _where(node: Document, part: str, gpus: int, machine: str, shared: Collection[str]) -> tuple[str, str]:
    """The part at fault, and the machine or GPU that it belongs to. ``gpus``: how many GPUs have the same fault."""
    if not _is_gpu(part):
        return part, machine
    if gpus > MAX_GPUS_REPLACED:
        return "node", machine
    identity = best_of(gpu_of(node["identity"], part), ("serial", "uuid"))
    return part, f"gpu {identity}" if identity and identity not in shared else f"{machine} {part}"


def _shared(nodes: Sequence[Document]) -> frozenset[str]:
    """Identities (serial, machine id, UUID) that several machines or GPUs of a report share, so that they name none."""
    machines = (best_of(node["identity"], ("serial", "machine_id")) for node in nodes)
    gpus = (best_of(gpu, ("serial", "uuid")) for node in nodes for gpu in node["identity"].get("gpus", []))
    counted = Counter(filter(None, (*machines, *gpus)))
    return frozenset(identity for identity, count in counted.items() if count > 1)


def _machine_identity(node: Document, shared: Collection[str]) -> str:
    return next(one for one in machine_names(node["name"], node["identity"]) if one not in shared)
