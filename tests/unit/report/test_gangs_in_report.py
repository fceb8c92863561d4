"""Gangs in all forms of the report: who worked together, who did not, what the search found."""

import copy

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import report_section
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import markdown_report
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.html import html_report
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.summary import summary_lines
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder

from tests.kit.builders import healthy, judge, make_run

AT = "2026-11-02T10:30:00Z"
NODES = [f"node-{number}" for number in range(1, 7)]
FOUND = {
    "name": "all", "why": "node-1 gang_is_fast: slow", "began_at": AT, "ended_at": AT, "rounds": 4, "pairs": 9,
    "nodes": {name: "bad" if name == "node-3" else "healthy" for name in NODES[:5]}, "seconds": 60.0, "stopped": "",
    "bad_links": [["node-1", "node-2"]], "suspect_links": [], "bad_boundaries": [], "suspect_boundaries": [],
    "gang": ["<script>alert(1)</script> most of the gang is slow"],
    "evidence": {"node-3": ["41 GB/s with 3 partners"], "node-1 - node-2": ["8 % of good pairs"],
                 "rack r1 | rack r2": ["4 pairs across it: 40 % slower"]},
}  # fmt: skip
DOCUMENT = {
    "schema": "gpuval.gangs/1", "formed_at": AT, "ended_at": AT, "alone": [], "searches": {},
    "gangs": {"all": [{"node": name, "address": "a", "slots": 8, "vendor": "nvidia"} for name in NODES[:5]]},
    "left_out": {"node-6": "its driver is 570.1, 5 others have 580.2"}, "findings": {"all": FOUND},
    "rounds": [{"name": "all", "kind": "gangs", "gangs": {"all": NODES[:5]}, "ended_at": AT}],
}  # fmt: skip


def report_of(document, nodes=NODES):
    run = make_run(nodes, gpu_count=8)
    report = judge(run, healthy(run))
    report["fleet"]["gangs"] = report_section.of_document(document)
    report["summary"] = summary_lines(report)
    schemas.validate("report", report, what="report")
    return report


def test_the_report_holds_gangs_rounds_and_findings():
    gangs = report_of(DOCUMENT)["fleet"]["gangs"]
    assert gangs["formed"] == [{"gang": "all", "names": NODES[:5]}]
    assert gangs["left_out"] == [{"node": "node-6", "reason": DOCUMENT["left_out"]["node-6"]}]
    assert gangs["rounds"] == [{"name": "all", "kind": "gangs", "gangs": 1, "nodes": 5, "ended_at": AT}]
    (found,) = gangs["findings"]
    assert found["counts"] == {"healthy": 4, "bad": 1, "suspect": 0, "untested": 0}
    assert found["bad_links"] == [{"names": ["node-1", "node-2"]}]
    assert any("rack r1 | rack r2" in line for line in found["sentences"])


def test_the_block_names_who_was_left_out_links_and_boundaries():
    lines = report_of(DOCUMENT)["summary"]
    assert "Left out of the gangs: node-6: its driver is 570.1, 5 others have 580.2" in lines
    assert "Gang all searched in 4 rounds: 4 healthy, 1 bad" in lines
    assert "the link node-1 - node-2 is bad: 8 % of good pairs" in lines
    assert "rack r1 | rack r2: 4 pairs across it: 40 % slower" in lines
    assert any(line.startswith("node-3 is bad") for line in lines), "no line of a node says so: it did not fail here"


def test_a_node_that_failed_is_named_once_and_a_suspect_among_many_is_named():
    verdicts = dict.fromkeys(NODES, "INCOMPLETE") | {"node-3": "FAIL"}
    found = {**FOUND, "nodes": {**FOUND["nodes"], "node-4": "suspect", "node-5": "untested"}}
    lines = report_section.console_lines(report_section.of_document({**DOCUMENT, "findings": {"all": found}}), verdicts)
    assert not any(line.startswith("node-3 is bad") for line in lines), "the node has its own line"
    assert any(line.startswith("node-4 is suspect") for line in lines)
    assert any(line.startswith("node-5 is untested") for line in lines)


def test_nodes_that_never_worked_together_though_there_are_several_are_reported():
    run = make_run(NODES, gpu_count=8, profile="custom")
    assert any(line.startswith("No multi-node stage ran") for line in judge(run, healthy(run))["summary"])
    run = make_run(NODES[:1], gpu_count=8, profile="custom")
    assert not any(line.startswith("The nodes did not") for line in judge(run, healthy(run))["summary"])


def test_gangs_that_were_broken_off_or_never_formed_are_reported():
    assert "Gangs: interrupted before their end" in report_of({**DOCUMENT, "ended_at": None})["summary"]
    assert "Gangs: none was formed" in report_of({**DOCUMENT, "gangs": {}, "findings": {}, "rounds": []})["summary"]


def test_people_see_them_and_nothing_of_a_node_becomes_markup():
    report = report_of(DOCUMENT)
    page, text = html_report(report), markdown_report(report)
    assert '<section id="gangs"' in page
    assert "The search in gang all" in page
    assert "rack r1 | rack r2: 4 pairs across it" in page
    assert "<script>alert(1)" not in page + text
    assert "## Gangs" in text
    assert "gang all: 5 nodes: node-1, node-2" in text
    assert "left out: node-6: its driver" in text
    without = copy.deepcopy(report)
    del without["fleet"]["gangs"]
    assert 'id="gangs"' not in html_report(without)
    assert "## Gangs" not in markdown_report(without)


def test_a_thousand_nodes_and_endless_sentences_stay_small():
    names = [f"node-{number:04}" for number in range(1000)]
    member = {"address": "a", "slots": 8, "vendor": "nvidia"}
    found = {**FOUND, "nodes": dict.fromkeys(names, "suspect"), "gang": ["x" * 9000] * 900,
             "evidence": {name: ["y" * 9000] for name in names},
             "bad_links": [[one, two] for one, two in zip(names, names[1:], strict=False)]}  # fmt: skip
    document = {
        **DOCUMENT, "gangs": {"all": [{"node": name, **member} for name in names]}, "findings": {"all": found},
        "left_out": dict.fromkeys(names, "z" * 9000),
        "rounds": [{"name": f"search-{n}", "kind": "search", "gangs": {"all": names[:2]}, "ended_at": AT}
                   for n in range(900)],
    }  # fmt: skip
    report = report_of(DOCUMENT, names[:3])
    report["fleet"]["gangs"] = report_section.of_document(document)
    schemas.validate("report", report, what="report")
    assert len(folder.json_bytes(report["fleet"]["gangs"])) < 700_000
    base = len(html_report(report_of(DOCUMENT, names[:3])))
    assert len(html_report(report)) - base < 80_000
    assert len(markdown_report(report)) < 120_000
    assert len(summary_lines(report)) < 40


@pytest.mark.parametrize("field", ["left_out", "findings", "rounds"])
def test_a_part_that_is_empty_is_fine(field):
    document = {**DOCUMENT, field: [] if field == "rounds" else {}}
    report = report_of(document)
    assert html_report(report)
    assert markdown_report(report)
