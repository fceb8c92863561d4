"""gpuval_versions: what must be on a node, held against its facts."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import declared
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps import open_run

from tests.kit.builders import check as make_check
from tests.kit.builders import facts_record, healthy, judge, make_run

THERE = make_check("there", stage="facts", metric="gpu_count", kind="min", value=0)


def judged(wanted, change=None, *, stages=("facts",)):
    run = make_run(stages=list(stages))
    run["nodes"]["node-1"]["versions"] = declared.parse_versions(wanted)
    schemas.validate("run", run, what="run.json")
    evidence = healthy(run)
    facts = facts_record()
    environment = facts["environment"]
    for gpu in environment["gpus"]:
        gpu.update(driver_version="580.159.04", firmware_version="96.00.A5.00.01")
    environment.update(
        os={"kernel": "6.8.0-1030", "version": "24.04"},
        firmware={"bios_version": "2.7"},
        nics=[{"kind": "interface", "name": "eth0"}, {"kind": "rdma", "firmware_version": "28.43.1014"}],
    )
    if change:
        change(environment)
    if "facts" in stages:
        evidence.records["node-1"]["facts"] = facts
    report = judge(run, evidence, [THERE])
    schemas.validate("report", report, what="report")
    return report["nodes"][0]


def found(node):
    return [
        (entry["name"], entry["verdict"], entry["part"]) for entry in node["checks"] if "versions_" in entry["name"]
    ]


def test_everything_as_declared():
    node = judged({"driver": "580.159.04", "vbios": ["96.00.99.00.01", "96.00.A5.00.01"], "kernel": "6.8.*",
                   "os": "24.04", "bios": "2.7", "nic_firmware": "28.*"})  # fmt: skip
    assert {verdict for _, verdict, _ in found(node)} == {"pass"}
    assert len(found(node)) == 6
    assert node["verdict"] == "PASS"


def test_one_gpu_with_another_driver_or_firmware_is_named():
    def change(environment):
        environment["gpus"][3]["firmware_version"] = "96.00.00.00.00"

    node = judged({"vbios": "96.00.A5.00.01"}, change)
    assert found(node) == [("versions_vbios", "fail", "gpu:3")]
    assert node["verdict"] == "FAIL"


def test_another_kernel_is_a_failure_of_the_node():
    node = judged({"kernel": "6.8.0-1031"})
    assert found(node) == [("versions_kernel", "fail", "node")]
    (entry,) = [entry for entry in node["checks"] if entry["name"] == "versions_kernel"]
    assert entry["reason"] == "the kernel is 6.8.0-1030, not 6.8.0-1031"


@pytest.mark.parametrize(
    "change",
    [
        lambda environment: environment.pop("gpus"),
        lambda environment: environment.update(gpus="many"),
        lambda environment: [gpu.pop("driver_version") for gpu in environment["gpus"]],
        lambda environment: environment["gpus"][5].pop("driver_version"),
    ],
)
def test_a_version_that_is_not_reported_is_missing(change):
    node = judged({"driver": "580.159.04"}, change)
    assert [verdict for _, verdict, _ in found(node)] == ["missing"]
    assert node["verdict"] == "INCOMPLETE"


def test_stars_stand_for_any_text_and_nothing_else_does():
    assert found(judged({"driver": "580.*"}))[0][1] == "pass"
    assert found(judged({"driver": "5801159.04"}))[0][1] == "fail"
    assert found(judged({"driver": "580"}))[0][1] == "fail"


@pytest.mark.parametrize(
    ("value", "said"),
    [("580", "dictionary"), ({"drivers": "580"}, "known are driver"), ({"driver": []}, "no version"),
     ({"driver": [""]}, "no version"), ({"driver": None}, "no version"), ({"driver": True}, "no version"),
     ({"driver": {"a": 1}}, "no version")],
)  # fmt: skip
def test_refusals(value, said):
    with pytest.raises(SettingError, match=said):
        declared.parse_versions(value)


def test_nothing_declared_is_nothing_checked():
    assert declared.parse_versions(None) == declared.parse_versions({}) == {}
    assert found(judged({})) == []


def test_a_number_of_yaml_is_refused():
    for value in (580.1, ["24.04", 24.1]):
        with pytest.raises(SettingError, match=r"driver is a number to YAML .* write it in quotes"):
            declared.parse_versions({"driver": value})


def nobody(_of_what):
    return {}


def test_they_are_frozen_in_the_run_for_each_node():
    declared = {"gpuval_versions": {"driver": "580.*"}, "gpuval_sku": "h200"}
    expected = open_run._expected("node-1", declared, ["facts"], [], nobody, "", nobody)
    assert expected == {"stages": ["facts"], "sku": "h200", "gpu_count": None, "versions": {"driver": ["580.*"]}}
    assert "versions" not in open_run._expected("node-1", {}, ["facts"], [], nobody, "", nobody)
    with pytest.raises(folder.RunError, match="node-1: gpuval_versions has the key 'vibos'"):
        open_run._expected("node-1", {"gpuval_versions": {"vibos": "1"}}, ["facts"], [], nobody, "", nobody)
