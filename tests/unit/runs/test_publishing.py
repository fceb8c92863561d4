"""What a controller tells through the store, and what another machine makes of it."""

import json
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import applied_criteria, opening, publishing
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import state as run_state
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import imported_run

from tests.kit.builders import make_run

PLAN = {"heartbeat_seconds": 10, "stages": [{"name": "facts", "expected_seconds": 5, "command": ["secret-command"]}]}
URL = "https://store.example/b/k?X-Amz-Credential=AKIAABCDEFGHIJKLMNOP&X-Amz-Signature=0123456789abcdef"
LAUNCH = {
    "node": "n",
    "state": "failed",
    "class": "launch_failed",
    "message": f"upload to {URL} failed",
    "remedy": "look",
    "at": "2026-11-02T10:00:00Z",
    "attempt": 1,
    "stages": [],
    "directory": "/var/lib/gpuval/run-1/n",
    "runner": "gone",
    "python": "/usr/bin/python3",
    "contact": {"class": "timeout", "message": "token=abcdefghijk", "remedy": None, "more": "internal"},
}


def document(launch=LAUNCH, problems=(), **fields):
    run = make_run(["n", "m"], stages=["facts"])
    nodes = {
        "n": publishing.NodeUpdate(PLAN, launch),
        "m": publishing.NodeUpdate({"stages": []}, None, waits=True),
    }
    words = {"window": (0, 16), "silence_seconds": 90, "ended": False, **fields}
    return publishing.watch_document(run, nodes, list(problems), run_seconds=1, begun_seconds=1, **words)


def test_no_secret_no_folder_and_no_command_is_reported():
    told = document()
    schemas.validate("watch", told, what="watch")
    text = json.dumps(told)
    for hidden in ("0123456789abcdef", "abcdefghijk", "/var/lib", "/usr/bin", "secret-command", "internal"):
        assert hidden not in text
    assert told["nodes"]["n"]["launch"]["message"].startswith("upload to https://store.example/b/k?")
    assert told["nodes"]["m"] == {"plan": None, "waits": True, "launch": None}


@pytest.fixture
def folder(tmp_path):
    folder = run_folder.RunFolder(tmp_path / "own" / "run-1")
    folder.write_run(make_run(["n", "m"], stages=["facts"]))
    return folder


def test_it_is_put_when_it_says_something_new_and_as_a_sign_of_life(store, folder):
    publisher = publishing.DocumentPublisher(folder)
    run = folder.read_run()
    assert publisher.publish(store, run, document(), 0)
    assert not publisher.publish(store, run, document(), 59)
    assert publisher.publish(store, run, document(), 61)
    assert publisher.publish(store, run, document(ended=True), 62)


def bring(store, folder, results):
    run = folder.read_run()
    publishing.put(store, run, publishing.RUN_FILE, run)
    return imported_run.import_run(store, run, results, ())


def test_a_copy_has_launches_and_problems_and_is_known_as_one(store, folder, tmp_path):
    problem = {"node": "n", "stage": None, "reason": "record refused: x"}
    publishing.DocumentPublisher(folder).publish(store, folder.read_run(), document(problems=[problem]), 0)
    results = tmp_path / "results"
    copy = bring(store, folder, results)
    assert copy.is_imported
    assert copy.read_launch("n")["state"] == "failed"
    assert copy.read_launch("m") == {}
    assert run_folder.read_json(copy.problems_file) == [problem]
    assert run_folder.known_runs(results) == []
    assert run_folder.own(results, "") is None
    assert opening.choose_run_id(results, "", copy.read_run()["nodes"], "quick", []) != "run-1"
    store.delete_prefix("folder/run_watch")
    publishing.DocumentPublisher(folder).publish(store, folder.read_run(), document(launch=None), 0)
    assert bring(store, folder, results).read_launch("n") == {}


def test_nothing_is_brought_over_a_run_of_this_controller(store, folder):
    with pytest.raises(run_folder.RunError, match="is a run of this controller"):
        bring(store, folder, folder.path.parent)


def test_a_copy_of_another_run_of_that_id_is_kept(store, folder, tmp_path):
    bring(store, folder, tmp_path / "results")
    folder.write_run({**folder.read_run(), "created_at": "2026-12-24T10:00:00Z"})
    with pytest.raises(run_folder.RunError, match="has another run of this id"):
        bring(store, folder, tmp_path / "results")


def test_a_copy_that_an_earlier_version_made_is_imported_anew(store, folder, tmp_path):
    results, run = tmp_path / "results", folder.read_run()
    copy = bring(store, folder, results)
    origin = {"inventory": ["/theirs/hosts.yml"], "store": "bucket b, embedded in /theirs", "namespace": ""}
    worker = {"host": "theirs", "pid": 1, "began": 1.0, "since": run["created_at"]}
    copy.write_run({**run, "origin": origin, "state": run_state.opened(run, worker, run["created_at"])})
    assert copy.inventory == []
    assert run_folder.known_runs(results) == []
    assert run_folder.own(results, run["run_id"]) is None
    assert bring(store, folder, results) == copy
    assert copy.seen().name == run_state.JUDGED and "origin" not in copy.read_run()


def judging(store, folder):
    run = folder.read_run()
    publishing.put(store, run, applied_criteria.CRITERIA_FILE, run_folder.read_json(folder.criteria_file))


def test_criteria_and_baseline_travel_whole(store, folder, tmp_path):
    site, base = tmp_path / "site.yml", tmp_path / "base.json"
    site.write_bytes(b"checks: []\r\n# caf\xc3\xa9\n")
    base.write_text("{}")
    applied_criteria.keep_criteria(folder, [str(site)], str(base))
    judging(store, folder)
    copy = bring(store, folder, tmp_path / "results")
    (criteria,), baseline, remarks = applied_criteria.judged_by(copy, [], "")
    assert Path(criteria).read_bytes() == site.read_bytes()
    assert Path(baseline).read_text() == "{}"
    assert remarks == []
    assert applied_criteria.judged_by(copy, [str(site)], str(base)) == ([str(site)], str(base), [])
    other = tmp_path / "other.yml"
    other.write_text("checks: []")
    _, _, remarks = applied_criteria.judged_by(copy, [str(other)], str(other))
    assert len(remarks) == 2


def test_a_run_judged_again_is_held_against_what_it_was_before(folder, tmp_path):
    site, base, other = tmp_path / "site.yml", tmp_path / "base.json", tmp_path / "other.json"
    for path in (site, base, other):
        path.write_text(path.name)
    applied_criteria.keep_criteria(folder, [str(site)], str(base))
    kept = folder.criteria_file.read_bytes()
    (criteria,), baseline, remarks = applied_criteria.judged_by(folder, [], "")
    assert (Path(criteria).read_text(), Path(baseline).read_text(), remarks) == ("site.yml", "base.json", [])
    applied_criteria.keep_criteria(folder, [], "")
    assert folder.criteria_file.read_bytes() == kept
    _, baseline, remarks = applied_criteria.judged_by(folder, [], str(other))
    assert baseline == str(other)
    assert remarks == ["gpuval_baseline differs from the one that judged the run before: so may the verdict"]
    applied_criteria.keep_criteria(folder, [], str(other))
    (criteria,), baseline, _ = applied_criteria.judged_by(folder, [], "")
    assert (Path(criteria).read_text(), Path(baseline).read_text()) == ("site.yml", "other.json")


def test_a_damaged_file_of_criteria_judges_nothing(store, folder, tmp_path):
    site = tmp_path / "site.yml"
    site.write_text("checks: []")
    applied_criteria.keep_criteria(folder, [str(site)], "")
    path = folder.criteria_file
    path.write_text(path.read_text().replace("checks", "cheeks"))
    judging(store, folder)
    with pytest.raises(run_folder.RunError, match=r"site\.yml is damaged"):
        bring(store, folder, tmp_path / "results")


def test_a_store_of_an_earlier_version_says_what_it_lacks(store, folder, tmp_path):
    copy = bring(store, folder, tmp_path / "results")
    for _time in range(2):
        _, _, (remark,) = applied_criteria.judged_by(copy, [], "")
        assert "set them here too" in remark
        copy = bring(store, folder, tmp_path / "results")


def test_where_nodes_lay_stays_with_the_run_and_goes_to_one_of_its_nodes(folder, tmp_path):
    run = folder.read_run()
    placed = [{"check": "slow"}]
    applied_criteria.keep_criteria(folder, [], "", placed)
    applied_criteria.keep_criteria(folder, [], "")
    assert applied_criteria.standings(folder) == placed
    one = {**run, "run_id": "one-of-them", "nodes": dict([next(iter(run["nodes"].items()))])}
    results = folder.path.parent
    assert applied_criteria.standings_before(results, one) == (placed, "run-1")
    assert applied_criteria.standings_before(results, {**one, "profile": "other"}) == ([], "")
    assert applied_criteria.standings_before(results, {**one, "nodes": {"stranger": {}}}) == ([], "")
