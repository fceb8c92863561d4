"""Gangs have time of their own: their run is taken up, and its store left alone, after the deadline of the nodes."""

from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import orchestrate
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import cleanable, opening
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

NODES = {name: {"stages": ["facts"], "sku": "auto", "gpu_count": None, "gang_stages": ["collective"]} for name in "ab"}


def ago(seconds):
    return (datetime.now(timezone.utc) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def run_of(run_id="r1", *, nodes=NODES, created_at=None, seconds=600, **fields):
    return {"schema": "gpuval.run/1", "run_id": run_id, "folder": run_id, "bucket": "gpuval", "profile": "standard",
            "created_at": created_at or ago(3000), "finished_at": None, "deadline_seconds": seconds, "narrowed_by": [],
            "nodes": nodes, **fields}  # fmt: skip


def results_with(tmp_path, run, rounds=()):
    folder = run_folder.RunFolder(tmp_path / "r1")
    folder.write_run(run)
    for number, (since, seconds) in enumerate(rounds):
        below = run_folder.RunFolder(folder.gangs_file.parent / f"round-{number}")
        below.write_run(run_of(f"r1.round-{number}", created_at=ago(since), seconds=seconds))
    run_folder.remember(run_folder.RunFolder(tmp_path / "r1"))
    return tmp_path


def goes_on(results, nodes=NODES):
    active = cleanable.needs_store(run_folder.find(results, "r1"))
    assert active == (opening.choose_run_id(results, "", nodes, "standard", []) == "r1")
    return active


@pytest.mark.parametrize(
    ("since", "rounds", "active"),
    [
        (3000, [(100, 600)], True),  # at work in a round
        (9000, [(8000, 600), (100, 180)], True),
        (3000, [(1000, 180)], True),  # between rounds, within the time of a search
        (9000, [(5000, 600)], False),
        (1000, [], True),  # killed before the gangs were formed
        (9000, [], False),
    ],
)
def test_gangs_have_their_own_time(tmp_path, since, rounds, active):
    assert goes_on(results_with(tmp_path, run_of(created_at=ago(since)), rounds)) is active


def test_a_longer_search_of_its_controller_counts(tmp_path):
    results = results_with(tmp_path, run_of(created_at=ago(9000)), [(5000, 600)])
    run_folder.write_json(run_folder.find(results, "r1").gang_limits_file, {"search_seconds": 7200})
    assert goes_on(results)


def test_who_did_not_say_how_long_its_search_takes_has_the_time_of_the_role(tmp_path):
    """gpuval_gang_search_seconds, and what other commands reckon with, are one figure."""
    assert run_folder.usual_search_seconds(2) == 3070
    assert run_folder.usual_search_seconds(2, "890") == 5340
    assert orchestrate.GangSettings().search_seconds == run_folder.SEARCH_SECONDS
    many = {f"node-{number}": NODES["a"] for number in range(400)}  # 5060 s
    since = [(600 + 5000, 600)]
    assert goes_on(results_with(tmp_path, run_of(nodes=many, created_at=ago(9000)), since), many)
    assert not goes_on(results_with(tmp_path, run_of(created_at=ago(9000)), since))


def test_a_finished_run_and_one_without_gangs_have_no_more_time(tmp_path):
    assert not goes_on(results_with(tmp_path, run_of(finished_at=ago(1)), [(100, 600)]))
    own = {name: {key: value for key, value in node.items() if key != "gang_stages"} for name, node in NODES.items()}
    assert not goes_on(results_with(tmp_path, run_of(nodes=own)), own)


def test_no_node_joins_a_run_that_has_formed_its_gangs():
    wanted = run_of(nodes={**NODES, "c": NODES["a"]})
    for finished in (None, ago(1)):
        with pytest.raises(run_folder.RunError, match="has formed its gangs, and c would be in none: validate all"):
            opening.merge(run_of(finished_at=finished), wanted, gangs_formed=True)
    assert opening.merge(run_of(), wanted)[1] == ["c"]
    assert opening.merge(run_of(), run_of(), gangs_formed=True)[1] == []


def test_a_run_that_was_opened_with_one_node_has_gangs_as_soon_as_others_join():
    alone = {"a": {key: value for key, value in NODES["a"].items() if key != "gang_stages"}}
    run, joined = opening.merge(run_of(nodes=alone), run_of())
    assert joined == ["b"]
    assert run["nodes"]["a"]["gang_stages"] == run["nodes"]["b"]["gang_stages"] == NODES["b"]["gang_stages"]
    # nodes that come up in a cluster are like the one that was there
    run, joined = opening.merge(run_of(nodes=alone, gang_stages=["collective"]), run_of(nodes={"c": alone["a"]}))
    assert [node["gang_stages"] for node in run["nodes"].values()] == [["collective"]] * 2
    # a command for one node alone left gangs out of it, which the run puts in again
    late = run_of(nodes={"c": alone["a"]}, gang_stages=["collective"], narrowed_by=["limit", "stages"])
    assert opening.merge(run_of(), late)[0]["narrowed_by"] == []
    run, joined = opening.merge(run_of(), run_of(nodes={"c": alone["a"]}))
    assert run["nodes"]["c"]["gang_stages"] == NODES["a"]["gang_stages"]
