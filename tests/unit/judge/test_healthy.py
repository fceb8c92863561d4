"""Healthy nodes that report every metric of every stage are accepted, however their figures scatter."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import verdict
from healthy import LEFT_OUT, MODELS, SETTINGS, fleet

from tests.kit.builders import SHIPPED, TIME
from tests.kit.reported import ANYWHERE, REPORTED


@pytest.mark.parametrize(("sku", "setting"), list(zip(MODELS, SETTINGS, strict=True)))
def test_healthy_nodes_that_report_everything_are_accepted(sku, setting):
    run, evidence = fleet(sku, 9, setting, 1)
    report = verdict.judge(run, evidence, SHIPPED, judged_at=TIME)
    assert {node["verdict"] for node in report["nodes"]} == {"PASS"}
    assert {node["catalogue_sku"] for node in report["nodes"]} == {sku}


def test_every_metric_of_every_stage_is_reported():
    _, evidence = fleet("h200", 1, "normal", 1)
    for stage, names in REPORTED.items():
        if stage not in LEFT_OUT:
            told = {metric["name"] for metric in evidence.records["node-000"][stage]["metrics"]}
            assert {*names, *(ANYWHERE if stage != "facts" else ())} <= told
