"""What nodes answer to tasks of the controller: of another form than agreed, or hostile."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import evidence, launch_errors
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import EvidenceRefused
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder

LAUNCHED = {"state": "started", "message": "", "pid": 7, "store_reachable": True}
FILE = {"digest": "0" * 64, "base64": "e30="}


def test_an_answer_is_used_as_far_as_its_schema_knows_it():
    answer = {"directory": "/var/lib/gpuval/r/n", "launch": LAUNCHED, "python": "/usr/bin/python3", "changed": True}
    hostile = {**answer, "ansible_facts": {"gpuval_model": "/root/.docker"}, "_ansible_no_log": True}
    accepted = evidence.accept_answer("launch_answer", hostile)
    assert accepted == {key: answer[key] for key in ("directory", "launch", "python")}


@pytest.mark.parametrize(
    "launch",
    [
        {"attempt": "x"},
        {"stages": 5},
        {"contact": "x"},
        {"state": "refused", "remedy": 5},
        {"state": ["started"]},
        {"state": "unreachable"},
        {"twin": ["n1"]},
        {"twin": "../n1"},
        {"class": "login_denied"},
        {"message": 5},
        {"message": "x" * 30_000},
        {"pid": "7"},
        {"store_reachable": "no"},
        {"at": "2099-01-01T00:00:00Z"},
    ],
)
def test_a_launch_answer_of_another_form_is_refused(launch):
    with pytest.raises(EvidenceRefused, match="the node's launch answer is invalid"):
        evidence.accept_answer("launch_answer", {"directory": "", "launch": {**LAUNCHED, **launch}})


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"launch": LAUNCHED},
        {"directory": "relative", "launch": LAUNCHED},
        {"directory": "/a\nb", "launch": LAUNCHED},
        {"directory": 5, "launch": LAUNCHED},
        {"directory": "", "launch": "started"},
        {"directory": "", "launch": LAUNCHED, "python": "python3; rm -r /"},
    ],
)
def test_the_rest_of_a_launch_answer_is_checked_too(answer):
    with pytest.raises(EvidenceRefused):
        evidence.accept_answer("launch_answer", answer)


@pytest.mark.parametrize(
    "answer",
    [
        {"files": [], "more": False, "running": True},
        {"files": {"records/facts": "x"}, "more": False, "running": True},
        {"files": {"records/facts": {"digest": 5, "base64": ""}}, "more": False, "running": True},
        {"files": {"records/../../etc": FILE}, "more": False, "running": True},
        {"files": {}, "more": "yes", "running": True},
        {"files": {}, "more": False},
        {"files": {f"logs/stage{number}": FILE for number in range(600)}, "more": False, "running": True},
    ],
)
def test_a_fetch_answer_of_another_form_is_refused(answer):
    with pytest.raises(EvidenceRefused, match="the node's fetch answer is invalid"):
        evidence.accept_answer("fetch_answer", answer)
    good = {"files": {"records/facts": FILE}, "more": False, "running": False}
    assert evidence.accept_answer("fetch_answer", {**good, "invocation": {}}) == good


def test_a_refused_answer_has_a_class_of_its_own():
    with pytest.raises(EvidenceRefused) as refused:
        evidence.accept_answer("launch_answer", {})
    described = launch_errors.described({"state": "failed", "message": str(refused.value)})
    assert described["class"] == "bad_answer" and "reinstall" in described["remedy"]
    assert launch_errors.contact(str(refused.value))["class"] == "bad_answer"


def test_only_a_valid_launch_is_kept_and_a_damaged_one_concerns_its_node_alone(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_launch("good", {"node": "good", "state": "started", "message": "", "attempt": 1, "stages": []})
    with pytest.raises(schemas.Invalid):
        folder.write_launch("evil", {"state": "started", "attempt": "x"})
    assert not folder.launch_file("evil").exists()
    for name, text in (("old", json.dumps({"state": "started", "attempt": "x"})), ("torn", "{"), ("list", "[]")):
        folder.launch_file(name).write_text(text)
    launches = folder.read_launches()
    assert launches["good"]["state"] == "started"
    for name in ("old", "torn", "list"):
        assert launches[name] == folder.read_launch(name)
        assert (launches[name]["state"], launches[name]["class"]) == ("failed", "damaged_state")
        assert str(folder.launch_file(name)) in launches[name]["message"]
