"""What a gang as a whole did accuses none of its members; what the search found of a node does."""

import copy

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils import node_launch
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import stage_end
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.criteria import CriteriaError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.kit import builders
from tests.kit.builders import check, facts_record, judge, make_record, make_run, metric

GANG = {"name": "all", "nodes": 2, "node": "node-1", "leader": "node-1", "launcher": "torchrun"}
NODES = ("node-1", "node-2")
STAGES = ["facts", "collective", "deepspeed", "fabric"]
SHIPPED = [one for one in builders.SHIPPED if one.metric.startswith(("gang_", "fabric_"))]
WAYS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_receive")
ASKED = {f"gang_{name}_asked": "yes" for name in WAYS}


def collective(node, **fields):
    figures = [metric("gang_nodes_count", 2), metric("gang_absent_nodes_count", 0), metric("gang_processes_count", 16),
               metric("gang_collective_error_count", 0), metric("gang_network_unexpected_count", 0),
               metric("gang_rdma_ports_count", 8), metric("gang_collectives_count", 6),
               metric("gang_bus_over_ports_ratio", 0.87, "ratio"), metric("gang_gpu_direct_off_count", 0),
               metric("gang_collectives_left_out_count", 0)]  # fmt: skip
    figures += [metric(f"gang_{way}_bus_bytes_per_second", 350e9, "bytes/s") for way in WAYS]
    fields = {"environment": {"gang": {**GANG, "node": node}}, **fields}
    return make_record(node, "collective", metrics=figures, fingerprints={"gang_network": "IB", **ASKED}, **fields)


def deepspeed(node, **fields):
    figures = [metric("gang_nodes_count", 2), metric("gang_absent_nodes_count", 0), metric("gang_processes_count", 16),
               metric("gang_loss_first", 10.0, "loss"), metric("gang_loss_last", 6.0, "loss"),
               metric("gang_nonfinite_count", 0), metric("gang_steps_count", 200),
               metric("gang_loss_spread_ratio", 0, "ratio"), metric("gang_scaling_ratio", 0.95, "ratio"),
               metric("gang_zero_ratio", 0.9, "ratio"),
               metric("gang_zero_tokens_per_second", 9e5, "tokens/s")]  # fmt: skip
    fields = {"environment": {"gang": {**GANG, "node": node}}, **fields}
    return make_record(node, "deepspeed", metrics=figures, **fields)


def fabric(node, **counts):
    names = ("bad", "suspect", "untested", "bad_link", "unclean")
    figures = [metric(f"fabric_{name}_count", counts.get(name, 0)) for name in names]
    message = "" if not counts else f"{node}: 41 GB/s on the bus with 3 partners, others have 350"
    return make_record(node, "fabric", metrics=figures, message=message)


def end_check(*end, **fields):
    return stage_end.judge_end(stage_end.StageEnd(*end, **fields))


def evidence_of(nodes=NODES):
    return RunEvidence(
        records={
            node: {"facts": facts_record(node), "collective": collective(node), "deepspeed": deepspeed(node),
                   "fabric": fabric(node)}
            for node in nodes
        },
        launches={node: {"state": "started", "message": ""} for node in nodes},
    )  # fmt: skip


def change(record, name, value):
    (found,) = [one for one in record["metrics"] if one["name"] == name]
    found["value"] = value


def judged(evidence, checks=SHIPPED):
    run = make_run(NODES, stages=STAGES)
    for node in run["nodes"].values():
        node["gang_stages"] = STAGES[1:3]
    report = judge(run, evidence, checks)
    schemas.validate("report", report, what="report")
    return report


def entry(report, name, node=0):
    (found,) = [one for one in report["nodes"][node]["checks"] if one["name"] == name]
    return found


def test_a_good_gang_passes():
    report = judged(evidence_of())
    assert report["verdict"] == "PASS"
    required = [one for node in report["nodes"] for one in node["checks"] if one["severity"] == "required"]
    assert {one["verdict"] for one in required} <= {"pass", "skipped"}  # what hosts tell is advice, and not in here


@pytest.mark.parametrize(
    ("stage", "name", "value", "check_name"),
    [
        ("collective", "gang_collective_error_count", 3, "collective_errors"),
        ("collective", "gang_network_unexpected_count", 1, "collective_network"),
        ("collective", "gang_nodes_count", 1, "collective_nodes"),
        ("collective", "gang_bus_over_ports_ratio", 0.39, "collective_bus_over_ports"),
        ("collective", "gang_bus_over_ports_ratio", None, "collective_bus_over_ports"),
        ("collective", "gang_absent_nodes_count", 1, "collective_absent_nodes"),
        ("deepspeed", "gang_scaling_ratio", 0.61, "deepspeed_scaling"),
        ("deepspeed", "gang_loss_last", 10.1, "deepspeed_loss_falls"),
        ("deepspeed", "gang_nonfinite_count", 1, "deepspeed_losses_finite"),
        ("deepspeed", "gang_loss_spread_ratio", 0.2, "deepspeed_loss_agrees"),
        ("deepspeed", "gang_loss_spread_ratio", None, "deepspeed_loss_agrees"),
        ("deepspeed", "gang_zero_tokens_per_second", 0, "deepspeed_measured"),
        ("fabric", "fabric_suspect_count", 1, "fabric_suspect"),
        ("fabric", "fabric_untested_count", 1, "fabric_untested"),
        ("fabric", "fabric_bad_link_count", 1, "fabric_bad_links"),
        ("fabric", "fabric_unclean_count", 1, "fabric_unclean"),
    ],
)
def test_what_does_not_hold_for_a_gang_leaves_its_members_incomplete(stage, name, value, check_name):
    evidence = evidence_of()
    for node in NODES:
        change(evidence.records[node][stage], name, value)
    report = judged(evidence)
    assert [node["verdict"] for node in report["nodes"]] == ["INCOMPLETE", "INCOMPLETE"]
    found = entry(report, check_name)
    assert found["verdict"] == "missing"
    assert found["reason"].startswith("a gang: " if stage == "fabric" else "gang all of 2 nodes: ")


def test_a_node_that_the_search_found_fails_in_the_words_of_the_search():
    evidence = evidence_of()
    evidence.records["node-2"]["fabric"] = fabric("node-2", bad=1)
    report = judged(evidence)
    assert [node["verdict"] for node in report["nodes"]] == ["PASS", "FAIL"]
    found = entry(report, "fabric_bad", 1)
    assert found["reason"].startswith("node-2: 41 GB/s on the bus with 3 partners")
    assert "fabric_bad_count" in found["reason"]


@pytest.mark.parametrize("network", ["Socket", "AWS Libfabric", "IB+MNNVL"])
def test_the_bus_is_held_against_ports_where_it_went_by_them(network):
    evidence = evidence_of()
    for node in NODES:
        record = evidence.records[node]["collective"]
        record["fingerprints"]["gang_network"] = network
        record["metrics"] = [one for one in record["metrics"] if "over_ports" not in one["name"]]
    report = judged(evidence)
    assert {node["verdict"] for node in report["nodes"]} == {"PASS"}
    assert entry(report, "collective_gpu_direct")["verdict"] == "skipped"
    limit = entry(report, "collective_bus_over_ports")  # required: what a gang says of its network shows as a warning
    assert limit["verdict"] == "warn"
    assert limit["reason"].endswith(f"this is {network}, and no setting of the run tells which is right: not judged")


def test_without_gpu_direct_there_is_a_warning():
    evidence = evidence_of()
    for node in NODES:
        change(evidence.records[node]["collective"], "gang_gpu_direct_off_count", 1)
    report = judged(evidence)
    assert {node["verdict"] for node in report["nodes"]} == {"PASS"}
    assert entry(report, "collective_gpu_direct")["verdict"] == "warn"


def test_advice_about_a_gang_warns_and_names_it():
    evidence = evidence_of()
    for node in NODES:
        change(evidence.records[node]["deepspeed"], "gang_zero_ratio", 0.4)
    report = judged(evidence)
    assert report["verdict"] == "PASS"
    assert (entry(report, "deepspeed_zero_ratio")["verdict"], entry(report, "deepspeed_zero_ratio")["severity"]) == (
        "warn", "advisory",
    )  # fmt: skip
    assert entry(report, "deepspeed_zero_ratio")["reason"].startswith("gang all of 2 nodes: ")


def test_a_slow_network_is_no_matter_of_cpu_nodes():
    evidence = evidence_of()
    for node in NODES:
        evidence.records[node]["facts"] = facts_record(node, gpus=0, vendor="cpu")
        change(evidence.records[node]["deepspeed"], "gang_scaling_ratio", 0.2)
    report = judged(evidence)
    assert report["verdict"] == "PASS"
    assert entry(report, "deepspeed_scaling")["verdict"] == "skipped"


@pytest.mark.parametrize(
    ("state", "told", "verdict"),
    [
        ("failure", {}, "INCOMPLETE"),  # elements are wrong: whose?
        ("crash", {"stopped_by": "node-2"}, "INCOMPLETE"),
        ("crash", {"stopped_by": None}, "INCOMPLETE"),
        ("crash", {"stopped_by": "node-1"}, "INCOMPLETE"),
        ("crash", {}, "INCOMPLETE"),
        ("timeout", {}, "INCOMPLETE"),
        ("cancelled", {}, "INCOMPLETE"),
    ],
)
def test_the_end_of_a_gang_accuses_no_node(state, told, verdict):
    evidence = evidence_of()
    evidence.records["node-1"]["collective"].update(
        state=state, message="3 elements are wrong", environment={"gang": {**GANG, **told}}
    )
    report = judged(evidence)
    assert report["nodes"][0]["verdict"] == verdict
    if state == "failure":
        found = entry(report, "collective_state")
        assert found["reason"] == "gang all of 2 nodes: failure: 3 elements are wrong"


def test_a_timeout_of_the_nodes_own_stage_fails_it():
    evidence = evidence_of()
    evidence.records["node-1"]["fabric"].update(state="timeout")
    assert judged(evidence)["nodes"][0]["verdict"] == "FAIL"


@pytest.mark.parametrize(
    "gang", [None, [], "all", {}, {"name": 3}, {"name": ""}, {"name": "all", "nodes": True}, {"name": "x" * 5000}]
)
def test_what_a_node_says_of_its_gang_may_be_anything(gang):
    evidence = evidence_of()
    record = evidence.records["node-1"]["collective"]
    record["environment"] = {"gang": gang}
    change(record, "gang_collective_error_count", 1)
    report = judged(evidence)
    assert report["nodes"][0]["verdict"] == "INCOMPLETE"
    assert len(entry(report, "collective_errors")["reason"]) < 700


@pytest.mark.parametrize("fields", [
    {"kind": "outlier", "peers": "fleet", "unit": "x", "max_below": 0.1},
    {"kind": "same"},
    {"kind": "baseline", "unit": "x", "max_below": 0.1},
])  # fmt: skip
def test_comparisons_between_nodes_are_none_of_a_gang(fields):
    with pytest.raises(CriteriaError, match="of_gang is for figures with a limit"):
        check(of_gang=True, **fields)


def test_an_excuse_does_not_make_advice_of_what_does_not_hold():
    evidence = evidence_of()
    record = evidence.records["node-1"]["collective"]
    record["environment"]["why"] = "not supported"
    change(record, "gang_collective_error_count", 1)
    strict = check("errors", stage="collective", metric="gang_collective_error_count", kind="max", value=0,
                   of_gang=True, excused_by=["why"])  # fmt: skip
    assert judged(evidence, [strict])["nodes"][0]["verdict"] == "INCOMPLETE"


# Properties: whatever figures and ends there are, no check of a gang fails, and taking evidence away accepts nobody.
FIGURES = st.one_of(st.none(), st.sampled_from([0, 0.5, 1, 2, 1e9]), st.floats(allow_nan=False, allow_infinity=False))
STATES = ["success", "success", "failure", "crash", "timeout", "skipped", "cancelled", "running", "pending"]


@st.composite
def gangs(draw):
    evidence = evidence_of()
    for _ in range(draw(st.integers(0, 4))):
        record = evidence.records[draw(st.sampled_from(NODES))][draw(st.sampled_from(STAGES[1:]))]
        fault = draw(st.sampled_from(["figure", "figure", "state", "stopped", "gang", "attempt", "unit"]))
        chosen = draw(st.sampled_from(record["metrics"]))
        if fault == "figure":
            chosen["value"] = draw(FIGURES)
        elif fault == "unit":
            chosen["unit"] = draw(st.sampled_from(["count", "seconds", "", "ratio"]))
        elif fault == "state":
            record["state"] = draw(st.sampled_from(STATES))
        elif fault == "stopped":
            by = draw(st.sampled_from([*NODES, None]))
            record.update(state="crash", environment={"gang": {**GANG, "stopped_by": by}})
        elif fault == "gang":
            record["environment"] = {"gang": draw(st.sampled_from([None, {}, {"name": "other"}]))}
        else:
            earlier = copy.deepcopy(record)
            earlier.update(attempts=[], state=draw(st.sampled_from(STATES)))
            for one in earlier["metrics"]:
                one["value"] = draw(FIGURES)
            record.update(attempts=[earlier], attempt=2)
    return evidence


@settings(max_examples=40)
@given(gangs())
def test_no_check_of_a_gang_fails_anybody(evidence):
    of_gang = {one.name for one in SHIPPED if one.of_gang}
    for node in judged(evidence)["nodes"]:
        failed = {one["name"] for one in node["checks"] if one["verdict"] == "fail"}
        assert not failed & of_gang
        assert node["verdict"] != "FAIL" or failed <= {
            "fabric_bad", *(f"{stage}_{word}" for stage in STAGES for word in ("state", "plausible")),
        }  # fmt: skip


@settings(max_examples=40)
@given(gangs(), st.data())
def test_less_evidence_of_a_gang_accepts_no_node(evidence, data):
    before = judged(evidence)
    less = copy.deepcopy(evidence)
    node = data.draw(st.sampled_from(NODES))
    stage = data.draw(st.sampled_from(STAGES))
    record = less.records[node][stage]
    what = data.draw(st.sampled_from(["record", "metric", "environment", "gang", "launch"]))
    if what == "record":
        del less.records[node][stage]
    elif what == "metric":
        removed = data.draw(st.sampled_from(record["metrics"]))
        # an impossible figure counts as long as it is reported, whether or not a check requires it
        checks = [check for judged_node in before["nodes"] for check in judged_node["checks"]]
        assume(all(check["kind"] != "plausible" or check["metric"] != removed["name"] for check in checks))
        record["metrics"].remove(removed)
    elif what == "environment":
        record["environment"].clear()
    elif what == "gang":
        record["environment"].pop("gang", None)
    else:
        less.launches.pop(node)
    after = judged(less)
    for one, other in zip(before["nodes"], after["nodes"], strict=True):
        assert one["verdict"] == "PASS" or other["verdict"] != "PASS"
    assert before["verdict"] == "PASS" or after["verdict"] != "PASS"


def test_what_the_search_found_of_a_node_comes_before_what_its_whole_gang_shares():
    evidence = evidence_of()
    for node in NODES:
        change(evidence.records[node]["collective"], "gang_absent_nodes_count", 1)
    evidence.records["node-2"]["fabric"] = fabric("node-2", suspect=1)
    run = make_run(NODES, stages=STAGES)
    for node in run["nodes"].values():
        node["gang_stages"] = STAGES[1:]
    one, two = judge(run, evidence, SHIPPED)["nodes"]
    assert (one["verdict"], two["verdict"]) == ("INCOMPLETE", "INCOMPLETE")
    assert (one["class"], two["class"]) == ("collective_absent_nodes", "fabric_suspect")


def test_one_that_was_left_out_is_not_sent_into_a_run_alone():
    evidence = evidence_of()
    for stage in STAGES[1:]:
        del evidence.records["node-1"][stage]
        evidence.add_problem("left out of the gangs: its driver is 560", node="node-1", stage=stage)
    run = make_run(NODES, stages=STAGES)
    for node in run["nodes"].values():
        node["gang_stages"] = STAGES[1:]
    node = judge(run, evidence, SHIPPED)["nodes"][0]
    (state,) = [one for one in node["checks"] if one["name"] == "collective_state"]
    assert state["verdict"] == "missing"
    assert "with others of its kind" in state["remedy"]
    assert "--limit node-1" not in state["remedy"]


def test_a_job_that_failed_accuses_no_node_and_its_remedy_names_no_search():
    record = make_record(
        "node-1", "ddp", state="failure", message="node-2: launcher mpirun", environment={"gang": GANG}
    )
    state = end_check("node-1", "ddp", record, of_gang=True)
    assert (state["verdict"], state["reason"]) == ("missing", "gang all of 2 nodes: failure: node-2: launcher mpirun")
    assert "nodes/NODE/ddp.log" in state["remedy"]
    assert "search" not in state["remedy"]


def test_a_node_that_refused_its_part_in_a_gang_has_the_remedy_of_its_refusal():
    reason = f"not started in its gang (refused): {node_launch.BUSY.format(run='first', holder='')}"
    state = end_check("node-1", "collective", refusal=reason, of_gang=True)
    assert state["reason"] == reason
    assert "-e gpuval_wait_for_node=SECONDS" in state["remedy"]
    assert "with others of its kind" in state["remedy"]


def test_a_job_of_one_node_is_repeated_by_its_own_command():
    """`make validate` may know nothing of it."""
    record = make_record("node-1", "stream", state="failure", message="wrong sum")
    state = end_check("node-1", "stream", record)
    assert state["remedy"].endswith("its arguments or its data, then repeat the command with --limit node-1")
    assert "then validate again with" in end_check("node-1", "training", record)["remedy"]
