"""Status of a run whose gangs are at work, from the store alone."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import document as gang_document
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import rounds
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import publishing
from ansible_collections.gpuval.fleet.plugins.plugin_utils.status import lines as status_lines
from ansible_collections.gpuval.fleet.plugins.plugin_utils.status import status as run_status
from ansible_collections.gpuval.fleet.plugins.plugin_utils.status.reader import StatusReader

from tests.kit.builders import make_record, make_run

NODES = ["node-1", "node-2"]
AT = "2026-11-02T10:30:00Z"
LAUNCH = {"state": "started", "message": "", "attempt": 1, "stages": [], "at": AT}
PLAN = {"heartbeat_seconds": 10, "stages": [{"name": "collective", "expected_seconds": 60.0}]}


def put(store, key, document):
    store.put(key, document if isinstance(document, bytes) else json.dumps(document).encode())


def tell(store, run, *, ended):
    document = publishing.watch_document(
        run, {name: publishing.NodeUpdate(PLAN, LAUNCH) for name in run["nodes"]}, [],
        run_seconds=30, begun_seconds=30, window=(0, 0), silence_seconds=90, ended=ended,
    )  # fmt: skip
    publishing.put(store, run, publishing.RUN_FILE, run)
    publishing.put(store, run, publishing.WATCH_FILE, document)


@pytest.fixture
def run(store):
    """The nodes' own stages are over, their deadline too."""
    run = make_run([*NODES, "node-3"], stages=["facts"])
    for node in run["nodes"].values():
        node["gang_stages"] = ["collective"]
    for node in run["nodes"]:
        put(store, f"folder/records/facts/{node}.json", make_record(node, "facts"))
    tell(store, run, ended=True)
    return run


def gangs(store, run, *names, ended=None):
    members = [{"node": name, "address": "a", "slots": 1, "vendor": "cpu"} for name in NODES]
    document = {
        "schema": gang_document.SCHEMA, "formed_at": AT, "ended_at": ended, "gangs": {"all": members}, "alone": [],
        "left_out": {"node-3": "its own stages ended FAIL: \x1b[31mbad"}, "searches": {}, "findings": {},
        "rounds": [{"name": name, "kind": "gangs", "gangs": {"all": NODES}, "ended_at": None} for name in names],
    }  # fmt: skip
    put(store, gang_document.key_of(run), document)
    return members


def begin(store, run, name, members):
    its = rounds.round_run(run, name, {"all": members}, ["collective"], port=1, ssh_port=9, seconds=600,
                           created_at=AT)  # fmt: skip
    tell(store, its, ended=False)
    for node, state in zip(NODES, ("success", "running"), strict=True):
        record = make_record(node, "collective", state=state, run_id=its["run_id"])
        put(store, f"{its['folder']}/records/collective/{node}.json", record)
    return its


def lines(known):
    return "\n".join(status_lines.head_lines(run_status.Status(known)))


def test_the_round_its_stages_and_who_is_left_out_are_shown(store, run):
    members = gangs(store, run, "all")
    reader = StatusReader(store, run)
    assert "round all: its nodes are not launched yet" in lines(reader.look())
    begin(store, run, "all", members)
    told = lines(reader.look())
    assert "its controller runs its gangs (last heartbeat 0:00:0" in told
    assert "gangs: all of 2 nodes, 1 round(s)" in told
    assert "left out of the gangs: node-3: its own stages ended FAIL: " in told
    assert "\x1b" not in told
    assert "round all: 2 node(s) in 1 gang(s), begun 0:00:3" in told
    assert "  stages: collective 1 running, 1 success" in told
    assert "  node-2  running  collective  0:00:0" in told
    assert "controller lost" not in told
    assert "the deadline passed" not in told


def test_a_look_at_a_round_reads_what_changed_alone(store, run):
    begin(store, run, "all", gangs(store, run, "all"))
    reader = StatusReader(store, run)
    reader.look()
    store.names.clear()
    reader.look()
    assert store.names == ["ListObjectsV2"] * 3


def test_a_run_goes_on_while_its_gangs_do_and_ends_with_them(store, run):
    members = gangs(store, run, "all")
    begin(store, run, "all", members)
    reader = StatusReader(store, run)
    known = reader.look()
    later = replace(
        known, moment=known.moment + timedelta(seconds=600), watch_modified=known.moment - timedelta(hours=2)
    )
    assert not run_status.Status(later).over, "the round is younger than the watch over the nodes' own stages"
    gone = replace(later, moment=known.moment + timedelta(hours=1),
                   round=replace(known.round, moment=known.moment + timedelta(hours=1)))  # fmt: skip
    assert run_status.Status(gone).over
    gangs(store, run, "all", ended=AT)
    status = run_status.Status(reader.look())
    assert (status.at_gangs, status.judging) == (False, True)
    assert "round all" not in "\n".join(status_lines.head_lines(status))


def test_who_watches_is_reported_of_a_new_round_and_of_its_stages(store, run):
    members = gangs(store, run, "all")
    reader = StatusReader(store, run)
    first = run_status.Status(reader.look())
    its = begin(store, run, "all", members)
    second = run_status.Status(reader.look())
    assert status_lines.round_changes(first, second)[0] == f"round {its['run_id']}: 2 node(s) work together"
    put(store, f"{its['folder']}/records/collective/node-2.json",
        make_record("node-2", "collective", run_id=its["run_id"], state="crash", message="out of memory"))  # fmt: skip
    third = run_status.Status(reader.look())
    (told,) = [line for line in status_lines.round_changes(second, third) if "collective" in line]
    assert told.startswith("node-2 collective: crash")


def test_a_damaged_document_is_reported_and_the_last_one_counts(store, run):
    gangs(store, run, "all")
    reader = StatusReader(store, run)
    reader.look()
    put(store, gang_document.key_of(run), b"{")
    known = reader.look()
    assert known.gangs["gangs"]
    assert any("gangs.json in the store is damaged" in line for line in known.refused)
