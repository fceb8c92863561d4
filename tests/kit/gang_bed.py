"""A run in a folder whose gangs are carried out by simulated nodes: rounds write records, as nodes' own would be."""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import document as gang_document
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import keys, rounds
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.orchestrate import (
    GangContext,
    GangNode,
    Gangs,
    GangSettings,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder
from gangs import USUAL, Fault, build

from tests.kit.builders import LAUNCHED, SHIPPED, check, facts_record, make_record, make_run, metric
from tests.kit.judged_folder import report_on

__all__ = ["USUAL", "Bed", "Died", "Fault", "build"]

STATES = {"ok": "success", "wrong": "failure", "crash": "crash", "timeout": "timeout"}
FABRIC = [one for one in SHIPPED if one.metric.startswith("fabric_")]
CHECKS = [
    *FABRIC,
    check("speed", stage="collective", metric=rounds.BUS, unit="bytes/s", value=0.9 * USUAL, of_gang=True),
    check("errors", stage="collective", metric=rounds.ERRORS, kind="max", value=0, of_gang=True),
]


class Died(BaseException):
    """The controller is killed."""


class Bed:
    """`gang` is the simulator's; `silent` say nothing; `dies_at` counts what happens, and the controller ends there."""

    def __init__(self, path, gang, *, run_id="run-1", stages=("collective",), labels=None, unfit=(), **settings):
        self.folder, self.gang = RunFolder(path / "results" / run_id), gang
        self.settings, self.labels = GangSettings(**settings), labels or {}
        self.carried, self.said, self.pairs, self.happened = [], [], [], 0
        self.dies_at, self.closes_after, self.lost = None, None, set()
        self.sizes = {}  # by node what fits into its memory
        self.hosts = gang.nodes
        run = make_run(gang.nodes, stages=["facts"], run_id=run_id, folder=f"folder/{run_id}")
        for name, node in run["nodes"].items():
            node["gang_stages"] = list(stages)
            if self.labels.get(name):
                node["labels"] = self.labels[name]
        self.folder.write_run(run)
        for name in gang.nodes:
            record = facts_record(name, run_id=run_id)
            if name in unfit:
                record.update(state="failure", message="unfit")
            folder.write_json(self.folder.evidence_file(name, "facts"), record)
            folder.write_json(self.folder.launch_file(name), LAUNCHED)

    @property
    def document(self):
        return gang_document.read(self.folder)

    @property
    def round_names(self):
        return [item["name"] for item in self.document["rounds"]]

    def below(self, name):
        return gang_document.round_folder(self.folder, name)

    def go(self):
        """A controller of its own each time, as after a death."""
        context = GangContext(self.carry, self.judge, lambda _document: self.step(), self.said.append, self.address)
        placed = {
            name: GangNode(f"10.0.0.{place}", 1) for place, name in enumerate(self.gang.nodes, 1) if name in self.hosts
        }
        return Gangs(self.folder, self.settings, context).run_all(placed, {})

    def step(self):
        self.happened += 1
        if self.dies_at == self.happened:
            raise Died

    def address(self, _run_id, member):
        if member["node"] == self.gang.nodes[0]:
            self.step()
        return member["address"]

    def carry(self, below):
        run = below.read_run()
        self.step()
        self.pairs.append(keys.files_for(below, next(iter(run["nodes"]))))
        for name in run["gangs"]:
            self.work(below, run, [member["node"] for member in run["gangs"][name]["members"]])
            self.step()
        self.carried.append(below.path.name)
        if self.closes_after == below.path.name:
            self.close()
        self.step()

    def close(self):
        self.folder.write_run({**self.folder.read_run(), "finished_at": folder.now()})

    def work(self, below, run, nodes):
        result, _seconds = self.gang.measure(nodes)
        for node in nodes:
            folder.write_json(below.launch_file(node), LAUNCHED)
            for stage in run["nodes"][node]["stages"]:
                if (below.path.name, node) not in self.lost and node not in self.gang.silent:
                    record = record_of(run, node, stage, result)
                    fits = [self.sizes[one] for one in nodes if one in self.sizes]
                    if fits:
                        record["metrics"].append(metric(rounds.LARGEST, min(fits), "bytes"))
                    folder.write_json(below.evidence_file(node, stage), record)

    def judge(self, gangs):
        """As the controller does between rounds."""
        return report_on(self.folder, CHECKS, gangs=gangs, with_gangs=gangs is not None)

    def verdicts(self):
        """As the report has them in the end."""
        report = report_on(self.folder, CHECKS, gangs=self.document)
        return {node["name"]: node["verdict"] for node in report["nodes"]}

    def others(self, *but):
        """What became of all the others, as a set."""
        return {verdict for name, verdict in self.verdicts().items() if name not in but}


def record_of(run, node, stage, result):
    began = {"started_at": run["created_at"]}
    if result.state == "missing":  # its partner is silent, and it never comes to an end
        return make_record(node, stage, state="running", run_id=run["run_id"], finished_at=None, **began)
    figures = [metric(rounds.ERRORS, 3 if result.state == "wrong" else 0)]
    if result.bus_bytes_per_second:
        figures.append(metric(rounds.BUS, result.bus_bytes_per_second, "bytes/s"))
    environment = {"gang": {"name": run["nodes"][node]["gang"]["name"], "nodes": 2, "joined": True}}
    return make_record(
        node, stage, state=STATES[result.state], metrics=figures, run_id=run["run_id"], environment=environment, **began
    )
