"""Checks between the nodes of a run, and between the GPUs of one node."""

import copy
import hashlib

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.peer_statistics import majority
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import markdown_report
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.builders import check as make_check
from tests.kit.builders import facts_record, healthy, judge, make_record, make_run

HASHES = make_check(
    "hashes", stage="fingerprint", metric="fingerprint_training_sha256", kind="same", group_by=["fingerprint_group"]
)
DRIVER = make_check(
    "driver", stage="facts", metric="gpu_driver_version", kind="same", path="gpus[].driver_version",
    severity="advisory",
)  # fmt: skip
VBIOS = make_check(
    "vbios", stage="facts", metric="gpu_firmware_version", kind="same", peers="node", path="gpus[].firmware_version"
)
STAGES = ["facts", "fingerprint"]


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def fleet(values, *, groups=None, models=None, checks=(HASHES,)):
    """A judged run of nodes whose fingerprint stage reports the digests of these texts; None: it reports none."""
    names = [f"node-{number + 1}" for number in range(len(values))]
    run, evidence = make_run(names, stages=STAGES), None
    evidence = healthy(run)
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        group = (groups or {}).get(name, "torch 2.13")
        evidence.records[name] = {
            "facts": facts_record(name),
            "fingerprint": make_record(
                name,
                "fingerprint",
                fingerprints={} if value is None else {"fingerprint_training_sha256": digest(value)},
                environment={} if group is None else {"fingerprint_group": group},
            ),
        }
        for gpu in evidence.records[name]["facts"]["environment"]["gpus"]:
            gpu["name"] = (models or {}).get(name, "NVIDIA H200")
            gpu["serial"] = f"{number}-{gpu['index']}"
    return judge(run, evidence, list(checks)), run, evidence


def verdicts(report, name="hashes"):
    return [[entry["verdict"] for entry in node["checks"] if entry["name"] == name] for node in report["nodes"]]


@pytest.mark.parametrize(
    ("values", "expected", "of_fleet"),
    [
        (["a", "a", "a"], ["pass", "pass", "pass"], ["pass"]),
        (["a", "b", "a"], ["pass", "fail", "pass"], ["fail"]),
        (["a", "a", "b", "c"], ["missing"] * 4, ["missing"]),  # half is no majority
        (["a", "a", "a", "b", "c"], ["pass", "pass", "pass", "fail", "fail"], ["fail"]),
        (["a", "b"], ["missing", "missing"], ["missing"]),  # nobody can say which
        (["a", "b", "c"], ["missing"] * 3, ["missing"]),
        (["a", "a"], ["pass", "pass"], ["pass"]),
        (["a"], ["skipped"], []),
        (["a", "a", "a", "b", "b"], ["pass"] * 3 + ["missing"] * 2, ["fail"]),  # two faults do not agree
        (["a"] * 8 + ["b"] * 7, ["pass"] * 8 + ["missing"] * 7, ["fail"]),
        (["a"] * 8 + ["b"] * 2, ["pass"] * 8 + ["fail"] * 2, ["fail"]),
        (["a"] * 4 + ["b"] * 4, ["missing"] * 8, ["missing"]),
        (["a", None, "a"], ["pass", "missing", "pass"], ["pass"]),
    ],
)
def test_the_majority_is_right(values, expected, of_fleet):
    report, _, _ = fleet(values)
    assert verdicts(report) == [[verdict] for verdict in expected]
    assert [check["verdict"] for check in report["fleet"]["checks"] if check["kind"] == "same"] == of_fleet
    words = {"fail": "FAIL", "missing": "INCOMPLETE"}
    facts_only = [words.get(verdict, "PASS") for verdict in expected]
    assert [node["verdict"] for node in report["nodes"]] == facts_only
    schemas.validate("report", report, what="report")


def test_who_differs_is_named_with_both_values():
    report, _, _ = fleet(["aaa", "bbb", "aaa"])
    (entry,) = [entry for entry in report["nodes"][1]["checks"] if entry["name"] == "hashes"]
    other, majority_of_two = digest("bbb"), digest("aaa")
    assert entry["reason"] == (
        f"fingerprint_training_sha256 is {other}, not {majority_of_two} as on 2 of 3 nodes of its kind"
    )
    assert report["nodes"][1]["class"] == "hashes"
    assert f"node-2 FAIL fingerprint: fingerprint_training_sha256 is {digest('bbb')}" in "\n".join(report["summary"])
    (of_fleet,) = report["fleet"]["checks"]
    assert of_fleet["part"] == "fleet"
    assert of_fleet["reason"].startswith("h200 torch 2.13: fingerprint_training_sha256 of node-2 is not")
    assert "## Between nodes" in markdown_report(report)


def test_two_that_differ_name_each_other():
    report, _, _ = fleet(["aaa", "bbb"])
    for node in report["nodes"]:
        (entry,) = [entry for entry in node["checks"] if entry["name"] == "hashes"]
        assert f"{digest('bbb')} on node-2; {digest('aaa')} on node-1" in entry["reason"]
    assert report["verdict"] == "INCOMPLETE"


def test_only_nodes_of_one_kind_are_compared():
    report, _, _ = fleet(["a", "a", "b", "b"], groups={"node-3": "torch 2.9", "node-4": "torch 2.9"})
    assert verdicts(report) == [["pass"]] * 4
    report, _, _ = fleet(["a", "a", "b"], models={"node-3": "NVIDIA B200"})
    assert verdicts(report) == [["pass"], ["pass"], ["skipped"]]


def test_a_node_that_does_not_say_its_group_is_not_left_out_of_the_comparison_silently():
    report, _, _ = fleet(["a", "a", "b"], groups={"node-3": None})
    assert verdicts(report)[2] == ["missing"]
    assert report["nodes"][2]["verdict"] == "INCOMPLETE"


def test_groups_that_are_structures_are_compared_whole():
    group = {"gpu": "H200", "torch": "2.13"}
    report, _, _ = fleet(["a", "b"], groups={"node-1": group, "node-2": {**group, "torch": "2.9"}})
    assert verdicts(report) == [["warn"], ["warn"]]
    report, _, _ = fleet(["a", "b"], groups={"node-1": group, "node-2": dict(reversed(group.items()))})
    assert verdicts(report) == [["missing"], ["missing"]]


def test_a_node_does_not_leave_the_comparison_by_naming_a_group_of_its_own():
    report, _, _ = fleet(["a", "a", "b"], groups={"node-1": "new", "node-2": "new", "node-3": "mine"})
    assert verdicts(report) == [["pass"], ["pass"], ["missing"]]
    (entry,) = [one for one in report["nodes"][2]["checks"] if one["kind"] == "same"]
    assert entry["reason"].endswith("is mine, while 2 others of its kind report something else")
    assert report["nodes"][2]["verdict"] == "INCOMPLETE"


def test_a_wrong_hash_is_not_retried_into_pass():
    _, run, evidence = fleet(["a", "a", "a"])
    record = evidence.records["node-2"]["fingerprint"]
    earlier = copy.deepcopy(record)
    earlier["fingerprints"]["fingerprint_training_sha256"] = "b"
    record.update(attempt=2, attempts=[earlier])
    report = judge(run, evidence, [HASHES])
    assert verdicts(report) == [["pass"], ["fail"], ["pass"]]
    assert "earlier attempt" in report["nodes"][1]["checks"][-1]["reason"]


def test_advice_names_the_minority_and_decides_nothing():
    _, run, evidence = fleet(["a", "a", "a"])
    for name, version in (("node-1", "580.1"), ("node-2", "570.9"), ("node-3", "580.1")):
        for gpu in evidence.records[name]["facts"]["environment"]["gpus"]:
            gpu["driver_version"] = version
    report = judge(run, evidence, [HASHES, DRIVER])
    assert verdicts(report, "driver") == [["pass"], ["warn"], ["pass"]]
    assert report["verdict"] == "PASS"
    # A node that does not tell it differs from those that do; where nobody tells it there is nothing to compare.
    for gpu in evidence.records["node-2"]["facts"]["environment"]["gpus"]:
        del gpu["driver_version"]
    assert verdicts(judge(run, evidence, [DRIVER]), "driver") == [["pass"], ["warn"], ["pass"]]
    for name in ("node-1", "node-3"):
        for gpu in evidence.records[name]["facts"]["environment"]["gpus"]:
            del gpu["driver_version"]
    assert verdicts(judge(run, evidence, [DRIVER]), "driver") == [["skipped"]] * 3


def test_a_gpu_with_other_firmware_is_named_with_serial_and_address():
    _, run, evidence = fleet(["a"])
    gpus = evidence.records["node-1"]["facts"]["environment"]["gpus"]
    for gpu in gpus:
        gpu["firmware_version"] = "96.00.A5.00.01"
    assert verdicts(judge(run, evidence, [VBIOS]), "vbios") == [["pass"]]
    gpus[5]["firmware_version"] = "96.00.99.00.01"
    report = judge(run, evidence, [VBIOS])
    assert report["nodes"][0]["verdict"] == "FAIL"
    line = report["summary"][1]
    assert "(gpu:5, serial 0-5, 0000:95:00.0)" in line
    assert "96.00.99.00.01, not 96.00.A5.00.01 as on 7 of 8" in line


def test_two_gpus_with_different_firmware_are_both_named():
    run = make_run(stages=["facts"])
    evidence = healthy(run)
    evidence.records["node-1"] = {"facts": facts_record(gpus=2)}
    for gpu, version in zip(evidence.records["node-1"]["facts"]["environment"]["gpus"], "ab", strict=True):
        gpu["firmware_version"] = version
    (entry,) = [entry for entry in judge(run, evidence, [VBIOS])["nodes"][0]["checks"] if entry["name"] == "vbios"]
    assert entry["verdict"] == "missing"
    assert "gpu:0 a, gpu:1 b" in entry["reason"]


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=6), st.data())
def test_less_evidence_never_accepts(values, data):
    """Without its value, or its group, a node that was not accepted is not accepted, and neither is the run."""
    before, run, evidence = fleet(values)
    less = copy.deepcopy(evidence)
    name = data.draw(st.sampled_from(sorted(run["nodes"])))
    part = data.draw(st.sampled_from(["fingerprints", "environment", "record", "gpus"]))
    if part == "record":
        del less.records[name]["fingerprint"]
    elif part == "gpus":
        less.records[name]["facts"]["environment"].pop("gpus")
    else:
        less.records[name]["fingerprint"][part] = {}
    after = judge(run, less, [HASHES])
    verdict_of = {node["name"]: node["verdict"] for node in before["nodes"]}
    if verdict_of[name] != "PASS":
        assert {node["name"]: node["verdict"] for node in after["nodes"]}[name] != "PASS"
    if before["verdict"] != "PASS":
        assert after["verdict"] != "PASS"


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=7), st.randoms(use_true_random=False))
def test_the_order_of_nodes_is_irrelevant_and_a_minority_is_never_accepted(values, random):
    report, run, evidence = fleet(values)
    names = list(run["nodes"])
    random.shuffle(names)
    shuffled = {**run, "nodes": {name: run["nodes"][name] for name in names}}
    assert judge(shuffled, evidence, [HASHES]) == report
    for node, value in zip(report["nodes"], values, strict=True):
        if len(values) > 1 and 2 * values.count(value) <= len(values):
            assert node["verdict"] != "PASS"


def test_majority_is_more_than_half():
    assert majority([]) is None
    assert majority(["a", "b"]) is None
    assert majority(["a", "b", "a"]) == "a"
