"""Files of a thousand nodes stay small: report.json within 40 MB, perf.csv within 30 MB."""

import csv
import importlib.util
import json

from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import perf_csv

from tests.kit.fleet import ROOT

NODES, WANTED = 48, 1000


def test_files_of_a_thousand_nodes(tmp_path):
    spec = importlib.util.spec_from_file_location("report_fleet", ROOT / "benchmarks/report/fleet.py")
    fleet = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fleet)
    fleet.write(tmp_path, NODES, points=2)
    fleet.judge(tmp_path)
    path = tmp_path / "report.json"
    text = path.read_text()
    document = json.loads(text)
    nodes = len(text[text.index(report_file.NODES) : text.rindex('"fleet": ')])
    assert nodes * WANTED / NODES + len(text) - nodes < 40e6
    assert any("{value}" in texts["reason"] for texts in document["criteria"].values())
    report = report_file.unpacked(document)
    table = perf_csv(report)
    assert len(table) * WANTED / NODES < 30e6
    whole = csv.DictReader(perf_csv({**report, "nodes": report["nodes"][:1]}).splitlines())
    rows = list(csv.DictReader(table.splitlines()))
    left_out = [row for row in whole if row not in rows]
    assert {(row["unit"], row["performance"], row["max"] or "0") for row in left_out} == {("count", "0", "0")}
