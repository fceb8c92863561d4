"""What a node did wrong in any round counts, and what nobody did wrong may be measured once more."""

import importlib
import sys

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import evidence as gang_evidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import rounds, session
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.orchestrate import GangContext, GangNode, Gangs
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import judging
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder

from tests.kit.builders import LAUNCHED, SHIPPED, metric
from tests.kit.gang_bed import CHECKS, Bed, Died, Fault, build
from tests.kit.judged_folder import report_on

FAULTS = [one for one in SHIPPED if one.stage in ("collective", "fabric") and one.metric in rounds.FAULTS]
XID = "gpu_xid_critical_count"


class Healthy(Bed):
    """Nodes with telemetry. `faults`: by round, node and stage the figure of XID; `first`: what goes wrong in round
    all; `repeatable`: which checks may be measured again."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.faults, self.first, self.repeatable, self.untold = {}, None, ("speed",), set()

    def work(self, below, run, nodes):
        super().work(below, run, nodes)
        for node in nodes:
            for stage in run["nodes"][node]["stages"]:
                path = below.evidence_file(node, stage)
                if not path.exists():
                    continue
                record = folder.read_json(path)
                place = (below.path.name, node, stage)
                if place not in self.untold:
                    scopes = {one.metric: one.scope for one in FAULTS}
                    for name, scope in scopes.items():
                        for part in [f"gpu:{i}" for i in range(8)] if scope == "gpu" else ["node"]:
                            value = self.faults.get(place, 0) if (name, part) == (XID, "gpu:3") else 0
                            record["metrics"].append(metric(name, value, "count", part))
                if self.first and below.path.name == "all":
                    self.first(record)
                folder.write_json(path, record)
        for node in nodes:
            folder.write_json(below.launch_file(node), LAUNCHED)

    def judge(self, gangs):
        return report_on(self.folder, [*CHECKS, *FAULTS], gangs=gangs, with_gangs=gangs is not None)

    def go(self):
        context = GangContext(
            self.carry, self.judge, lambda _document: self.step(), self.said.append, self.address, self.repeatable
        )
        placed = {name: GangNode(f"10.0.0.{place}", 1) for place, name in enumerate(self.gang.nodes, 1)}
        known = session.properties(self.folder, self.folder.read_run())
        return Gangs(self.folder, self.settings, context).run_all(placed, known)

    def entries(self, node):
        return next(one for one in self.judge(self.document)["nodes"] if one["name"] == node)

    def verdicts(self):
        return {node["name"]: node["verdict"] for node in self.judge(self.document)["nodes"]}


def slow(count=6):
    gang = build(count, 1, rack=0, noise=0.0)
    gang.bad[gang.nodes[2]] = Fault("slow", 0.5)
    return gang


def clean(count=6):
    return build(count, 1, rack=0, noise=0.0)


def slow_once(record):
    for one in record["metrics"]:
        if one["name"] == rounds.BUS:
            one["value"] /= 4


def wrong_once(record):
    record.update(state="failure", message="3 elements are wrong")
    for one in record["metrics"]:
        if one["name"] == rounds.ERRORS:
            one["value"] = 3


def crashed_once(record):
    left = [one for one in record["metrics"] if one["name"] in rounds.FAULTS]
    record.update(state="crash", message="broke off", metrics=left)


def test_all_faults_of_telemetry_are_judged_in_rounds_of_a_search():
    required = {one.metric for one in SHIPPED if one.stage == "collective" and one.required and not one.of_gang}
    assert {one.metric for one in FAULTS if one.stage == "fabric"} == set(rounds.FAULTS) == required


def test_a_fault_of_the_first_round_is_not_erased_by_the_next(tmp_path):
    bed = Healthy(tmp_path, slow())
    bed.faults = {("all", "node-001", "collective"): 1}
    bed.go()
    assert bed.round_names[-1] == "all-again"
    again = bed.below("all-again").read_run()["nodes"]
    assert not {"node-001", "node-003"} & again.keys()
    assert {node for node, verdict in bed.verdicts().items() if verdict == "FAIL"} == {"node-001", "node-003"}
    assert bed.others("node-001", "node-003") == {"PASS"}


def test_a_fault_that_an_earlier_round_reported_fails_one_that_ran_again(tmp_path):
    """Also where the controller of that time did not leave it out."""
    bed = Healthy(tmp_path, slow())
    bed.go()
    path = bed.below("all").evidence_file("node-001", "collective")
    record = folder.read_json(path)
    next(one for one in record["metrics"] if (one["name"], one["scope"]) == (XID, "gpu:3"))["value"] = 1
    folder.write_json(path, record)
    node = bed.entries("node-001")
    assert node["verdict"] == "FAIL"
    (found,) = [one for one in node["checks"] if one["name"] == "collective_xid_per_gpu"]
    assert found["reason"].startswith("round all: ")
    assert bed.others("node-001", "node-003") == {"PASS"}


def test_to_take_the_first_round_away_accepts_no_node(tmp_path):
    bed = Healthy(tmp_path, slow())
    bed.go()
    assert bed.verdicts()["node-001"] == "PASS"
    bed.below("all").evidence_file("node-001", "collective").unlink()
    assert bed.verdicts()["node-001"] == "INCOMPLETE"


def test_who_ran_again_without_the_bad_one_is_not_flaky(tmp_path):
    bed = Healthy(tmp_path, slow())
    bed.go()
    assert not bed.entries("node-001")["flaky"]


@pytest.mark.parametrize("stages", [["collective"], ["fabric"]])
def test_a_fault_in_a_round_of_the_search_fails_the_node(tmp_path, stages):
    bed = Healthy(tmp_path, slow(), stages=stages)
    bed.faults = {("search-02", "node-005", "fabric"): 2}
    bed.go()
    node = bed.entries("node-005")
    assert node["verdict"] == "FAIL"
    (found,) = [one for one in node["checks"] if one["name"] == "fabric_xid_per_gpu"]
    assert (found["verdict"], found["part"], found["value"]) == ("fail", "gpu:3", 2)
    assert "faults in search-02" in next(one["message"] for one in node["stages"] if one["name"] == "fabric")
    assert "FAIL" not in bed.others("node-003", "node-005")
    if "collective" in stages:
        assert "node-005" not in bed.below("all-again").read_run()["nodes"]


def test_what_the_host_checks_found_explains_a_bad_node_and_no_healthy_one(tmp_path):
    gang = build(4, 1, rack=0, noise=0.0)
    gang.bad["node-002"] = Fault("slow", 0.5)
    bed = Healthy(tmp_path, gang, stages=["fabric"])
    work = bed.work

    def with_problems(below, run, nodes):
        work(below, run, nodes)
        for node in nodes:
            path = below.evidence_file(node, "fabric")
            record = folder.read_json(path)
            record["environment"]["host_checks"] = {"problems": [f"{node}: mlx5_{i} at half rate" for i in range(5)]}
            folder.write_json(path, record)

    bed.work = with_problems
    bed.go()
    told = dict.fromkeys(gang.nodes, bed.document["findings"]["all"])
    told = {one: rounds.fabric_record(bed.folder.read_run(), one, found, "")["message"] for one, found in told.items()}
    assert "its host checks: node-002: mlx5_0 at half rate" in told["node-002"]
    assert "mlx5_3" not in told["node-002"]
    assert not any("host checks" in told[one] for one in gang.nodes if one != "node-002")


def test_a_round_of_the_search_without_telemetry_proves_nothing(tmp_path):
    bed = Healthy(tmp_path, clean(), stages=["fabric"])
    bed.untold = {("search-01", "node-002", "fabric")}
    bed.go()
    assert bed.verdicts()["node-002"] == "INCOMPLETE"
    assert bed.others("node-002") == {"PASS"}


def test_faults_of_nodes_are_bounded_and_the_worst_come_first():
    records = [("search-01", {"state": "success", "environment": {"telemetry": {"absent": {"kernel_log": "x" * 9000}}},
                "metrics": [metric(XID, int(i == 4000), "count", f"gpu:{i}") for i in range(5000)]})]  # fmt: skip
    found = rounds.worst_faults(records)
    assert len(found["figures"]) == rounds.MAX_FIGURES
    assert found["figures"][0] == [XID, "gpu:4000", 1]
    assert len(found["absent"]["kernel_log"]) == rounds.MAX_LINE
    assert rounds.worst_faults([("a", {**records[0][1], "state": "cancelled"})])["rounds"] == ["a"]
    twice = {"state": "success", "environment": {}, "metrics": [metric(XID, 0, "count", "gpu:0")] * 2}
    assert rounds.worst_faults([("a", twice), ("b", {**twice, "metrics": []})])["figures"] == []
    assert rounds.worst_faults([("a", twice), ("b", twice)])["figures"] == [[XID, "gpu:0", 0]]
    assert rounds.worst_faults([("a", {**records[0][1], "environment": {"telemetry": []}})])["absent"] == {}


@pytest.mark.parametrize("first", [slow_once, crashed_once])
@pytest.mark.parametrize("stages", [["collective"], ["collective", "fabric"]])
def test_what_no_node_is_to_blame_for_is_measured_once_more(tmp_path, first, stages):
    bed = Healthy(tmp_path, clean(), stages=stages)
    bed.first = lambda record: record["stage"] == "collective" and first(record)
    bed.go()
    assert bed.round_names[-1] == "all-again"
    assert len(bed.below("all-again").read_run()["nodes"]) == 6
    assert bed.others() == {"PASS"}
    assert all(bed.entries(node)["flaky"] for node in bed.gang.nodes)
    assert any("no node implicated in" in line for line in bed.said)


def test_a_gang_without_deepspeed_is_not_searched(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    training = importlib.import_module("gpuval_workloads.gang.training")
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(training.WorkloadFailure) as raised:
        training.deepspeed_version()

    def lacks(record):
        crashed_once(record)
        record["message"] = f"the gang has ended: node-002 (10.0.0.2): {raised.value}"

    bed = Healthy(tmp_path, clean())
    bed.first = lacks
    bed.go()
    assert [item["name"] for item in bed.document["rounds"]] == ["all"]
    assert any("DeepSpeed cannot be imported" in line and "no search" in line for line in bed.said)
    assert set(bed.verdicts().values()) != {"PASS"}
    assert bed.entries("node-002")["class"] == "no_package"


@pytest.mark.parametrize("lacking", [["node-002"], [f"node-{number:03}" for number in range(1, 7)]])
def test_a_node_whose_image_lacks_deepspeed_is_known_before_gangs_begin(tmp_path, lacking):
    bed = Healthy(tmp_path, clean(), stages=["collective", "deepspeed"])
    for node in lacking:  # as an own stage reports it
        path = bed.folder.evidence_file(node, "facts")
        record = folder.read_json(path)
        record["environment"]["missing_packages"] = "deepspeed"
        folder.write_json(path, record)
    assert session.properties(bed.folder, bed.folder.read_run())["node-002"]["missing_packages"] == "deepspeed"
    bed.go()
    others = set(bed.gang.nodes) - set(lacking)
    assert [set(item["gangs"]["all"]) for item in bed.document["rounds"]] == ([others] if others else [])
    assert set(bed.document["left_out"]) == set(lacking)
    found = bed.entries("node-002")
    assert (found["verdict"], found["class"]) == ("INCOMPLETE", "no_package")
    (check,) = [one for one in found["checks"] if one["name"] == "deepspeed_state"]
    assert "packages that the node's image lacks: deepspeed" in check["reason"]
    assert "--skip-tags" in check["remedy"]
    assert "with others of its kind" in check["remedy"]
    assert bed.others(*lacking) == ({"PASS"} if others else set())
    assert sum("in no gang" in line for line in bed.said) == 1


@pytest.mark.parametrize(("first", "repeatable"), [(wrong_once, ("speed",)), (slow_once, ())])
def test_what_may_not_be_measured_again_is_not(tmp_path, first, repeatable):
    bed = Healthy(tmp_path, clean())
    bed.first, bed.repeatable = first, repeatable
    bed.go()
    assert "all-again" not in bed.round_names
    assert bed.others() == {"INCOMPLETE"}


def test_a_gang_that_is_right_and_searched_all_the_same_has_no_further_round(tmp_path):
    bed = Healthy(tmp_path, clean(), stages=["collective", "fabric"])
    bed.go()
    assert bed.round_names[0] == "all"
    assert all(name.startswith("search-") for name in bed.round_names[1:])
    assert bed.others() == {"PASS"}
    assert not bed.document["findings"]["all"]["stopped"]


@pytest.mark.parametrize("dies_at", range(2, 40, 3))
def test_a_resumed_search_comes_to_the_same_further_round(tmp_path, dies_at):
    bed = Healthy(tmp_path, clean(4), stages=["collective", "fabric"])
    bed.first = lambda record: record["stage"] == "collective" and slow_once(record)
    bed.dies_at = dies_at
    try:
        bed.go()
    except Died:
        bed.go()
    assert bed.round_names[-1] == "all-again"
    assert bed.others() == {"PASS"}


def test_what_is_of_the_whole_gang_reaches_every_member(tmp_path):
    bed = Healthy(tmp_path, clean(), stages=["fabric"])
    bed.go()
    for change, word in (
        ({"bad_boundaries": [{"kind": "switch", "names": ["s1", "s2"], "scope": "across"}],
          "evidence": {"switch s1 - s2 (across)": ["40 % slower"]}}, "switch s1 - s2 (across) is bad: 40 % slower"),
        ({"suspect_boundaries": [{"kind": "rack", "names": ["r1"], "scope": "apart"}]}, "rack r1 (apart) is suspect"),
        ({"gang": ["no pair worked " + "x" * 5000] * 50}, "no pair worked"),
        ({"stopped": "the limit of 9 s"}, "the search is incomplete: it stopped at the limit of 9 s"),
    ):  # fmt: skip
        document = bed.document
        document["findings"]["all"].update(change)
        schemas.validate("gangs", document, what="gangs")
        report = bed.judge(document)
        assert {node["verdict"] for node in report["nodes"]} == {"INCOMPLETE"}
        for node in report["nodes"]:
            (found,) = [one for one in node["checks"] if one["name"] == "fabric_unclean"]
            assert word in found["reason"]
            (stage,) = [one for one in node["stages"] if one["name"] == "fabric"]
            assert len(stage["message"]) < 2000


def test_a_link_that_is_suspect_is_that_of_its_ends(tmp_path):
    bed = Healthy(tmp_path, clean(), stages=["fabric"])
    bed.go()
    document = bed.document
    document["findings"]["all"]["suspect_links"] = [["node-001", "node-002"]]
    verdicts = {node["name"]: node["verdict"] for node in bed.judge(document)["nodes"]}
    assert {name for name, verdict in verdicts.items() if verdict == "INCOMPLETE"} == {"node-001", "node-002"}


def test_an_end_by_the_clock_is_reported(tmp_path, monkeypatch):
    bed = Healthy(tmp_path, clean(), stages=["fabric"], search_seconds=400.0)
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    carry = bed.carry
    bed.carry = lambda below: (carry(below), now.__setitem__(0, now[0] + 500.0))
    bed.go()
    assert bed.document["findings"]["all"]["stopped"] == "the limit of 400 s"
    assert bed.others() == {"INCOMPLETE"}


def test_a_figure_of_the_gang_is_cured_where_it_runs_without_the_bad_one(tmp_path):
    bed = Healthy(tmp_path, slow())
    bed.first = wrong_once
    bed.go()
    assert bed.round_names[-1] == "all-again"
    assert bed.others("node-003") == {"PASS"}


def test_only_the_stage_that_failed_makes_a_repeated_round_flaky(tmp_path):
    """collective succeeds in both rounds; deepspeed crashes in the first."""
    bed = Healthy(tmp_path, clean(), stages=["collective", "deepspeed"])
    bed.first = lambda record: crashed_once(record) if record["stage"] == "deepspeed" else None
    bed.go()
    assert bed.round_names[-1] == "all-again"
    assert bed.document["rounds"][-1]["repeats"] == {"all": ["deepspeed"]}
    schemas.validate("gangs", bed.document, what="gangs")
    stages = {one["name"]: one for one in bed.entries("node-001")["stages"]}
    assert {name: stages[name]["retried_for"] for name in ("collective", "deepspeed")} == {
        "collective": None, "deepspeed": "flaky",
    }  # fmt: skip
    assert stages["collective"]["attempt"] == 2


def test_a_slow_round_that_is_repeated_is_flaky(tmp_path):
    bed = Healthy(tmp_path, clean())
    bed.first = slow_once
    bed.go()
    (stage,) = [one for one in bed.entries("node-001")["stages"] if one["name"] == "collective"]
    assert (stage["state"], stage["retried_for"]) == ("success", "flaky")


def test_earlier_rounds_are_attempts(tmp_path):
    bed = Healthy(tmp_path, slow())
    bed.go()
    evidence = judging.read_evidence(bed.folder, bed.folder.read_run())
    gang_evidence.take(evidence, bed.folder, gang_evidence.expected(bed.folder.read_run(), bed.document), bed.document)
    record = evidence.records["node-001"]["collective"]
    assert (record["attempt"], [one["of_round"] for one in record["attempts"]]) == (2, ["all"])
    assert record["run_id"] == "run-1.all-again"
    assert not evidence.records["node-003"]["collective"]["attempts"]


class Rails(Healthy):
    """Nodes with two rails each. `told`: by node the figures that differ in the first round."""

    told: dict[str, dict[str, int]] = {}

    def work(self, below, run, nodes):
        super().work(below, run, nodes)
        for node in nodes:
            path = below.evidence_file(node, "rdma_rails")
            if path.exists():
                counts = {"measured": 4, "bad": 0, "unexplained": 0, "ports": 2}
                counts |= self.told.get(node, {}) if below.path.name == "all" else {}
                figures = [metric(f"rdma_rails_{name}_count", value) for name, value in counts.items()]
                figures += [metric("rdma_rails_ratio", 0.97, "ratio", f"link:mlx5_{rail}:1") for rail in (0, 1)]
                record = {**folder.read_json(path), "metrics": figures, "fingerprints": {"rdma_rails": "present"}}
                folder.write_json(path, record)

    def judge(self, gangs):
        checks = [*CHECKS, *FAULTS, *(one for one in SHIPPED if one.stage == "rdma_rails")]
        return report_on(self.folder, checks, gangs=gangs, with_gangs=gangs is not None)


def test_a_node_with_a_slow_rail_fails_and_the_others_pass_without_it(tmp_path):
    bed = Rails(tmp_path, clean(3), stages=["rdma_rails"])
    bed.told = {"node-002": {"bad": 1}}
    bed.go()
    assert bed.verdicts() == {"node-001": "PASS", "node-002": "FAIL", "node-003": "PASS"}
    assert "node-002" not in bed.below("all-again").read_run()["nodes"]


def test_a_slow_pair_of_good_nodes_is_measured_once_more_and_accuses_neither(tmp_path):
    bed = Rails(tmp_path, clean(3), stages=["rdma_rails"])
    bed.told = {"node-001": {"unexplained": 1}, "node-002": {"unexplained": 1}}
    bed.repeatable = {one.name for one in SHIPPED if one.retry}
    bed.go()
    assert bed.round_names[-1] == "all-again"
    (stage,) = [one for one in bed.entries("node-001")["stages"] if one["name"] == "rdma_rails"]
    assert (stage["retried_for"], set(bed.verdicts().values())) == ("flaky", {"PASS"})
    bed = Rails(tmp_path / "final", clean(3), stages=["rdma_rails"], search=False)
    bed.told = {"node-001": {"unexplained": 1}, "node-002": {"unexplained": 1}}
    bed.go()
    assert bed.verdicts() == {"node-001": "INCOMPLETE", "node-002": "INCOMPLETE", "node-003": "PASS"}
