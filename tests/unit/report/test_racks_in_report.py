"""Racks in every form of the report."""

import json
from xml.etree import ElementTree as ET

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery.report_conversion import converted
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.conversion import (
    InternalData,
    InternalDataConverter,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.differences import differences
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.prometheus import run_text
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.summary import final_block

from tests.kit.builders import write_report
from tests.kit.rack_fleet import RackFleet, chassis_of, uuid_of


@pytest.fixture(scope="module")
def report():
    """Three racks: one is whole, one has a tray of another, one lacks a tray. Every node passes."""
    fleet = RackFleet(3)
    fleet.set("r01-t03", chassis_serial=chassis_of(8), firmware_version="1.2")
    fleet.drop("r02-t09")
    return fleet.judged()


@pytest.fixture(scope="module")
def forms(report, tmp_path_factory):
    return write_report(report, tmp_path_factory.mktemp("report"))


def test_the_block_counts_racks_and_names_the_bad_ones(report):
    lines = final_block(report).splitlines()
    assert lines[1] == "FINAL ACCEPTANCE: FAIL"
    assert lines[2:4] == [
        "- Nodes: 53 expected, 53 PASS, 0 FAIL, 0 INCOMPLETE",
        "- Racks: 1 PASS, 1 FAIL, 1 INCOMPLETE",
    ]
    assert lines[4].startswith("- rack r01 FAIL rack_chassis: chassis serial differs: r01-t03 (slot 3, tray 3, host 1)")
    assert " (and rack_vbios): Check slot and NVLink cabling" in lines[4]
    assert lines[5].startswith("- rack r02 INCOMPLETE rack_trays: 17 of 18 trays: Add the missing trays")


def test_a_rack_is_a_suite_of_junit_and_of_ctrf(forms):
    suites = {suite.get("name"): suite for suite in ET.parse(forms["junit.xml"]).getroot()}
    assert {name: suite.get("failures") for name, suite in suites.items() if name.startswith("rack ")} == {
        "rack r00": "0", "rack r01": "2", "rack r02": "0"
    }  # fmt: skip
    assert suites["rack r02"].get("errors") == "1"
    (failure, *_) = suites["rack r01"].iter("failure")
    assert "r01-t03" in failure.get("message")
    tests = json.loads(forms["ctrf-report.json"].read_text())["results"]["tests"]
    failed = [test["name"] for test in tests if test["suite"][0] == "rack r01" and test["status"] == "failed"]
    assert failed == ["rack_chassis [rack]", "rack_vbios [rack]"]


def test_markdown_has_a_row_for_each_rack(forms):
    rows = [
        line for line in forms["report.md"].read_text().splitlines() if line.startswith("| r0") and "-t" not in line[:8]
    ]
    assert [row.split(" | ")[:4] for row in rows] == [
        ["| r00", "PASS", "18 of 18", "72 of 72"],
        ["| r01", "FAIL", "18 of 18", "72 of 72"],
        ["| r02", "INCOMPLETE", "17 of 18", "68 of 72"],
    ]


def test_prometheus_has_verdicts_and_failed_checks(report):
    text = run_text(report)
    assert 'gpuval_rack_verdict{rack="r01",sku="gb200",run_id="run-1",verdict="FAIL"} 1' in text
    assert 'gpuval_rack_check_status{rack="r01",stage="facts",check="rack_chassis",status="fail"} 1' in text
    assert 'gpuval_rack_check_status{rack="r00"' not in text


def test_a_changed_rack_is_a_difference_of_reports(report, tmp_path):
    forms = write_report(report, tmp_path)
    edited = tmp_path / "edited.json"
    edited.write_text(forms["report.json"].read_text().replace('"name": "r01", "sku"', '"name": "r07", "sku"'))
    texts = [difference.text() for difference in differences(edited, forms["report.json"])]
    assert texts == ["report.json: racks: kept r07; judged again r01"]


def test_a_delivery_names_trays_by_their_ids(report):
    names = {node["name"]: f"unit-{number}" for number, node in enumerate(report["nodes"])}
    converter = InternalDataConverter(InternalData(names=names, run_id="run-1"))
    delivered = converted(json.loads(json.dumps(report, default=list)), converter, "delivery")
    rack = delivered["racks"][1]
    assert rack["domain_uuid"] == uuid_of(1)
    assert {tray["node"] for tray in rack["trays"]} == {names[f"r01-t{number:02}"] for number in range(18)}
    (check,) = (check for check in rack["checks"] if check["name"] == "rack_chassis")
    assert check["nodes"] == [names["r01-t03"]]
    assert names["r01-t03"] in check["reason"]
    assert "r01-t" not in json.dumps(delivered["racks"])
