"""Run folders, baselines and inventories that release 1.0.0 wrote are read by what reads them today."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import version
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import document as gang_document
from ansible_collections.gpuval.fleet.plugins.plugin_utils.history import projection
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import baseline, compare
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import evidence, report_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import write_forms
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.page import compared
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import opening, overview, publishing

from tests.kit.actions import run_action

RELEASE = Path(__file__).parents[2] / "data/release_1_0"
PLACES = ("kubernetes", "local", "ssh")
#: What 1.0.0 judged: how many nodes it accepted, failed, and found incomplete.
JUDGED = {"kubernetes": [4, 1, 0], "local": [1, 0, 0], "ssh": [3, 2, 1]}


@pytest.fixture(params=PLACES)
def place(request):
    return request.param


@pytest.fixture
def run(place, tmp_path):
    """A copy of the latest run of an inventory."""
    results = tmp_path / "results"
    shutil.copytree(RELEASE / place / "results", results, symlinks=True)
    return run_folder.latest_run(results)


def test_a_run_is_read_and_listed(run, place):
    document = run.read_run()
    assert run.seen().name == "judged"
    assert document["run_id"] in str(overview.rows(run.path.parent, None))
    for name, node in document["nodes"].items():
        assert run.read_launch(name)["state"] in ("started", "finished", "unreachable")
        for stage in node["stages"]:
            path = run.evidence_file(name, stage)
            if path.exists():
                record = evidence.accept_record(path.read_bytes(), run_id=document["run_id"], node=name, stage=stage)
                assert record["state"]
        assert projection.line_of(name, node, None)["stages"]
    gangs = gang_document.read(run)
    assert (gangs is None) == (place == "local")


def test_a_report_is_read_shown_and_compared(run, place):
    report = report_file.unpacked(report_file.read(run.path / "report.json"))
    assert [report["counts"][word] for word in ("PASS", "FAIL", "INCOMPLETE")] == JUDGED[place]
    expected = run.read_run()["nodes"]
    lines = [projection.line_of(node["name"], expected[node["name"]], node) for node in report["nodes"]]
    assert [line["verdict"] for line in lines] == [node["verdict"] for node in report["nodes"]]
    compared.Comparison(report, run.path)
    write_forms(report, run.path)
    assert (run.path / "report.html").stat().st_size > 100_000


def test_a_run_that_is_judged_again_keeps_its_evidence(run):
    before = publishing.judged(run)
    results = run.results
    outcome = run_action("judge_run", {"run_id": run.path.name, "results_dir": str(results)})
    assert not outcome.failed, outcome.text
    run = run_folder.latest_run(results)
    written = report_file.read(run.path / "report.json")
    schemas.validate("report", written, what="report.json")
    report = report_file.unpacked(written)
    assert {node["name"] for node in report["nodes"]} == before["nodes"].keys()
    assert {node["name"]: node["evidence"] for node in report["nodes"]} == before["evidence"]
    changed = [problem for problem in report["fleet"]["problems"] if problem["reason"] == evidence.CHANGED]
    assert changed == []


def test_checks_that_judge_otherwise_than_1_0_are_named_once(run, place):
    options = {"run_id": run.path.name, "results_dir": str(run.results)}
    first = run_action("judge_run", options)
    again = run_action("judge_run", options)
    named = [line for line in first.lines if "kept PASS; judged again INCOMPLETE (facts_coherent)" in line]
    assert len(named) == (3 if place == "ssh" else 0)
    assert ("an earlier release judged this run before" in first.text) == (place != "local")
    assert "judged this run before" not in again.text


def test_a_run_that_1_0_left_at_work_is_not_resumed_but_reported_and_closed(run, tmp_path):
    for name in ("report.json", ".state/verdict.json"):
        (run.path / name).unlink(missing_ok=True)
    run.write_run({**run.read_run(), "finished_at": None})
    unfinished, results = run.read_run(), run.results
    told = "was begun by gpuval 1.0, and .* does not resume it: run `make report`, which judges .*, then `make clean`"
    with pytest.raises(run_folder.RunError, match=told):
        opening.merge(unfinished, {**unfinished, "version": version()})
    assert unfinished["run_id"] in str(overview.rows(results, None))
    outcome = run_action("judge_run", {"run_id": run.path.name, "results_dir": str(results)})
    assert not outcome.failed, outcome.text
    run = run_folder.latest_run(results)
    report = report_file.unpacked(report_file.read(run.path / "report.json"))
    assert {node["name"] for node in report["nodes"]} == unfinished["nodes"].keys()
    store = {"bucket": unfinished["bucket"], "state_dir": str(tmp_path / "state")}
    options = {"state": "closed", "run_id": run.path.name, "results_dir": str(results), "store": store}
    options["namespace"] = unfinished.get("origin", {}).get("namespace", "")
    closed = run_action("clean_run", options)
    assert not closed.failed, closed.text
    assert closed.result["run_ids"] == [run.path.name]
    assert run_folder.latest_run(results).read_run()["finished_at"]


@pytest.mark.parametrize("path", sorted(RELEASE.glob("*/baselines/*.json")), ids=lambda path: path.parts[-3])
def test_a_baseline_is_read(path):
    of_release = baseline.read(path)
    assert compare.diff(of_release, of_release) == []
    assert len(compare.repeatability(of_release.document)) == len(of_release.document["figures"])


def test_an_inventory_is_there_with_its_variables(place):
    files = [path for path in (RELEASE / place / "inventory").rglob("*") if path.suffix in (".yml", ".json")]
    assert files
    for path in files:
        assert yaml.safe_load(path.read_text()) is not None or path.parent.name == "group_vars"


def test_no_secret_is_kept():
    for path in RELEASE.glob("*/results/2*/**/*"):
        if path.is_file():
            text = path.read_text()
            for word in ("X-Amz-", "BEGIN ", "secret_key", "AWSAccessKeyId", "password"):
                assert word not in text, f"{path}: {word}"
            if path.suffix == ".json":
                json.loads(text)
