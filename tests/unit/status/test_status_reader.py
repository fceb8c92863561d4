"""What a look at the store costs, and what it takes in: a real store, with requests counted."""

import json
import time

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import brief
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import publishing
from ansible_collections.gpuval.fleet.plugins.plugin_utils.status import lines as status_lines
from ansible_collections.gpuval.fleet.plugins.plugin_utils.status import status as run_status
from ansible_collections.gpuval.fleet.plugins.plugin_utils.status.reader import StatusReader
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import stored_runs

from tests.kit.builders import make_record, make_run

NODES = [f"node-{number}" for number in range(1, 6)]
STAGES = ["facts", "training"]


def put(store, key, document):
    store.put(key, document if isinstance(document, bytes) else json.dumps(document).encode())


def put_record(store, node, stage, **fields):
    put(store, f"folder/records/{stage}/{node}.json", make_record(node, stage, **fields))


@pytest.fixture
def run(store):
    run = make_run(NODES, stages=STAGES)
    put(store, "folder/run.json", run)
    for node in NODES:
        for stage in STAGES:
            put_record(store, node, stage, state="running")
            put(store, f"folder/logs/{stage}/{node}.log", b"a log, which is not looked at")
    store.names.clear()
    return run


def test_a_look_is_one_list_and_only_what_changed_is_read(store, run):
    reader = StatusReader(store, run)
    first = reader.look()
    assert store.names.count("ListObjectsV2") == 1
    assert store.names.count("GetObject") == 1 + len(NODES) * len(STAGES)
    assert first.briefs["node-1"]["facts"].state == "running"

    store.names.clear()
    reader.look()
    assert store.names == ["ListObjectsV2"]

    put_record(store, "node-2", "facts", state="success")
    store.names.clear()
    assert reader.look().briefs["node-2"]["facts"].state == "success"
    assert store.names == ["ListObjectsV2", "GetObject"]


def test_what_the_controller_has_read_need_not_be_read_again(store, run):
    for node in NODES:
        put_record(store, node, "facts", state="success", message="from the store")
    progress = publishing.WatchProgress()
    told = make_record("n", "facts", state="success", message="from the controller")
    for entry in store.list("folder/records/"):
        progress.note(run, entry.key, entry.stamp, {**told, "state": "running"} if "training" in entry.key else told)
    refused = "folder/records/facts/node-5.json"
    progress.note(run, refused, "its next stamp", None)
    progress.publish(store, run)
    put_record(store, "node-1", "facts", state="success", message="newer")
    store.names.clear()
    briefs = StatusReader(store, run).look().briefs
    # run.json, the progress, what runs, what is newer, and what was refused
    assert store.names.count("GetObject") == 1 + 1 + len(NODES) + 1 + 1
    assert briefs["node-2"]["facts"].message == "from the controller"
    assert briefs["node-1"]["facts"].message == "newer"
    assert briefs["node-5"]["facts"].message == "from the store"
    assert briefs["node-2"]["training"].state == "running"


def test_ages_are_those_of_the_store_however_wrong_our_clock_is(store, run, monkeypatch):
    put_record(store, "node-1", "facts", state="running")
    known = StatusReader(store, run).look()
    age = (known.moment - known.briefs["node-1"]["facts"].modified).total_seconds()
    assert -2 < age < 60
    assert abs(known.moment.timestamp() - time.time()) < 60  # this store is on this machine


def test_what_is_refused_is_named_until_it_is_gone(store, run):
    put(store, "folder/records/facts/ghost.json", make_record("ghost", "facts"))
    put(store, "folder/records/facts/node-1.json", b"{}")
    reader = StatusReader(store, run)
    known = reader.look()
    assert any("ghost" in line for line in known.refused)
    assert any("node-1 facts" in line for line in known.refused)
    assert "facts" not in known.briefs.get("node-1", {})
    put_record(store, "node-1", "facts")
    store.delete_prefix("folder/records/facts/ghost")
    known = reader.look()
    assert known.refused == []
    assert known.briefs["node-1"]["facts"].state == "success"


def test_a_node_that_joins_is_accepted(store, run):
    put_record(store, "late", "facts")
    reader = StatusReader(store, run)
    assert reader.look().refused
    put(store, "folder/run.json", make_run([*NODES, "late"], stages=STAGES))
    reader.look()
    known = reader.look()
    assert known.briefs["late"]["facts"].state == "success"
    assert known.refused == []


def test_an_object_too_large_is_not_accepted(store, run):
    put(store, "folder/records/facts/node-1.json", b" " * (2 << 20))
    known = StatusReader(store, run).look()
    assert any("over the limit" in line for line in known.refused)


def test_another_run_in_the_folder_is_an_error(store, run):
    reader = StatusReader(store, run)
    put(store, "folder/run.json", {**run, "run_id": "run-2"})
    with pytest.raises(run_folder.RunError, match="another run now: run-2"):
        reader.look()


@pytest.mark.parametrize("document", [b"{", b"[]", b'{"schema": "gpuval.watch/1"}'])
def test_a_damaged_document_is_named(store, run, document):
    put(store, "folder/run_watch.json", document)
    put(store, "folder/run_progress.json", document)
    reader = StatusReader(store, run)
    known = reader.look()
    assert any("folder/run_watch.json in the store is damaged" in line for line in known.refused)
    assert known.watch is None
    assert known.briefs["node-1"]["facts"].state == "running", "the rest is shown all the same"
    store.delete_prefix("folder/run_watch")
    assert reader.look().refused == []


class TestRunsOfABucket:
    def put_run(self, store, run_id, created_at, folder=None, **fields):
        folder = folder or run_id
        run = {**make_run(["n"]), "run_id": run_id, "folder": folder, "created_at": created_at, **fields}
        put(store, f"{folder}/run.json", run)
        put(store, f"{folder}/records/facts/n.json", b"{}")
        return run

    def test_the_newest_is_accepted_and_named(self, store):
        self.put_run(store, "zz-old", "2026-11-01T10:00:00Z", finished_at="2026-11-01T11:00:00Z")
        self.put_run(store, "aa-new", "2026-11-02T10:00:00Z", folder="site/rack-1")
        put(store, "models/tiny/run.json", b"{}")
        run, lines = stored_runs.find(store)
        assert (run["run_id"], run["folder"]) == ("aa-new", "site/rack-1")
        assert lines == ["run aa-new: the newest of 2 of the bucket gpuval"]

    def test_others_that_go_on_are_listed(self, store):
        soon = run_folder.now()
        self.put_run(store, "one", "2020-11-01T10:00:00Z")  # long past its deadline
        self.put_run(store, "two", soon.replace("Z", ".1Z"), deadline_seconds=7200)
        self.put_run(store, "three", soon.replace("Z", ".9Z"))
        run, lines = stored_runs.find(store)
        assert run["run_id"] == "three"
        assert "other runs in progress (choose with -e gpuval_run_id=): two: opened" in lines[1]
        assert "one:" not in lines[1]

    def test_two_of_the_same_second_must_be_distinguished(self, store):
        for name in ("one", "two"):
            self.put_run(store, name, "2026-11-02T10:00:00Z")
        with pytest.raises(run_folder.RunError, match=r"choose one with -e gpuval_run_id=: .*one.*two"):
            stored_runs.find(store)
        assert stored_runs.find(store, "one")[0]["run_id"] == "one"

    def test_by_id_in_a_folder_of_another_name(self, store):
        self.put_run(store, "mine", "2026-11-02T10:00:00Z", folder="a/b")
        assert stored_runs.find(store, "mine")[0]["folder"] == "a/b"
        assert stored_runs.find(store, "", "/a/b/")[0]["run_id"] == "mine"
        with pytest.raises(run_folder.RunError, match="has the run mine, not other"):
            stored_runs.find(store, "other", "a/b")

    def test_none_at_all(self, store):
        with pytest.raises(run_folder.RunError, match="the bucket gpuval has no run: `make validate` starts one"):
            stored_runs.find(store)

    def test_a_damaged_one_is_left_out_and_named(self, store):
        self.put_run(store, "good", "2026-11-02T10:00:00Z")
        put(store, "bad/run.json", b"{")
        put(store, "moved/run.json", {**make_run(["n"]), "run_id": "moved", "folder": "elsewhere"})
        run, lines = stored_runs.find(store)
        assert run["run_id"] == "good"
        assert sum(line.startswith("left out: ") for line in lines) == 2

    def test_a_bucket_that_is_not_there_is_reported(self, store):
        from dataclasses import replace

        from ansible_collections.gpuval.fleet.plugins.module_utils.store import Store, StoreError

        with pytest.raises(StoreError, match="no such bucket: correct gpuval_bucket"):
            stored_runs.find(Store(replace(store.connection, bucket="nowhere")))


def test_a_thousand_nodes_are_reported_in_seconds():
    from datetime import datetime, timezone

    names = [f"node-{number:04}" for number in range(1000)]
    now = datetime.now(timezone.utc)
    run = make_run(names, stages=["facts", "training", "loading", "inference"])
    record = brief.brief(make_record("n", "facts"), now)
    briefs = {name: dict.fromkeys(run["nodes"][name]["stages"], record) for name in names}
    began = time.process_time()
    status = run_status.Status(run_status.StoredStatus(run, now, briefs))
    lines = [*status_lines.head_lines(status), *status_lines.table_lines(status, status.nodes, complete=True)]
    assert len(lines) > 1000
    assert time.process_time() - began < 10
