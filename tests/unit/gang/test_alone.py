"""Whom nobody is like is asked nothing, told so, and never so by mistake; a run of gangs without any shows nothing."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import forming, orchestrate
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.orchestrate import GangNode
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import write_forms
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder

from tests.kit.builders import facts_record, make_record
from tests.kit.gang_bed import Bed, build

NO_DRIVER = {"vendor": "cpu", "gpus": 0, "hardware": 8}


def bed_of(tmp_path, count, *, facts, declared=None, **settings):
    bed = Bed(tmp_path, build(count, 1, rack=0, noise=0.0), **settings)
    run = bed.folder.read_run()
    for node, sku in (declared or {}).items():
        run["nodes"][node]["sku"] = sku
    bed.folder.write_run(run)
    for node, fields in facts.items():
        folder.write_json(bed.folder.evidence_file(node, "facts"), facts_record(node, run_id="run-1", **fields))
    return bed


def report_of(bed):
    return bed.judge(bed.document)


@pytest.mark.parametrize("declared", [{}, {"node-001": "h200"}, {"node-001": "h200", "node-002": "H200"}])
def test_a_gpu_node_without_driver_does_not_exempt_the_other_one(tmp_path, declared):
    bed = bed_of(tmp_path, 2, facts={"node-002": NO_DRIVER}, declared=declared)
    bed.go()
    assert bed.document["alone"] == []
    assert bed.verdicts() == {"node-001": "INCOMPLETE", "node-002": "FAIL"}


def test_neither_does_one_that_was_never_reached(tmp_path):
    bed = bed_of(tmp_path, 3, facts={"node-003": {"vendor": "cpu", "gpus": 0}})
    bed.folder.evidence_file("node-002", "facts").unlink()
    bed.go()
    assert bed.document["alone"] == []
    assert bed.verdicts()["node-003"] == "INCOMPLETE"


def test_what_is_declared_and_what_sound_facts_say_is_known(tmp_path):
    failed = make_record("node-003", "facts", run_id="run-1", state="failure")
    bed = bed_of(tmp_path, 3, facts={}, declared={"node-003": "cpu"})
    folder.write_json(bed.folder.evidence_file("node-003", "facts"), failed)
    bed.go()
    assert bed.document["alone"] == ["node-003"]
    assert bed.verdicts() == {"node-001": "PASS", "node-002": "PASS", "node-003": "FAIL"}


def test_where_skus_work_together_no_node_is_alone():
    one, two = (forming.Candidate(f"node-{sku}", "PASS", "a", 1, labels={"sku": sku}) for sku in ("h100", "h200"))
    assert forming.alone([one, two], ("sku", "rack")) == ["node-h100", "node-h200"]
    assert forming.alone([one, two], ("rack",)) == []


@pytest.mark.parametrize("rack, named", [({}, "no label rack"), ({"rack": "r9"}, "rack r9")])
def test_a_label_exempts_no_node(tmp_path, rack, named):
    gang = build(5, 1, rack=0, noise=0.0)
    labels = {node: {"rack": "r1"} for node in gang.nodes[:4]} | {gang.nodes[4]: rack}
    bed = Bed(tmp_path, gang, labels=labels, group_by=("sku", "rack"))
    bed.go()
    assert bed.document["alone"] == []
    assert named in bed.document["left_out"]["node-005"]
    assert "gpuval_gang_group_by" in bed.document["left_out"]["node-005"]
    assert bed.verdicts()["node-005"] == "INCOMPLETE"
    assert bed.others("node-005") == {"PASS"}
    (node,) = [one for one in report_of(bed)["nodes"] if one["name"] == "node-005"]
    (entry,) = [one for one in node["checks"] if one["name"] == "collective_state"]
    assert (entry["verdict"], node["class"]) == ("missing", "collective_missing")
    assert named in entry["reason"]


def test_neither_does_a_label_called_sku(tmp_path):
    gang = build(3, 1, rack=0, noise=0.0)
    bed = Bed(tmp_path, gang, labels={gang.nodes[2]: {"sku": "other"}})
    bed.go()
    assert bed.document["alone"] == []
    assert [member["node"] for member in bed.document["gangs"]["all"]] == gang.nodes


def test_who_is_exempt_is_reported_so(tmp_path):
    bed = bed_of(tmp_path, 3, facts={"node-003": {"vendor": "cpu", "gpus": 0}}, declared={"node-003": "cpu"})
    bed.go()
    report = report_of(bed)
    (node,) = [one for one in report["nodes"] if one["name"] == "node-003"]
    (entry,) = [one for one in node["checks"] if one["name"] == "collective_state"]
    assert (entry["verdict"], node["verdict"]) == ("skipped", "PASS")
    assert "no other node of the inventory has its SKU" in entry["reason"]
    schemas.validate("report", report, what="report")
    (tmp_path / "out").mkdir()
    forms = write_forms(report, tmp_path / "out")
    assert "no other node of the inventory" in forms["report.html"].read_text()
    assert "collective_state" in forms["junit.xml"].read_text()


@pytest.mark.parametrize("stages", [["collective"], ["fabric"], ["collective", "deepspeed", "fabric"]])
def test_without_any_gang_no_node_is_accepted(tmp_path, stages):
    bed = bed_of(tmp_path, 2, facts={"node-002": {"vendor": "cpu", "gpus": 0}}, stages=stages)
    bed.go()
    assert bed.document["alone"] == ["node-001", "node-002"]
    assert not bed.document["gangs"]
    assert bed.others() == {"INCOMPLETE"}
    reasons = {one["reason"] for node in report_of(bed)["nodes"] for one in node["checks"] if one["stage"] in stages}
    assert any("no other node to form a gang with" in reason for reason in reasons)


def test_a_candidate_without_its_gpus_is_what_it_was_declared(tmp_path):
    bed = bed_of(tmp_path, 2, facts={"node-002": NO_DRIVER}, declared={"node-002": "H200"})
    two = [orchestrate.candidate(node, GangNode("10.0.0.1", 1), {}) for node in bed.judge(None)["nodes"]][1]
    assert (two.labels["sku"], two.proven, two.verdict) == ("h200", True, "FAIL")
