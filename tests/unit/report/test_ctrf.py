"""ctrf-report.json follows the public schema of its format, whatever nodes wrote."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import accept_record
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.ctrf import ctrf_json

from tests.kit.builders import healthy, judge, make_record, make_run, metric, training_metrics, write_report

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "tests/data/ctrf/ctrf-schema-0.0.json").read_text())
VALIDATOR = jsonschema.Draft7Validator(SCHEMA, format_checker=jsonschema.FormatChecker())


def document(report):
    found = json.loads("".join(ctrf_json(report)))
    errors = [f"{list(error.path)}: {error.message}" for error in VALIDATOR.iter_errors(found)]
    assert errors == []
    return found


@pytest.fixture
def mixed():
    """A node that passes, one with a slow GPU, one that passed as attempt 2, one that was never reached."""
    run = make_run(["good", "slow", "flaky", "gone"], gpu_count=8, finished_at="2026-11-02T11:00:00Z")
    evidence = healthy(run)
    evidence.records["slow"]["training"]["metrics"] = [
        {**one, "value": 1.0} if one["scope"] == "gpu:3" else one for one in training_metrics()
    ]
    before = {**make_record("flaky", state="crash", message="killed"), "attempts": []}
    evidence.records["flaky"]["training"] |= {"attempt": 2, "attempts": [before]}
    del evidence.records["gone"]
    evidence.launches["gone"] = {"state": "unreachable", "message": "No route to host"}
    return judge(run, evidence)


def test_the_schema_refuses_what_it_should():
    """The test would see a mistake."""
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate({"reportFormat": "CTRF", "specVersion": "0", "results": {}})


def test_a_report_is_a_ctrf_report(mixed):
    galaxy = yaml.safe_load((ROOT / "collections/ansible_collections/gpuval/fleet/galaxy.yml").read_text())
    assert document(mixed)["results"]["tool"] == {"name": "gpuval", "version": galaxy["version"]}
    found = document(mixed)
    summary, tests = found["results"]["summary"], found["results"]["tests"]
    assert (found["runId"], found["specVersion"]) == ("run-1", "0.0.0")
    assert summary["tests"] == len(tests) == sum(len(node["checks"]) for node in mixed["nodes"])
    assert summary["stop"] - summary["start"] == 3_600_000
    assert (summary["suites"], summary["flaky"]) == (4, 1)
    assert sum(summary[status] for status in ("passed", "failed", "skipped", "pending", "other")) == len(tests)
    for status in ("passed", "failed", "skipped", "pending", "other"):
        assert summary[status] == sum(test["status"] == status for test in tests)
    environment = found["results"]["environment"]
    assert (environment["healthy"], environment["extra"]["verdict"]) == (False, "FAIL")


def test_what_failed_names_part_remedy_and_action(mixed):
    tests = document(mixed)["results"]["tests"]
    (failed,) = [test for test in tests if test["suite"] == ["slow", "training"] and test["status"] == "failed"]
    assert failed["name"] == "tflops [gpu:3]"
    assert "(gpu:3, serial 165493, 0000:93:00.0)" in failed["message"]
    assert "\nremedy: look at the clocks" in failed["trace"]
    assert failed["trace"].endswith("\naction: retest gpu:3, serial 165493, 0000:93:00.0 (tflops)")
    assert failed["extra"] == {"value": 1.0, "unit": "TFLOP/s"}
    (gone,) = [test for test in tests if test["suite"][0] == "gone"]
    assert (gone["name"], gone["status"], gone["rawStatus"]) == ("launch", "other", "missing")
    (again,) = [test for test in tests if test.get("flaky")]
    assert (again["name"], again["suite"], again["retries"]) == ("training_state", ["flaky", "training"], 1)
    assert again["duration"] == 25_000


def test_a_run_of_no_nodes_and_one_that_passed():
    empty = document(judge(make_run([]), healthy(make_run([]))))["results"]
    assert (empty["tests"], empty["environment"]["healthy"]) == ([], False)
    run = make_run(["node-1"])
    found = document(judge(run, healthy(run)))["results"]
    assert found["environment"]["healthy"] is True
    assert found["summary"]["failed"] == 0


def test_texts_of_nodes_break_nothing():
    nasty = '"}]}\x1b[2J\u202e\ud800 \\ <script>\n'
    run = make_run(["evil"], gpu_count=8)
    evidence = healthy(run)
    record = make_record(
        "evil", state="failure", message=nasty, metrics=[metric("training_tokens_per_second", 1.7e308, nasty)]
    )
    raw = json.dumps(record).encode()
    evidence.records["evil"]["training"] = accept_record(raw, run_id=run["run_id"], node="evil", stage="training")
    report = judge(run, evidence)
    text = "".join(ctrf_json(report))
    document(report)
    assert text.isascii()
    assert "\\u001b" not in text and "\\u202e" not in text and "\\ud800" not in text


def test_it_is_among_the_forms(mixed, tmp_path):
    paths = write_report(mixed, tmp_path / "run")
    VALIDATOR.validate(json.loads(paths["ctrf-report.json"].read_text()))
    assert paths["ctrf-report.json"].read_text() == "".join(ctrf_json(mixed))
