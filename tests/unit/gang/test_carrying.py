"""Gangs from their forming to their end, with simulated nodes in the rounds."""

import re

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import GpuvalError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import evidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder

from tests.kit import gang_bed
from tests.kit.builders import SHIPPED, make_record, metric
from tests.kit.gang_bed import FABRIC, Bed, Died, Fault, build
from tests.kit.judged_folder import report_on


def slow_node(count=6, node=3):
    gang = build(count, 1, rack=0, noise=0.0)
    gang.bad[gang.nodes[node - 1]] = Fault("slow", 0.5)
    return gang


def essence(bed):
    document = bed.document
    of_findings = {name: (found["nodes"], found["bad_links"], found["why"])
                   for name, found in document["findings"].items()}  # fmt: skip
    made = [(item["name"], item["kind"], item["gangs"]) for item in document["rounds"]]
    return document["gangs"], document["left_out"], made, of_findings, bed.verdicts()


def test_a_clean_gang_has_one_round(tmp_path):
    bed = Bed(tmp_path, build(6, 1, noise=0.0))
    assert bed.go()
    assert bed.round_names == bed.carried == ["all"]
    assert bed.others() == {"PASS"}
    assert not bed.document["findings"]
    assert not bed.go()
    assert bed.carried == ["all"]


def test_a_slow_node_is_searched_and_the_others_run_again(tmp_path):
    bed = Bed(tmp_path, slow_node())
    bed.go()
    assert bed.round_names[0] == "all"
    assert bed.round_names[-1] == "all-again"
    assert all(name.startswith("search-") for name in bed.round_names[1:-1])
    assert "node-003" not in bed.below("all-again").read_run()["nodes"]
    assert bed.verdicts()["node-003"] == "FAIL"
    assert bed.others("node-003") == {"PASS"}
    assert any("node-003 is bad" in line for line in bed.said)


def test_both_ends_of_a_slow_link_are_incomplete_and_no_node_fails(tmp_path):
    gang = build(8, 1, rack=0, noise=0.0)
    gang.links[frozenset(("node-002", "node-003"))] = Fault("slow", 0.4)
    bed = Bed(tmp_path, gang)
    bed.go()
    assert bed.document["findings"]["all"]["bad_links"] == [["node-002", "node-003"]]
    assert "FAIL" not in bed.verdicts().values()
    assert {bed.verdicts()[name] for name in ("node-002", "node-003")} == {"INCOMPLETE"}
    assert "all-again" not in bed.round_names  # leaving nobody out mends no link


@pytest.mark.parametrize("state", ["wrong", "crash", "timeout"])
def test_where_nothing_works_no_node_is_accused_and_no_node_accepted(tmp_path, state):
    gang = build(6, 1, rack=0, noise=0.0)
    gang.bad = dict.fromkeys(gang.nodes, Fault(state))
    bed = Bed(tmp_path, gang)
    bed.go()
    assert bed.others() == {"INCOMPLETE"}
    assert "all-again" not in bed.round_names


def test_two_nodes_of_which_one_is_bad_are_both_left_open(tmp_path):
    bed = Bed(tmp_path, slow_node(2, 1))
    bed.go()
    assert bed.others() == {"INCOMPLETE"}


def test_a_node_that_says_nothing_is_neither_accused_nor_accepted(tmp_path):
    gang = build(6, 1, rack=0, noise=0.0)
    gang.silent.add("node-004")
    bed = Bed(tmp_path, gang)
    bed.go()
    assert bed.verdicts()["node-004"] == "INCOMPLETE"
    assert bed.others("node-004") == {"PASS"}  # they ran again without it


def test_a_record_that_is_missing_in_one_round_is_asked_for_again(tmp_path):
    bed = Bed(tmp_path, slow_node())
    bed.lost = {("search-01", "node-001")}
    bed.go()
    assert bed.verdicts()["node-003"] == "FAIL"
    assert "FAIL" not in bed.others("node-003")


def test_a_record_that_is_missing_in_the_last_round_accepts_no_node_by_the_first(tmp_path):
    bed = Bed(tmp_path, slow_node())
    bed.lost = {("all-again", "node-001")}
    bed.go()
    assert bed.verdicts()["node-001"] == "INCOMPLETE"


def swap_rounds(document):
    rounds = document["searches"]["all"]["rounds"]
    rounds[0], rounds[1] = rounds[1], rounds[0]


def rename_a_result(document):
    results = document["searches"]["all"]["rounds"][0]["results"]
    results["r09-g009"] = results.pop("r01-g001")


def foreign_in_a_group(document):
    document["searches"]["all"]["rounds"][0]["groups"][0]["nodes"][0] = "node-999"


def foreign_in_a_search(document):
    document["searches"]["all"]["nodes"][0] = "node-999"


def foreign_in_a_round(document):
    document["rounds"][1]["gangs"]["all.r01-g001"][0] = "node-999"


def foreign_in_a_gang(document):
    document["gangs"]["all"][0]["node"] = "node-999"


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (swap_rounds, "the saved search: rounds[0]: round 2 where 1 is expected"),
        (rename_a_result, "the saved search: rounds[0]: results of other groups than its own"),
        (foreign_in_a_group, "the saved search: rounds[0]: node-999 is no node of the search"),
        (foreign_in_a_search, "the search of all: node-999 does not belong to it"),
        (foreign_in_a_round, "round search-01: node-999 does not belong to it"),
        (foreign_in_a_gang, "gangs: node-999 does not belong to it"),
    ],
)
def test_a_damaged_search_is_named_and_not_resumed(tmp_path, damage, named):
    bed = Bed(tmp_path, slow_node())
    bed.dies_at = 20  # after two rounds of the search
    with pytest.raises(Died):
        bed.go()
    document = bed.document
    assert len(document["searches"]["all"]["rounds"]) >= 2 and not document["findings"]
    damage(document)
    bed.dies_at = None
    folder.write_json(bed.folder.gangs_file, document)
    with pytest.raises(GpuvalError, match=re.escape(named)):
        bed.go()


@pytest.mark.parametrize("gang", ["all", "unknown"])
def test_a_finding_without_the_nodes_of_its_gang_is_refused(tmp_path, gang):
    bed = Bed(tmp_path, slow_node())
    bed.go()
    document = bed.document
    found = document["findings"]["all"]
    document["findings"][gang] = {**found, "nodes": {}}
    folder.write_json(bed.folder.gangs_file, document)
    with pytest.raises(folder.RunError, match=f"the search of {gang} lacks nodes of its gang"):
        bed.verdicts()


def test_without_a_search_the_gang_stays_open(tmp_path):
    bed = Bed(tmp_path, slow_node(), search=False)
    bed.go()
    assert bed.round_names == ["all"]
    assert bed.others() == {"INCOMPLETE"}
    assert any("gpuval_gang_search is false" in line for line in bed.said)


def test_fabric_that_is_asked_for_searches_without_a_complaint(tmp_path):
    bed = Bed(tmp_path, build(6, 1, rack=0, noise=0.0), stages=["fabric"], search=False)
    bed.go()
    assert all(name.startswith("search-") for name in bed.round_names)
    assert bed.others() == {"PASS"}


def test_fabric_finds_and_runs_nothing_again_by_itself(tmp_path):
    bed = Bed(tmp_path, slow_node(), stages=["fabric"])
    bed.go()
    assert bed.verdicts()["node-003"] == "FAIL"
    assert bed.others("node-003") == {"PASS"}
    assert "all-again" not in bed.round_names


def test_fabric_asked_for_beside_others_runs_the_gang_again(tmp_path):
    bed = Bed(tmp_path, slow_node(), stages=["collective", "fabric"])
    bed.go()
    assert bed.round_names[-1] == "all-again"
    assert bed.others("node-003") == {"PASS"}


def test_a_search_without_time_tests_no_node(tmp_path):
    bed = Bed(tmp_path, slow_node(), stages=["fabric"], search_seconds=1.0, search_round_seconds=180.0)
    bed.go()
    assert bed.others() == {"INCOMPLETE"}
    assert not bed.carried
    found = bed.document["findings"]["all"]
    assert found["stopped"] == "the limit of 1 s"
    assert {reason for (reason,) in found["evidence"].values()} == {"in no group that ran before the search ended"}


def test_a_search_that_ends_with_its_run_says_so(tmp_path):
    bed = Bed(tmp_path, slow_node(), stages=["fabric"])
    bed.closes_after = "search-01"
    bed.go()
    assert bed.carried == ["search-01"]
    assert bed.document["findings"]["all"]["stopped"] == "the end of the run by another command"


def racks(gang, size):
    return {node: {"rack": f"r{place // size}"} for place, node in enumerate(gang.nodes)}


def test_two_gangs_are_searched_at_one_time(tmp_path):
    gang = build(14, 1, rack=0, noise=0.0)
    gang.bad = {"node-002": Fault("slow", 0.5), "node-013": Fault("crash")}
    labels = racks(gang, 8)  # eight and six: the searches need not end in the same round
    bed = Bed(tmp_path, gang, labels=labels, group_by=("rack",))
    bed.go()
    assert bed.round_names[0] == "gangs"
    assert bed.round_names[-1] == "gangs-again"
    first = bed.below("search-01").read_run()
    assert {name.split(".")[0] for name in first["gangs"]} == {"r0", "r1"}
    verdicts = bed.verdicts()
    assert {name for name, verdict in verdicts.items() if verdict == "FAIL"} == {"node-002", "node-013"}
    assert bed.others("node-002", "node-013") == {"PASS"}
    assert len(set(bed.carried)) == len(bed.carried) == len(bed.round_names)


def test_only_the_gang_that_is_not_right_is_searched(tmp_path):
    gang = build(12, 1, rack=0, noise=0.0)
    gang.bad = {"node-002": Fault("slow", 0.5)}
    bed = Bed(tmp_path, gang, labels=racks(gang, 6), group_by=("rack",))
    bed.go()
    assert list(bed.document["findings"]) == ["r0"]
    assert bed.round_names[-1] == "r0-again"
    assert bed.others("node-002") == {"PASS"}


def test_a_node_that_did_not_pass_alone_is_left_out_and_not_accepted(tmp_path):
    bed = Bed(tmp_path, build(4, 1, noise=0.0), unfit=["node-002"])
    bed.go()
    assert "node-002" not in bed.below("all").read_run()["nodes"]
    assert bed.verdicts()["node-002"] == "FAIL"
    assert bed.others("node-002") == {"PASS"}


def test_no_gang_at_all_is_written_down_too(tmp_path):
    bed = Bed(tmp_path, build(3, 1, noise=0.0), unfit=["node-002", "node-003"])
    bed.go()
    assert bed.document["ended_at"]
    assert not bed.carried
    assert bed.verdicts()["node-001"] == "INCOMPLETE"


@pytest.mark.parametrize("after", ["all", "search-01", "search-03"])
def test_a_run_that_another_command_closed_goes_no_further(tmp_path, after):
    bed = Bed(tmp_path, slow_node())
    bed.closes_after = after
    bed.go()
    assert bed.carried[-1] == after
    assert bed.document["ended_at"]
    assert "PASS" not in bed.verdicts().values()
    assert not any("is off" in line for line in bed.said)
    assert not bed.go()


def test_a_round_that_cannot_be_made_leaves_a_report_behind_all_the_same(tmp_path):
    bed = Bed(tmp_path, build(4, 1, noise=0.0))
    bed.dies_at = 3  # the address of a member of the first round, which is written down already
    with pytest.raises(Died):
        bed.go()
    assert bed.round_names == ["all"]
    assert not bed.below("all").run_file.exists()
    report = bed.judge(bed.document)
    assert {node["verdict"] for node in report["nodes"]} == {"INCOMPLETE"}
    assert any("never began" in problem["reason"] for problem in report["fleet"]["problems"])


def die_everywhere(tmp_path, make, every=1):
    """A controller that dies at each step, or every so many, once; yields what is left to the next one."""
    whole = make(tmp_path / "whole")
    whole.go()
    expected = essence(whole)
    for step in range(1, whole.happened + 1, every):
        bed = make(tmp_path / f"died-{step}")
        bed.dies_at = step
        with pytest.raises(Died):
            bed.go()
        yield expected, bed


def test_a_controller_that_dies_at_any_step_is_resumed_and_accepts_no_node_before(tmp_path):
    for expected, bed in die_everywhere(tmp_path, lambda path: Bed(path, slow_node(4, 2)), every=2):
        ended = [item["name"] for item in (bed.document or {"rounds": []})["rounds"] if item["ended_at"]]
        before = len(bed.carried)
        verdicts = bed.verdicts()  # a report can be made at any time
        if not list(bed.below("all-again").path.glob("nodes/*")):
            assert "PASS" not in verdicts.values()
        if not bed.go():
            assert bed.document["ended_at"]
        assert not set(ended) & set(bed.carried[before:])
        assert essence(bed) == expected
        assert all(item["ended_at"] for item in bed.document["rounds"])
        for item in bed.document["rounds"]:
            assert not (bed.below(item["name"]).state / "gang_keys.json").exists()


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_a_controller_of_two_gangs_that_dies_at_any_step_is_resumed(tmp_path, every):
    def make(path):
        gang = build(7, 1, rack=0, noise=0.0)
        gang.bad = {"node-002": Fault("slow", 0.5), "node-006": Fault("slow", 0.5)}
        return Bed(path, gang, labels=racks(gang, 4), group_by=("rack",))

    for expected, bed in die_everywhere(tmp_path, make, every):
        bed.go()
        assert essence(bed) == expected


@pytest.mark.parametrize("run_id", ["r", "R.1-" + "a" * 40, "b" * 62, "c" * 63])
def test_ids_of_rounds_are_ids_of_runs_and_all_different(tmp_path, run_id):
    bed = Bed(tmp_path, slow_node(), run_id=run_id)
    bed.go()
    ids = [bed.below(name).read_run()["run_id"] for name in bed.round_names]
    assert len(set(ids)) == len(ids)
    assert all(len(one) <= 63 and one != run_id for one in ids)
    assert bed.others("node-003") == {"PASS"}


def test_names_of_nodes_may_have_dots(tmp_path):
    gang = slow_node()
    names = {old: f"{old}.rack.example.com" if place % 2 else f"{old}.json" for place, old in enumerate(gang.nodes)}
    gang.nodes = list(names.values())
    gang.bad = {names[old]: fault for old, fault in gang.bad.items()}
    bed = Bed(tmp_path, gang)
    bed.go()
    assert bed.verdicts()[names["node-003"]] == "FAIL"
    assert bed.others(names["node-003"]) == {"PASS"}


def test_what_the_search_says_of_a_node_is_a_record(tmp_path):
    bed = Bed(tmp_path, slow_node())
    bed.go()
    evidence.lay_out(bed.folder, bed.folder.read_run(), bed.document)
    for node in bed.gang.nodes:
        record = folder.read_json(bed.folder.evidence_file(node, "fabric"))
        schemas.validate("record", record, what=node)


class FailsOnce(Bed):
    """The first round ends with a loss that is no number, on all nodes; all others work."""

    figures: tuple = (metric("gang_nonfinite_count", 3),)

    def work(self, below, run, nodes):
        super().work(below, run, nodes)
        for node in nodes if below.path.name == "all" else ():
            times = dict.fromkeys(("started_at", "updated_at", "finished_at"), run["created_at"])
            told = {"state": "failure", "message": "the loss is not finite", **times}
            environment = {"gang": {"name": "all", "nodes": 4, "joined": True}}
            record = make_record(
                node, "deepspeed", run_id=run["run_id"], metrics=list(self.figures), environment=environment, **told
            )
            folder.write_json(below.evidence_file(node, "deepspeed"), record)

    def judge(self, gangs):
        return report_on(self.folder, [*FABRIC, *FINITE], gangs=gangs, with_gangs=gangs is not None)

    def verdicts(self):
        return {node["name"]: node["verdict"] for node in self.judge(self.document)["nodes"]}


FINITE = [one for one in SHIPPED if one.name == "deepspeed_losses_finite"]


def test_a_loss_that_is_no_number_is_not_retried_into_a_pass(tmp_path):
    bed = FailsOnce(tmp_path, build(4, 1, noise=0.0), stages=("deepspeed",))
    bed.go()
    assert not any("again" in name for name in bed.round_names)
    assert bed.others() == {"INCOMPLETE"}


class ByOtherNetwork(Bed):
    """A search in which one node's groups went by sockets, as fast as the others."""

    def work(self, below, run, nodes):
        super().work(below, run, nodes)
        for node in nodes if "node-002" in nodes else ():
            path = below.evidence_file(node, "fabric")
            if not path.exists():
                continue
            record = folder.read_json(path)
            record["metrics"].append(metric("gang_network_unexpected_count", 1))
            folder.write_json(path, {**record, "message": "the collectives went by Socket, not by IB as declared"})


def test_one_bad_node_that_falls_back_to_another_network_harms_no_other(tmp_path):
    gang = build(8, 1, rack=0, noise=0.0)
    gang.bad["node-002"] = Fault("slow", 0.1)
    bed = ByOtherNetwork(tmp_path, gang, stages=("collective", "fabric"))
    bed.go()
    assert bed.document["findings"]["all"]["gang"] == []
    assert bed.verdicts()["node-002"] == "FAIL"
    assert bed.round_names[-1] == "all-again"
    assert bed.others("node-002") == {"PASS"}


def test_a_search_by_another_network_is_not_clean(tmp_path):
    bed = ByOtherNetwork(tmp_path, build(6, 1, rack=0, noise=0.0), stages=("fabric",))
    bed.go()
    schemas.validate("gangs", bed.document, what="gangs")
    (line,) = bed.document["findings"]["all"]["gang"]
    assert line.startswith("not over the expected network: node-00")
    assert "node-002" in line and line.endswith("the collectives went by Socket, not by IB as declared")
    assert bed.others() == {"INCOMPLETE"}
    entries = [
        one for node in bed.judge(bed.document)["nodes"] for one in node["checks"] if one["name"] == "fabric_unclean"
    ]
    assert {one["verdict"] for one in entries} == {"missing"}
    assert all("not over the expected network" in one["reason"] for one in entries)


@pytest.mark.parametrize("lost", [False, True])
def test_a_job_that_fails_is_searched_only_where_a_node_was_lost(tmp_path, monkeypatch, lost):
    gang = build(4, 1, rack=0, noise=0.0)
    gang.bad[gang.nodes[2]] = Fault("crash")
    bed = Bed(tmp_path, gang, stages=("mine",))
    if lost:
        made = gang_bed.record_of

        def with_loss(run, node, stage, result):
            record = made(run, node, stage, result)
            record["environment"]["gang"]["lost"] = "node-003"
            return record

        monkeypatch.setattr(gang_bed, "record_of", with_loss)
    bed.go()
    assert bool(bed.document["searches"]) == lost
    assert (bed.round_names == ["all"]) != lost
    assert "PASS" not in ({bed.verdicts()["node-003"]} if lost else bed.others())


def test_members_have_the_labels_by_which_jobs_order_them(tmp_path):
    gang = build(2, 1, rack=0, noise=0.0)
    bed = Bed(tmp_path, gang, labels={gang.nodes[0]: {"rack": "r1", "row": "b"}})
    bed.go()
    schemas.validate("gangs", bed.document, what="gangs")
    run = bed.below("all").read_run()
    schemas.validate("run", run, what="run")
    assert [member.get("labels") for member in run["gangs"]["all"]["members"]] == [{"rack": "r1"}, None]
