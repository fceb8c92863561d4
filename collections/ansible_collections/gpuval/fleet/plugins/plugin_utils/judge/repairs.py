"""Whether a PASS after a fault accepts the node: only if a serial or firmware changed, or a repair is declared. A fault
follows its machine or GPU, by serial or UUID, to another name or node."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from ..core import files, schemas
from ..core.errors import SettingError
from ..core.escape import one_line
from ..records import report_file
from ..records.documents import Document
from ..records.failure_classes import NODE, subject_of, traits_of
from ..runs import failed_checks, origin
from ..runs import folder as run_folder
from .identity import best_of
from .unsteady import UNSTEADY

SETTING = "gpuval_repairs"
#: Faults that runs found up to so many days before a run count for it.
LOOK_BACK_DAYS = 14
#: Versions (skus/shared/properties.yml) whose change shows a repair.
FIRMWARE = ("vbios", "bios", "bmc", "nic_firmware")
IDENTITIES = ("serial", "uuid")
#: Ladder of failure classes where gpuval_sku may be what is at fault, rather than the node.
NOT_AS_ORDERED = "not_as_ordered"
_GPU_OF_MACHINE = re.compile(r" gpu:\d+$")
_FORM = "%Y-%m-%dT%H:%M:%SZ"


class DeclaredRepair(NamedTuple):
    """An entry of gpuval_repairs: what was done to which part of a node, when (RFC 3339, UTC) and the person."""

    node: str
    part: str
    action: str
    at: str
    by: str


class OpenFault(NamedTuple):
    """A fault of a machine or GPU (``of``) that no repair followed, and the run that found it."""

    run_id: str
    word: str
    of: str

    def __str__(self) -> str:
        return f"{self.word} of {self.of} in run {self.run_id}"


def parse_repairs(value: Any) -> list[DeclaredRepair]:
    """The repairs that a setting declares. Raises SettingError."""
    repairs = []
    for entry in value or ():
        fields = entry if isinstance(entry, Mapping) else {}
        texts = {key: one_line(str(text), 200) for key, text in fields.items() if text not in (None, "")}
        if texts.keys() != {*DeclaredRepair._fields}:
            raise SettingError(
                f"{SETTING}: an entry has {', '.join(DeclaredRepair._fields)}, not {one_line(str(entry), 200)}"
            )
        try:
            moment = datetime.fromisoformat(texts["at"])
            texts["at"] = moment.astimezone(timezone.utc).strftime(_FORM) if moment.tzinfo else ""
        except (ValueError, OverflowError):
            texts["at"] = ""
        if not texts["at"]:
            raise SettingError(
                f"{SETTING}: at: {fields['at']} of {texts['node']} is no time such as 2026-11-04T09:00:00Z"
            )
        repairs.append(DeclaredRepair(**texts))
    return repairs


@dataclass(frozen=True, eq=False)
class NodeSighting:
    """A node in a run's report. ``shared``: identities of several nodes, as of a cloned disk, which name no machine."""

    run: Document
    node: Document
    inventory: str
    shared: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return str(self.node["name"])

    @property
    def run_id(self) -> str:
        return str(self.run["run_id"])

    @property
    def at(self) -> str:
        return str(self.run["finished_at"])

    @property
    def sku(self) -> str:
        """The SKU of the catalogue, else the declared one."""
        return str(self.node.get("catalogue_sku") or self.node["sku"])

    @property
    def is_whole(self) -> bool:
        """Whether the run tested all that an acceptance of the node needs, and the node passed."""
        is_pass = self.node["verdict"] == failed_checks.PASS
        return is_pass and failed_checks.accepts(self.run, self.node) and not self.run.get("shortened")

    @cached_property
    def machines(self) -> frozenset[str]:
        """Names of the machine that its facts give, without fillers and shared ones."""
        return _machines_of(self.node) - self.shared

    @property
    def machine(self) -> str:
        """The machine by its serial, else by its id; empty if nothing names it."""
        return max(self.machines, default="")  # serial, machine_id

    @cached_property
    def gpus(self) -> list[dict[str, str]]:
        """For each GPU of the node ``{serial: name, uuid: name}``; a manufacturer's filler is an empty name."""
        gpus = self.node["identity"].get("gpus", ())
        return [{key: (name := best_of(gpu, (key,))) and f"gpu {name}" for key in IDENTITIES} for gpu in gpus]

    @cached_property
    def parts(self) -> frozenset[str]:
        """All names of the machine and its GPUs, and the node's name together with its inventory's."""
        return frozenset([*self.machines, *(name for gpu in self.gpus for name in gpu.values()), self._name]) - {""}

    @property
    def _name(self) -> str:
        return f"name {self.name} of {self.inventory}"

    @cached_property
    def faults(self) -> list[tuple[str, str]]:
        """(failure class, machine or GPU) of each fault of the node itself; empty if the node passed."""
        if self.node["verdict"] == failed_checks.PASS or not failed_checks.is_about(self.node):
            return []
        faults = (self.node.get("action") or {}).get("faults", ())
        of_node = [fault for fault in faults if (fault.get("subject") or subject_of(fault["class"])) == NODE]
        listed = [(fault["class"], fault["of"]) for fault in of_node]
        return listed or [(str(self.node["class"]), self.machine or f"name {self.name}")]

    @property
    def needs_repair(self) -> bool:
        """Whether a PASS after this needs a repair: after FAIL, and after a speed that changed."""
        return self.node["verdict"] == failed_checks.FAIL or any(word == UNSTEADY for word, _ in self.faults)

    def bears(self, of: str, other: "NodeSighting") -> bool:
        """Whether a fault of ``of``, found in the sighting ``other``, is one of this node's machine or GPUs."""
        names = {of, *(name for gpu in other.gpus if of in gpu.values() for name in gpu.values())} - {""}
        if not of.startswith("gpu "):
            names = {*other.machines} if _GPU_OF_MACHINE.sub("", of) in other.machines else {other._name}
        return not self.parts.isdisjoint(names)

    def part_of(self, of: str) -> str:
        """The part of the node (gpu:5) that is ``of``, the name of a machine or GPU; else node."""
        gpus = self.node["identity"].get("gpus", ())
        parts = (f"gpu:{gpu.get('index')}" for gpu, names in zip(gpus, self.gpus, strict=True) if of in names.values())
        by_number = _GPU_OF_MACHINE.search(of)
        return next(parts, by_number[0].strip() if by_number else "node")

    def changes_since(self, then: "NodeSighting") -> dict[str, str]:
        """``{machine or GPU: came or went}`` since an earlier sighting, by an identity that both sightings have."""
        kinds = [[{gpu[key] for gpu in one.gpus} for one in (self, then)] for key in IDENTITIES]
        pairs = [pair for pair in kinds if all(names and "" not in names for names in pair)][:1]
        if self.machines and then.machines and not self.machines & then.machines:
            pairs.append([{self.machine}, {then.machine}])
        gone = {part: "went" for now, before in pairs for part in sorted(before - now)}
        return gone | {part: "came" for now, before in pairs for part in sorted(now - before)}


def open_faults(
    sighting: NodeSighting, sightings: Iterable[NodeSighting], repairs: Sequence[DeclaredRepair]
) -> list[OpenFault]:
    """Faults of the node's machine and GPUs that other runs found before this one, and that nothing has repaired."""
    return [
        OpenFault(earlier.run_id, word, of)
        for earlier in sightings
        if earlier.run_id != sighting.run_id and earlier.at <= sighting.at and earlier.needs_repair
        for word, of in earlier.faults
        if sighting.bears(of, earlier) and not _is_repaired(word, of, earlier, sighting, repairs)
    ]


def _is_repaired(word: str, of: str, then: NodeSighting, now: NodeSighting, repairs: Sequence[DeclaredRepair]) -> bool:
    """Whether the fault of class ``word`` of a machine or GPU (``of``) was repaired between the two sightings."""
    changes = {*now.changes_since(then).values()}
    versions = [(then.node.get("versions", {}).get(name), now.node.get("versions", {}).get(name)) for name in FIRMWARE]
    parts = {then.part_of(of), now.part_of(of)}
    is_declared = any(
        repair.node in (then.name, now.name) and then.at <= repair.at <= now.run["created_at"]
        for repair in repairs
        # the repair of a GPU settles no fault of another GPU
        if repair.part in parts or not all(part.startswith("gpu:") for part in (repair.part, *parts))
    )
    # a GPU at fault that is still there is not repaired by another new one, and one that was lost may only be back
    has_new_part = not of.startswith("gpu ") and changes == {"came", "went"}
    has_new_sku = traits_of(word).ladder == NOT_AS_ORDERED and then.node["sku"] != now.node["sku"]
    has_new_firmware = any(before and after and before != after for before, after in versions)
    return is_declared or has_new_part or has_new_sku or has_new_firmware


class ReportedRun(NamedTuple):
    """A run that has ended: its report without metrics, inventory as commands take it, SHA-256 of report.json."""

    report: Document
    inventory: str
    sha256: str

    @property
    def head(self) -> Document:
        head: Document = self.report["run"]
        return head

    @property
    def run_id(self) -> str:
        return str(self.head["run_id"])


def _machines_of(node: Document) -> frozenset[str]:
    return frozenset(filter(None, (best_of(node["identity"], (key,)) for key in ("serial", "machine_id"))))


def sightings_of(runs: Iterable[ReportedRun]) -> list[NodeSighting]:
    """All nodes of these runs, the oldest run first."""
    runs = sorted(runs, key=lambda run: (run.head["finished_at"], run.run_id))
    counts = (Counter(machine for node in run.report["nodes"] for machine in _machines_of(node)) for run in runs)
    shared = frozenset(machine for counted in counts for machine, count in counted.items() if count > 1)
    return [NodeSighting(run.head, node, run.inventory, shared) for run in runs for node in run.report["nodes"]]


def read_runs(
    results: Path, since: str, inventory: Sequence[str], warn: Callable[[str], object] | None = None
) -> list[ReportedRun]:
    """All runs in the results folder that ended since then, of every inventory. Damaged reports are left out with a
    warning; without ``warn`` raises RunError."""
    runs = []
    for folder in run_folder.known_runs(results, imported=True):
        path, run = folder.path / "report.json", run_folder.read_object(folder.run_file)
        if not path.exists() or str(run.get("finished_at") or since) < since:
            continue
        try:
            report, sha256 = _read_report(path)
        except (OSError, ValueError, LookupError) as error:
            problem = f"{path} is damaged ({error}): `make report RUN={folder.path.name}` writes it again"
            if warn is None:
                raise run_folder.RunError(problem) from error
            warn(f"{problem}; until then faults of this run keep no mark")
            continue
        if (report["run"]["finished_at"] or "") >= since:
            shown = origin.shown(inventory if origin.is_same(folder.inventory, inventory) else folder.inventory)
            runs.append(ReportedRun(report, shown, sha256))
    return runs


def _read_report(path: Path) -> tuple[Document, str]:
    """A report without metrics, and the file's SHA-256. Raises OSError, ValueError and LookupError."""
    data = files.read(path)
    report = orjson.loads(data)
    schemas.validate("report", report, what="it")
    if report["run"]["run_id"] != path.parent.name:
        raise ValueError(f"it is the report of run {report['run']['run_id']}")
    for node in report["nodes"]:
        report_file.unpack_shared(node, report)
        node["metrics"] = {}
    return report, hashlib.sha256(data).hexdigest()


def days_before(time: str, days: int = LOOK_BACK_DAYS) -> str:
    return (datetime.fromisoformat(time) - timedelta(days=days)).strftime(_FORM)


def withhold_acceptance(
    report: Document, folder: run_folder.RunFolder, setting: Any, warn: Callable[[str], object]
) -> None:
    """Set ``unrepaired`` in the nodes of a report whose PASS follows a fault that nothing repaired, for
    `failed_checks`. ``setting``: gpuval_repairs. Raises SettingError."""
    repairs, ended, inventory = parse_repairs(setting), report["run"]["finished_at"], folder.inventory
    if not ended:
        return
    earlier = read_runs(folder.results, days_before(ended), inventory, warn)
    sightings = sightings_of([*earlier, ReportedRun(report, origin.shown(inventory), "")])
    faulty = [sighting for sighting in sightings if sighting.needs_repair]
    own = (sighting for sighting in sightings if sighting.run is report["run"])
    for node, sighting in zip(report["nodes"], own, strict=True):
        faults = open_faults(sighting, faulty, repairs) if node["verdict"] == failed_checks.PASS else ()
        node.update({"unrepaired": list(map(str, faults))} if faults else {})
