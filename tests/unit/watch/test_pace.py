"""A whole validation at simulated pace: retries, second measurements, the search of gangs, judge and report."""

import pytest
from bench import GOAL_SECONDS, Bench, Scene


@pytest.fixture(scope="module")
def validated(tmp_path_factory):
    """A bench of twelve nodes after its run, with the nodes of the report by name."""
    bench = Bench(Scene(nodes=12), tmp_path_factory.mktemp("pace"))
    return bench, {node["name"]: node for node in bench.run()["nodes"]}


def test_every_fault_is_named_and_healthy_nodes_pass(validated):
    bench, nodes = validated
    faults = bench.faults
    classes = {name: (node["verdict"], node["class"]) for name, node in nodes.items() if node["verdict"] != "PASS"}
    assert classes == {
        faults.slow: ("FAIL", "diagnostics_all_reduce_fleet"),
        faults.hangs: ("FAIL", "training_timeout"),
        faults.dies: ("INCOMPLETE", "lost_contact"),
        faults.slow_in_gangs: ("FAIL", "fabric_bad"),
    }
    assert [name for name, node in nodes.items() if node["flaky"]] == [faults.crashes_once]


def test_the_end_by_the_plan_is_said_once_after_the_first_launch(validated):
    bench, _ = validated
    (line,) = (line for line in bench.lines if "by the plan" in line)
    seconds = sum(bench.workloads[stage]["expected_seconds"] for stage in bench.variables["gpuval_stages"])
    assert seconds == 1486
    assert "after 24 min 46 s; 39.6 GPU-hours" in line
    assert float(line.split()[0]) < 10


def test_all_phases_are_within_the_goal(validated):
    bench, _ = validated
    assert list(bench.phases) == ["nodes' own stages", "second measurements", "gangs and search", "judge", "report"]
    assert 2000 < bench.total <= GOAL_SECONDS
    assert sum(bench.rounds.values()) <= bench.phases["gangs and search"]
