"""cluster_test_report.json follows its schema, and says what report.json says."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.cluster_test import cluster_test_json

from tests.kit.builders import healthy, judge, make_run


def document(report):
    content = json.loads("".join(cluster_test_json(report)))
    schemas.validate("cluster_test", content, what="cluster_test_report.json")
    return content


@pytest.fixture
def run():
    return make_run(["good", "gone"], gpu_count=8, finished_at="2026-11-02T12:00:00+01:00")


def test_a_run_that_passed(run):
    content = document(judge(run, healthy(run)))
    assert list(content) == ["test_timestamp", "world_size", "validation", "performance", "status", "acceptance"]
    assert content["test_timestamp"] == "2026-11-02 11:00:00"
    assert content["world_size"] == 16
    good = content["validation"]["good"]
    assert (good["status"], good["accelerator"], good["gpu_count"], good["errors"]) == ("PASS", "nvidia", 8, [])
    assert good["stages"]["training"] == "success"
    assert content["performance"]["good"]["training_duration_seconds"] == 20.93
    assert (content["status"], content["acceptance"]["status"]) == ("success", "PASS")


def test_a_node_that_was_never_reached_has_an_error_and_no_figures(run):
    evidence = healthy(run)
    del evidence.records["gone"]
    evidence.launches["gone"] = {"state": "unreachable", "message": "No route to host"}
    report = judge(run, evidence)
    content = document(report)
    assert (content["status"], content["acceptance"]) == (
        "incomplete",
        {"status": "INCOMPLETE", "summary": report["summary"]},
    )
    assert content["performance"]["gone"] == {}
    assert content["world_size"] == 8, "GPUs that were only declared have no process"
    assert any("No route to host" in error for error in content["validation"]["gone"]["errors"])


def test_a_run_without_nodes(run):
    content = document(judge(make_run([]), healthy(make_run([]))))
    assert (content["world_size"], content["validation"], content["performance"]) == (0, {}, {})
