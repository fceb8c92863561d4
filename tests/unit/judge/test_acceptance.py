"""What must be proven of a node before its PASS accepts it, by the list that ships."""

import copy
import json
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import COLLECTION
from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery import report_conversion
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.conversion import (
    InternalData,
    InternalDataConverter,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import acceptance
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import health, summary
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import failed_checks
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm import drains
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps.write_hostfile import unsettled

from tests.kit.builders import (
    TIME,
    facts_record,
    healthy,
    judge,
    make_record,
    make_run,
    metric,
    times,
    training_metrics,
)
from tests.unit.judge.test_real_h200 import RUNS, records

SHIPPED = COLLECTION / "skus/shared/acceptance.yml"
QUICK = ["facts", "diagnostics", "training"]
MATRIX, MEMORY, LINKS, TRAINING = (proof.what for proof in acceptance.read_proofs(SHIPPED)[:4])


@pytest.fixture(autouse=True)
def shipped(monkeypatch):
    monkeypatch.setattr(acceptance, "PROOFS", SHIPPED)


def diagnostics(gpus):
    return [
        *(metric("diagnostics_matmul_bf16_tflops", 700.0, "TFLOP/s", f"gpu:{index}") for index in range(gpus)),
        *(metric("diagnostics_memory_tested_bytes", 1.4e11, "bytes", f"gpu:{index}") for index in range(gpus)),
        *(
            metric("diagnostics_peer_bytes_per_second", 4e11, "bytes_per_second", f"link:gpu{first}>gpu{second}")
            for first in range(gpus)
            for second in range(gpus)
            if first != second
        ),
    ]


def on_cpu():
    return [
        metric("diagnostics_matmul_fp32_tflops", 0.4, "TFLOP/s", "rank:0"),
        metric("diagnostics_memory_tested_bytes", 1e8, "bytes", "rank:0"),
    ]


def fleet(nodes=("a", "b"), *, stages=QUICK, gpus=8, vendor="nvidia", **fields):
    run = make_run(nodes, stages=stages, **fields)
    evidence = healthy(run, gpus=gpus, vendor=vendor)
    for name, stages_of_node in evidence.records.items():
        figures = diagnostics(gpus) if gpus else on_cpu()
        for gpu in stages_of_node["facts"]["environment"]["gpus"]:
            gpu["name"] = {"nvidia": "H200", "amd": "AMD Instinct MI300X"}.get(vendor, "HL-325L")
        stages_of_node["diagnostics"] = make_record(name, "diagnostics", metrics=figures)
        stages_of_node["job"] = make_record(name, "job")
        stages_of_node |= {stage: stages_of_node[stage] for stage in stages}
        evidence.records[name] = {stage: stages_of_node[stage] for stage in stages}
    return run, evidence


def judged(case):
    report = judge(*case, checks=[])
    schemas.validate("report", report, what="report")
    return report


def test_the_list_that_ships_follows_its_schema_and_names_metrics_that_stages_report():
    reported = (Path(__file__).parents[2] / "kit/reported_metrics.yml").read_text()
    for proof in acceptance.read_proofs(SHIPPED):
        assert all(f"- {name}\n" in reported for name in [*proof.metrics, *filter(None, [proof.seconds_of])])


@pytest.mark.parametrize("gpus", [1, 2, 8])
@pytest.mark.parametrize("vendor", ["nvidia", "amd", "gaudi"])
@pytest.mark.parametrize("profile", ["quick", "custom", "mine"])
def test_what_proves_all_is_accepted_whatever_it_is_called(gpus, vendor, profile):
    report = judged(fleet(gpus=gpus, vendor=vendor, profile=profile))
    assert report["verdict"] == "PASS"
    assert not any("unproven" in node for node in report["nodes"])
    assert report["fleet"]["not_tested"], "a run of few stages says what it did not test"


def test_a_cpu_node_has_its_own_list():
    assert judged(fleet(gpus=0, vendor="cpu"))["verdict"] == "PASS"
    report = judged(fleet(gpus=0, vendor="cpu", stages=["facts", "training"]))
    assert report["verdict"] == "PARTIAL"
    assert report["nodes"][0]["unproven"] == ["matrix multiplications (no stage diagnostics)",
                                              "the memory (no stage diagnostics)"]  # fmt: skip


@pytest.mark.parametrize(
    ("stages", "unproven"),
    [
        (["facts", "job"], [MATRIX, MEMORY, LINKS, TRAINING]),
        (["facts", "loading", "inference"], [MATRIX, MEMORY, LINKS, TRAINING]),
        (["facts", "diagnostics"], [TRAINING]),
        (["facts", "training", "job"], [MATRIX, MEMORY, LINKS]),
        (["diagnostics", "training"], [MATRIX, MEMORY, LINKS, TRAINING]),  # how many GPUs it has is not known
    ],
)
@pytest.mark.parametrize("profile", ["quick", "custom", "burnin"])
def test_a_run_of_some_stages_is_partial_by_what_it_did_not_prove(stages, unproven, profile):
    report = judged(fleet(stages=stages, profile=profile, sku="h200", gpu_count=8))
    if "facts" in stages:
        assert report["verdict"] == "PARTIAL"
        assert {node["verdict"] for node in report["nodes"]} == {"PASS"}
        assert [gap.partition(" (")[0] for gap in report["nodes"][0]["unproven"]] == unproven
        assert any(line.startswith("Not proven: ") and unproven[0] in line for line in report["summary"])
    else:
        assert report["verdict"] == "INCOMPLETE"


def without(case, name="", scope="", stage="", **fields):
    run, evidence = copy.deepcopy(case)
    record = evidence.records["b"][stage]
    record["metrics"] = [
        figure for figure in record["metrics"]
        if not ((name in figure["name"] if name else True) and (scope in figure["scope"] if scope else bool(name)))
    ]  # fmt: skip
    record.update(fields)
    return run, evidence


@pytest.mark.parametrize(
    ("change", "unproven"),
    [
        ({"name": "matmul", "scope": "gpu:3"}, [f"{MATRIX} (not gpu:3)"]),
        ({"name": "memory_tested", "scope": "gpu:7"}, [f"{MEMORY} (not gpu:7)"]),
        ({"name": "memory_tested"}, [f"{MEMORY} (diagnostics reports no diagnostics_memory_tested_bytes)"]),
        ({"name": "peer", "scope": "gpu5"}, [f"{LINKS} (not gpu:5)"]),
        ({"name": "peer"}, [f"{LINKS} (diagnostics reports no diagnostics_peer_bytes_per_second)"]),
        (times("2026-11-02T10:00:00Z", 3.0), [f"{MATRIX} (diagnostics worked 3 s of at least 10 s)"]),
        ({"stage": "training", "name": "duration"}, [f"{TRAINING} (training worked 0 s of at least 15 s)"]),
    ],
)
def test_each_gpu_is_proven_for_long_enough(change, unproven):
    case = without(fleet(), **{"stage": "diagnostics", **change})
    report = judged(case)
    assert (report["verdict"], report["counts"]["PASS"]) == ("PARTIAL", 2)
    assert "unproven" not in report["nodes"][0]
    assert report["nodes"][1]["unproven"] == unproven
    assert any(f"{unproven[0]} on 1 of 2 nodes" in line for line in report["summary"])


def test_a_gpu_that_one_process_of_a_training_left_out_is_not_proven():
    (_, node) = judged(without(fleet(), stage="training", name="model_tflops", scope="gpu:0"))["nodes"]
    assert node["verdict"] == "INCOMPLETE", "each process has a figure"
    assert acceptance.unproven(node) == [f"{TRAINING} (not gpu:0)"]


@pytest.mark.parametrize(("seconds", "verdict"), [(14.9, "PARTIAL"), (15.0, "PASS"), (22.6, "PASS")])
def test_training_has_a_minimum_of_seconds(seconds, verdict):
    run, evidence = fleet()
    for name in "ab":
        figures = [figure for figure in training_metrics() if figure["name"] != "training_duration_seconds"]
        figures.append(metric("training_duration_seconds", seconds, "seconds"))
        evidence.records[name]["training"]["metrics"] = figures
    assert judged((run, evidence))["verdict"] == verdict


def test_the_profile_quick_on_two_real_h200_is_accepted():
    found = dict(records("a", RUNS["quick"]))
    run = make_run(("a",), stages=list(found), gpu_count=2)
    _, evidence = fleet(("a",))
    evidence.records = {"a": found}
    (node,) = judge(run, evidence, checks=[])["nodes"]
    assert acceptance.unproven(node) == []
    assert len(json.loads(json.dumps(node["metrics"]))) == 6


def test_gpus_that_two_machines_list_are_proven_of_neither():
    run, evidence = fleet()
    for name in "ab":
        identity = facts_record("a")["environment"]["identity"]
        evidence.records[name]["facts"]["environment"]["identity"] = identity
        evidence.launches[name]["host_key"] = f"SHA256:{name}"
    report = judged((run, evidence))
    assert (report["verdict"], report["counts"]["PASS"]) == ("PARTIAL", 2)
    assert [node["unproven"] for node in report["nodes"]] == [
        ["whose the GPUs are (b lists them, too)"], ["whose the GPUs are (a lists them, too)"]
    ]  # fmt: skip


def test_a_run_that_fails_stays_so_and_an_open_node_has_no_list():
    run, evidence = fleet(stages=["facts", "training"])
    evidence.records["a"]["training"]["state"] = "crash"
    del evidence.records["b"]["training"]
    report = judged((run, evidence))
    assert report["verdict"] == "FAIL" or report["verdict"] == "INCOMPLETE"
    assert "unproven" not in report["nodes"][1]


# What asks for it


def test_the_report_and_its_customers_copy_keep_what_is_not_proven():
    report = judged(fleet(stages=["facts", "job"], finished_at=TIME))
    kept = report_file.unpacked(json.loads("".join(report_file.lines(copy.deepcopy(report)))))
    assert [node["unproven"] for node in kept["nodes"]] == [node["unproven"] for node in report["nodes"]]
    converter = InternalDataConverter(InternalData(names={"a": "id-1", "b": "id-2"}))
    delivered = report_conversion.converted(copy.deepcopy(report), converter, "delivery-1")
    assert delivered["nodes"][0]["unproven"] == report["nodes"][0]["unproven"]
    assert any(line.startswith("Not proven: ") for line in delivered["summary"])


@pytest.mark.parametrize(
    ("stages", "accepts"), [(QUICK, True), (["facts", "job"], False), (["facts", "training"], False)]
)
def test_marks_drains_health_and_hostfiles_ask_the_same(stages, accepts):
    report = judged(fleet(stages=stages, profile="custom", finished_at=TIME))
    run, (node, _) = report["run"], report["nodes"]
    assert failed_checks.accepts(run, node) is failed_checks.is_whole(run, node) is accepts
    assert failed_checks.verdict_after(node, run, None, failed=False) == ("PASS" if accepts else None)
    assert failed_checks.verdict_after(node, run, "FAIL", failed=True) == ("PASS" if accepts else "INCOMPLETE")
    entries = health.merged({}, report)
    assert set(entries) == ({"a", "b"} if accepts else set())
    drained = drains.SlurmNode(frozenset({"IDLE", "DRAIN"}), "gpuval:earlier:nothing_proven")
    assert drains.decide(drained, node, run, None).state == (drains.RESUME if accepts else drains.KEEP)
    remarks = unsettled(make_run(finished_at=TIME), None, report["nodes"])
    assert any("proves less than an acceptance needs: a, b" in remark for remark in remarks) is not accepts


@pytest.mark.parametrize(
    ("case", "title"),
    [
        (fleet(stages=["facts", "loading"]), "PARTIAL (no GPU was tested)"),
        (fleet(), "PASS"),
        (fleet(stages=["facts", "job"]), "PARTIAL"),
        (fleet(stages=["facts"]), "PARTIAL (no GPU was tested)"),
        (fleet(gpus=0, vendor="cpu", sku="cpu"), "PASS (no GPU was tested)"),
        (fleet(gpus=0, vendor="cpu"), "PASS (no GPU was tested)"),
    ],
)
def test_the_first_line_says_when_no_gpu_was_tested(case, title):
    report = judged(case)
    lines = summary.final_block({**report, "nodes": []}).splitlines()  # the console reads the report's head alone
    assert lines[1] == f"FINAL ACCEPTANCE: {title}"
    if case[0]["nodes"]["a"]["sku"] != "cpu" and "no GPU" in title:
        assert lines[2].startswith(("- No GPU was tested", "- No stage that tests a GPU ran"))
