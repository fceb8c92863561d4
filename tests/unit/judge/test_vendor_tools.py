"""What the vendor's tools did not run is no evidence: the shipped criteria on a whole H200 node."""

import copy

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit.builders import SHIPPED, judge, make_record, make_run, metric
from tests.kit.h200 import STAGES, records, telemetry

COUNTS = {"run": 1, "failed": 0, "left_out": 0, "not_run": 0, "answered": 1}


def judged(**counts):
    """A healthy node whose stage reports these counts; None is a figure that it leaves out."""
    found = [metric(f"vendor_tools_{name}_count", n) for name, n in {**COUNTS, **counts}.items() if n is not None]
    record = make_record(
        stage="vendor_tools", metrics=[*found, *telemetry()], message="dcgm: incomplete: memory skipped"
    )
    evidence = RunEvidence(records={"node-1": {**copy.deepcopy(records()), "vendor_tools": record}})
    (node,) = judge(make_run(stages=[*STAGES, "vendor_tools"]), evidence, SHIPPED)["nodes"]
    return node["verdict"], {check["name"]: check for check in node["checks"] if check["stage"] == "vendor_tools"}


def test_tools_that_answered_are_accepted():
    assert judged()[0] == "PASS"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"answered": None, "not_run": 2}, "INCOMPLETE"),  # skipped its tests of the hardware, or was required
        ({"answered": None, "failed": 1}, "FAIL"),
        ({"failed": 1}, "FAIL"),
        ({"answered": 0, "run": 0, "not_run": 2}, "PASS"),  # none there, none required: a warning
    ],
)
def test_what_did_not_run(counts, expected):
    verdict, checks = judged(**counts)
    assert verdict == expected
    if counts.get("not_run"):
        assert checks["vendor_tools_not_run"]["verdict"] == "warn"
        assert "memory skipped" in checks["vendor_tools_not_run"]["reason"]
    if verdict == "INCOMPLETE":
        assert checks["vendor_tools_complete"]["verdict"] == "missing"
        assert checks["vendor_tools_complete"]["remedy"].startswith("Read in the message of the stage what did not run")
