"""The dashboard and the alert rules that ship: valid, and about metrics that are exported."""

import json
import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.prometheus import help_texts

from tests.unit.report.test_prometheus import promtool

FOLDER = Path(__file__).resolve().parents[3] / "collections/ansible_collections/gpuval/fleet/monitoring"
ALERTS = FOLDER / "alerts.yml"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
RULES = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *(rule["expr"] for rule in RULES)])
def test_every_metric_is_exported(expression):
    named = re.findall(r"gpuval_\w+", expression)
    assert named
    assert set(named) <= help_texts().keys()


def test_panels_are_told_apart_and_fill_the_grid():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(cells)[0] == 23
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(panels))) == variables


def test_prometheus_reads_every_query_and_rule(tmp_path):
    assert promtool("check", "rules", str(ALERTS))[0] == 0
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(EXPRESSIONS)]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    code, said = promtool("check", "rules", str(tmp_path / "panels.yml"))
    assert code == 0, said
    (tmp_path / "panels.yml").write_text((tmp_path / "panels.yml").read_text().replace("sum by", "sum bye"))
    assert promtool("check", "rules", str(tmp_path / "panels.yml"))[0] != 0


def test_a_node_that_failed_is_an_alert_with_its_action(tmp_path):
    action = 'gpuval_health_action{node="%s",action="reboot",class="training_xid",run_id="run-1"}'
    verdict = 'gpuval_health_verdict{node="%s",verdict="FAIL"}'
    series = {action % "bad": "1x5", verdict % "bad": "1x5", action % "late": "1x5", verdict % "late": "0x5"}
    labels = {"node": "bad", "action": "reboot", "class": "training_xid", "run_id": "run-1", "severity": "warning"}
    texts = {
        "summary": "bad failed validation (training_xid): reboot",
        "description": "Read report.html of run run-1.",
    }
    alert = {
        "eval_time": "1m",
        "alertname": "GpuvalNodeFailed",
        "exp_alerts": [{"exp_labels": labels, "exp_annotations": texts}],
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [alert],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": [test]}))
    code, said = promtool("test", "rules", str(tmp_path / "test.yml"))
    assert code == 0, said
