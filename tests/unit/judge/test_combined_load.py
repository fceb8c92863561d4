"""A node that cannot bear the load of all its parts is named by what it did: shipped criteria on a whole H200 node."""

import copy

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit.builders import SHIPPED, judge, make_record, make_run, metric
from tests.kit.h200 import STAGES, records, telemetry

NODE = {"processes_count": 8, "seconds": 90, "left_out_count": 0, "cpu_mismatch_count": 0, "memory_mismatch_count": 0}
OF_HOST = [metric(f"combined_load_{part}_bytes_per_second", 1e10, "bytes/s") for part in ("cpu", "memory")]


def judged(ratio=0.98, *, nic=0.98, state="success", message="", **changed):
    """The verdict on a healthy node but for gpu:3 under common load, the failed checks by name, and its action."""
    found = [metric(f"combined_load_{name}", value, name.rpartition("_")[2]) for name, value in NODE.items()]
    for gpu in range(8):
        found.append(metric("combined_load_gpu_ratio", ratio if gpu == 3 else 0.98, "ratio", f"gpu:{gpu}"))
        found.append(metric("combined_load_gpu_mismatch_count", 0, "count", f"gpu:{gpu}"))
    found.append(metric("combined_load_nics_count", 1, "count"))
    found += [metric("combined_load_nic_ratio", nic, "ratio", "link:mlx5_0:1")] if nic else []
    others = copy.deepcopy(telemetry())
    for one in others:
        if one["name"] in changed and one["scope"] in ("node", "gpu:3"):
            one["value"] = changed[one["name"]]
    exit_code = 0 if state == "success" else None
    record = make_record(
        stage="combined_load",
        duration_seconds=100.0,
        state=state,
        message=message,
        exit_code=exit_code,
        metrics=[*found, *OF_HOST, *others],
        fingerprints={"combined_load_nics": "present"},
    )
    evidence = RunEvidence(records={"node-1": {**copy.deepcopy(records()), "combined_load": record}})
    (node,) = judge(make_run(stages=[*STAGES, "combined_load"]), evidence, SHIPPED)["nodes"]
    failed = {
        check["name"]: check
        for check in node["checks"]
        if check["verdict"] in (["fail"] if check["severity"] == "required" else ["fail", "warn", "missing"])
    }
    return node["verdict"], failed


def test_a_node_that_holds_its_speed_is_accepted():
    assert judged() == ("PASS", {})


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ({"ratio": 0.6}, "combined_load_gpu_ratio"),
        ({"gpu_throttle_hardware_ratio": 0.4}, "combined_load_gpu_throttle_hardware"),  # power brake
        ({"gpu_lost_count": 1}, "combined_load_gpu_lost"),  # fell off the bus
        ({"kernel_xid_critical_count": 1}, "combined_load_xid"),
    ],
)
def test_what_browns_out_is_named(fault, check):
    verdict, failed = judged(**fault)
    assert verdict == "FAIL"
    assert check in failed
    if fault.get("ratio"):
        assert failed[check]["part"] == "gpu:3"
        assert "power supplies" in failed[check]["remedy"]


def test_a_port_that_slows_down_is_advice():
    verdict, failed = judged(nic=0.7)
    assert (verdict, failed["combined_load_nic_ratio"]["severity"]) == ("PASS", "advisory")
    assert failed["combined_load_nic_ratio"]["part"] == "link:mlx5_0:1"
    assert judged(nic=None)[1]["combined_load_nic_ratio"]["verdict"] == "missing"


def test_what_was_not_loaded_is_not_accepted_and_says_why():
    found = [
        metric(f"combined_load_{name}", NODE[name], name.rpartition("_")[2]) for name in ("processes_count", "seconds")
    ]
    message = "90 s together; without cpu: 9 processors are too few beside 8 GPUs: raise the CPU limit"
    record = make_record(stage="combined_load", message=message, metrics=[*found, *copy.deepcopy(telemetry())])
    evidence = RunEvidence(records={"node-1": {**copy.deepcopy(records()), "combined_load": record}})
    (node,) = judge(make_run(stages=[*STAGES, "combined_load"]), evidence, SHIPPED)["nodes"]
    (check,) = (check for check in node["checks"] if check["name"] == "combined_load_cpu_mismatch")
    assert (node["verdict"], check["verdict"]) == ("INCOMPLETE", "missing")
    assert "9 processors are too few" in check["reason"]


def test_a_disk_that_gets_full_under_load_fails_no_node_and_accepts_none(monkeypatch):
    monkeypatch.delitem(NODE, "seconds")
    assert judged(message="disk:0 stopped under load: fio: No space left on device") == ("INCOMPLETE", {})


def test_a_node_that_reboots_under_load_fails_with_that_reason():
    """What the runner writes when the boot id is another one: tests/unit/runner/test_runner_run.py."""
    message = "interrupted by a reboot of the node (last seen 2026-11-25T16:00:00Z)"
    verdict, failed = judged(state="crash", message=message)
    assert verdict == "FAIL"
    assert message in failed["combined_load_state"]["reason"]
