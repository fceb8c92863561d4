"""The shipped criteria on what real H200 reported: healthy ones pass without a failure, disturbed ones are named."""

import json
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit.builders import SHIPPED, facts_record, judge, make_run, real_records

RUNS = json.loads((Path(__file__).parents[2] / "data" / "h200" / "runs.json").read_text())
HEALTHY = [name for name in RUNS if name == "quick" or name.startswith("clean")]
#: In a virtual machine of minutes the clock is not yet synchronised; short stages may see no busy sample.
WARNED = {
    "training_compiled",  # measured before the training told it
    "facts_clock_synchronised",
    "diagnostics_gpu_pcie_generation_h200",
    "diagnostics_gpu_link_errors",
}
WARNED |= {"training_gpu_link_errors"}
#: Measured before the diagnostics named the processors and looked at each NUMA node.
OF_THE_HOST = {"diagnostics_host_cpu_fleet", "diagnostics_numa_memory_fleet"}
WARNED |= OF_THE_HOST


def records(node, stages):
    return real_records(node, stages).items()


def judged(*names):
    nodes = {f"node-{index}": real_records(f"node-{index}", RUNS[name]) for index, name in enumerate(names)}
    run = make_run(tuple(nodes), stages=["facts"], gpu_count=2)
    for node, its in nodes.items():
        run["nodes"][node]["stages"] = list(its)
    launches = {name: {"state": "finished", "message": ""} for name in nodes}
    evidence = RunEvidence(records=nodes, launches=launches, problems=[])
    return judge(run, evidence, SHIPPED)["nodes"]


def test_a_node_with_one_gpu_passes_without_what_takes_two():
    told = json.loads((Path(__file__).parents[2] / "data" / "h200" / "one_gpu.json").read_text())
    run = make_run(("node-1",), stages=list(told), gpu_count=1)
    launches = {"node-1": {"state": "finished", "message": ""}}
    evidence = RunEvidence(records={"node-1": real_records("node-1", told)}, launches=launches, problems=[])
    (node,) = judge(run, evidence, SHIPPED)["nodes"]
    assert {check for check, *_ in not_passed(node)} <= {"facts_clock_synchronised", *OF_THE_HOST}
    assert node["verdict"] == "PASS"


def not_passed(node):
    return {
        (check["name"], check["part"], check["severity"])
        for check in node["checks"]
        if check["verdict"] not in ("pass", "skipped")
    }


def test_there_are_ten_healthy_passes():
    assert len(HEALTHY) == 10


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_node_passes(name):
    (node,) = judged(name)
    assert {check for check, *_ in not_passed(node)} <= WARNED
    assert node["verdict"] == "PASS"


def test_copies_beside_the_measurement_are_found_on_their_gpu():
    (node,) = judged("busy-copies")
    failed = {(check, part) for check, part, severity in not_passed(node) if severity == "required"}
    assert failed == {
        ("diagnostics_host_to_device_speed_h200", "gpu:1"),
        ("diagnostics_device_to_host_speed_h200", "gpu:1"),
        ("diagnostics_peer_speed_h200", "link:gpu0>gpu1"),  # they take memory bandwidth and copy engines, too
        ("diagnostics_peer_speed_h200", "link:gpu1>gpu0"),
    }
    assert node["class"] == "diagnostics_host_to_device_speed_h200"
    assert node["verdict"] == "FAIL"


def test_a_gpu_that_is_shared_is_the_one_that_training_waits_for():
    (node,) = judged("busy-training")
    failed = {(check, part) for check, part, severity in not_passed(node) if severity == "required"}
    assert {part for check, part in failed if check == "training_compute_slow"} == {"gpu:1"}
    assert node["class"] == "training_compute_slow"


def test_one_machine_seen_ten_times_would_be_reported():
    """The same records as ten nodes: their fingerprints agree, and the machine is listed ten times."""
    nodes = judged(*HEALTHY[:3])
    assert {node["class"] for node in nodes} == {"same_machine_twice"}


@pytest.mark.parametrize(
    ("training", "collective", "unmet"),
    [
        ("nvlink_zero_2", "tcp_collective", set()),
        ("nvlink_zero_3", "tcp_collective", set()),
        ("tcp_zero_2", "tcp_collective", {"deepspeed_scaling", "deepspeed_zero_ratio"}),
    ],
)
def test_a_gang_of_four_gpus_is_judged_by_what_its_network_did(training, collective, unmet):
    told = json.loads((Path(__file__).parents[2] / "data" / "h200" / "gangs.json").read_text())
    run = make_run(("node-1", "node-2"), stages=["facts", "collective", "deepspeed"], gpu_count=2)
    run["setups"] = {"collective": {"gang_network": {"any": ["Socket"]}}}  # gpuval_network: tcp
    found = {}
    for node in run["nodes"]:
        gang = {"name": "all", "nodes": 2, "node": node, "leader": "node-1", "launcher": "torchrun"}
        run["nodes"][node]["gang_stages"] = ["collective", "deepspeed"]
        names = {"collective": collective, "deepspeed": training}
        stages = {stage: {**told[name], "environment": {"gang": gang}} for stage, name in names.items()}
        found[node] = real_records(node, stages)
        found[node]["facts"] = facts_record(node, gpus=2)
    launches = {node: {"state": "finished", "message": ""} for node in found}
    checks = [check for check in SHIPPED if check.metric.startswith("gang_")]
    nodes = judge(run, RunEvidence(records=found, launches=launches, problems=[]), checks)["nodes"]
    assert [{check for check, *_ in not_passed(node)} for node in nodes] == [unmet, unmet]
    assert {node["verdict"] for node in nodes} == {"INCOMPLETE" if unmet else "PASS"}, "nobody is accused for a network"
