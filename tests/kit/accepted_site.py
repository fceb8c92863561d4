"""A site whose runs the real judge judges, as an acceptance reads them: results/<inventory>/<run_id>/ with run.json and
report.json. Its machines stay the same between runs until a test repairs, replaces or renames one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from ansible_collections.gpuval.fleet.plugins.plugin_utils.acceptance.decision import (
    AcceptanceInputs,
    decide,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import report_section
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import actions, repairs, verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.peer_groups import PeerHistory
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.summary import summary_lines
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import origin
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import state as run_state

from tests.kit.builders import check, make_record, metric
from tests.kit.judged_fleets import comparisons
from tests.kit.judged_fleets.fleet import Fleet

BUS = "gang_all_reduce_bus_bytes_per_second"
STAGES = ["facts", "diagnostics", "training"]
TOGETHER = ["collective", "fabric"]
CHECKS = [
    comparisons.FLOOR, comparisons.SLOW, comparisons.TRAINING,
    check("gpus", stage="facts", metric="gpu_count", kind="equal", value_from="gpu_count"),
    *(check(f"{stage}_bus", stage=stage, metric=BUS, unit="bytes/s", value=3e11, of_gang=True) for stage in TOGETHER),
]  # fmt: skip
INVENTORY = "inventories/site"
GPUS = 8


class Machine:
    """What is in a node: serial of the machine, serials of its GPUs, firmware."""

    def __init__(self, number: int) -> None:
        self.serial = f"S4X{number:04}"
        self.machine_id = f"id-{self.serial}"
        self.gpus = [f"1654{number:04}{index}" for index in range(GPUS)]
        self.bios = "1.2"


class AcceptedSite:
    """``machines``: by name of the node; change them between runs. ``repairs``: the setting gpuval_repairs."""

    def __init__(self, results, nodes: int = 100, inventory: str = INVENTORY) -> None:
        self.results, self.inventory = results, inventory
        self.machines = {f"node-{number:03}": Machine(number) for number in range(1, nodes + 1)}
        self.spare = iter(range(900, 999))
        self.repairs: list[dict[str, str]] = []
        self.standings: dict[str, list] = {}

    def replace_gpu(self, name: str, index: int) -> None:
        self.machines[name].gpus[index] = f"1654{next(self.spare):04}{index}"

    def swap_gpus(self, name: str, other: str, index: int) -> None:
        first, second = self.machines[name].gpus, self.machines[other].gpus
        first[index], second[index] = second[index], first[index]

    def replace_machine(self, name: str) -> None:
        self.machines[name] = Machine(next(self.spare))

    def declare(self, node: str, action: str, at: str, part: str = "node") -> None:
        self.repairs.append({"node": node, "part": part, "action": action, "at": at, "by": "K. Weber"})

    def run(
        self,
        run_id: str,
        day: int | str,
        nodes: Sequence[str] = (),
        *,
        faults: Mapping[str, Callable[[Fleet, str], object]] = MappingProxyType({}),
        stages: Sequence[str] = (*STAGES, *TOGETHER),
        checks: Sequence = CHECKS,
        part_of: str = "",
        left_out: Sequence[str] = (),
        **fields,
    ):
        """Judge a run of ten minutes on that day of November, or on that date. ``nodes``: all but
        ``left_out``, or those of --limit; ``faults``: by node what happens to its records; ``part_of``: the run whose
        groups nodes are compared with; ``fields``: of run.json. Returns the report."""
        date = day if isinstance(day, str) else f"2026-11-{day:02}"
        began, ended = f"{date}T00:10:00Z", f"{date}T00:20:00Z"
        names = list(nodes) or [name for name in self.machines if name not in left_out]
        fleet = comparisons.drawn(len(names), checks=list(checks))
        renamed = dict(zip(fleet.run["nodes"], names, strict=True))
        fleet.evidence.records = {renamed[name]: one for name, one in fleet.evidence.records.items()}
        fleet.evidence.launches = {renamed[name]: one for name, one in fleet.evidence.launches.items()}
        gang_stages = [stage for stage in TOGETHER if stage in stages and len(names) > 1]
        chosen = [*(stage for stage in stages if stage not in TOGETHER), *gang_stages]
        fleet.run = {
            **fleet.run, "run_id": run_id, "folder": run_id, "profile": "standard",
            "created_at": began, "finished_at": ended, "narrowed_by": ["limit"] if nodes else [],
            "workloads": {stage: stage for stage in chosen}, **({"part_of": part_of} if part_of else {}),
            "nodes": {name: {"stages": chosen, "gang_stages": gang_stages, "sku": "auto", "gpu_count": GPUS,
                             "labels": {"rack": f"r{(int(name[-3:]) - 1) // 8 + 1:02}"}} for name in names},
            **fields,
        }  # fmt: skip
        for name in names:
            self._equip(fleet, name, chosen, gang_stages, run_id)
            faults.get(name, lambda *_: None)(fleet, name)
        history = PeerHistory.of(self.standings.get(part_of, ()))
        report = verdict.judge(fleet.run, fleet.evidence, fleet.checks, judged_at=ended, history=history)
        self.standings[run_id] = history.documents()
        if gang_stages:
            report["fleet"]["gangs"] = _gangs_section(names, began, ended)
        actions.assign(report, {})
        report["summary"] = summary_lines(report)
        self._write(run_id, fleet.run, report)
        return report

    def _equip(self, fleet, name, stages, gang_stages, run_id):
        machine, records = self.machines[name], fleet.evidence.records[name]
        for stage in gang_stages:
            records[stage] = make_record(name, stage, metrics=[metric(BUS, 3.6e11, "bytes/s")])
        for stage in list(records):
            if stage not in stages:
                del records[stage]
        for record in records.values():
            record.update(run_id=run_id, node=name)
        environment = records["facts"]["environment"]
        environment["identity"] = {
            "machine_id": machine.machine_id, "serial": machine.serial,
            "gpu_uuids": [f"GPU-{gpu}" for gpu in machine.gpus],
        }  # fmt: skip
        environment["firmware"] = {"bios_version": machine.bios}
        for gpu, serial in zip(environment["gpus"], machine.gpus, strict=True):
            gpu.update(serial=serial, uuid=f"GPU-{serial}", firmware_version="96.00")

    def _write(self, run_id, run, report):
        folder = run_folder.RunFolder(self.results / self.inventory.rpartition("/")[2] / run_id)
        run_folder.write_json(
            folder.path.parent / run_folder.INVENTORY_FILE, origin.kept([self.inventory], self.results)
        )
        state = run_state.opened(
            run, {"host": "controller", "pid": 1, "began": 0.0, "since": run["created_at"]}, run["created_at"]
        )
        folder.write_run(
            {**run, "state": {**state, "name": run_state.JUDGED, "started_at": run["created_at"], "workers": []}}
        )
        (folder.path / "report.json").write_text("".join(report_file.lines(report, what="report.json")))

    def accept(self, *named: str, day: int = 10, window_days: int = 14, hosts: Sequence[str] | None = None):
        """The acceptance of these runs on that day, from the results as they lie there."""
        at = f"2026-11-{day:02}T12:00:00Z"
        ends = [run_folder.find(self.results, run_id).read_run()["finished_at"] for run_id in named]
        since = repairs.days_before(min(ends))
        runs = repairs.read_runs(self.results, since, [self.inventory])
        document = decide(AcceptanceInputs(
            runs=runs, named=named, inventory=self.inventory, hosts=list(self.machines) if hosts is None else hosts,
            repairs=repairs.parse_repairs(self.repairs), window_days=window_days, since=since, accepted_at=at,
            version="1.1.0",
        ))  # fmt: skip
        schemas.validate("acceptance", json.loads(json.dumps(document)), what="acceptance.json")
        return document


def _gangs_section(names, began, ended):
    rounds = [{"name": "r1", "kind": "gangs", "gangs": {"all": list(names)}, "ended_at": ended}]
    document = {
        "formed_at": began, "ended_at": ended, "gangs": {"all": [{"node": name} for name in names]},
        "left_out": {}, "alone": [], "rounds": rounds, "findings": {},
    }  # fmt: skip
    return report_section.of_document(document)


def slow_gpu(index: int):
    """A GPU that is a tenth slower than its peers."""
    return lambda fleet, name: fleet.scale(name, "diagnostics", comparisons.NAME, 0.9, f"gpu:{index}")


def crashed(fleet: Fleet, name: str):
    """A training that a GPU error ended."""
    fleet.replace(
        name, "training", state="crash", message="exit code 1: Xid 79: GPU has fallen off the bus", exit_code=1
    )


def unreachable(fleet: Fleet, name: str):
    fleet.evidence.records[name] = {}
    fleet.launch(name, "failed", "SSH times out", **{"class": "timeout"})


def slow_together(stage: str):
    return lambda fleet, name: fleet.set(name, stage, BUS, 1e11)


def unsteady(fleet: Fleet, name: str):
    """A GPU that was a third slower in the first of two attempts."""
    earlier = fleet.attempt(
        name, "diagnostics", metrics=[dict(one) for one in fleet.record(name, "diagnostics")["metrics"]]
    )
    for figure in earlier["metrics"]:
        if figure["name"] == comparisons.NAME and figure["scope"] == "gpu:2":
            figure["value"] *= 0.66


def outcome(document, name):
    """Verdict, rule and reason of a node."""
    node = next(node for node in document["nodes"] if node["name"] == name)
    return node["verdict"], node["rule"], node["reason"]
