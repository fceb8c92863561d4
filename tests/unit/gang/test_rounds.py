"""What run.json of a round says, and what its records mean to the search."""

import itertools
import time

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import rounds
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.rounds import BUS, ERRORS, LATENCY
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RUN_ID, RunFolder
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.builders import TIME, make_record, make_run, metric

PORTS = {"port": 29500, "ssh_port": 3022}
PAIR = ("node-1", "node-2")


def member(name, **fields):
    return {"node": name, "address": f"a-{name}", "slots": 8, "vendor": "nvidia", **fields}


def round_of(gangs, name="all", run_id="run-1", **more):
    run = make_run(run_id=run_id, folder="team/run-1")
    return rounds.round_run(run, name, gangs, ["collective"], **PORTS, seconds=90.0, created_at=TIME, **more)


def test_a_round_is_a_run_of_its_own_below_the_run():
    run = round_of({"all": [member("node-1"), member("node-2", vendor="cpu", slots=2)]})
    schemas.validate("run", run, what="round")
    assert (run["run_id"], run["folder"], run["deadline_seconds"]) == ("run-1.all", "team/run-1/gangs/all", 90.0)
    assert run["nodes"]["node-1"]["gpu_count"] == 8
    assert run["nodes"]["node-2"] == {
        "stages": ["collective"], "sku": "cpu", "gpu_count": 0, "gang": {"name": "all", "index": 1},
    }  # fmt: skip


def test_a_plan_names_all_members_and_ones_own_place():
    run = round_of({"a": [member("node-1"), member("node-2")], "b": [member("node-3"), member("node-4")]})
    assert plans.gang_of(run, "node-4") == {
        "name": "b",
        "members": [{"node": f"node-{n}", "address": f"a-node-{n}", "slots": 8} for n in (3, 4)],
        "index": 1, "port": 29500, "ssh_port": 3022,
    }  # fmt: skip
    assert plans.gang_of(make_run(), "node-1") is None


def test_the_placement_may_give_addresses_with_the_round():
    run = round_of({"all": [member("node-1"), member("node-2")]}, address=lambda run_id, one: f"{one['node']}.{run_id}")
    assert [one["address"] for one in run["gangs"]["all"]["members"]] == ["node-1.run-1.all", "node-2.run-1.all"]


def test_a_thousand_nodes_in_one_gang_take_seconds_and_no_more_than_they_say(tmp_path):
    members = [member(f"node-{number:04}.rack-{number // 8:03}.example.com") for number in range(1000)]
    began = time.process_time()
    run = round_of({"all": members})
    folder = RunFolder(tmp_path)
    folder.write_run(run)
    assert folder.read_run() == run
    assert len(plans.gang_of(run, members[-1]["node"])["members"]) == 1000
    assert time.process_time() - began < 10
    assert folder.run_file.stat().st_size < 1_000_000  # read at every look of the watch, and again for every launch


@given(st.from_regex(RUN_ID, fullmatch=True), st.from_regex(r"[a-z0-9][a-z0-9-]{0,45}", fullmatch=True))
def test_ids_of_rounds_are_ids_of_runs(run_id, name):
    found = rounds.run_id_of(run_id, name)
    assert RUN_ID.fullmatch(found)
    assert found != run_id


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{38,62}", fullmatch=True))
def test_ids_of_different_rounds_differ(run_id):
    names = ["all", "all-again", *(f"search-{number:02}" for number in range(1, 30)), "h200-rack-1", "h200-rack-2"]
    long = ["a" * 40 + end for end in ("", "-2", "-3", "-again")]
    assert len({rounds.run_id_of(run_id, name) for name in (*names, *long)}) == len(names) + len(long)


@pytest.mark.parametrize(
    "gang", ["all", "gangs", "search-01", "search-100", "search-1", "x-again", "again", "gangs-again"]
)
def test_no_two_rounds_of_a_run_have_one_name(gang):
    for first, last in itertools.product(([gang], [gang, "b"]), ([gang], [gang, "b"])):
        if len(last) <= len(first):
            searches = [rounds.name_of("search", number, []) for number in range(1, 120)]
            names = [rounds.name_of("gangs", 1, first), *searches, rounds.name_of("again", 1, last)]
            assert len(set(names)) == len(names)


def record(node, state="success", bus=40e9, errors=0, **fields):
    figures = [metric(BUS, bus, "bytes/s"), metric(ERRORS, errors), metric(LATENCY, 2e-5, "seconds")]
    figures = [one for one in figures if one["value"] is not None]
    fields.setdefault("environment", {"gang": {"joined": True}})
    return make_record(node, "fabric", state=state, metrics=figures, **fields)


def result(**changes):
    """By the records of two members; None is no record."""
    records = {node: record(node) for node in PAIR}
    records["node-2"] = None if changes.get("state", "") is None else record("node-2", **changes)
    return rounds.result_of(PAIR, records)


def test_a_group_is_as_fast_as_its_slowest_says():
    found = result(bus=30e9)
    assert (found.state, found.bus_bytes_per_second, found.latency_seconds) == ("ok", 30e9, 2e-5)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"state": None}, "missing"),
        ({"state": "running", "finished_at": None}, "missing"),
        ({"state": "pending", "finished_at": None}, "missing"),
        ({"state": "cancelled"}, "missing"),
        ({"errors": None}, "missing"),  # to be right without a word of the elements
        ({"errors": 1}, "wrong"),
        ({"errors": 1, "state": "failure"}, "wrong"),
        ({"state": "failure"}, "crash"),
        ({"state": "skipped"}, "missing"),
        ({"state": "crash"}, "crash"),
        ({"state": "timeout"}, "timeout"),
    ],
)
def test_what_became_of_a_group(changes, state):
    assert result(**changes).state == state


def test_who_is_silent_is_named_unless_all_are():
    assert result(state=None).message == "no result from node-2"
    assert rounds.result_of(PAIR, {}).message == "no result from node-1, node-2"


@pytest.mark.parametrize("stopped_by", ["node-1", "node-9", ["node-1"], None])
def test_whom_the_programs_accuse_decides_nothing(stopped_by):
    found = result(state="crash", environment={"gang": {"joined": True, "stopped_by": stopped_by}})
    assert found.state == "crash"


@pytest.mark.parametrize("gang", [[], None, "node-1", {"stopped_by": "node-1"}, {"joined": "yes"}])
def test_a_program_that_does_not_say_that_all_had_joined_accuses_no_node(gang):
    found = result(state="crash", environment={"gang": gang})
    assert found.state == "missing"
    assert found.message.startswith("the work did not begin on node-2")  # its own word is what is not there


FOUND = {
    "name": "all", "why": "", "began_at": TIME, "ended_at": TIME, "rounds": 5, "pairs": 9, "seconds": 80, "stopped": "",
    "nodes": {f"node-{n}": "healthy" for n in range(1, 6)}, "bad_links": [], "suspect_links": [], "gang": [],
    "bad_boundaries": [], "suspect_boundaries": [], "evidence": {},
}  # fmt: skip
MEMBERS = [member(name) for name in FOUND["nodes"]]


def again(**changes):
    return [one["node"] for one in rounds.members_to_rerun(MEMBERS, [{**FOUND, **changes}])]


def test_who_runs_again():
    nodes = FOUND["nodes"]
    assert again() == []  # nobody was bad: it would end as before
    assert again(nodes={**nodes, "node-2": "bad", "node-3": "suspect", "node-4": "untested"}) == ["node-1", "node-5"]
    assert again(nodes=dict.fromkeys(nodes, "bad") | {"node-1": "healthy"}) == []


@pytest.mark.parametrize("what", ["bad_links", "suspect_links", "bad_boundaries", "suspect_boundaries", "gang"])
def test_no_node_runs_again_where_more_than_nodes_is_wrong(what):
    assert again(nodes={**FOUND["nodes"], "node-2": "bad"}, **{what: ["something"]}) == []


def test_the_record_of_what_was_found():
    nodes = {**FOUND["nodes"], "node-1": "bad", "node-2": "suspect"}
    evidence = {"node-1": ["slow with all"], "node-3 - node-11": ["slow"], "node-1 - node-3": ["slower"]}
    found = {**FOUND, "nodes": nodes, "bad_links": [["node-1", "node-3"]], "evidence": evidence}
    counts = {}
    for node in (*nodes, "node-99"):
        made = rounds.fabric_record(make_run(), node, found, TIME)
        schemas.validate("record", made, what=node)
        counts[node] = {one["name"][7:-6]: one["value"] for one in made["metrics"] if one["value"]}
        counts[node].pop("search_rounds")
        assert counts[node].pop("speed_unknown", 0) == (nodes.get(node) == "healthy")
    assert counts["node-1"] == {"bad": 1, "bad_link": 1}
    assert counts["node-2"] == {"suspect": 1}
    assert counts["node-3"] == {"bad_link": 1}
    assert counts["node-4"] == {}
    assert counts["node-99"] == {"untested": 1}  # nobody looked at it
    assert rounds.sentence("node-1", found) == "slow with all; link node-1 - node-3: slower"
