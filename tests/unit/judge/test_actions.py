"""One action for each node that is not accepted: every class has a rule, and the same fault again escalates."""

import json
import os

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas, yaml_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import actions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import earlier_faults, publishing
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder

from tests.kit.builders import check, healthy, judge, make_record, make_run, metric, training_metrics
from tests.kit.reports import job_failed

ECC = "training_gpu_ecc_uncorrected"


def document():
    return yaml_file.load(actions.FILE.read_text())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": ["restart"]}, "'restart' is none of retest, reboot, inspect"),
        ({"steps": []}, "steps"),
        ({"clases": ["x"]}, "unknown key 'clases'"),
    ],
)
def test_a_mistyped_ladder_is_refused(change, said):
    wrong = document()
    wrong["ladders"]["gpu_damage"] |= change
    with pytest.raises(schemas.Invalid) as raised:
        schemas.validate("actions", wrong, what="rules.yml")
    assert said in str(raised.value)


def ecc_report(gpus=(3,), earlier=None, serials=True):
    """The report on a node with ECC errors on these GPUs."""
    run = make_run(["good", "bad"], gpu_count=8)
    evidence = healthy(run)
    evidence.records["bad"]["training"]["metrics"] = [
        *training_metrics(),
        *(metric("gpu_ecc_uncorrected_count", int(index in gpus), "count", f"gpu:{index}") for index in range(8)),
    ]
    if serials:
        for name, records in evidence.records.items():
            for gpu in records["facts"]["environment"]["gpus"]:
                gpu["serial"] = f"{name}-{gpu['index']}"
    one = check(ECC, metric="gpu_ecc_uncorrected_count", kind="max", scope="gpu", value=0, where_reported=True)
    report = judge(run, evidence, [one], earlier=earlier or {})
    schemas.validate("report", report, what="report")
    return report


def action(report, name="bad"):
    return next(node.get("action") for node in report["nodes"] if node["name"] == name)


def test_a_fault_that_comes_back_escalates_and_the_last_step_stays():
    first = action(ecc_report())
    assert first == {
        "name": "reboot", "class": ECC, "parts": ["gpu:3"], "earlier_runs": [],
        "faults": [{"class": ECC, "of": "gpu serial bad-3"}],
    }  # fmt: skip
    assert "action" not in next(node for node in ecc_report()["nodes"] if node["name"] == "good")
    known = (ECC, "gpu serial bad-3")
    names = [
        action(ecc_report(earlier={known: {f"run-{number}" for number in range(count)}}))["name"] for count in range(5)
    ]
    assert names == ["reboot", "replace_gpu", "contact_vendor", "contact_vendor", "contact_vendor"]


@pytest.mark.parametrize("other", [(ECC, "gpu serial other"), ("training_xid", "gpu serial bad-3")])
def test_another_gpu_or_another_fault_begins_anew(other):
    assert action(ecc_report(earlier={other: {"run-0"}}))["name"] == "reboot"


def test_a_serial_that_two_gpus_share_is_not_followed():
    found = action(ecc_report(serials=False))
    assert found["faults"] == [{"class": ECC, "of": "serial S-bad gpu:3"}]


def test_many_gpus_of_one_node_point_to_what_they_share():
    assert action(ecc_report((1, 3)))["parts"] == ["gpu:1", "gpu:3"]
    earlier = {(ECC, "serial S-bad"): {"run-0"}}
    found = action(ecc_report((1, 3, 5), earlier))
    assert (found["name"], found["parts"]) == ("contact_vendor", [])
    assert found["faults"] == [{"class": ECC, "of": "serial S-bad"}]


def test_no_vendor_is_asked_about_a_job_of_ones_own():
    report = job_failed()
    actions.assign(report, {})
    (fault,) = action(report)["faults"]
    actions.assign(report, {(fault["class"], fault["of"]): {"r1", "r2", "r3"}})
    assert (action(report)["name"], action(report)["class"]) == ("retest", "own_program")
    assert action(report)["earlier_runs"] == []


@pytest.mark.parametrize(
    "name", ["sku", "accelerator", "versions_driver", "mounts_declared", "training_timeout", "a_check_of_ones_own"]
)
def test_what_a_wrong_setting_may_cause_is_no_case_of_the_vendor_however_often_it_is_found(name):
    steps = actions.NodeFault(name, "gpu:3", "gpu serial bad-3", "node").steps
    assert "contact_vendor" not in steps


def test_the_gravest_of_several_faults_counts():
    run = make_run(["bad"], gpu_count=8)
    evidence = healthy(run)
    evidence.records["bad"]["training"] = make_record("bad", state="crash", message="killed", metrics=[])
    assert action(judge(run, evidence))["name"] == "retest"
    evidence.records["bad"]["facts"]["metrics"] = [metric("gpu_count", 7), metric("gpu_hardware_count", 8)]
    checks = [check("facts_gpu_count", stage="facts", metric="gpu_count", kind="equal", value_from="gpu_count")]
    found = action(judge(run, evidence, checks))
    assert (found["name"], found["class"]) == ("reboot", "facts_gpu_count")
    assert {fault["class"] for fault in found["faults"]} == {"facts_gpu_count", "training_crash"}


def test_a_node_that_was_never_reached_is_known_by_its_name():
    run = make_run(["gone"], gpu_count=8)
    evidence = healthy(run)
    del evidence.records["gone"]
    evidence.launches["gone"] = {"state": "unreachable", "message": "No route to host"}
    found = action(judge(run, evidence), "gone")
    assert (found["name"], found["faults"]) == ("inspect", [{"class": "no_route", "of": "name gone"}])
    again = action(judge(run, evidence, earlier={("no_route", "name gone"): {"run-0"}}), "gone")
    assert (again["name"], again["earlier_runs"]) == ("replace_node", ["run-0"])


def run_in(results, run_id, day, *, finished=True, inventory=("a.yml",), faults=None):
    """A run that was judged in ``results``, and its folder."""
    time = f"2026-11-{day:02}T10:00:00Z"
    ended = time if finished else None
    run = make_run(
        ["bad"], run_id=run_id, created_at=time, finished_at=ended, origin={"inventory": list(inventory), "store": ""}
    )
    folder = RunFolder(results / run_id)
    folder.path.mkdir(parents=True)
    folder.run_file.write_text(json.dumps(run))
    report = {**ecc_report(), "run": {"run_id": run_id, "created_at": time, "finished_at": ended, "judged_at": time}}
    for node in report["nodes"]:
        if faults is not None and "action" in node:
            node["action"]["faults"] = faults
    publishing.keep_verdict(folder, report)
    return folder, run


def test_earlier_runs_count_by_their_verdicts(tmp_path):
    known = (ECC, "gpu serial bad-3")
    run_in(tmp_path, "old", 1)
    run_in(tmp_path, "first", 10)
    run_in(tmp_path, "second", 12)
    run_in(tmp_path, "unfinished", 13, finished=False)
    folder, run = run_in(tmp_path, "now", 14)
    run_in(tmp_path, "later", 15)
    found, remarks = earlier_faults.read(folder, run, 7)
    assert (found, remarks) == ({known: {"first", "second"}}, [])
    found, _ = earlier_faults.read(folder, run, 30)
    assert found[known] == {"old", "first", "second"}
    stale = RunFolder(tmp_path / "first").verdict_file
    os.utime(stale, (0, 0))  # what was not written since the window began holds no run of it
    assert earlier_faults.read(folder, run, 7)[0][known] == {"second"}


def test_names_are_compared_among_runs_of_one_inventory(tmp_path):
    by_name = [{"class": "no_route", "of": "name bad"}, {"class": ECC, "of": "serial S-bad"}]
    run_in(tmp_path, "here", 10, faults=by_name)
    run_in(tmp_path, "elsewhere", 11, faults=by_name, inventory=("b.yml",))
    folder, run = run_in(tmp_path, "now", 12)
    found, _ = earlier_faults.read(folder, run, 30)
    assert found == {("no_route", "name bad"): {"here"}, (ECC, "serial S-bad"): {"here", "elsewhere"}}


def test_the_last_run_that_declared_gpus_is_named_where_they_were_missed(tmp_path):
    lacks = [{"class": "accelerator", "of": "serial S-bad"}]
    for day, (run_id, count, sku) in enumerate(
        [("run-1", 4, "auto"), ("run-2", 8, "h200"), ("run-3", None, "auto")], 1
    ):
        folder, run = run_in(tmp_path, run_id, day, faults=lacks)
        run["nodes"]["bad"] |= {"gpu_count": count, "sku": sku}
        folder.run_file.write_text(json.dumps(run))
    folder, run = run_in(tmp_path, "now", 12)
    earlier, _ = earlier_faults.read(folder, run, 30)
    said = "run run-2, which declared gpuval_gpu_count 8 and gpuval_sku h200, missed its GPUs"
    assert actions.lacked_gpus(earlier, earlier_faults.declared_in(tmp_path)) == {"serial S-bad": said}
    (tmp_path / "run-2/run.json").write_text("{")
    assert "run run-1, which declared gpuval_gpu_count 4," in str(
        actions.lacked_gpus(earlier, earlier_faults.declared_in(tmp_path))
    )


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "gpuval.verdict/1"}'])
def test_a_damaged_verdict_of_another_run_is_a_remark(tmp_path, text):
    broken, _ = run_in(tmp_path, "broken", 10)
    broken.verdict_file.write_text(text)
    folder, run = run_in(tmp_path, "now", 12)
    found, (remark,) = earlier_faults.read(folder, run, 30)
    assert found == {}
    assert "is damaged" in remark and "do not escalate by run broken" in remark
