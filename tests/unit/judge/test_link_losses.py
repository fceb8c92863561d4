"""A switch that restarts takes the links of many nodes, and fails none; a link that one node loses fails that node."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit import builders
from tests.kit.builders import judge, make_record, make_run, metric

CHECKS = [check for check in builders.SHIPPED if check.name.startswith("diagnostics_link_")]


def verdicts(losses):
    """Verdict and class of each node. ``losses``: for each node its lost ports, and minutes of its stage's time."""
    run = make_run(list(losses), stages=["diagnostics"])
    records = {}
    for name, (ports, began, ended) in losses.items():
        record = make_record(
            name,
            "diagnostics",
            metrics=[metric("diagnostics_done", 1), metric("link_down_new_count", len(ports), "count", "node")],
            environment={"telemetry": {"links_down": list(ports)}},
        )
        day = record["started_at"][:11]
        record |= {"started_at": f"{day}10:{began:02}:00Z", "finished_at": f"{day}10:{ended:02}:00Z"}
        records[name] = {"diagnostics": record}
    report = judge(run, RunEvidence(records=records), CHECKS)
    return {node["name"]: (node["verdict"], node["class"], node) for node in report["nodes"]}


def test_a_switch_that_restarts_fails_no_node():
    rail = {f"node-{number}": (["mlx5_3:1"], 0, 30) for number in range(1, 31)}
    found = verdicts({**rail, "node-31": (["mlx5_3:1", "mlx5_7:1"], 0, 30), "node-32": ([], 0, 30)})
    assert {found[name][:2] for name in rail} == {("INCOMPLETE", "switch_links")}
    assert found["node-31"][:2] == ("FAIL", "diagnostics_link_down")  # a link of its own, too
    assert found["node-32"][0] != "FAIL"
    [check] = [check for check in found["node-1"][2]["checks"] if check.get("class") == "switch_links"]
    assert check["reason"].startswith("31 nodes lost the link of mlx5_3:1 in the same time: node-1, node-2")
    assert "switch behind" in check["remedy"]


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ({"a": (["mlx5_0:1"], 0, 9), "b": (["mlx5_0:1"], 0, 9), "c": ([], 0, 9)}, "FAIL"),  # two of three
        ({"a": (["mlx5_0:1"], 0, 9), "b": (["mlx5_0:1"], 0, 9)}, "INCOMPLETE"),  # all of two
        ({"a": (["mlx5_0:1"], 0, 9), "b": (["mlx5_1:1"], 0, 9), "c": (["mlx5_2:1"], 0, 9)}, "FAIL"),
        ({"a": (["mlx5_0:1"], 0, 9), "b": (["mlx5_0:1"], 9, 20), "c": (["mlx5_0:1"], 8, 20)}, "INCOMPLETE"),
        ({"a": (["mlx5_0:1"], 0, 9), "b": (["mlx5_0:1"], 10, 20), "c": (["mlx5_0:1"], 21, 30)}, "FAIL"),
        ({"a": (["mlx5_0:1"], 0, 9)}, "FAIL"),
        ({"a": ([5, {}], 0, 9)}, "FAIL"),
    ],
)
def test_only_what_several_nodes_lose_in_the_same_time_is_shared(losses, verdict):
    assert verdicts(losses)["a"][0] == verdict
