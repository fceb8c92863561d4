"""What the console shows of the records that the watch reads."""

import json
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.poller import StorePoller
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.state import WatchedRun

from tests.kit.builders import make_record, make_run

CLOSED = "waiting to join: n (192.0.2.1), the leader, is unreachable at port 29400: no answer"


@pytest.fixture
def accept(tmp_path):
    """The line for a running record of a node with that message."""
    folder = run_folder.RunFolder(tmp_path / "run-1")
    folder.write_run(make_run(["n", "m", "o"], stages=["training"]))
    watched = WatchedRun(folder, None, None)
    backend, progress = SimpleNamespace(guard=lambda *_: None), SimpleNamespace(note=lambda *_: None)
    poller = StorePoller(watched, backend, progress)

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
