"""What an owner declares of nodes: services, mounts and a limit of temperature, held against evidence."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import declared

from tests.kit.builders import SHIPPED, facts_record, healthy, judge, make_record, make_run, metric

SERVICES = {"active": ["chronyd", "nvidia-fabricmanager"], "failed": [], "mounts": ["/", "/data"]}


def judged(hostvars, *, there=SERVICES, container=None, hottest=80, stages=("facts", "diagnostics")):
    run = make_run(stages=list(stages))
    run["nodes"]["node-1"]["declared"] = declared.of_host(hostvars)
    schemas.validate("run", run, what="run.json")
    evidence = healthy(run)
    facts = facts_record()
    facts["environment"] |= {"services": there, "os": {"container": container}}
    hot = [metric("gpu_temperature_max_celsius", hottest - index, "celsius", f"gpu:{index}") for index in range(8)]
    evidence.records["node-1"] = {
        "facts": facts,
        "diagnostics": make_record("node-1", "diagnostics", metrics=hot),
    }
    report = judge(run, evidence, SHIPPED)
    schemas.validate("report", report, what="report")
    found = [entry for entry in report["nodes"][0]["checks"] if "declared" in entry["name"]]
    assert all(entry["severity"] == "required" for entry in found)
    return {(entry["name"], entry["part"]): entry for entry in found}


def test_what_is_declared_is_there():
    found = judged({declared.SERVICES: ["chronyd.service"], declared.MOUNTS: ["/data/"], declared.TEMPERATURE: 85})
    assert {entry["verdict"] for entry in found.values()} == {"pass"}
    assert {name for name, _ in found} == {
        "services_declared", "mounts_declared", "diagnostics_gpu_temperature_declared"
    }  # fmt: skip


def test_what_is_not_there_fails_and_is_named():
    found = judged({declared.SERVICES: ["chronyd", "slurmd"], declared.MOUNTS: ["/data", "/scratch"]})
    assert found["services_declared", "node"]["verdict"] == found["mounts_declared", "node"]["verdict"] == "fail"
    assert found["services_declared", "node"]["value"] == "slurmd"
    assert found["mounts_declared", "node"]["value"] == "/scratch"
    assert "systemctl status" in found["services_declared", "node"]["remedy"]


def test_an_automount_that_was_not_read_is_missing_evidence():
    there = {**SERVICES, "automounts": ["/scratch", "/home"]}
    assert judged({declared.MOUNTS: ["/scratch"]}, there=there)["mounts_declared", "node"]["verdict"] == "missing"
    assert judged({declared.MOUNTS: ["/scratch", "/x"]}, there=there)["mounts_declared", "node"]["verdict"] == "fail"


def test_a_container_cannot_tell_what_the_node_has_not_mounted():
    assert judged({declared.MOUNTS: ["/data"]}, container="kubernetes")["mounts_declared", "node"]["verdict"] == "pass"
    found = judged({declared.MOUNTS: ["/data", "/x"]}, container="kubernetes")["mounts_declared", "node"]
    assert (found["verdict"], found["reason"]) == (
        "missing", "the facts are those of a container, which has not mounted: /x"
    )  # fmt: skip


def test_a_gpu_that_reports_no_margin_is_judged_by_its_temperature():
    assert temperatures_judged(range(8), (0, *range(2, 8))) == {"gpu:1": "warn"}


@pytest.mark.parametrize("with_temperature", [(), (0, *range(2, 8))])
def test_a_gpu_that_reports_neither_margin_nor_temperature_is_missing_evidence(with_temperature):
    assert temperatures_judged(with_temperature, (0, *range(2, 8))) == {"gpu:1": "missing"}


def test_no_gpu_is_judged_by_its_temperature_where_all_report_their_margin():
    assert temperatures_judged(range(8), range(8)) == temperatures_judged((), range(8)) == {}


def temperatures_judged(with_temperature, with_margin):
    """By part the verdicts of the check of temperatures, where these GPUs report one, and these a margin."""
    run = make_run(stages=["facts", "diagnostics"])
    figures = [metric("gpu_temperature_max_celsius", 95, "celsius", f"gpu:{index}") for index in with_temperature]
    figures += [metric("gpu_temperature_margin_min_celsius", 5, "celsius", f"gpu:{index}") for index in with_margin]
    evidence = healthy(run)
    diagnosed = make_record("node-1", "diagnostics", metrics=figures)
    evidence.records["node-1"] = {"facts": facts_record(), "diagnostics": diagnosed}
    checks = judge(run, evidence, SHIPPED)["nodes"][0]["checks"]
    return {entry["part"]: entry["verdict"] for entry in checks if entry["name"] == "diagnostics_gpu_temperature"}


@pytest.mark.parametrize("there", [None, {"active": None, "mounts": None}, "nonsense", {"active": "chronyd"}])
def test_facts_that_do_not_tell_are_missing_evidence(there):
    found = judged({declared.SERVICES: ["chronyd"], declared.MOUNTS: ["/data"]}, there=there)
    assert [found[name, "node"]["verdict"] for name in ("services_declared", "mounts_declared")] == ["missing"] * 2


def test_a_gpu_hotter_than_declared_fails_and_without_a_declaration_is_no_failure():
    found = judged({declared.TEMPERATURE: "79.5"})
    assert found["diagnostics_gpu_temperature_declared", "gpu:0"]["verdict"] == "fail"
    assert list(found) == [("diagnostics_gpu_temperature_declared", "gpu:0")]
    (entry,) = judged({}, hottest=95).values()
    assert (entry["verdict"], entry["reason"]) == ("skipped", "no limit declared")


@pytest.mark.parametrize(
    ("hostvars", "words"),
    [
        ({declared.SERVICES: "chronyd"}, "list of names"),
        ({declared.SERVICES: [3]}, "list of names"),
        ({declared.MOUNTS: ["data"]}, "absolute path"),
        ({declared.MOUNTS: ["/x"] * 65}, "at most 64"),
        ({declared.TEMPERATURE: "warm"}, "30 to 120"),
        ({declared.TEMPERATURE: 185}, "30 to 120"),
        ({declared.TEMPERATURE: True}, "30 to 120"),
    ],
)
def test_declarations_that_cannot_be_used(hostvars, words):
    with pytest.raises(SettingError, match=words):
        declared.of_host(hostvars)


@pytest.mark.parametrize(
    ("value", "kept"),
    [(None, {}), ({}, {}), ({"trays": 9, "partition": None}, {"trays": 9}), ({"partition": 0}, {"partition": "0"}),
     ({"chassis": 2, "partition": "a"}, {"chassis": 2, "partition": "a"})],
)  # fmt: skip
def test_a_rack_is_declared_by_counts_and_a_partition(value, kept):
    assert declared.rack(value) == kept


@pytest.mark.parametrize(
    "value",
    [9, "trays=9", [9], {"Trays": 9}, {"trays": "9"}, {"trays": 0}, {"trays": True}, {"trays": 10**30}, {"trays": None},
     {"chassis": 65}, {"partition": {"a": 1}}, {"partition": "x" * 100}],
)  # fmt: skip
def test_a_mistyped_rack_is_refused(value):
    with pytest.raises(SettingError, match="gpuval_rack"):
        declared.rack(value)
