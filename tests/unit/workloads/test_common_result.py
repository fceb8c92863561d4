import json
import math

import pytest
from gpuval_workloads.common.result import (
    EXIT_CRASH,
    EXIT_FAILURE,
    EXIT_SUCCESS,
    WorkloadCrash,
    WorkloadFailure,
    WorkloadResult,
    run_workload,
    write_atomically,
)


@pytest.fixture
def result_file(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    monkeypatch.setenv("GPUVAL_RESULT_FILE", str(path))
    return path


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_becomes_null_everywhere(result_file, value):
    result = WorkloadResult(environment={"nested": [{"x": value}], "ok": 1.5})
    result.add_metric("a_seconds", value, "seconds")
    result.add_series("a_loss", "loss", [1, 2], [value, 2.0])
    result.write()
    written = json.loads(result_file.read_text(), parse_constant=pytest.fail)
    assert written["metrics"] == [{"name": "a_seconds", "value": None, "unit": "seconds", "scope": "node"}]
    assert written["series"][0]["y"] == [None, 2.0]
    assert written["environment"] == {"nested": [{"x": None}], "ok": 1.5}


@pytest.mark.parametrize(("needed", "missing"), [("", None), ("json", None), ("json gpuval_absent", "gpuval_absent")])
def test_packages_of_later_stages_that_are_missing_are_reported(result_file, monkeypatch, needed, missing):
    monkeypatch.setenv("GPUVAL_NEEDED_PACKAGES", needed)
    assert run_workload(lambda result: None) == EXIT_SUCCESS
    assert json.loads(result_file.read_text())["environment"].get("missing_packages") == missing


def test_a_package_of_later_stages_is_imported(result_file, monkeypatch, tmp_path):
    for name, text in {"whole": "", "broken": "import gpuval_absent", "of_gpu": "raise RuntimeError('CUDA')"}.items():
        (tmp_path / f"gpuval_{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("GPUVAL_NEEDED_PACKAGES", "gpuval_whole gpuval_broken gpuval_of_gpu")
    assert run_workload(lambda result: None) == EXIT_SUCCESS
    assert json.loads(result_file.read_text())["environment"]["missing_packages"] == "gpuval_broken"


def test_a_later_figure_replaces_an_earlier_one_of_the_same_scope():
    result = WorkloadResult()
    for value, scope in ((1, "node"), (2, "gpu:0"), (3, "node")):
        result.add_metric("a_count", value, "count", scope)
    assert [(m["value"], m["scope"]) for m in result.metrics] == [(2, "gpu:0"), (3, "node")]
    assert result.metric("a_count") == 3
    with pytest.raises(KeyError, match="gpu:1"):
        result.metric("a_count", "gpu:1")


@pytest.mark.parametrize(
    ("name", "scope"), [("A", "node"), ("1a", "node"), ("a" * 97, "node"), ("a", "gpu"), ("a", "x:1")]
)
def test_malformed_names_are_refused(name, scope):
    with pytest.raises(ValueError, match="is not a"):
        WorkloadResult().add_metric(name, 1, "count", scope)


@pytest.mark.parametrize(("x", "y", "x_unit"), [([1], [1, 2], "step"), ([math.nan], [1], "step"), ([1], [1], "hours")])
def test_malformed_series_are_refused(x, y, x_unit):
    with pytest.raises(ValueError, match=r"x"):
        WorkloadResult().add_series("a", "loss", x, y, x_unit=x_unit)


def test_reads_what_it_wrote(result_file):
    result = WorkloadResult(message="m", fingerprints={"a": "b"}, artifacts=["c"])
    result.add_metric("a_count", 1, "count", "rank:3")
    result.write()
    assert WorkloadResult.from_json(result_file.read_text()) == result


def test_prints_without_a_result_file(monkeypatch, capsys):
    monkeypatch.delenv("GPUVAL_RESULT_FILE", raising=False)
    WorkloadResult(state="success").write()
    assert json.loads(capsys.readouterr().out)["state"] == "success"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "f"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \udc80")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_success(result_file):
    assert run_workload(lambda result: result.add_metric("a_count", 1, "count")) == EXIT_SUCCESS
    assert json.loads(result_file.read_text())["state"] == "success"


def test_failure_keeps_the_figures_and_says_why(result_file, capsys):
    def main(result):
        result.add_metric("a_count", 1, "count")
        raise WorkloadFailure("the disk is full: make room")

    assert run_workload(main) == EXIT_FAILURE
    written = json.loads(result_file.read_text())
    assert (written["state"], written["message"]) == ("failure", "the disk is full: make room")
    assert written["metrics"][0]["value"] == 1
    assert "the disk is full" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "last_line"), [(WorkloadCrash("rank 1 died"), "crash: rank 1 died"), (KeyError("x"), "KeyError: 'x'")]
)
def test_a_crash_leaves_no_final_result(result_file, capsys, error, last_line):
    def main(result):
        result.write()
        raise error

    assert run_workload(main) == EXIT_CRASH
    assert json.loads(result_file.read_text())["state"] == "running"
    assert capsys.readouterr().err.strip().splitlines()[-1] == last_line
