import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.lookup import find_node, node_facts

from tests.kit.builders import healthy, judge, make_run, training_metrics
from tests.kit.reports import json_text


@pytest.fixture(scope="module")
def report():
    run = make_run(["node-1", "node-10"], gpu_count=8)
    evidence = healthy(run)
    evidence.records["node-10"]["training"]["metrics"] = training_metrics(tflops=100.0)
    return judge(run, evidence)


@pytest.mark.parametrize("layout", [json_text, json.dumps, lambda report: json.dumps(report, indent=2)])
@pytest.mark.parametrize("name", ["node-1", "node-10"])
def test_node_is_found_in_any_layout(report, layout, name):
    head, node = find_node(layout(report), name)
    assert node == next(node for node in report["nodes"] if node["name"] == name)
    assert head["verdict"] == report["verdict"]
    assert head["run"] == report["run"]


def test_unknown_node_and_damaged_text(report):
    with pytest.raises(KeyError):
        find_node(json_text(report), "node-2")
    with pytest.raises(ValueError, match="Expecting"):
        find_node("{", "node-1")


def test_facts(report):
    facts = node_facts(report, report["nodes"][0])
    assert facts["run_id"] == "run-1"
    assert facts["verdict"] == "PASS"
    assert facts["metrics"]["training_tokens_per_second"] == 56000.0
    assert facts["units"]["training_tokens_per_second"] == "tokens/s"
    assert facts["parts"]["training_model_tflops"]["gpu:3"] == 703.0
    assert facts["stages"]["training"]["state"] == "success"
    assert facts["stages"]["training"]["duration_seconds"] == 25.0
    assert facts["failed_checks"] == []
    bad = node_facts(report, report["nodes"][1])
    assert bad["run_verdict"] == bad["verdict"] != "PASS"
    (check,) = [one for one in bad["failed_checks"] if one["verdict"] == "fail"]
    assert {"stage": "training", "remedy": "look at the clocks"}.items() <= check.items()
