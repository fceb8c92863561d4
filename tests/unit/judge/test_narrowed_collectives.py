"""A list of collectives that was narrowed: what was not asked for is not demanded, and the report tells of it."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import expected_fingerprints
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit import builders
from tests.kit.builders import facts_record, judge, make_record, make_run, metric

SHIPPED = [one for one in builders.SHIPPED if one.metric.startswith("gang_")]
WAYS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_receive")
NODES = ["node-1", "node-2"]
DEMANDED = WAYS[:4]


def collective(node, asked, measured, say=True):
    figures = [metric("gang_nodes_count", 2), metric("gang_absent_nodes_count", 0), metric("gang_processes_count", 16),
               metric("gang_collective_error_count", 0), metric("gang_network_unexpected_count", 0),
               metric("gang_rdma_ports_count", 8), metric("gang_collectives_count", len(measured)),
               metric("gang_collectives_left_out_count", len(WAYS) - len(asked)),
               metric("gang_gpu_direct_off_count", 0)]  # fmt: skip
    if "all_reduce" in measured:
        figures.append(metric("gang_bus_over_ports_ratio", 0.87, "ratio"))
    figures += [metric(f"gang_{way}_bus_bytes_per_second", 350e9, "bytes/s") for way in measured]
    told = {f"gang_{way}_asked": "yes" if way in asked else "no" for way in WAYS} if say else {}
    told["gang_network"] = "IB"
    environment = {"gang": {"name": "all", "nodes": 2, "node": node}}
    return make_record(node, "collective", metrics=figures, fingerprints=told, environment=environment)


def judged(asked, measured, say=True, only=None):
    """``asked``: what the records say; ``only``: what the settings say, the same unless given."""
    run = make_run(NODES, stages=["facts", "collective"])
    command = ["{python}", "-m", "gpuval_workloads.gang", "collectives", "--only", *(only or asked)]
    run["setups"] = expected_fingerprints.of_stages({"collective": {"command": command}}, ["facts", "collective"])
    for node in run["nodes"].values():
        node["gang_stages"] = ["collective"]
    records = {
        node: {"facts": facts_record(node), "collective": collective(node, asked, measured, say)} for node in NODES
    }
    return judge(
        run, RunEvidence(records=records, launches={n: {"state": "started", "message": ""} for n in NODES}), SHIPPED
    )


def checks(report):
    return {one["name"]: one for one in report["nodes"][0]["checks"]}


def test_what_was_not_asked_for_is_not_demanded_but_reported():
    report = judged(["all_reduce", "all_gather"], ["all_reduce", "all_gather"])
    assert report["verdict"] == "PASS"
    found = checks(report)
    assert found["collective_all_to_all_measured"]["verdict"] == "skipped"
    assert (found["collective_all_asked"]["verdict"], found["collective_all_asked"]["value"]) == ("warn", 4)


@pytest.mark.parametrize("way", DEMANDED)
def test_a_gang_does_not_drop_a_collective_by_saying_that_it_was_not_asked_for(way):
    others = [one for one in WAYS if one != way]
    report = judged(others, others, only=WAYS)
    assert report["verdict"] == "INCOMPLETE"
    entry = checks(report)[f"collective_{way}_measured"]
    assert entry["verdict"] == "missing"
    assert f"gang_{way}_asked is no, but this run asks for yes" in entry["reason"]


@pytest.mark.parametrize("way", DEMANDED)
def test_what_was_asked_for_and_not_measured_is_incomplete(way):
    report = judged(WAYS, [one for one in WAYS if one != way])
    assert report["verdict"] == "INCOMPLETE"
    assert checks(report)[f"collective_{way}_measured"]["verdict"] == "missing"


def test_who_measures_nothing_is_not_accepted():
    assert judged([], []).get("verdict") == "INCOMPLETE"
    assert judged(["broadcast"], [])["verdict"] == "INCOMPLETE"


def test_who_does_not_say_what_was_asked_is_held_to_all():
    assert judged(WAYS, WAYS)["verdict"] == "PASS"
    assert judged(WAYS, WAYS, say=False)["verdict"] == "INCOMPLETE"
