"""What the console shows of the records that the watch reads."""

import hashlib
import json
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.digests import BY_CHANNEL
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.exchange import StorePoller
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.watched_run import WatchedRun

from tests.kit.builders import make_record, make_run

CLOSED = "waiting to join: n (192.0.2.1), the leader, is unreachable at port 29400: no answer"


@pytest.fixture
def poller(tmp_path):
    folder = run_folder.RunFolder(tmp_path / "run-1")
    folder.write_run(make_run(["n", "m", "o"], stages=["training"]))
    watched = WatchedRun(folder, None, None)
    backend, progress = SimpleNamespace(guard=lambda *_: None), SimpleNamespace(note=lambda *_: None)
    return StorePoller(watched, backend, progress)


@pytest.fixture
def accept(poller):
    """The line for a running record of a node with that message."""
    watched = poller._watched

    def accept(node, message):
        record = make_record(node, "training", state="running", finished_at=None, exit_code=None, message=message)
        return poller.accept(f"{watched.info['folder']}/records/training/{node}.json", json.dumps(record).encode(), 1.0)

    return accept


def test_members_that_wait_for_others_are_shown_once(accept):
    for node in "nmo":
        assert accept(node, "") == f"{node} training: running"
    assert accept("m", CLOSED) == f"m training: {CLOSED}"
    assert [accept(node, CLOSED) for node in "mom"] == [None, None, None], "said once"
    for absent in ("m (192.0.2.2), o (192.0.2.3)", "m (192.0.2.2)"):
        message = f"waiting for {absent} to join"
        assert [accept("n", message) for _ in range(2)] == [f"n training: {message}", None]


def test_other_progress_is_not_shown(accept):
    assert [accept("n", f"step {step} of 9") for step in range(3)] == ["n training: running: step 0 of 9", None, None]


def contradiction(state="success", **fields):
    return json.dumps(make_record("n", "training", state=state, exit_code=3, **fields)).encode()


def test_a_final_record_that_is_refused_ends_its_stage_once_its_node_has_sent_it(poller):
    watched, key = poller._watched, f"{poller._watched.info['folder']}/records/training/n.json"
    view = watched.views["n"]
    view.launch = {"state": "started"}

    assert "success with exit code 3" in poller.accept(key, contradiction(), 1.0, "a stamp of the store")
    assert poller.unread_nodes == {"n"} and not view.done, "the store may hold it damaged"
    poller.accept(key, contradiction(), 2.0)
    assert view.complete and view.done and poller.unread_nodes == set()
    view.launch = {"state": "started", "attempt": 2, "stages": ["training"]}
    assert not view.complete, "the refused one was of the attempt before"


OF_ANOTHER_RUN = contradiction("running").replace(b"run-1", b"run-2")


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"state": "success"}', OF_ANOTHER_RUN])
def test_a_refused_record_that_names_no_end_ends_nothing(poller, raw):
    key = f"{poller._watched.info['folder']}/records/training/n.json"
    view = poller._watched.views["n"]
    view.launch = {"state": "started"}
    assert "refused" in poller.accept(key, raw, 1.0)
    assert not view.done


def test_a_good_record_after_a_refused_one_counts(poller):
    key = f"{poller._watched.info['folder']}/records/training/n.json"
    poller.accept(key, contradiction(), 1.0)
    poller.accept(key, json.dumps(make_record("n", "training")).encode(), 2.0, "stamp")
    assert poller._watched.views["n"].refused == {} and poller._watched.views["n"].state("training") == "success"


def test_the_digest_that_is_kept_is_that_of_the_record_which_counts(poller):
    """Not that of an outdated one, with which a store could have an invented record confirmed."""
    key = f"{poller._watched.info['folder']}/records/training/n.json"
    kept = poller._watched.memory.digests
    ended = json.dumps(make_record("n", "training", updated_at="2026-11-20T21:00:00Z")).encode()
    older = json.dumps(make_record("n", "training", state="running", finished_at=None, exit_code=None)).encode()
    poller.accept(key, ended, 1.0, "stamp 1")
    poller.accept(key, older, 2.0, "stamp 2")
    assert kept == {key: hashlib.sha256(ended).hexdigest()}
    poller.accept(key, older, 3.0)
    assert kept == {key: hashlib.sha256(ended).hexdigest()}, "also by the node itself"
    poller.accept(key, ended, 4.0)
    assert kept == {key: BY_CHANNEL}
    poller.accept(key, ended, 5.0, "stamp 3")
    assert kept == {key: BY_CHANNEL}, "the store has the same"
