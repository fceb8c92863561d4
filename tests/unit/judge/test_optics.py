"""Optics and links of network ports: what fails a node, what is advice, and what only was not tested."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit import builders
from tests.kit.builders import facts_record, judge, make_record, make_run, metric

NAMES = {"facts_optics", "facts_optics_warnings", "facts_link_bit_errors", "facts_link_downs"}
OF_FACTS = [check for check in builders.SHIPPED if check.name in NAMES]
OF_STAGES = [check for check in builders.SHIPPED if check.name.startswith("diagnostics_link_")]
ALARM = "ens3: RX power of lane 3 -12.40 dBm, low alarm threshold -10.41 dBm"


def judged(found=(), *, in_stage=(), nic_count=None, **environment):
    """The node and the run's gaps; ``found``: figures of the facts by metric and port."""
    run = make_run(["node-1"], stages=["facts", "diagnostics"])
    run["nodes"]["node-1"] |= {} if nic_count is None else {"nics": {"count": nic_count}}
    facts = facts_record("node-1", message=f"2 x NVIDIA H200; {ALARM}")
    facts["metrics"] += [metric("network_ports_count", 8), *(metric(*figure) for figure in found)]
    facts["environment"].update(environment)
    stage = make_record("node-1", "diagnostics", metrics=[metric(*figure) for figure in in_stage])
    evidence = RunEvidence(records={"node-1": {"facts": facts, "diagnostics": stage}})
    report = judge(run, evidence, [*OF_FACTS, *OF_STAGES])
    [node] = report["nodes"]
    entries = {entry["name"]: entry for entry in node["checks"] if entry["name"] in NAMES | {c.name for c in OF_STAGES}}
    gaps = {(gap["stage"], gap["what"]): gap["reason"] for gap in report["fleet"]["not_tested"]}
    return node, entries, gaps


def test_an_alarm_fails_the_node_with_port_lane_value_and_threshold():
    healthy = [("optics_alarm_count", 0, "count", f"link:ens{number}") for number in range(3)]
    node, entries, _gaps = judged([*healthy, ("optics_alarm_count", 1, "count", "link:ens3")])
    assert (node["verdict"], entries["facts_optics"]["verdict"], entries["facts_optics"]["part"]) == (
        "FAIL", "fail", "link:ens3",
    )  # fmt: skip
    assert ALARM in entries["facts_optics"]["reason"]


@pytest.mark.parametrize(
    "figure",
    [
        ("optics_warning_count", 1, "count", "link:ens3"),
        ("link_bit_error_ratio", 4e-15, "ratio", "link:ens3"),
        ("link_excess_downs_count", 3, "count", "link:ens3"),
    ],
)
def test_warnings_bit_errors_and_earlier_losses_are_advice(figure):
    node, entries, _gaps = judged([figure])
    [entry] = [entry for entry in entries.values() if entry["metric"] == figure[0]]
    assert (node["verdict"], entry["verdict"], entry["part"]) == ("PASS", "warn", "link:ens3")


def test_what_cannot_be_read_is_not_tested_and_costs_no_verdict():
    reason = "ethtool ended with status 1: netlink error: Operation not permitted"
    node, entries, gaps = judged(left_out={"optics of ens0, ens1": reason})
    assert (node["verdict"], entries) == ("PASS", {})
    assert gaps["facts", "optics of ens0, ens1"] == reason


@pytest.mark.parametrize(
    ("figure", "verdict", "name"),
    [
        (("link_down_new_count", 1, "count", "node"), "FAIL", "diagnostics_link_down"),
        (("link_symbol_error_new_ratio", 2e-12, "ratio", "node"), "FAIL", "diagnostics_link_symbol_errors"),
        (("link_symbol_error_new_ratio", 2e-15, "ratio", "node"), "PASS", "diagnostics_link_symbol_errors_some"),
        (("link_carrier_down_new_count", 2, "count", "node"), "PASS", "diagnostics_link_carrier_down"),
        (("link_crc_error_new_count", 2, "count", "node"), "PASS", "diagnostics_link_crc_errors"),
    ],
)
def test_failures_of_links_during_a_stage(figure, verdict, name):
    node, entries, _gaps = judged(in_stage=[figure])
    assert (node["verdict"], entries[name]["verdict"]) == (verdict, "fail" if verdict == "FAIL" else "warn")


def test_ports_that_the_owner_does_not_use_fail_no_node():
    figures = [("optics_alarm_count", 1, "count", "link:ens3")], [("link_down_new_count", 1, "count", "node")]
    assert judged(figures[0], in_stage=figures[1], nic_count=0, nics=[])[0]["verdict"] == "PASS"
    assert judged(figures[0])[0]["verdict"] == judged(in_stage=figures[1])[0]["verdict"] == "FAIL"
