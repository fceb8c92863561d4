"""A run that ended keeps the evidence that it was judged on, whatever its nodes still write with their signed URLs."""

import json
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import StoreError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import CHANGED, LATE, UNREAD
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import applied_criteria, publishing
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps import collect_run
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import imported_run

from tests.kit.actions import Outcome, run_action
from tests.kit.builders import LAUNCHED, healthy_records, make_record, make_run
from tests.kit.run_commands import placed

NODES = ["good", "bad", "silent"]
KEY = "folder/records/{stage}/{node}.json"


def put(store, node, record):
    store.put(KEY.format(stage=record["stage"], node=node), json.dumps(record).encode())


class Collect(collect_run.RunCollection):
    """What it does with the store, without a play around it."""

    def __init__(self, store, folder):
        super().__init__(SimpleNamespace(display=Outcome()), collect_run.CollectRunOptions(store={}))
        self.store = store
        verdict = publishing.judged(folder)
        self.judged = verdict["evidence"] if verdict else {}
        self.is_judged = publishing.is_final(folder.read_run(), verdict)
        self.publishes = not folder.is_imported
        self._collect_run(folder)


def judge(folder, *, finish=False):
    options = {"run_id": folder.path.name, "results_dir": str(folder.results), "finish": finish}
    run_action("judge_run", options).result  # noqa: B018 - raised where it failed
    report = run_folder.read_report(folder)
    return {node["name"]: node["verdict"] for node in report["nodes"]}, report


def told(report):
    return {(one["node"], one["stage"], one["reason"]) for one in report["fleet"]["problems"]}


@pytest.fixture
def own(store, tmp_path):
    """A run that its controller has judged: one node passed, one crashed, one has no record of its last stage."""
    run = make_run(NODES, gpu_count=8)
    folder = placed(tmp_path / "own", run["run_id"])
    folder.write_run(run)
    for node in NODES:
        run_folder.write_json(folder.launch_file(node), {"node": node, **LAUNCHED})
        records = healthy_records(node)
        if node == "bad":
            records["training"] = make_record(node, state="crash", message="killed by SIGKILL")
        if node == "silent":
            del records["inference"]
        for record in records.values():
            put(store, node, record)
    publishing.put(store, run, publishing.RUN_FILE, run)
    Collect(store, folder)
    verdicts, report = judge(folder, finish=True)
    assert (verdicts["bad"], verdicts["silent"]) == ("FAIL", "INCOMPLETE")
    assert set(report["nodes"][0]["evidence"]) == {"facts", "training", "loading", "inference"}
    publishing.put(store, run, publishing.RUN_FILE, folder.read_run())
    store.put("folder/report/verdict.json", folder.verdict_file.read_bytes())
    return folder


def cheat(store):
    """What the nodes still can: put a success where there was a crash, and one where there was nothing."""
    put(store, "bad", healthy_records("bad")["training"])
    put(store, "silent", healthy_records("silent")["inference"])


def imported(store, own, results="other"):
    """As `make report` brings it to another machine."""
    folder = imported_run.import_run(store, own.read_run(), own.results.parent / results, ())
    Collect(store, folder)
    return folder


def test_the_controller_keeps_what_it_judged_and_names_what_changed(store, own):
    before, _ = judge(own)
    cheat(store)
    store.put("folder/logs/training/bad.log", b"all was well")
    Collect(store, own)
    after, report = judge(own)
    assert after == before
    assert told(report) == {("bad", "training", CHANGED), ("silent", "inference", LATE)}
    assert "killed by SIGKILL" in own.evidence_file("bad", "training").read_text()
    assert not own.evidence_file("silent", "inference").exists()
    assert any("Problems of the evidence" in line for line in report["summary"])


@pytest.mark.parametrize("results", ["other", "third"])
def test_an_imported_run_never_has_a_better_verdict_than_the_run_had(store, own, results):
    before, first = judge(imported(store, own))
    assert told(first) == set()
    cheat(store)
    after, report = judge(imported(store, own, results))
    assert after == before
    assert told(report) == {("bad", "training", CHANGED), ("silent", "inference", LATE)}
    checks = [one for one in report["nodes"][0]["checks"] if one["name"] == "evidence_unchanged"]
    assert report["nodes"][0]["name"] == "bad"
    assert [check["verdict"] for check in checks] == ([] if results == "other" else ["fail"])
    assert report["nodes"][0]["evidence"] == first["nodes"][0]["evidence"], "the digests stay those of the verdict"


@pytest.mark.parametrize("node", ["good", "bad"])
def test_a_record_that_was_removed_is_named_and_improves_nothing(store, own, node):
    before, _ = judge(imported(store, own))
    store.delete_prefix(KEY.format(stage="training", node=node))
    assert judge(imported(store, own))[0] == before, "it was imported before"
    after, report = judge(imported(store, own, "third"))
    assert after[node] == ("INCOMPLETE" if node == "good" else "FAIL")
    assert (node, "training", CHANGED) in told(report)
    assert {**after, node: before[node]} == before


def files_of(folder):
    return {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


@pytest.mark.parametrize("failing", [publishing.WATCH_FILE, publishing.VERDICT_FILE, applied_criteria.CRITERIA_FILE])
def test_an_import_that_is_broken_off_changes_nothing(store, own, monkeypatch, failing):
    folder = imported(store, own)
    judge(folder)
    before, run = files_of(folder), {**own.read_run(), "finished_at": None}
    whole = store.get_if_there

    def get(key, **limits):
        if key.endswith(failing):
            raise StoreError("away")
        return whole(key, **limits)

    monkeypatch.setattr(store, "get_if_there", get)
    with pytest.raises(StoreError):
        imported_run.import_run(store, run, folder.results, ())
    assert files_of(folder) == before


def test_the_evidence_of_an_imported_run_stays_until_the_store_was_read(store, own, monkeypatch):
    run = {**own.read_run(), "finished_at": None}
    folder = imported_run.import_run(store, run, own.results.parent / "other", ())
    Collect(store, folder)
    evidence = {path: data for path, data in files_of(folder).items() if "nodes" in path.parts}
    assert evidence
    imported_run.import_run(store, run, folder.results, ())
    whole = store.get

    def get(key, **limits):
        if "training" in key:
            raise StoreError("away")
        return whole(key, **limits)

    with monkeypatch.context() as patch:
        patch.setattr(store, "get", get)
        with pytest.raises(StoreError):
            Collect(store, folder)
    assert evidence.items() <= files_of(folder).items()
    assert not folder.collected_file.exists()
    imported_run.import_run(store, own.read_run(), folder.results, ())
    store.put("folder/logs/training/bad.log", b"its end")
    Collect(store, folder)
    before, report = judge(folder)
    assert told(report) == set()
    assert before == judge(own)[0]
    assert folder.evidence_file("bad", "training", "logs").read_text() == "its end\n"


def test_an_imported_run_that_had_not_ended_is_never_ended_here(store, own):
    run = {**own.read_run(), "finished_at": None}
    folder = imported_run.import_run(store, run, own.results.parent / "other", ())
    Collect(store, folder)
    _, report = judge(folder, finish=True)
    assert report["run"]["finished_at"] is None
    assert folder.read_run()["finished_at"] is None


def test_a_run_is_imported_anew_until_its_own_controllers_verdict_is_there(store, own):
    store.delete(["folder/report/verdict.json"])
    folder = imported(store, own)
    judge(folder)
    cheat(store)
    store.put("folder/report/verdict.json", own.verdict_file.read_bytes())
    imported(store, own)
    assert publishing.judged(folder) == publishing.judged(own)
    assert told(judge(folder)[1]) == {("bad", "training", CHANGED), ("silent", "inference", LATE)}


def test_criteria_for_an_imported_run_count_once(store, own, tmp_path):
    site = tmp_path / "site.yml"
    site.write_text("checks:\n  - {name: slow, stage: training, metric: train_loss_last, max: 0}\n")
    folder = imported(store, own)
    before, verdict = applied_criteria.kept_criteria(folder), folder.verdict_file.read_bytes()
    options = {"run_id": folder.path.name, "results_dir": str(folder.results), "finish": False}
    run_action("judge_run", {**options, "criteria": [str(site)]}).result  # noqa: B018 - raised where it failed
    assert applied_criteria.kept_criteria(folder) == before
    assert folder.verdict_file.read_bytes() == verdict, "that of its controller stays"
    assert "set them here too" in run_action("judge_run", options).text


def test_a_file_of_the_results_that_was_edited_does_not_count(own):
    own.evidence_file("bad", "training").write_text(json.dumps(healthy_records("bad")["training"]))
    after, report = judge(own)
    assert after["bad"] == "FAIL"
    assert ("bad", "training", CHANGED) in told(report)


def again(own, store, *relaunched):
    """The run validated again: it goes on, and some of its nodes are launched anew."""
    cheat(store)
    Collect(store, own)
    own.write_run({**own.read_run(), "finished_at": None})
    for node in relaunched:
        launch = own.read_launch(node)
        run_folder.write_json(own.launch_file(node), {**launch, "at": "2100-01-01T00:00:00Z"})
    Collect(store, own)
    return judge(own, finish=True)


def test_a_run_that_is_validated_again_takes_what_came_late_and_nothing_that_changed(store, own):
    verdicts, report = again(own, store)
    assert told(report) == {("bad", "training", CHANGED)}
    assert own.evidence_file("silent", "inference").exists()
    assert verdicts["bad"] == "FAIL"
    assert "inference" in next(node for node in report["nodes"] if node["name"] == "silent")["evidence"]


def test_a_node_that_is_launched_again_has_new_records(store, own):
    verdicts, report = again(own, store, "bad")
    assert told(report) == set()
    assert verdicts["bad"] == verdicts["good"]


def test_a_verdict_file_that_is_damaged_is_named(own):
    own.verdict_file.write_text('{"schema": "gpuval.verdict/1"}')
    options = {"run_id": own.path.name, "results_dir": str(own.results)}
    assert "verdict.json is damaged" in run_action("judge_run", options).text


def test_a_run_stays_open_while_the_record_of_a_further_attempt_is_unread(store, tmp_path):
    run = make_run(["n1"], stages=["training"])
    folder = run_folder.RunFolder(tmp_path / run["run_id"])
    folder.write_run(run)
    first = healthy_records("n1")["training"]
    put(store, "n1", first)
    Collect(store, folder)
    run_folder.write_json(folder.launch_file("n1"), {"node": "n1", **LAUNCHED, "attempt": 2, "stages": ["training"]})
    put(store, "n1", {**first, "attempt": 2, "attempts": [{**first, "exit_code": 0}]})
    listing = store.list

    def refused(_prefix):
        raise StoreError("AccessDenied")

    store.list = refused
    Collect(store, folder)
    assert {problem["stage"] for problem in folder.read_problems()} == {None, "training"}
    judge(folder, finish=True)
    assert folder.read_run()["finished_at"] is None
    store.list = listing
    Collect(store, folder)
    assert not [problem for problem in folder.read_problems() if problem["reason"].startswith((UNREAD, LATE))]
    judge(folder, finish=True)
    assert folder.read_run()["finished_at"]
