"""What a node answers when it is asked for its evidence itself, without the store."""

import base64
import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.node_steps import fetch_evidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import evidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.exchange import StorePoller
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.watched_run import WatchedRun

from tests.kit.actions import Outcome
from tests.kit.builders import make_run

RECORD = {"digest": "1", "base64": base64.b64encode(b"{}").decode()}
OPTIONS = fetch_evidence.FetchEvidenceOptions(by_store=False, store={})


class Fetch:
    """Its answers are a node's own, which no honest runner gives."""

    def __init__(self, folder, said):
        self.display, self._said, self._folder, self.had = Outcome(), list(said), folder, []

    def ask_node(self, _step, arguments):
        self.had.append(sorted(arguments["since"]))
        return self._said.pop(0)

    def fetched(self):
        launch = {"node": "n1", "state": "started", "message": "", "directory": "/tmp/gpuval", "attempt": 1}
        return fetch_evidence.fetch_launched(self, self._folder, "n1", launch, OPTIONS)


def answer(more=False, **files):
    files = {name.replace("_", "/"): item for name, item in files.items()}
    return evidence.accept_answer("fetch_answer", {"files": files, "more": more, "running": True, "ended": ""})


@pytest.fixture
def folder(tmp_path):
    folder = run_folder.RunFolder(tmp_path / "run-1")
    folder.write_run(make_run(["n1"], stages=["facts", "training"]))
    return folder


@pytest.mark.parametrize("text", ["A", "é", "e30=e30", "e3 0="])
def test_what_is_not_base64_is_left_out_and_a_problem_of_its_node(folder, text):
    fetch = Fetch(folder, [answer(records_facts={"digest": "1", "base64": text}, records_training=RECORD)])
    result = fetch.fetched()
    assert list(result["objects"]) == ["folder/records/training/n1.json"]
    (problem,) = result["problems"]
    assert (problem["node"], problem["stage"]) == ("n1", "facts")
    assert problem["reason"].startswith("record refused: ") and problem["reason"] in fetch.display.text


def test_a_node_returns_no_more_than_it_may_write(folder, monkeypatch):
    monkeypatch.setattr(fetch_evidence, "MAX_NODE_BYTES", 3)
    result = Fetch(folder, [answer(logs_facts=RECORD, logs_training=RECORD, records_facts=RECORD)]).fetched()
    assert sorted(result["objects"]) == ["folder/logs/facts/n1.log", "folder/records/facts/n1.json"]
    assert [(one["stage"], "more than" in one["reason"]) for one in result["problems"]] == [("training", True)]


def test_what_more_answers_would_bring_is_not_left_out_in_silence(folder):
    fetch = Fetch(folder, [answer(more=True, records_facts=RECORD)] * (fetch_evidence.MAX_ROUNDS + 1))
    assert fetch.fetched()["more"]
    with pytest.raises(IndexError):  # the next task goes on after it
        fetch.fetched()
    assert fetch.had[-1] == ["records/facts"]


def test_a_later_answer_that_fails_loses_none_of_the_earlier(folder):
    first = answer(more=True, records_training=RECORD)
    fetch = Fetch(folder, [first, {"failed": True, "msg": "connection reset"}])
    result = fetch.fetched()
    assert list(result["objects"]) == ["folder/records/training/n1.json"] and result["msg"] == "connection reset"
    assert folder.read_launch("n1")["contact"]["message"]


def test_what_a_controller_did_not_keep_is_fetched_again(folder):
    fetch = Fetch(folder, [answer(records_training=RECORD)] * 3)
    fetch.fetched()
    fetch.fetched()
    StorePoller(WatchedRun(folder, None, None), Backend(), None).restore()  # a later controller, without the record
    fetch.fetched()
    assert fetch.had == [[], ["records/training"], []]


def test_a_fetch_that_is_broken_off_marks_nothing_as_had(folder):
    fetch = Fetch(folder, [answer(more=True, records_training=RECORD)])
    with pytest.raises(IndexError):  # as a task is that runs into its time limit
        fetch.fetched()
    assert not list(folder.state.glob("returned/*"))


class Backend:
    def guard(self, *_):
        return None


def test_records_of_an_answer_are_what_the_node_wrote(folder):
    text = base64.b64encode(json.dumps({"a": 1}).encode()).decode()
    result = Fetch(folder, [answer(records_facts={"digest": "1", "base64": text})]).fetched()
    assert base64.b64decode(result["objects"]["folder/records/facts/n1.json"]) == b'{"a": 1}' and not result["problems"]
