"""The shipped criteria of the stage rdma_rails: who fails, who is INCOMPLETE, and what is listed as not tested."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit.builders import check as make_check
from tests.kit.builders import facts_record, judge, make_record, make_run, metric

SHIPPED = [check for check in criteria.load(criteria.shipped_files()) if check.stage == "rdma_rails"]
THERE = make_check("there", stage="facts", metric="gpu_count", kind="min", value=0)
MESSAGE = "node-1 mlx5_3:1 is slow with partners that are good with others"


def judged(*, last=0.97, present="present", **changed):
    """The verdict on a node, its checks that do not pass, and the reasons of what was not tested."""
    counts = {"measured": 16, "bad": 0, "unexplained": 0, "ports": 8, **changed}
    found = [metric(f"rdma_rails_{name}_count", value) for name, value in counts.items() if value is not None]
    ratios = [0.97] * 7 + [last] if counts["ports"] else []
    found += [metric("rdma_rails_ratio", one, "ratio", f"link:mlx5_{place}:1") for place, one in enumerate(ratios)]
    environment = {"gang": {"name": "all", "nodes": 3, "node": "node-1"}}
    environment |= {"left_out": {"pairs of nodes": "no RDMA device"}} if present == "none" else {}
    record = make_record(
        "node-1", "rdma_rails", metrics=found, message=MESSAGE, fingerprints={"rdma_rails": present},
        environment=environment,
    )  # fmt: skip
    run = make_run(["node-1"], stages=["facts", "rdma_rails"])
    run["nodes"]["node-1"]["gang_stages"] = ["rdma_rails"]
    records = {"node-1": {"facts": facts_record("node-1"), "rdma_rails": record}}
    report = judge(run, RunEvidence(records=records), [THERE, *SHIPPED])
    node = report["nodes"][0]
    entries = {one["name"]: one for one in node["checks"] if one["verdict"] in ("fail", "warn", "missing")}
    return node["verdict"], entries, {one["what"]: one["reason"] for one in report["fleet"]["not_tested"]}


def test_rails_that_make_their_rate_pass():
    assert judged()[:2] == ("PASS", {})


@pytest.mark.parametrize(
    ("changed", "verdict", "name"),
    [
        ({"bad": 1, "last": 0.48}, "FAIL", "rdma_rails_bad"),
        ({"bad": None}, "INCOMPLETE", "rdma_rails_bad"),
        ({"unexplained": 1}, "INCOMPLETE", "rdma_rails_unexplained"),
        ({"measured": None}, "INCOMPLETE", "rdma_rails_measured"),
        ({"measured": 0}, "INCOMPLETE", "rdma_rails_measured"),
    ],
)
def test_what_is_wrong_is_told_in_the_words_of_the_stage(changed, verdict, name):
    found, entries, _ = judged(**changed)
    assert found == verdict
    assert MESSAGE in entries[name]["reason"] and entries[name]["remedy"]
    assert entries[name]["reason"].startswith("gang all of 3 nodes: ") == (name != "rdma_rails_bad")


def test_a_rail_below_the_others_of_its_node_is_advice():
    verdict, entries, _ = judged(last=0.85)
    assert (verdict, list(entries), entries["rdma_rails_outlier"]["part"]) == (
        "PASS", ["rdma_rails_outlier"], "link:mlx5_7:1",
    )  # fmt: skip


def test_without_rdma_devices_nothing_is_judged_and_the_report_lists_it():
    verdict, entries, not_tested = judged(present="none", measured=None, ports=0)
    assert (verdict, {name: one["verdict"] for name, one in entries.items()}) == (
        "PASS",
        {"rdma_rails_measured": "warn"},
    )
    assert not_tested["pairs of nodes"] == "no RDMA device"
