"""A node that was not launched has its class, message and remedy in every form of the report, and is never PASS."""

from xml.etree import ElementTree as ET

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import launch_errors
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import (
    final_block,
    junit_xml,
    markdown_report,
    write_forms,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.lookup import node_facts

from tests.kit.builders import facts_record, healthy, judge, make_record, make_run

CLASSES = list(launch_errors.NAMED)


def judged(launch, records=None):
    """The report on three nodes, of which `bad` has that launch."""
    run = make_run(["node-1", "bad", "node-3"], gpu_count=8)
    evidence = healthy(run)
    evidence.launches["bad"] = launch
    evidence.records["bad"] = records or {}
    report = judge(run, evidence)
    schemas.validate("report", report, what="report")
    (node,) = [node for node in report["nodes"] if node["name"] == "bad"]
    assert [other["verdict"] for other in report["nodes"] if other is not node] == ["PASS", "PASS"]
    return report, node


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_is_in_every_form(name, tmp_path):
    launch = launch_errors.described({"state": "unreachable", "message": "what ssh said", "class": name})
    report, node = judged(launch)
    assert (node["verdict"], node["class"]) == ("INCOMPLETE", name)
    assert report["verdict"] == "INCOMPLETE"
    remedy = launch_errors.NAMED[name].remedy.format(node="bad")
    (line,) = [line for line in final_block(report).splitlines() if line.startswith("- bad ")]
    assert "what ssh said" in line
    assert remedy[:100] in line
    suite = next(suite for suite in ET.fromstring(junit_xml(report)) if suite.get("name") == "bad")
    (error,) = [case.find("error") for case in suite if case.get("name") == "launch"]
    assert error.get("type") == name
    assert remedy in error.text
    assert f"### bad: INCOMPLETE ({name})" in markdown_report(report)
    assert write_forms(report, tmp_path)["failed_nodes.txt"].read_text() == "bad\n"
    assert node_facts(report, node)["class"] == name


def test_a_launch_of_before_classes_gets_one():
    report, node = judged({"state": "failed", "message": "Missing sudo password"})
    assert node["class"] == "sudo_password_needed"
    assert "- bad INCOMPLETE launch: failed (sudo_password_needed): Missing sudo password: " in final_block(report)


def test_a_node_that_was_never_launched_is_not_started():
    run = make_run(["node-1", "bad"])
    evidence = healthy(run)
    del evidence.launches["bad"], evidence.records["bad"]
    (bad, good) = judge(run, evidence)["nodes"]
    assert (bad["verdict"], bad["class"]) == ("INCOMPLETE", "not_started")
    assert (good["verdict"], good["class"]) == ("PASS", None)


def test_a_lost_contact_explains_missing_records_but_no_bad_ones():
    contact = launch_errors.contact(
        'Task failed: Data could not be sent to remote host "192.0.2.9". Make sure this host can be reached over ssh:'
    )
    assert contact["class"] == "lost_contact"
    launch = {"state": "started", "message": "", "contact": contact}
    _report, node = judged(launch, {"facts": facts_record("bad")})
    assert (node["verdict"], node["class"]) == ("INCOMPLETE", "lost_contact")
    (state,) = [check for check in node["checks"] if check["name"] == "training_state"]
    assert "the node was unreachable (lost_contact): the connection broke off" in state["reason"]
    assert "restarted" in state["remedy"]
    records = {"facts": facts_record("bad"), "training": make_record("bad", state="crash", message="out of memory")}
    assert judged(launch, records)[1]["class"] == "training_crash"


def test_a_job_that_ended_is_no_unreachable_node():
    contact = {"class": "slurm_cancelled", "message": "job 7 ended: CANCELLED", "remedy": "ask"}
    _report, node = judged({"state": "started", "message": "", "contact": contact}, {"facts": facts_record("bad")})
    (state,) = [check for check in node["checks"] if check["name"] == "training_state"]
    assert "its job ended (slurm_cancelled): job 7 ended: CANCELLED" in state["reason"]


def test_a_pod_that_was_ended_explains_a_stage_that_was_cancelled():
    records = {"facts": facts_record("bad"), "training": make_record("bad", state="cancelled", message="told to end")}
    contact = {"class": "deadline_exceeded", "message": "its time is over", "remedy": "give it more"}
    launch = {"state": "started", "message": "", "contact": {**contact, "pod": "gpuval-1-bad-1"}}
    _report, node = judged(launch, records)
    assert (node["verdict"], node["class"]) == ("INCOMPLETE", "deadline_exceeded")
    (state,) = [check for check in node["checks"] if check["name"] == "training_state"]
    assert "its pod ended (deadline_exceeded): its time is over" in state["reason"]
    assert judged({**launch, "contact": contact}, records)[1]["class"] == "training_cancelled"


def test_a_node_that_was_given_up_stays_so_while_it_cannot_be_asked():
    lost = {"class": "lost_contact", "message": f"{launch_errors.LOST}no heartbeat for 0:10:00", "remedy": "look"}
    assert launch_errors.contact("No route to host", lost) == lost
    assert launch_errors.contact("No route to host", {"class": "refused", "message": "x"})["class"] == "no_route"


def test_a_known_reason_for_a_lost_contact_is_kept():
    assert launch_errors.contact("ssh: connect to host n port 22: Connection refused")["class"] == "refused"
    assert launch_errors.contact("never heard of")["class"] == "lost_contact"


def test_the_pattern_among_many_nodes_is_reported():
    run = make_run([f"node-{index}" for index in range(6)])
    evidence = healthy(run)
    for index, text in enumerate(["Connection refused", "Connection refused", "Missing sudo password"]):
        del evidence.records[f"node-{index}"]
        evidence.launches[f"node-{index}"] = {"state": "failed", "message": text}
    assert "Not started: 2 refused, 1 sudo_password_needed" in judge(run, evidence)["summary"]


def test_what_a_node_says_cannot_break_out_of_the_line():
    _report, node = judged(
        {"state": "failed", "message": "a\x1b[31m\nb", "class": "x\ny<script>", "remedy": "z\n{node}"}
    )
    (check,) = [check for check in node["checks"] if check["name"] == "launch"]
    assert not [text for text in (node["class"], check["reason"], check["remedy"]) if "\n" in text or "\x1b" in text]


@pytest.mark.parametrize(
    ("message", "name", "verdict"),
    [
        ("no container engine: docker: not found. Install docker or podman on the node", "no_engine", "INCOMPLETE"),
        ("OSError: [Errno 28] No space left on device", "disk_full", "INCOMPLETE"),
        ("disk full: the model needs 140 GB in /models and 9 GB is free", "disk_full", "INCOMPLETE"),
        ("killed by SIGSEGV", "training_crash", "FAIL"),
    ],
)
def test_a_crash_that_names_a_fault_of_the_node_has_its_class_and_a_full_disk_is_no_fault(message, name, verdict):
    records = {"facts": facts_record("bad"), "training": make_record("bad", state="crash", message=message)}
    _report, node = judged({"state": "started", "message": ""}, records)
    assert (node["verdict"], node["class"]) == (verdict, name)
