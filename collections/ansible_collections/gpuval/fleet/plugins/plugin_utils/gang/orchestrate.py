"""Runs multi-node tests: forms gangs, runs their rounds, and searches for the bad node or link of a gang that failed.
Each step is recorded before it begins, so that a restarted controller resumes there."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.result import MISSING

from ..core import extensions
from ..core.grouping import values_by_key
from ..core.processes import AbandonedError
from ..core.text import some_of
from ..judge import sku_catalogue
from ..records.properties import NVLINK_STAGES
from ..runs import folder as run_folder
from ..runs.folder import RunFolder
from . import document as gang_document
from . import evidence, fabrics, forming, keys, report_section, rounds
from .document import SEARCH_STAGES
from .forming import Candidate
from .search.fault_search import FaultSearch
from .search.search_findings import counts_of
from .search.search_limits import SearchLimits
from .search.topology import Topology

#: Versions that must be the same on all members of a gang.
SAME_VERSIONS = ("driver", "runtime", "vbios", "nic_firmware")
CPU, AUTO = "cpu", "auto"
MAX_REASON = 300
#: Part of the reason why a gang failed whose image lacks DeepSpeed: a search by pairs would not find that cause.
NO_DEEPSPEED = "DeepSpeed cannot be imported"
#: The reason for the search of a gang without a failure.
REQUESTED = "requested"


@dataclass(frozen=True)
class GangSettings:
    """How gangs are formed, and time limits of their rounds and searches. ``size`` 0: all nodes that are alike."""

    size: int = 0
    group_by: Sequence[str] = ("sku",)
    #: Port of the rendezvous on the first member, and (port + 1) of the control channel; ``ssh_port`` on each member.
    port: int = 29500
    ssh_port: int = 3022
    round_seconds: float = 3600.0
    search: bool = True
    search_seconds: float = run_folder.SEARCH_SECONDS
    search_round_seconds: float = 180.0
    tapered: bool = False
    #: Bus bandwidth of two good nodes, over the network and over NVLink; 0 is unknown.
    expected_bytes_per_second: float = 0.0
    nvlink_expected_bytes_per_second: float = 0.0
    #: Seconds for the stages over NVLink in a round, beyond ``round_seconds``.
    nvlink_seconds: float = 0.0


@dataclass(frozen=True)
class GangNode:
    """A node in the inventory: the address that other members use, and its processes if it has no GPUs."""

    address: str
    slots: int


@dataclass
class GangContext:
    """Functions of the caller of `Gangs`. `run_round` runs a round on its nodes and waits for its end. `judge` returns
    the report on the evidence so far, with gangs if it gets a gang document. `publish` puts the document into the
    store. `display` prints a line for the user. `address` returns a member's address in a round. `repeatable`: names
    of checks whose figures may be measured again."""

    run_round: Callable[[RunFolder], object]
    judge: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
    publish: Callable[[Mapping[str, Any]], None]
    display: Callable[[str], None]
    address: Callable[[str, Mapping[str, Any]], str] = lambda _run_id, member: member["address"]
    repeatable: Collection[str] = ()


class Gangs:
    """The gangs of a run. ``document``: its gang document, None until gangs are formed."""

    def __init__(self, folder: RunFolder, settings: GangSettings, context: GangContext) -> None:
        self.folder, self.settings, self.context = folder, settings, context
        self.run = folder.read_run()
        self.document: Any = gang_document.read(folder)
        #: ``{round of a search: {group: message size in bytes}}``.
        self._sizes: dict[str, dict[str, float | None]] = {}

    @property
    def _cliques(self) -> dict[str, list[Mapping[str, Any]]]:
        return fabrics.cliques(self.document["gangs"])

    @property
    def stages(self) -> list[str]:
        """The multi-node stages of the run, in order."""
        nodes = self.run["nodes"].values()
        return list(dict.fromkeys(stage for node in nodes for stage in node.get("gang_stages", ())))

    def run_all(self, placed: Mapping[str, GangNode], properties: Mapping[str, Mapping[str, str]]) -> bool:
        """Run all unfinished gangs; return whether there were any. ``properties``: versions by node and component."""
        if not self.stages or (self.document and self.document["ended_at"]):
            return False
        if self.document is None:
            self._form(placed, properties)
        for reason, nodes in report_section.grouped(self.document["left_out"]):
            self.context.display(f"in no gang: {some_of(nodes)}: {reason}")
        every = {name: list(members) for name, members in self.document["gangs"].items()}
        work = [stage for stage in self.stages if stage not in SEARCH_STAGES]
        if work:
            self._round(gang_document.GANGS, every, work, self.settings.round_seconds)
        unsound = self._unsound(every)
        if self._closed():
            self.context.display("another command closed the run: its gangs end here")
        elif unsound and (self.document["searches"] or self.settings.search or {*SEARCH_STAGES} & {*self.stages}):
            findings = self._search(unsound)
            if work and not self._closed():
                again, repeats = self._gangs_to_rerun(every, findings, work)
                self._round(gang_document.AGAIN, again, work, self.settings.round_seconds, repeats=repeats)
        elif unsound:
            for name, why in unsound.items():
                reason = f"{why}; no search for the cause (gpuval_gang_search is false)"
                self.context.display(f"gang {name} failed: {reason}")
        self.document["ended_at"] = run_folder.now()
        self._write()
        keys.forget_all(self.folder)
        return True

    def _form(self, placed: Mapping[str, GangNode], properties: Mapping[str, Mapping[str, str]]) -> None:
        nodes = {node["name"]: node for node in self.context.judge(None)["nodes"]}
        names = [name for name, node in self.run["nodes"].items() if node.get("gang_stages")]
        candidates = [
            candidate(nodes[name], placed.get(name, GangNode("", 1)), properties.get(name, {})) for name in names
        ]
        are_placed = [node for node in candidates if node.node in placed]
        formation = forming.form(are_placed, self.settings.size, self.settings.group_by)
        for name in names:  # without an address the node cannot take part
            if name not in placed:
                joined = self.run["nodes"][name].get("joined_at")
                formation.left_out[name] = forming.JOINED if joined else forming.NOT_HERE
        self.document = {
            "schema": gang_document.SCHEMA,
            "formed_at": run_folder.now(),
            "gangs": {
                name: [member_of(node, nodes[node.node]["accelerator"]) for node in members]
                for name, members in formation.gangs.items()
            },
            "left_out": formation.left_out,
            "alone": forming.alone(candidates, self.settings.group_by),
            "rounds": [],
            "searches": {},
            "findings": {},
            "ended_at": None,
        }
        self._write()

    def _unsound(self, every: Mapping[str, Sequence[Any]]) -> dict[str, str]:
        """``{gang or clique: reason}`` of those to search, always with those whose search has started. ``every``:
        members by gang."""
        named = ((gang_document.FABRIC, every), (gang_document.FABRIC_NVLINK, self._cliques))
        requested = {name: REQUESTED for stage, members in named if stage in self.stages for name in members}
        if len(requested) == len(every) + len(self._cliques):
            return requested
        begun, findings = self.document["searches"], self.document["findings"]
        if begun and all(name in findings for name in begun):
            return {name: findings[name]["why"] for name in begun}
        complaints = self._complaints(self.context.judge(self.document), self.stages) if every else {}
        begun_reasons = {name: complaints.pop(name, "it had failed when its search began") for name in begun}
        for name in [name for name, why in complaints.items() if NO_DEEPSPEED in why]:
            self.context.display(f"gang {name} failed: {complaints.pop(name)}; no search, since the cause is known")
        return (begun_reasons or complaints) | requested

    def _gangs_to_rerun(
        self, every: Mapping[str, Sequence[Any]], findings: Mapping[str, Mapping[str, Any]], work: Sequence[str]
    ) -> tuple[dict[str, Sequence[Any]], dict[str, list[str]]]:
        """The gangs that run again, without implicated nodes, and for each the stages to repeat. A gang that passed and
        has no finding has no further round."""
        for item in self.document["rounds"]:
            if item["kind"] == gang_document.AGAIN:  # an earlier controller decided
                again: dict[str, Sequence[Any]] = {
                    name: [member for member in every[name] if member["node"] in nodes]
                    for name, nodes in item["gangs"].items()
                }
                return again, item.get("repeats", {})
        report = self.context.judge(self.document)
        nodes = {node["name"]: node for node in report["nodes"]}
        complaints = self._complaints(report, work)
        gangs: dict[str, Sequence[Any]] = {}
        repeats: dict[str, list[str]] = {}
        by_gang = values_by_key((fabrics.gang_of(name), finding) for name, finding in findings.items())
        for name, searches in by_gang.items():
            members = [nodes[member["node"]] for member in every[name]]
            complaint = next((why for one, why in complaints.items() if fabrics.gang_of(one) == name), "")
            condemned = {
                node["name"]
                for node in members
                if any(is_open(one, [*work, *SEARCH_STAGES], ("fail",)) for one in node["checks"])
            }
            final = any(
                is_final(one, node, work, self.context.repeatable) for node in members for one in node["checks"]
            )
            fit = rounds.members_to_rerun(every[name], searches, condemned, once_more=bool(complaint) and not final)
            if len(fit) == len(every[name]):
                self.context.display(f"gang {name}: no node implicated in {complaint}; retrying once")
            if fit:
                gangs[name] = fit
                failed = {one["stage"] for node in members for one in node["checks"] if is_open(one, work)}
                repeats[name] = [stage for stage in work if stage in failed]
        return gangs, repeats

    def _complaints(self, report: Mapping[str, Any], stages: Sequence[str]) -> dict[str, str]:
        """For each gang, and each clique over NVLink, its first failed or missing required check of these stages. Of
        jobs only failures from a lost node count: a search measures the network, not a user's program."""
        stages = [stage for stage in stages if stage in extensions.found("stages") or self._lost(stage)]
        nodes = {node["name"]: node for node in report["nodes"]}
        complaints: dict[str, str] = {}
        for name, members in (self.document["gangs"] | self._cliques).items():
            of_fabric = [stage for stage in stages if (stage in NVLINK_STAGES) == (name in self._cliques)]
            for member in members:
                check = next((one for one in nodes[member["node"]]["checks"] if is_open(one, of_fabric)), None)
                if check:
                    complaints.setdefault(name, f"{member['node']} {check['name']}: {check['reason']}"[:MAX_REASON])
        return complaints

    def _lost(self, stage: str) -> bool:
        """Whether members report that they lost another member in a stage."""
        played = (item["name"] for item in self.document["rounds"] if item["kind"] != gang_document.SEARCH)
        below = (gang_document.round_folder(self.folder, name) for name in played)
        round_records = (evidence.records(one, stage).values() for one in below if one.run_file.exists())
        return any(rounds.lost(record) for records in round_records for record in records)

    def _search(self, unsound: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
        """Search these gangs over the network, then these cliques over NVLink: no node works for both at one time."""
        for stage in SEARCH_STAGES:
            of_fabric = {
                name: why for name, why in unsound.items() if (name in self._cliques) == (stage in NVLINK_STAGES)
            }
            if not all(name in self.document["findings"] for name in of_fabric):
                self._search_over(stage, of_fabric)
        return self.document["findings"]

    def _search_over(self, stage: str, unsound: Mapping[str, str]) -> None:
        """Search over one fabric by rounds of small groups, until each search has a result or reaches a limit."""
        document, began = self.document, time.monotonic()
        for name, why in unsound.items():
            if name not in document["searches"]:
                failure = "" if why == REQUESTED else f"failed: {why}; "
                self.context.display(f"gang {name}: {failure}searching for a bad node or link by pairs")
                document["searches"][name] = self._begin_search(name, stage).to_json()
                document["findings"].pop(name, None)
        began_at = run_folder.now()
        searches = {name: FaultSearch.from_json(document["searches"][name]) for name in unsound}
        cut = ""
        while not self._closed() and time.monotonic() - began < self.settings.search_seconds:
            due = {name: round_ for name, search in searches.items() if (round_ := search.next_round())}
            if not due:
                break
            document["searches"] |= {name: search.to_json() for name, search in searches.items()}
            members = {member["node"]: member for gang in document["gangs"].values() for member in gang}
            named = {f"{name}.{one.id}": one.nodes for name, round_ in due.items() for one in round_}
            groups = {name: [members[node] for node in nodes] for name, nodes in named.items()}
            at = time.monotonic()
            past = [entry for entry in document["rounds"] if entry["kind"] == gang_document.SEARCH]
            same = (n for n, entry in enumerate(past, 1) if entry["gangs"].keys() == groups.keys())
            number = next(same, len(past) + 1)  # of an earlier controller's round with these groups, or a new one
            records = self._round(gang_document.SEARCH, groups, [stage], self.settings.search_round_seconds, number)
            seconds = time.monotonic() - at
            for name, round_ in due.items():
                usual = self._usual_size(name)
                results = {group.id: rounds.result_of(group.nodes, records, usual) for group in round_}
                searches[name].add_results(results, seconds)
            document["searches"] |= {name: search.to_json() for name, search in searches.items()}
            self._write()
            for name in due:
                so_far = searches[name].finding()
                counts = counts_of(so_far.nodes)
                self.context.display(f"gang {name}: {counts} after {so_far.rounds} round(s) of the search")
        else:
            limit = f"the limit of {self.settings.search_seconds:g} s"
            cut = "the end of the run by another command" if self._closed() else limit
        faults, networks = evidence.of_searches(self.folder, document, stage)
        for name, search in searches.items():
            document["findings"][name] = finding = search.finding().to_json()
            finding["faults"] = {node: faults[node] for node in finding["nodes"] if node in faults}
            finding["gang"] = [*rounds.of_other_network(finding["nodes"], networks), *finding["gang"]]
            if cut and not finding["stopped"]:
                further = FaultSearch.from_json(search.to_json())
                finding["stopped"] = cut if further.next_round() is not None else further.stopped
            finding["expected_bytes_per_second"] = search.limits.floor_bytes_per_second
            finding |= {"stage": stage} if stage in NVLINK_STAGES else {}
            finding |= {"name": name, "why": unsound.get(name, ""), "began_at": began_at, "ended_at": run_folder.now()}
            for line in report_section.lines_of(finding):
                self.context.display(f"gang {name}: {line}")
        self._write()

    def _usual_size(self, gang: str) -> float | None:
        """The message size in bytes at which most groups of a gang's search were measured so far; None if unknown."""
        for item in self.document["rounds"]:
            if item["kind"] == gang_document.SEARCH and item["ended_at"] and item["name"] not in self._sizes:
                below = gang_document.round_folder(self.folder, item["name"])
                records = evidence.records(below, gang_document.stage_of(item)) if below.run_file.exists() else {}
                sizes = {group: rounds.size_of(nodes, records) for group, nodes in item["gangs"].items()}
                self._sizes[item["name"]] = sizes
        of_groups = (each for sizes in self._sizes.values() for each in sizes.items())
        return rounds.usual_size(size for group, size in of_groups if group.rpartition(".")[0] == gang)

    def _begin_search(self, name: str, stage: str) -> FaultSearch:
        settings, over_nvlink = self.settings, stage in NVLINK_STAGES
        members = [member["node"] for member in (self.document["gangs"] | self._cliques)[name]]
        expected = settings.nvlink_expected_bytes_per_second if over_nvlink else settings.expected_bytes_per_second
        # Labels are of the network; all NVLinks of a clique end at the same switches.
        labels = {node: {} if over_nvlink else self.run["nodes"][node].get("labels", {}) for node in members}
        topology = Topology.of_labels(labels)
        limits = SearchLimits(
            deadline_seconds=self.settings.search_round_seconds,
            wall_seconds=self.settings.search_seconds,
            tapered=self.settings.tapered,
            floor_bytes_per_second=expected or None,
        )
        return FaultSearch.start(members, topology, limits)

    def _round(
        self,
        kind: str,
        gangs: Mapping[str, Sequence[Mapping[str, Any]]],
        stages: Sequence[str],
        seconds: float,
        number: int = 1,
        repeats: Mapping[str, Sequence[str]] | None = None,
    ) -> dict[str, Mapping[str, Any]]:
        """Run a round of at most ``seconds`` unless it is complete; return ``{node: record}`` of its last stage."""
        by_node = {node: own for members in gangs.values() for node, own in fabrics.stages_in(members, stages).items()}
        gangs = {gang: [member for member in members if by_node[member["node"]]] for gang, members in gangs.items()}
        gangs = {gang: members for gang, members in gangs.items() if members}
        if not gangs or self._closed():
            return {}
        stages = [stage for stage in stages if any(stage in own for own in by_node.values())]
        if kind != gang_document.SEARCH and {*NVLINK_STAGES} & {*stages}:
            seconds += self.settings.nvlink_seconds
        name = rounds.name_of(kind, number, list(gangs))
        listed = {gang: [member["node"] for member in members] for gang, members in gangs.items()}
        entry = next((item for item in self.document["rounds"] if item["name"] == name), None)
        if entry is None:
            entry = {"name": name, "kind": kind, "gangs": listed, "ended_at": None}
            entry |= {"repeats": dict(repeats)} if repeats is not None else {}
            entry |= {"stage": stages[0]} if kind == gang_document.SEARCH and stages[0] in NVLINK_STAGES else {}
            self.document["rounds"].append(entry)
            self._write()
        below = gang_document.round_folder(self.folder, name)
        if entry["ended_at"] is None:
            if not below.run_file.exists():
                settings: Any = {"port": self.settings.port, "ssh_port": self.settings.ssh_port, "seconds": seconds}
                address, at = self.context.address, run_folder.now()
                below.write_run(
                    rounds.round_run(self.run, name, gangs, stages, **settings, created_at=at, address=address)
                )
            if below.read_run()["finished_at"] is None:  # else the controller ended before it recorded the end
                self._run_round(below, f"{sum(map(len, gangs.values()))} nodes in {len(gangs)} gang(s)", stages)
            keys.forget(below)
            entry["ended_at"] = run_folder.now()
            self._write()
        return evidence.records(below, stages[-1])

    def _run_round(self, below: RunFolder, size: str, stages: Sequence[str]) -> None:
        keys.make(below)
        self.context.display(f"round {below.path.name}: {size}, {', '.join(stages)}")
        try:
            self.context.run_round(below)
        except AbandonedError:  # the next controller resumes the round and needs the keys
            raise
        except Exception:  # the gangs end with this error
            keys.forget(below)
            raise
        run = below.read_run()
        if run["finished_at"] is None:
            below.write_run({**run, "finished_at": run_folder.now()})

    def _closed(self) -> bool:
        """Whether another command ended the run."""
        return self.folder.read_run()["finished_at"] is not None

    def _write(self) -> None:
        gang_document.write(self.folder, self.document)
        self.context.publish(self.document)


def candidate(node: Mapping[str, Any], placed: GangNode, properties: Mapping[str, str]) -> Candidate:
    """A node as a candidate for a gang, from the report on its own stages. ``properties``: its versions."""
    is_cpu = node["accelerator"] == CPU
    counted = (item["value"] for item in node["metrics"].get("facts", ()) if item["name"] == "gpu_count")
    gpus = len(node["identity"].get("gpus", ())) or int(next(counted, 0) or 0)
    sku = node.get("catalogue_sku") or node["sku"]
    if not has_accelerator(node):  # a node with a broken driver looks like a CPU
        listed = sku_catalogue.named(node["sku"])
        sku = listed.name if listed else node["sku"]
    return Candidate(
        node=node["name"],
        verdict=node["verdict"],
        address=placed.address,
        slots=placed.slots if is_cpu else gpus,
        reason=str(node["class"] or ""),
        labels={**node["labels"], "sku": sku},  # a user's label "sku" does not count
        software={what: properties[what] for what in SAME_VERSIONS if properties.get(what)},
        missing=properties.get(MISSING, ""),
        proven=node["sku"] != AUTO or has_accelerator(node),
        clique=properties.get(fabrics.CLIQUE, "") if sku_catalogue.is_in_domain(node.get("catalogue_sku")) else None,
    )


def member_of(node: Candidate, vendor: str) -> dict[str, Any]:
    """A node's entry as a member in the gang document, with the labels by which jobs order their nodes."""
    labels = {name: node.labels[name] for name in ("rack", "physical_host") if node.labels.get(name)}
    member = {"node": node.node, "address": node.address, "slots": node.slots, "vendor": vendor}
    clique = {} if node.clique is None else {"clique": node.clique}
    return {**member, **clique, **({"labels": labels} if labels else {})}


def has_accelerator(node: Mapping[str, Any]) -> bool:
    """Whether a node, by its report, has working accelerators, or is a CPU node that needs none."""
    return any(check["name"] == "accelerator" and check["verdict"] == "pass" for check in node["checks"])


def is_open(check: Mapping[str, Any], stages: Sequence[str], verdicts: Sequence[str] = ("fail", "missing")) -> bool:
    return check["stage"] in stages and check["severity"] == "required" and check["verdict"] in verdicts


def is_final(
    check: Mapping[str, Any], node: Mapping[str, Any], stages: Sequence[str], repeatable: Collection[str]
) -> bool:
    """Whether a check failed by a figure that must not be measured again; a missing figure may be measured."""
    if not is_open(check, stages) or check["metric"] is None or check["name"] in repeatable:
        return False
    return any(item["name"] == check["metric"] for item in node["metrics"].get(check["stage"], ()))
