"""Nodes that their peers show to be doubtful are measured again, and what the second measurement decides."""

import json

import goals
import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import actions, verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.identity import machine_names
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.kinds import JudgeContext
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import publishing
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder

from tests.kit.builders import SHIPPED, TIME

BAD = "node-000"
SETTING = goals.SETTINGS["normal"]
ALL_REDUCE = "diagnostics_all_reduce_fleet"


def fleet(fault, size=16, seed="second"):
    return goals.Fleet(size, SETTING, goals.FIGURE_STAGES, seed, fault)


def fault_of(metrics, left, **fields):
    return goals.Fault("a fault", "", metrics, left, **fields)


def chosen(of, able=None):
    return verdict.to_measure_again(
        of.run, of.evidence, JudgeContext(SHIPPED), list(of.nodes) if able is None else able
    )


def verdicts_of(node, name):
    return {(entry["part"], entry["verdict"]) for entry in node["checks"] if entry["name"] == name}


def scale(of, name, metrics, factor):
    for metric in of.evidence.records[name]["diagnostics"]["metrics"]:
        if metric["name"] in metrics:
            metric["value"] *= factor


SLOW = fault_of(goals.ALL_REDUCE, 0.945)


def test_a_doubtful_node_and_the_two_that_are_furthest_ahead_are_chosen():
    """These mirror it: what one measurement of a healthy node may be off by shows in them when they are repeated."""
    of = fleet(SLOW)
    for name, left in (("node-009", 1.035), ("node-004", 1.03)):
        scale(of, name, goals.ALL_REDUCE, left)
    assert chosen(of) == {name: ["diagnostics"] for name in (BAD, "node-004", "node-009")}
    assert chosen(of, [name for name in of.nodes if name not in (BAD, "node-001")]) == {}
    assert chosen(fleet(None)) == {}


def test_a_node_that_is_slow_twice_fails_and_names_both_measurements():
    of = fleet(SLOW)
    first = of.judge()[BAD]
    assert verdicts_of(first, ALL_REDUCE) == {("node", "pass"), ("node", "warn")} and first["verdict"] == "PASS"
    of.measure_again()
    nodes = of.judge()
    assert verdicts_of(nodes[BAD], ALL_REDUCE) == {("node", "fail")} and nodes[BAD]["verdict"] == "FAIL"
    (entry,) = [one for one in nodes[BAD]["checks"] if one["name"] == ALL_REDUCE]
    assert "% under when measured before" in entry["reason"]
    others = {name: node for name, node in nodes.items() if name != BAD}
    assert {node["verdict"] for node in others.values()} == {"PASS"}
    assert not any(node["flaky"] for node in others.values())  # the good ones were measured again for the others' sake


def test_a_node_that_is_slow_once_is_never_a_plain_pass():
    of = fleet(SLOW)
    of.nodes[BAD].fault = None
    of.measure_again()
    node = of.judge()[BAD]
    assert (node["verdict"], node["class"]) == ("INCOMPLETE", "unsteady")


def test_what_good_nodes_differ_by_between_two_measurements_is_a_warning():
    of = fleet(SLOW)
    scale(of, "node-004", goals.ALL_REDUCE, 1.045)
    of.nodes[BAD].fault = None
    of.measure_again()
    node = of.judge()[BAD]
    assert node["verdict"] == "PASS"
    (entry,) = [one for one in node["checks"] if one["name"] == "unsteady"]
    assert (entry["verdict"], entry["part"]) == ("warn", "node")
    assert entry["reason"].endswith("no more than two measurements of healthy peers differ")
    assert {other["verdict"] for other in of.judge().values()} == {"PASS"}


@pytest.mark.parametrize("ahead", [{"node-004": 1.05, "node-009": 1.05}, {"node-004": 1.08}])
def test_what_measurements_of_good_nodes_were_seen_to_differ_by_is_kept_for_later_runs_and_warns_nobody(ahead):
    """Either two are ahead as far as the doubtful one is behind, which shows long tails, or one is further ahead."""
    of = fleet(SLOW)
    for name, factor in ahead.items():
        scale(of, name, goals.ALL_REDUCE, factor)
    of.nodes[BAD].fault = None
    of.measure_again()
    report = verdict.judge(of.run, of.evidence, SHIPPED, judged_at=TIME)
    node = next(node for node in report["nodes"] if node["name"] == BAD)
    assert (node["verdict"], verdicts_of(node, ALL_REDUCE)) == ("PASS", {("node", "pass")})
    (entry,) = [one for one in node["checks"] if one["name"] == "unsteady"]
    assert (entry["verdict"], entry["severity"]) == ("pass", "advisory") and "apart" in entry["reason"]
    (kept,) = actions.excused_changes(report)[BAD]
    assert kept["class"] == "unsteady"
    later = verdict.judge(of.run, of.evidence, SHIPPED, judged_at=TIME, unsteady={kept["of"]: {"run-0"}})
    node = next(node for node in later["nodes"] if node["name"] == BAD)
    assert (node["verdict"], node["class"]) == ("INCOMPLETE", "unsteady")


def test_a_change_of_one_other_figure_of_a_good_node_excuses_nothing():
    """Memory of a good node that was 2 % faster once, which is many of its small deviations."""
    of = fleet(fault_of(goals.ALL_REDUCE, 0.93))
    scale(of, "node-004", ("diagnostics_memory_bytes_per_second",), 1.02)
    of.nodes[BAD].fault = None
    of.measure_again()
    assert of.evidence.records["node-004"]["diagnostics"]["attempts"], "it is measured again"
    node = of.judge()[BAD]
    assert (node["verdict"], node["class"]) == ("INCOMPLETE", "unsteady")
    machines = machine_names(BAD, node["identity"])
    report = verdict.judge(
        of.run, of.evidence, SHIPPED, judged_at=TIME, unsteady={machine: {"run-0"} for machine in machines}
    )
    node = next(node for node in report["nodes"] if node["name"] == BAD)
    assert node["verdict"] == "INCOMPLETE", "it accuses no node either"


def test_a_change_that_is_excused_is_kept_beside_the_faults_of_its_node(tmp_path):
    of = fleet(SLOW)
    scale(of, "node-004", goals.ALL_REDUCE, 1.045)
    of.nodes[BAD].fault = None
    of.measure_again()
    del of.evidence.records[BAD]["training"]
    report = verdict.judge(of.run, of.evidence, SHIPPED, judged_at=TIME)
    actions.assign(report, {})
    decided = next(node for node in report["nodes"] if node["name"] == BAD)["action"]["faults"]
    publishing.keep_verdict(RunFolder(tmp_path), report, actions.excused_changes(report))
    path = RunFolder(tmp_path).verdict_file
    kept = json.loads(path.read_text())["faults"][BAD]
    assert kept[:-1] == decided and kept[-1]["class"] == "unsteady" not in {fault["class"] for fault in decided}


def test_what_good_nodes_differ_by_is_incomplete_where_an_earlier_run_had_it_too():
    of = fleet(SLOW)
    scale(of, "node-004", goals.ALL_REDUCE, 1.045)
    of.nodes[BAD].fault = None
    of.measure_again()
    machines = machine_names(BAD, of.judge()[BAD]["identity"])
    unsteady = {machine: {"run-0"} for machine in machines}
    report = verdict.judge(of.run, of.evidence, SHIPPED, judged_at=TIME, unsteady=unsteady)
    node = next(node for node in report["nodes"] if node["name"] == BAD)
    assert (node["verdict"], node["class"]) == ("INCOMPLETE", "unsteady")
    (entry,) = [one for one in node["checks"] if one["name"] == "unsteady"]
    assert (entry["verdict"], entry["severity"]) == ("missing", "required") and "also in run run-0" in entry["reason"]


def test_a_change_of_more_than_a_tenth_is_unsteady_whatever_good_nodes_do():
    of = fleet(fault_of(goals.ALL_REDUCE, 0.88))
    scale(of, "node-004", goals.ALL_REDUCE, 1.1)
    of.nodes[BAD].fault = None
    of.measure_again()
    assert of.judge()[BAD]["class"] == "unsteady"


def test_a_node_that_is_slow_only_when_measured_again_is_not_accused():
    """Slow once is slow once, whenever it was."""
    of = fleet(None)
    first = {**of.evidence.records[BAD]["diagnostics"], "exit_code": 0}
    found = of.measured(BAD)["diagnostics"]
    found |= {"attempt": 2, "attempts": [first], "nonce": goals.evidence.nonce_of(goals.NONCE, 2)}
    of.put(BAD, {"diagnostics": found})
    scale(of, BAD, goals.ALL_REDUCE, 0.9)
    node = of.judge()[BAD]
    assert verdicts_of(node, ALL_REDUCE) == {("node", "missing")}
    assert node["verdict"] == "INCOMPLETE"


def test_a_first_measurement_far_below_the_second_decides_nothing_alone():
    of = fleet(None, seed="s3")
    scale(of, BAD, goals.ALL_REDUCE, 0.7)
    of.measure_again()
    scale(of, BAD, goals.ALL_REDUCE, 0.975)
    node = of.judge()[BAD]
    assert (node["verdict"], node["class"]) == ("INCOMPLETE", "unsteady")
    assert ("node", "warn") in verdicts_of(node, ALL_REDUCE)
    scale(of, BAD, goals.ALL_REDUCE, 0.92)  # the second alone is beyond the margin by two errors
    assert verdicts_of(of.judge()[BAD], ALL_REDUCE) == {("node", "fail")}


@pytest.mark.parametrize(
    ("ended", "verdict_", "class_"),
    [
        ({"contact": {"class": "lost_contact", "message": "no answer", "remedy": "x"}}, "INCOMPLETE", "lost_contact"),
        ({"contact": {"class": "slurm_node_failed", "message": "m", "remedy": "x"}}, "INCOMPLETE", "slurm_node_failed"),
        ({"ended": "its runner exited"}, "INCOMPLETE", "runner_ended"),
        ({"state": "unreachable", "message": "no route to host"}, "INCOMPLETE", "no_route"),
        ({"contact": {"class": "slurm_preempted", "message": "m", "remedy": "x"}}, "PASS", None),
        ({"state": "refused", "message": "the disk is full"}, "PASS", None),
    ],
)
def test_a_node_that_is_lost_when_measured_again_is_no_plain_pass(ended, verdict_, class_):
    of = fleet(SLOW)
    of.evidence.launches[BAD] |= {"attempt": 2, "stages": ["diagnostics"], **ended}
    node = of.judge()[BAD]
    assert (node["verdict"], node["class"]) == (verdict_, class_)
    if class_:
        (entry,) = [one for one in node["checks"] if one["name"] == "diagnostics_state"]
        assert (entry["verdict"], entry["severity"]) == ("missing", "required")
        assert entry["reason"].startswith("no second measurement; ") and entry["remedy"]


@pytest.mark.parametrize(("launch", "verdict_"), [({}, "INCOMPLETE"), ({"state": "refused"}, "PASS")])
def test_a_node_whose_second_record_is_refused_is_no_plain_pass(launch, verdict_):
    of = fleet(SLOW)
    of.evidence.launches[BAD] |= {"attempt": 2, "stages": ["diagnostics"], **launch}
    of.evidence.add_problem("record refused: it reports success with exit code 1", node=BAD, stage="diagnostics")
    node = of.judge()[BAD]
    assert node["verdict"] == verdict_
    assert node["class"] == ("diagnostics_refused" if verdict_ == "INCOMPLETE" else None)


def test_a_small_difference_at_first_leaves_a_warning():
    of = fleet(fault_of(goals.ALL_REDUCE, 0.952))
    assert BAD in chosen(of)
    of.nodes[BAD].fault = fault_of(goals.ALL_REDUCE, 0.972)
    of.measure_again()
    node = of.judge()[BAD]
    assert node["verdict"] == "PASS" and ("node", "warn") in verdicts_of(node, ALL_REDUCE)


def test_a_node_that_no_peer_accuses_is_not_measured_again_for_what_its_batch_lacks():
    of = fleet(fault_of(goals.CORES, 0.95, nodes=0, known=1.0), size=8)
    assert chosen(of) == {}
    nodes = of.judge()
    assert {node["verdict"] for node in nodes.values()} == {"PASS"}
    for node in nodes.values():
        assert ("node", "warn") in verdicts_of(node, "diagnostics_matmul_fleet")


@pytest.mark.parametrize(
    ("metrics", "check"),
    [
        (goals.TRAINING, "training_speed_fleet"),
        (goals.ALL_REDUCE, ALL_REDUCE),
        (goals.COPIES, "diagnostics_host_to_device_fleet"),
    ],
)
def test_a_node_without_peers_is_held_against_what_its_sku_made(metrics, check):
    (node,) = fleet(fault_of(metrics, 0.955, known=1.0), size=1).judge().values()
    assert ("node", "warn") in verdicts_of(node, check)
    (node,) = fleet(fault_of(metrics, 1.0, known=1.0), size=1).judge().values()
    assert ("node", "warn") not in verdicts_of(node, check)


def test_what_was_measured_with_other_settings_is_not_held_against_a_node():
    of = fleet(fault_of(goals.TRAINING, 0.93, known=1.0), size=1)
    of.evidence.records[BAD]["training"]["fingerprints"]["training_setup"] = "llama-8b 1x2048 bf16 eager"
    assert ("node", "warn") not in verdicts_of(of.judge()[BAD], "training_speed_fleet")


def test_a_node_alone_without_the_fabric_of_its_peers_is_not_accepted():
    of = goals.Fleet(
        12, goals.SETTINGS["normal"], ("facts", "diagnostics", "fingerprint", "training", "rdma"), "h", None
    )
    for records_of_node in of.evidence.records.values():
        records_of_node["rdma"]["environment"]["infiniband"] = "present"
    of.evidence.records[BAD]["rdma"]["environment"]["infiniband"] = "none"
    of.evidence.records[BAD]["rdma"]["fingerprints"]["rdma_pkeys"] = "none"
    node = of.judge()[BAD]
    assert (node["verdict"], node["class"]) == ("INCOMPLETE", "rdma_pkeys_agree")


def test_a_healthy_node_alone_with_its_driver_passes_with_a_warning():
    of = fleet(fault_of((), 1.0, own_driver=True), size=12)
    node = of.judge()[BAD]
    assert node["verdict"] == "PASS"
    assert verdicts_of(node, "fingerprint_training_agrees") == {("node", "warn")}
    for metric in of.evidence.records[BAD]["diagnostics"]["metrics"]:  # a floor of its SKU is missed
        if metric["name"] == "diagnostics_memory_bytes_per_second":
            metric["value"] *= 0.8
    node = of.judge()[BAD]
    assert verdicts_of(node, "fingerprint_training_agrees") == {("node", "missing")}
