"""What a run did not test, on which nodes and why: as data, in one line of the console, and in the forms."""

import dataclasses

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import coverage
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.markdown import markdown_report

from tests.kit.builders import check, facts_record, healthy, judge, make_record, make_run, metric

ECC = check("ecc", stage="facts", metric="memory_ecc_uncorrected_count", kind="max", value=0, where_reported=True)
LINKS = check("links", stage="facts", metric="gpu_links_count", kind="min", value=18, where_reported=True)
OTHER = check(
    "other", stage="facts", metric="x_count", kind="max", value=0, where_reported=True, applies={"sku": ["a"]}
)


def judged(change=lambda _records: None, stages=("facts", "vendor_tools"), criteria=(ECC, LINKS, OTHER)):
    run = make_run(["node-1", "node-2"], stages=list(stages))
    evidence = healthy(run)
    for name in run["nodes"]:
        facts = facts_record(name)
        facts["metrics"].append(metric("gpu_links_count", 18))
        facts["environment"]["memory"] = {"ecc_problem": "no EDAC driver"}
        evidence.records[name] = {"facts": facts, "vendor_tools": make_record(name, "vendor_tools")}
    change(evidence.records["node-2"])
    report = judge(run, evidence, list(criteria))
    schemas.validate("report", report, what="report")
    found = {(gap["stage"], gap["what"]): gap for gap in report["fleet"]["not_tested"]}
    return report, found


def test_stages_outside_the_profile_and_figures_that_no_node_reports():
    report, found = judged()
    assert found["training", "training"]["reason"] == "not in the profile quick"
    assert found["facts", "memory_ecc_uncorrected_count"] == {
        "stage": "facts", "what": "memory_ecc_uncorrected_count", "reason": "no EDAC driver", "count": 2,
        "names": ["node-1", "node-2"],
    }  # fmt: skip
    assert ("facts", "gpu_links_count") not in found
    assert ("facts", "x_count") not in found, "it is for another SKU"
    (line,) = [one for one in report["summary"] if one.startswith("Not tested: ")]
    assert "training (not in the profile quick; 2 of 2 nodes)" in line
    assert line.endswith("; 1 figure or part of other stages: see report.html")
    assert "| facts | memory_ecc_uncorrected_count | no EDAC driver | 2: node-1, node-2 |" in markdown_report(report)


def test_a_training_counts_tokens_or_samples():
    rates = [
        check(name, stage="facts", metric=f"training_{name}_per_second", kind="min", value=0, where_reported=True)
        for name in ("tokens", "samples")
    ]
    _, found = judged(criteria=rates)
    assert {what for stage, what in found if stage == "facts"} == {one.metric for one in rates}
    told = metric("training_tokens_per_second", 5, "tokens/s")
    _, found = judged(lambda records: records["facts"]["metrics"].append(told), criteria=rates)
    assert {tuple(gap["names"]) for (stage, _), gap in found.items() if stage == "facts"} == {("node-1",)}


def test_why_the_kernel_counts_no_memory_errors_is_told_in_every_stage():
    def change(records):
        records["vendor_tools"]["environment"] = {"telemetry": {"absent": {ECC.metric: "a virtual machine"}}}

    _, found = judged(change, criteria=(dataclasses.replace(ECC, stage="vendor_tools"),))
    assert found["vendor_tools", ECC.metric]["reason"] == coverage.NO_FIGURE, "of the other node"
    assert found["vendor_tools", ECC.metric]["names"] == ["node-1"]


def test_a_stage_that_left_all_out_is_one_entry():
    def change(records):
        records["vendor_tools"]["environment"] = {"left_out": {"vendor_tools": "no device"}}

    report, found = judged(change, criteria=(dataclasses.replace(LINKS, stage="vendor_tools"),))
    assert found["vendor_tools", "vendor_tools"]["reason"] == "no device"
    assert found["vendor_tools", "gpu_links_count"]["names"] == ["node-1"]
    assert any("vendor_tools (no device; 1 of 2 nodes)" in line for line in report["summary"])


def test_what_a_stage_says_it_left_out_and_tools_that_are_not_there():
    def change(records):
        records["vendor_tools"]["environment"] = {
            "absent_tools": ["dcgm"], "not_run": {"rvs": ["gst", "iet"], "dcgm": ["dcgm"]},
            "left_out": {"fp8": "no fp8"},
        }  # fmt: skip

    _, found = judged(change)
    assert found["vendor_tools", "dcgm"]["reason"] == coverage.NO_TOOL
    assert found["vendor_tools", "dcgm"]["names"] == ["node-2"]
    assert found["vendor_tools", "rvs: gst, iet"]["reason"] == "did not run"
    assert found["vendor_tools", "fp8"]["reason"] == "no fp8"
    _, found = judged(lambda records: records["vendor_tools"].update(environment={"absent_tools": 3, "left_out": [1]}))
    assert not [what for stage, what in found if stage == "vendor_tools"], "what a node writes is not trusted"
    odd = {"absent_tools": [{}, 3], "left_out": {"x": 1}, "not_run": {"x": 5, "y": None}}
    _, found = judged(lambda records: records["vendor_tools"].update(environment=odd))
    assert {what for stage, what in found if stage == "vendor_tools"} == {"{}", "3", "x"}


def test_a_stage_that_never_ended_and_a_check_without_its_figure():
    def change(records):
        del records["vendor_tools"]
        records["facts"]["metrics"] = [one for one in records["facts"]["metrics"] if one["name"] != "gpu_links_count"]

    required = check("needed", stage="facts", metric="gpu_links_count", kind="min", value=18)
    report, found = judged(change, criteria=[required])
    assert found["vendor_tools", "vendor_tools"]["reason"] == "missing"
    assert found["facts", "gpu_links_count"]["names"] == ["node-2"]
    assert [node["verdict"] for node in report["nodes"]] == ["PASS", "INCOMPLETE"]
