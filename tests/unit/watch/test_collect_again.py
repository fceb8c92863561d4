"""A collection that is broken off goes on where it was."""

import base64
import errno
import hashlib
import json
import os
import time
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import StoreError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import document as gang_document
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.digests import BY_CHANNEL
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import (
    ALTERED,
    NOT_COLLECTED,
    UNREAD,
    RunEvidence,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import publishing
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.node_tasks import TaskOutcome
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps import collect_run
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import imported_run

from tests.kit.actions import Outcome, run_action, vars_of
from tests.kit.builders import make_record, make_run
from tests.kit.odd_s3 import OddS3

AT = "2026-11-20T20:00:00Z"
NODES = [f"node-{number:02}" for number in range(40)]


@pytest.fixture
def odd():
    with OddS3() as service:
        yield service


class Collection(collect_run.RunCollection):
    """Only what it does with the store, without a play around it."""

    def __init__(self, folder, store):
        self.run_folder, self.run_info, self.store = folder, folder.read_run(), store
        self.evidence, self.collected, self.stored, self.refused = RunEvidence(), 0, set(), {}
        self.unread, self.has_read, self.action = {}, False, SimpleNamespace(display=Outcome())
        self.seen_file = folder.state / "collected.json"
        self.seen = run_folder.read_object(self.seen_file)
        self.digests = {node: folder.read_digests(node) for node in self.run_info["nodes"]}


def test_what_was_read_is_not_read_again_and_what_was_refused_stays_known(store, tmp_path):
    folder = run_folder.RunFolder(tmp_path / "run-1")
    folder.write_run(make_run(NODES, stages=["facts"]))
    for node in NODES:
        record = b"{}" if node == "node-00" else json.dumps(make_record(node, "facts")).encode()
        store.put(f"folder/records/facts/{node}.json", record)
    whole, read = store.get, []

    def get(key, **limits):
        if len(read) >= 20:
            raise StoreError("away")
        read.append(key)
        return whole(key, **limits)

    store.get = get
    first = Collection(folder, store)
    with pytest.raises(StoreError):
        first._from_store()
    done = run_folder.read_json(folder.state / "collected.json")
    assert 0 < len(done) <= 20
    assert any("node-00" in str(problem) for problem in run_folder.read_json(folder.problems_file))

    read.clear()
    store.get = lambda key, **limits: (read.append(key), whole(key, **limits))[1]
    second = Collection(folder, store)
    second._from_store()
    second._remember()
    assert len(read) == len(NODES) - len(done)
    file = folder.evidence_file("node-01", "facts")
    os.utime(file, (1, 1))
    third = Collection(folder, store)
    third.seen = {}
    third._from_store()
    assert file.stat().st_mtime == 1, "when it came, by which clocks are compared"
    assert all(folder.evidence_file(node, "facts").exists() for node in NODES[1:])
    assert [problem["node"] for problem in run_folder.read_json(folder.problems_file)] == ["node-00"]


def collect(run, store, results):
    """As `make report` does it of a run of another controller: it is imported, then what the store has is collected."""
    folder = imported_run.import_run(store, run, results, ())
    collection = Collection(folder, store)
    collection.renews = not folder.collected_file.exists()
    collection._from_store()
    if collection.renews:
        collection._drop_gone()
    collection._remember()
    return folder


def test_an_open_run_is_imported_anew_and_has_what_its_store_has(store, tmp_path):
    run = make_run(["node-1", "node-2"], stages=["facts", "training"])
    for node in run["nodes"]:
        for stage in ("facts", "training"):
            store.put(f"folder/records/{stage}/{node}.json", json.dumps(make_record(node, stage)).encode())
    store.put("folder/records/training/node-2.json", b"{}")
    publishing.put(store, run, publishing.RUN_FILE, run)
    told = {node: publishing.NodeUpdate({"stages": []}, None) for node in run["nodes"]}
    watch = publishing.watch_document(
        run, told, [], run_seconds=1, begun_seconds=1, window=(0, 0), silence_seconds=9, ended=True
    )
    publishing.put(store, run, publishing.WATCH_FILE, watch)
    for _time in range(2):
        folder = collect(run, store, tmp_path)
        assert {problem["node"] for problem in run_folder.read_json(folder.problems_file)} == {"node-2"}
        assert "folder/records/training/node-2.json" not in run_folder.read_json(folder.state / "collected.json")
    assert not folder.evidence_file("node-2", "training").exists()

    store.put("folder/records/facts/node-1.json", b"{}")
    store.delete_prefix("folder/records/training/node-1.json")
    collect(run, store, tmp_path)
    assert not folder.evidence_file("node-1", "facts").exists(), "its object is no evidence any more"
    assert not folder.evidence_file("node-1", "training").exists(), "its object is gone"
    assert {problem["node"] for problem in run_folder.read_json(folder.problems_file)} == {"node-1", "node-2"}
    assert list(run_folder.read_json(folder.state / "collected.json")) == ["folder/records/facts/node-2.json"]

    store.put("folder/records/facts/node-1.json", json.dumps(make_record("node-1", "facts")).encode())
    assert collect(run, store, tmp_path).evidence_file("node-1", "facts").exists()
    ended = {**run, "finished_at": "2026-11-20T21:00:00Z"}
    verdict = {
        "schema": "gpuval.verdict/1",
        **{key: ended[key] for key in ("run_id", "created_at", "finished_at")},
        "judged_at": ended["finished_at"],
        "verdict": "INCOMPLETE",
        "counts": {"PASS": 0, "FAIL": 0, "INCOMPLETE": 2},
        "nodes": dict.fromkeys(run["nodes"], "INCOMPLETE"),
        "faults": {},
        "evidence": {},
    }
    publishing.put(store, ended, "report/verdict.json", verdict)
    assert collect(ended, store, tmp_path).evidence_file("node-1", "facts").exists()
    store.delete_prefix("folder/records/facts/node-1.json")
    assert collect(ended, store, tmp_path).evidence_file("node-1", "facts").exists(), "a run that ended comes once"


def stored_log(store, tmp_path):
    """A collection of a run whose node has a record and a log in the store."""
    folder = run_folder.RunFolder(tmp_path / "run-1")
    folder.write_run(make_run(["node-1", "node-2"], stages=["facts"]))
    for node in ("node-1", "node-2"):
        store.put(f"folder/records/facts/{node}.json", json.dumps(make_record(node, "facts")).encode())
        store.put(f"folder/logs/facts/{node}.log", b"x" * (1000 if node == "node-1" else 10))
    return folder, Collection(folder, store)


def kept(folder):
    found = [(node, kind) for node in ("node-1", "node-2") for kind in ("records", "logs")]
    return [(node, kind) for node, kind in found if folder.evidence_file(node, "facts", kind).exists()]


def test_a_node_that_wrote_more_than_it_may_loses_its_largest_log_alone(store, tmp_path, monkeypatch):
    folder, collection = stored_log(store, tmp_path)
    record = next(entry.size for entry in store.list("folder/records/facts/node-1"))
    monkeypatch.setattr(collect_run.evidence, "MAX_NODE_BYTES", record + 500)
    collection._from_store()
    assert kept(folder) == [("node-1", "records"), ("node-2", "records"), ("node-2", "logs")]
    (problem,) = collection.evidence.problems
    assert (problem["node"], problem["stage"]) == ("node-1", "facts")
    assert "written more than" in problem["reason"]


@pytest.mark.parametrize("full", ["nearly", "wholly"])
def test_a_full_disk_costs_logs_and_not_the_run(store, tmp_path, monkeypatch, full):
    folder, collection = stored_log(store, tmp_path)

    write = run_folder.write_bytes

    def write_bytes(path, data):
        if path.suffix == ".log" or path == folder.problems_file:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    if full == "nearly":
        monkeypatch.setattr(collect_run, "shortage", lambda _path: 1)
    else:
        monkeypatch.setattr(run_folder, "write_bytes", write_bytes)
    collection.action = SimpleNamespace(display=Outcome())
    collection._from_store()
    collection._remember()
    assert ("the disk of the results is full" in collection.action.display.text) == (full == "wholly")
    assert kept(folder) == [("node-1", "records"), ("node-2", "records")]
    assert {problem["reason"] for problem in collection.evidence.problems} == {
        "logs left in the store: the disk of the results is full"
    }


def write_gangs(folder, names):
    gang_document.write(folder, {
        "schema": gang_document.SCHEMA, "formed_at": AT, "ended_at": AT, "alone": [], "searches": {}, "findings": {},
        "gangs": {"all": [{"node": name, "address": "a", "slots": 8, "vendor": "amd"} for name in names]},
        "rounds": [{"name": "all", "kind": "gangs", "gangs": {"all": names}, "ended_at": AT}], "left_out": {},
    })  # fmt: skip


def test_a_run_stays_open_while_records_of_a_round_are_unread(tmp_path):
    folder, names = run_folder.RunFolder(tmp_path / "run-1"), ["node-1", "node-2"]
    folder.write_run(make_run(names, stages=["facts"]))
    place = gang_document.round_folder(folder, "all")
    place.write_run(make_run(names, stages=["collective"], run_id="run-1.all"))
    write_gangs(folder, names)
    for problems in ([{"node": "node-1", "stage": "collective", "reason": f"{UNREAD}: AccessDenied"}], []):
        run_folder.write_json(place.problems_file, problems)
        judged = run_action("judge_run", {"results_dir": str(tmp_path), "run_id": "run-1", "finish": True})
        assert not judged.failed, judged.text
        assert (folder.read_run()["finished_at"] is None) == bool(problems)


def test_a_damaged_round_keeps_the_nodes_own_records_in_the_verdict(tmp_path, odd):
    """The store has no objects: what is judged lies here. The round's run.json is empty."""
    folder, names = run_folder.RunFolder(tmp_path / "run-1"), ["node-1", "node-2"]
    folder.write_run(make_run(names, stages=["facts"]))
    place = gang_document.round_folder(folder, "all")
    place.path.mkdir(parents=True)
    place.run_file.write_text("")
    write_gangs(folder, names)
    options = {"results_dir": str(tmp_path), "run_id": "run-1", "store": odd.options(tmp_path / "state")}
    outcome = run_action("collect_run", options, task_vars=vars_of({name: {} for name in names}))
    assert not outcome.failed, outcome.text
    (problem,) = folder.read_problems()
    assert problem["reason"].startswith(f"{NOT_COLLECTED} in {place.path}: ")
    run_action("collect_run", options, task_vars=vars_of({name: {} for name in names}))
    assert folder.read_problems() == [problem], "noted anew, once"
    judged = run_action("judge_run", {"results_dir": str(tmp_path), "run_id": "run-1", "finish": True})
    assert not judged.failed, judged.text
    assert judged.result["counts"]["INCOMPLETE"] == 2


def test_a_log_that_cannot_be_kept_concerns_its_node_alone(store, tmp_path, monkeypatch):
    folder, collection = stored_log(store, tmp_path)
    write = run_folder.write_bytes

    def refusing(path, data):
        if "node-1" in path.parts and path.suffix == ".log":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        write(path, data)

    monkeypatch.setattr(run_folder, "write_bytes", refusing)
    collection._from_store()
    assert kept(folder) == [("node-1", "records"), ("node-2", "records"), ("node-2", "logs")]
    (problem,) = collection.evidence.problems
    assert (problem["node"], problem["reason"]) == ("node-1", f"{NOT_COLLECTED}: logs: Permission denied")


def test_an_object_that_alone_is_refused_is_a_problem_of_its_stage_alone(store, tmp_path):
    folder, nodes = run_folder.RunFolder(tmp_path / "run-1"), NODES[:9]
    folder.write_run(make_run(nodes, stages=["facts"]))
    for node in nodes:
        store.put(f"folder/records/facts/{node}.json", json.dumps(make_record(node, "facts")).encode())
    whole, refused = store.get, {"node-04"}

    def get(key, **limits):
        if any(node in key for node in refused):
            raise StoreError("An error occurred (AccessDenied) when calling the GetObject operation")
        return whole(key, **limits)

    store.get = get
    collection = Collection(folder, store)
    collection.error = None
    for _time in range(2):  # once all others were read, too
        collection._from_store()
        assert [node for node in nodes if not folder.evidence_file(node, "facts").exists()] == ["node-04"]
    collection._note_unread()
    of_run, problem = collection.evidence.problems
    assert of_run["node"] is None and of_run["reason"].startswith(f"{UNREAD}: 1 object(s): ")
    assert (problem["node"], problem["stage"]) == ("node-04", "facts")
    assert problem["reason"].startswith(f"{UNREAD}: records: ") and problem["reason"] in collection.action.display.text
    refused.clear()
    later = Collection(folder, store)
    later._from_store()
    later._note_unread()
    assert folder.evidence_file("node-04", "facts").exists() and not later.evidence.problems


def test_a_store_that_gives_no_object_cannot_be_read(store, tmp_path):
    folder, _ = stored_log(store, tmp_path)

    def get(_key, **_limits):
        raise StoreError("AccessDenied")

    store.get = get
    with pytest.raises(StoreError, match="AccessDenied"):
        Collection(folder, store)._from_store()


def digest(raw):
    return hashlib.sha256(raw).hexdigest()


def speed(value):
    return [{"name": "training_tokens_per_second", "value": value, "unit": "tokens/s", "scope": "node"}]


def compared(store, folder, in_store, on_node, *, running=False, stated=None):
    """Collect what the store has of node-00, compare it with what its node returns, and return the collection."""
    key = "folder/records/training/node-00.json"
    store.put(key, json.dumps(in_store).encode())
    collection = Collection(folder, store)
    collection._from_store()
    raw = json.dumps(on_node).encode() if on_node else b""
    answer = {"objects": {key: base64.b64encode(raw).decode()} if raw else {}, "running": running}
    answer["stated"] = {"records/training": [digest(raw)]} if stated is None else stated
    collection._take_stated("node-00", answer)
    collection._drop_altered()
    collection._remember()
    return collection


@pytest.fixture
def trained(tmp_path):
    folder = run_folder.RunFolder(tmp_path / "run-1")
    folder.write_run(make_run(["node-00"], stages=["training"]))
    return folder


def kept_record(folder):
    return run_folder.read_object(folder.evidence_file("node-00", "training"))


def reasons(folder):
    return [problem["reason"] for problem in folder.read_problems()]


def test_what_the_node_returns_replaces_what_the_store_altered(store, trained):
    honest = make_record("node-00", metrics=speed(2799390720))
    compared(store, trained, make_record("node-00", metrics=speed(2799390620)), honest)
    assert kept_record(trained)["metrics"][0]["value"] == 2799390720
    assert trained.read_digests("node-00").channel_of("training") == "node"
    assert reasons(trained) == [f"records fetched from the node: {ALTERED}"]


def test_an_end_that_the_store_invented_gives_way_to_the_unfinished_record_of_the_node(store, trained):
    open_record = make_record("node-00", state="running", finished_at=None, duration_seconds=None, exit_code=None)
    invented = make_record("node-00", updated_at="2026-11-20T21:00:00Z")
    compared(store, trained, invented, open_record)
    assert kept_record(trained)["state"] == "running"


@pytest.mark.parametrize("on_node", [None, make_record("node-00", metrics=speed(7.0))])
def test_without_the_object_that_the_node_states_there_is_no_evidence(store, trained, on_node):
    """Also where it returns another than it states: neither copy is proven."""
    altered = make_record("node-00", metrics=speed(1.0))
    compared(store, trained, altered, on_node, stated={"records/training": ["a" * 64]})
    assert kept_record(trained) == {}
    assert reasons(trained) == [f"{ALTERED}: records"]
    compared(store, trained, altered, None, stated={"records/training": [digest(json.dumps(altered).encode())]})
    assert kept_record(trained) != {}, "it is read and compared again"
    assert trained.read_digests("node-00").channel_of("training") == "node"


def test_a_node_cannot_deny_a_failed_attempt_that_the_controller_saw(store, trained):
    """It would have to claim that the store invented the failure: its own record without it is no evidence either."""
    failed = make_record("node-00", state="crash", exit_code=1)
    compared(store, trained, failed, make_record("node-00", attempt=2))
    assert kept_record(trained) == {}
    assert any("attempt 1 ended as crash, which it leaves out" in reason for reason in reasons(trained))
    assert f"{ALTERED}: records" in reasons(trained)


def test_a_node_at_work_may_be_ahead_of_the_store_and_is_not_accused(store, trained):
    before = make_record("node-00", state="running", finished_at=None, duration_seconds=None, exit_code=None)
    collection = compared(store, trained, before, make_record("node-00"), running=True)
    assert kept_record(trained)["state"] == "success" and reasons(trained) == []
    assert trained.read_digests("node-00").channel_of("training") == "node"
    collection = compared(store, trained, before, None, running=True, stated={"records/training": ["a" * 64]})
    assert collection.evidence.problems == []


def test_a_log_that_the_controller_puts_into_the_store_is_not_read_back_as_another(store, trained):
    collection = Collection(trained, store)
    key, raw = "folder/logs/training/node-00.log", b"said by the node\r\n"
    assert collection._keep(key, ("logs", "training", "node-00"), raw)
    collection.digests["node-00"].channel = "node"
    collection.digests["node-00"].read["logs/training"] = BY_CHANNEL
    collection._publish_evidence()
    assert store.get(key, max_bytes=100) == b"said by the node\n"
    again = Collection(trained, store)
    again._from_store()
    assert again.digests["node-00"].read == {"logs/training": BY_CHANNEL}


HONEST = make_record("node-00", state="running", finished_at=None, duration_seconds=None, exit_code=None)
INVENTED = make_record("node-00", updated_at="2026-11-20T21:00:00Z")
KEY = "folder/records/training/node-00.json"


def invented(store, trained):
    """A collection that took an end which the store invented."""
    store.put(KEY, json.dumps(INVENTED).encode())
    collection = Collection(trained, store)
    collection._from_store()
    collection._remember()
    assert kept_record(trained)["state"] == "success"
    return collection


def fetch_from_node(collection, record):
    """What the collection does with a record that the node returns in place of one that the store lacks."""
    result = {"objects": {KEY: base64.b64encode(json.dumps(record).encode()).decode()}}
    busy = [TaskOutcome("node-00", "fetch", result=result)]
    tasks = SimpleNamespace(
        submit=lambda *_task: None, wait=lambda _seconds: [busy.pop()], busy=busy, close=lambda: None
    )
    collection._node_tasks, collection.error = lambda: (tasks, {}), "away"
    collection.options = SimpleNamespace(fetch_tasks="fetch.yml", fetch_seconds=1.0)
    collection._fetch(["node-00"])
    collection._remember()


def test_an_invented_end_that_the_store_takes_back_before_the_comparison_is_not_confirmed(store, trained):
    invented(store, trained)
    compared(store, trained, HONEST, HONEST)
    assert kept_record(trained)["state"] == "running"
    assert trained.read_digests("node-00").channel_of("training") == "node"


def test_an_older_record_that_a_node_returns_does_not_confirm_the_invented_one(store, trained):
    fetch_from_node(invented(store, trained), HONEST)
    assert kept_record(trained)["state"] == "success"
    assert trained.read_digests("node-00").channel_of("training") == "store only"


def test_a_node_at_work_does_not_confirm_an_invented_end(store, trained):
    collection = invented(store, trained)
    raw = json.dumps(HONEST).encode()
    answer = {"objects": {KEY: base64.b64encode(raw).decode()}, "running": True}
    collection._take_stated("node-00", {**answer, "stated": {"records/training": [digest(raw)]}})
    assert kept_record(trained)["state"] == "success"
    assert collection.digests["node-00"].channel_of("training") == "store only"


def test_what_the_watch_reads_after_a_collection_without_the_store_is_compared(store, trained):
    """The node's word on an earlier record confirms no later one."""
    fetch_from_node(Collection(trained, store), HONEST)
    assert trained.read_digests("node-00").channel_of("training") == "node"
    raw = json.dumps(INVENTED).encode()
    store.put(KEY, raw)
    (entry,) = store.list(KEY)
    run_folder.write_json(trained.evidence_file("node-00", "training"), INVENTED)
    memory = {"seen": {KEY: entry.stamp}, "digests": {KEY: digest(raw)}}
    run_folder.write_json(trained.state / "watch.json", memory)
    collection = Collection(trained, store)
    collection.options = SimpleNamespace(fetch_tasks=None)
    collection.publishes = False
    collection._collect_run(trained)
    assert trained.read_digests("node-00").channel_of("training") == "store only"


def test_the_verdict_does_not_wait_for_nodes_that_do_not_state_their_digests(store, trained):
    collection, waits = invented(store, trained), []
    trained.write_launch("node-00", {"node": "node-00", "state": "started", "directory": "/var/tmp/run"})

    def wait(_seconds):
        waits.append(1)
        assert len(waits) < 50
        time.sleep(0.1)
        return []

    tasks = SimpleNamespace(submit=lambda *_task: None, wait=wait, busy={"node-00"}, close=lambda: None)
    collection._node_tasks, collection.action.task_vars = lambda: (tasks, {}), {"ansible_play_hosts": ["node-00"]}
    collection.options = SimpleNamespace(fetch_tasks="fetch.yml", fetch_seconds=0.2)
    collection._compare_digests()
    assert "1 node(s) did not confirm the digests" in collection.action.display.text
