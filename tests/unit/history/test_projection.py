"""What is kept of records: setups that compare, identities that are some, and nothing without bounds."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.history import projection
from ansible_collections.gpuval.fleet.plugins.plugin_utils.history.trend import Flakiness, Judged
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file

from tests.kit.builders import accepted, facts_record, healthy, judge, make_record, make_run, metric


def judged(facts=None, **fields):
    """The line of a node, as its report tells it; of the training ``fields``."""
    run = make_run(gpu_count=2)
    evidence = healthy(run, gpus=2)
    if facts:
        evidence.records["node-1"]["facts"] = facts
    evidence.records["node-1"]["training"].update(fields)
    (node,) = judge(run, evidence)["nodes"]
    return projection.line_of("node-1", run["nodes"]["node-1"], node)


def training(line):
    return next(one for one in line["records"] if one["stage"] == "training")


def test_facts_tell_machine_gpus_and_versions():
    record = facts_record(gpus=2)
    record["environment"]["gpus"][0] |= {"name": "NVIDIA H200", "driver_version": "580.1", "uuid": "GPU-1"}
    record["environment"]["gpus"][1] |= {"name": "NVIDIA H200", "driver_version": "590.1", "serial": "0"}
    line = judged(accepted(record))
    assert (line["machine_id"], line["serial"], line["kind"], line["gpu_count"]) == (
        "machine-of-node-1",
        "S-node-1",
        "h200",
        2,
    )
    assert line["gpus"][0] == {"index": 0, "model": "NVIDIA H200", "serial": "165490", "uuid": "GPU-1"}
    assert line["gpus"][1]["serial"] is None, "a filler is no serial"
    assert line["versions"]["driver"] == "580.1, 590.1"


@pytest.mark.parametrize(
    "filler", ["To be filled by O.E.M.", "0", "None", "00000000-0000-0000-0000-000000000000", "", 7, None]
)
def test_fillers_are_no_identity(filler):
    record = facts_record()
    record["environment"]["identity"] = {"serial": filler, "machine_id": filler}
    line = judged(record)
    assert line["serial"] is line["machine_id"] is None


def test_a_node_that_was_not_judged_is_expected_only():
    line = projection.line_of("node-1", make_run()["nodes"]["node-1"], None)
    assert "verdict" not in line
    assert (line["gpus"], line["records"]) == ([], [])


@pytest.mark.parametrize(
    ("state", "message", "retried"),
    [("crash", "killed by SIGSEGV", True), ("cancelled", "", False), ("running", "", False), ("skipped", "", False),
     ("crash", "probably out of memory: the kernel killed it", False)],
)  # fmt: skip
def test_only_a_failure_of_its_own_counts_as_a_further_attempt(state, message, retried):
    line = judged(attempt=2, attempts=[make_record(state=state, message=message)])
    assert training(line)["retried"] is retried


def test_figures_that_are_no_number_are_left_out():
    line = judged(metrics=[metric("a", None), metric("b", 1)])
    assert [one["name"] for one in training(line)["metrics"]] == ["b"]


def test_a_report_is_read_node_by_node(tmp_path):
    run = make_run(["node-1", "node-2"])
    evidence = healthy(run)
    evidence.records["node-2"]["training"]["state"] = "crash"
    path = tmp_path / "report.json"
    path.write_text("".join(report_file.lines(judge(run, evidence))))
    head, *nodes = report_file.walk(path)
    assert head["run"]["run_id"] == "run-1" and head["nodes"] == []
    good, bad = (projection.line_of(node["name"], run["nodes"][node["name"]], node) for node in nodes)
    assert (good["verdict"], good["failed"]) == ("PASS", [])
    assert bad["verdict"] == "FAIL"
    assert {"name": "training_state", "part": "node", "verdict": "fail"} in bad["failed"]

    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole))
    assert [one["name"] for one in list(report_file.walk(path))[1:]] == ["node-1", "node-2"]
    with pytest.raises(ValueError, match="a line each"):
        list(report_file.walk(path, max_bytes=10))
    path.write_text("".join(report_file.lines(whole)).split('"name":"node-2"')[0])
    with pytest.raises(ValueError):
        list(report_file.walk(path))
    path.write_text("[]")
    with pytest.raises(ValueError, match="no nodes"):
        list(report_file.walk(path))


def test_a_run_with_gangs_is_not_compared_with_one_without():
    """A node that a search finds bad each time, and that is fine alone each time, is no flaky one."""
    alone, together = make_run(stages=["facts"]), make_run(stages=["facts"])
    for node in together["nodes"].values():
        node["gang_stages"] = ["fabric"]
    lines = [projection.line_of("node-1", run["nodes"]["node-1"], None) for run in (alone, together)]
    asked = [tuple(line["stages"]) for line in lines]
    assert asked == [("facts",), ("facts", "fabric")]
    verdicts = zip(["PASS", "FAIL"] * 3, asked * 3, strict=True)
    assert not Flakiness(
        [Judged(str(number), *one[::-1], False, frozenset("g")) for number, one in enumerate(verdicts)]
    ).flaky
