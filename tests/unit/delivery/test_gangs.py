"""Gangs in a delivery: no node of them keeps its name."""

import json

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery import report_conversion
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import report_section
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.conversion import (
    InternalData,
    InternalDataConverter,
)

from tests.kit.builders import healthy, judge, make_run

AT = "2026-11-02T10:30:00Z"
NAMES = {"hall3-a": "W-1", "hall3-b": "W-2", "hall3-c": "W-3", "gpu": "W-4"}
FOUND = {
    "name": "all", "why": "hall3-a is slow", "began_at": AT, "ended_at": AT, "rounds": 4, "pairs": 9, "seconds": 60.0,
    "nodes": {"hall3-a": "bad", "hall3-b": "healthy"}, "stopped": "", "bad_links": [["hall3-a", "hall3-b"]],
    "suspect_links": [], "bad_boundaries": [], "suspect_boundaries": [], "gang": [],
    "evidence": {"hall3-a": ["41 GB/s with hall3-b"], "hall3-a - hall3-b": ["8 % of good pairs"]},
}  # fmt: skip


def test_nodes_of_gangs_are_named_by_ids():
    run = make_run(list(NAMES), gpu_count=8)
    report = judge(run, healthy(run))
    member = {"address": "10.0.0.1", "slots": 8, "vendor": "nvidia"}
    report["fleet"]["gangs"] = report_section.of_document({
        "formed_at": AT, "ended_at": AT, "gangs": {"all": [{"node": name, **member} for name in FOUND["nodes"]]},
        "left_out": {"hall3-c": "its driver differs"}, "alone": ["gpu"], "rounds": [], "findings": {"all": FOUND},
    })  # fmt: skip
    done = report_conversion.converted(report, InternalDataConverter(InternalData(names=NAMES)), "x")
    gangs = done["fleet"]["gangs"]
    assert gangs["formed"] == [{"gang": "all", "names": ["W-1", "W-2"]}]
    assert gangs["left_out"] == [{"node": "W-3", "reason": "its driver differs"}]
    assert gangs["alone"] == {"names": ["W-4"]}
    assert gangs["findings"][0]["bad_links"] == [{"names": ["W-1", "W-2"]}]
    assert "hall3" not in json.dumps([gangs, done["summary"]])
    schemas.validate("report", done, what="report")
