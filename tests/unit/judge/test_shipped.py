"""The shipped criteria on a whole H200 node, healthy and with one thing wrong: found, classed and localised."""

import copy

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import plausible, verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit.builders import SHIPPED, healthy, judge, make_record, make_run, metric
from tests.kit.h200 import STAGES, diagnostics, facts, records, setups_of, telemetry


def judged(change=None, *, gpus=8, sku="auto", gpu_count=None, nodes=("node-1",), **settings):
    """The report on healthy nodes, the first changed; ``settings`` of the run as ``setups_of`` takes them."""
    run = make_run(nodes, stages=STAGES, sku=sku, gpu_count=gpu_count, setups=setups_of(**settings))
    evidence = RunEvidence(
        records={name: copy.deepcopy(records(name, gpus)) for name in nodes},
        launches={name: {"state": "started", "message": ""} for name in nodes},
    )
    for number, name in enumerate(nodes):
        for gpu in evidence.records[name]["facts"]["environment"]["gpus"]:
            gpu["serial"] = f"16549{number}{gpu['index']}"
        for one in (one for record in evidence.records[name].values() for one in record["metrics"]):
            if isinstance(one["value"], float):  # no two machines measure the same to the last digit
                one["value"] *= 1 + 1e-9 * number
    if change:
        change(evidence.records["node-1"])
    report = judge(run, evidence, SHIPPED)
    schemas.validate("report", report, what="report")
    return report


def change_metric(stage, name, value, scope="node"):
    def change(by_stage):
        found = [one for one in by_stage[stage]["metrics"] if (one["name"], one["scope"]) == (name, scope)]
        assert len(found) == 1
        found[0]["value"] = value

    return change


@pytest.mark.parametrize(
    ("gpus", "fields", "warned"),
    [
        (8, {"sku": "h200", "gpu_count": 8}, set()),
        (8, {}, set()),
        (4, {"gpu_count": 4}, set()),
        (4, {}, {"sku_gpu_count"}),
        (2, {"gpu_count": 2}, set()),
        (1, {"gpu_count": 1}, set()),
    ],
)
def test_a_healthy_node_passes_silently(gpus, fields, warned):
    report = judged(gpus=gpus, **fields)
    odd = {entry["name"] for node in report["nodes"] for entry in node["checks"]
           if entry["verdict"] not in ("pass", "skipped")}  # fmt: skip
    assert odd == warned
    assert report["verdict"] == "PASS"
    assert report["fleet"].get("coverage", {}).get("unjudged", []) == []


def test_floors_of_eight_are_not_held_against_four():
    report = judged(change_metric("diagnostics", "diagnostics_all_reduce_bus_bytes_per_second", 250e9), gpus=4)
    (entry,) = [one for one in report["nodes"][0]["checks"] if one["name"] == "diagnostics_all_reduce_speed_h200"]
    assert entry["verdict"] == "skipped"
    assert entry["reason"] == "applies to 8 GPUs, this node has 4"


def nvls_on(by_stage):
    by_stage["diagnostics"]["fingerprints"]["diagnostics_nvls"] = "on"


def over_shared_memory(by_stage):
    by_stage["diagnostics"]["fingerprints"]["diagnostics_transport"] = "SHM"
    change_metric("diagnostics", "diagnostics_all_reduce_bus_bytes_per_second", 40e9)(by_stage)


def one_of_eight_hidden(by_stage):
    by_stage["diagnostics"]["metrics"] = [*diagnostics(7), *telemetry()]
    change_metric("diagnostics", "diagnostics_all_reduce_bus_bytes_per_second", 460e9)(by_stage)
    nvls_on(by_stage)


def fell_off_the_bus(by_stage):
    change_metric("training", "kernel_xid_critical_count", 1)(by_stage)
    change_metric("training", "gpu_xid_critical_count", 1, "gpu:6")(by_stage)
    change_metric("training", "gpu_lost_count", 1)(by_stage)


@pytest.mark.parametrize(
    ("change", "word", "part"),
    [
        (change_metric("diagnostics", "diagnostics_matmul_bf16_tflops", 400, "gpu:3"),
         "diagnostics_matmul_outlier", "gpu:3"),
        (change_metric("diagnostics", "diagnostics_matmul_bf16_tflops", 690, "gpu:3"),
         "diagnostics_matmul_outlier", "gpu:3"),
        (change_metric("diagnostics", "diagnostics_matmul_fp8_tflops", 900, "gpu:1"),
         "diagnostics_matmul_fp8_speed_h200", "gpu:1"),
        (change_metric("diagnostics", "diagnostics_matmul_bf16_error_ratio", 0.02, "gpu:5"),
         "diagnostics_matmul_bf16_error_per_gpu", "gpu:5"),
        (change_metric("diagnostics", "diagnostics_memory_bytes_per_second", 3.9e12, "gpu:0"),
         "diagnostics_memory_outlier", "gpu:0"),
        (change_metric("diagnostics", "diagnostics_memory_pattern_error_count", 3, "gpu:7"),
         "diagnostics_memory_pattern_errors_per_gpu", "gpu:7"),
        (change_metric("diagnostics", "diagnostics_memory_tested_ratio", 0.4, "gpu:2"),
         "diagnostics_memory_tested_h200", "gpu:2"),
        (change_metric("diagnostics", "diagnostics_host_to_device_bytes_per_second", 12e9, "gpu:4"),
         "diagnostics_host_to_device_outlier", "gpu:4"),
        (change_metric("diagnostics", "diagnostics_peer_bytes_per_second", 190e9, "link:gpu2>gpu5"),
         "diagnostics_peer_outlier", "link:gpu2>gpu5"),
        (change_metric("diagnostics", "diagnostics_peer_error_count", 2, "link:gpu2>gpu5"),
         "diagnostics_peer_errors", "link:gpu2>gpu5"),
        (change_metric("diagnostics", "diagnostics_all_reduce_bus_bytes_per_second", 300e9),
         "diagnostics_all_reduce_speed_h200", "node"),
        (over_shared_memory, "diagnostics_transport_h200", "node"),
        (one_of_eight_hidden, "diagnostics_processes", "node"),
        (change_metric("fingerprint", "fingerprint_mismatch_count", 1, "gpu:1"),
         "fingerprint_mismatch_per_gpu", "gpu:1"),
        (change_metric("training", "training_model_tflops", 201, "gpu:3"), "training_speed_h200", "gpu:3"),
        (change_metric("training", "training_compute_ratio", 1.4, "gpu:3"), "training_compute_slow", "gpu:3"),
        (change_metric("training", "training_compute_p50_seconds", 0.4, "gpu:3"),
         "training_compute_outlier", "gpu:3"),
        (change_metric("fingerprint", "gpu_xid_critical_count", 1, "gpu:6"), "fingerprint_xid_per_gpu", "gpu:6"),
        (change_metric("training", "gpu_ecc_uncorrected_new_count", 1, "gpu:6"),
         "training_gpu_ecc_uncorrected", "gpu:6"),
        (fell_off_the_bus, "training_xid_per_gpu", "gpu:6"),
        (change_metric("facts", "gpu_memory_bytes", 85_520_809_984, "gpu:6"), "facts_gpu_memory_h200", "gpu:6"),
        (change_metric("facts", "gpu_links_count", 17, "gpu:6"), "facts_gpu_links_h200", "gpu:6"),
    ],
)  # fmt: skip
def test_one_thing_wrong_is_found_classed_and_localised(change, word, part):
    report = judged(change)
    node = report["nodes"][0]
    failed = [entry for entry in node["checks"] if entry["verdict"] == "fail"]
    assert node["verdict"] == "FAIL"
    assert (word, part) in [(entry["name"], entry["part"]) for entry in failed]
    assert {entry["part"] for entry in failed} <= {part, "node"}  # nobody else is accused
    if part.startswith("gpu:"):
        assert f"({part}, serial 165490{part[-1]}, 0000:9{part[-1]}:00.0)" in report["summary"][1]


OTHER = "trainer (pid 7) of user bob on gpu:1"
SLOW_LINK = change_metric("diagnostics", "diagnostics_peer_bytes_per_second", 84e9, "link:gpu1>gpu0")


def ended(state):
    def change(by_stage):
        by_stage["diagnostics"].update(state=state, message="out of memory", metrics=telemetry())

    return change


@pytest.mark.parametrize(
    ("change", "verdict", "word"),
    [
        (lambda _by_stage: None, "INCOMPLETE", "accelerators_in_use"),
        (SLOW_LINK, "INCOMPLETE", "accelerators_in_use"),
        *((ended(state), "INCOMPLETE", "accelerators_in_use") for state in ("crash", "failure", "timeout")),
        (change_metric("diagnostics", "diagnostics_peer_error_count", 2, "link:gpu2>gpu5"),
         "FAIL", "diagnostics_peer_errors"),
        (change_metric("diagnostics", "gpu_xid_critical_count", 1, "gpu:6"), "FAIL", "diagnostics_xid_per_gpu"),
        (change_metric("diagnostics", "gpu_ecc_uncorrected_new_count", 1, "gpu:6"),
         "FAIL", "diagnostics_gpu_ecc_uncorrected"),
        (change_metric("training", "training_model_tflops", 201, "gpu:3"), "FAIL", "training_speed_h200"),
    ],
)  # fmt: skip
def test_beside_other_work_a_stage_proves_no_speed_but_faults_count(change, verdict, word):
    def beside(by_stage):
        change(by_stage)
        by_stage["diagnostics"]["environment"]["accelerator_users"] = [{"process": OTHER}]

    (node,) = judged(beside)["nodes"]
    assert (node["verdict"], node["class"]) == (verdict, word)
    (entry,) = [one for one in node["checks"] if one["name"] == "accelerators_in_use"]
    assert OTHER in entry["reason"] and "end that work, or keep the node free" in entry["remedy"]
    assert (node["action"]["name"] == "retest") == (verdict == "INCOMPLETE" or word == "training_speed_h200")


def test_a_slow_link_of_a_free_node_fails():
    (node,) = judged(SLOW_LINK)["nodes"]
    assert (node["verdict"], node["action"]["name"]) == ("FAIL", "reboot")


@pytest.mark.parametrize("stage", ["facts", "image", "loading", "stream"])
@pytest.mark.parametrize(
    ("metric_name", "scope", "word"),
    [
        ("gpu_xid_critical_count", "gpu:6", "xid_per_gpu"),
        ("kernel_xid_critical_count", "node", "xid"),
        ("kernel_sxid_count", "node", "kernel_sxid"),
        ("gpu_ecc_uncorrected_new_count", "gpu:6", "gpu_ecc_uncorrected"),
        ("gpu_row_remap_new_count", "gpu:6", "gpu_row_remap"),
        ("gpu_lost_count", "node", "gpu_lost"),
        ("topology_changed_count", "node", "topology_changed"),
    ],
)
def test_a_fault_of_the_hardware_counts_in_every_stage(stage, metric_name, scope, word):
    stages = ["facts", "image", "loading", "stream"]
    run = make_run(stages=stages)
    evidence = healthy(run)
    found = {
        "facts": facts(), "image": make_record(stage="image"), "loading": evidence.records["node-1"]["loading"],
        "stream": make_record(stage="stream"),
    }  # fmt: skip
    found["loading"]["metrics"] += [metric("loading_files_count", 5), metric("loading_checksum_errors_count", 0)]
    evidence.records["node-1"] = found

    if (stage, word) == ("facts", "gpu_ecc_uncorrected"):
        word += "_new"  # facts_gpu_ecc_uncorrected is about errors since boot

    def checks():
        (node,) = judge(run, evidence, SHIPPED)["nodes"]
        return node["verdict"], [(one["name"], one["part"]) for one in node["checks"] if one["verdict"] == "fail"]

    assert checks() == ("PASS", [])  # a stage without the GPUs need not report of them
    found[stage]["metrics"] += telemetry()
    assert checks() == ("PASS", [])
    next(one for one in found[stage]["metrics"] if (one["name"], one["scope"]) == (metric_name, scope))["value"] = 1
    assert checks() == ("FAIL", [(f"{stage}_{word}", scope)])
    clean = copy.deepcopy(found[stage])
    clean["metrics"] = [one for one in clean["metrics"] if one["name"] != metric_name]
    found[stage] = {**clean, "attempt": 2, "attempts": [{**found[stage], "state": "crash"}]}
    assert checks() == ("FAIL", [(f"{stage}_{word}", scope)])  # nor is it retried into PASS
    retried = verdict.failed_criteria(judge(run, evidence, SHIPPED)["nodes"][0], SHIPPED)
    assert [(check.stage, check.retry) for check in retried] == [(stage, False)]


@pytest.mark.parametrize("stage", ["loading", "training"])
def test_a_fault_counts_in_a_stage_that_never_ended(stage):
    """A GPU that falls off the bus often takes the node with it: its last heartbeat has the XID."""
    run = make_run(stages=["facts", stage])
    record = make_record(stage=stage, state="running", finished_at=None, duration_seconds=3.0)
    records = {"facts": facts(), stage: record}

    def failed():
        (node,) = judge(run, RunEvidence(records={"node-1": records}), SHIPPED)["nodes"]
        return node["verdict"], [(one["name"], one["part"]) for one in node["checks"] if one["verdict"] == "fail"]

    assert failed() == ("INCOMPLETE", [])
    record["metrics"] = [metric("kernel_xid_critical_count", 0), metric("gpu_xid_critical_count", 1, scope="gpu:6")]
    assert failed() == ("FAIL", [(f"{stage}_xid_per_gpu", "gpu:6")])
    attempt = {**record, "state": "crash", "metrics": [metric("gpu_lost_count", 1)]}
    record.update(metrics=[], attempt=2, attempts=[attempt])
    assert failed() == ("FAIL", [(f"{stage}_gpu_lost", "node")])


def test_a_fault_counts_where_it_is_unknown_what_the_node_has():
    run = make_run(stages=["facts"])
    record = make_record(stage="facts", state="crash", metrics=[metric("kernel_xid_critical_count", 1)])
    (node,) = judge(run, RunEvidence(records={"node-1": {"facts": record}}), SHIPPED)["nodes"]
    assert "facts_xid" in [one["name"] for one in node["checks"] if one["verdict"] == "fail"]


def whole_node():
    """Every stage of a node, as its workload reports it."""
    found = healthy(make_run()).records["node-1"]
    found["loading"]["metrics"] += [metric("loading_files_count", 5), metric("loading_checksum_errors_count", 0)]
    found["inference"]["metrics"] += [
        metric("inference_tokens_per_second", 900.0, "tokens_per_second"),
        *telemetry(),
    ]
    training = records()["training"]
    training["metrics"] += [metric("training_tokens_per_second", 56000.0, "tokens/s")]
    return {**copy.deepcopy(records()), "training": training, "loading": found["loading"],
            "inference": found["inference"]}  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "name", "is_required"),
    [
        ("training", "training_steps_count", True),
        ("training", "training_model_tflops", True),
        ("training", "training_tokens_per_second", False),
        ("loading", "loading_bytes", True),
        ("loading", "loading_files_count", True),
        ("loading", "loading_bytes_per_second", False),
        ("inference", "inference_requests_done_count", True),
        ("inference", "inference_generated_tokens_count", True),
        ("inference", "inference_tokens_per_second", True),
        ("fingerprint", "fingerprint_repeats_count", True),
        ("diagnostics", "diagnostics_collective_largest_bytes", True),
        ("diagnostics", "diagnostics_host_to_device_bytes_per_second", True),
        ("diagnostics", "diagnostics_device_to_host_bytes_per_second", True),
        ("diagnostics", "diagnostics_memory_tested_bytes", True),
        *(
            (stage, "telemetry_samples_count", True)
            for stage in ("diagnostics", "fingerprint", "training", "inference")
        ),
    ],
)
def test_work_that_was_not_done_is_not_accepted(stage, name, is_required):
    run = make_run(stages=[*STAGES, "loading", "inference"])

    def verdict_of(change):
        found = whole_node()
        found[stage]["metrics"] = change(found[stage]["metrics"])
        return judge(run, RunEvidence(records={"node-1": found}), SHIPPED)["nodes"][0]["verdict"]

    assert verdict_of(lambda metrics: metrics) == "PASS"
    zero = verdict_of(lambda metrics: [{**one, "value": 0} if one["name"] == name else one for one in metrics])
    is_amount = any(check.samples_from == check.metric == name for check in SHIPPED)  # too little work is no evidence
    assert zero == ("INCOMPLETE" if is_amount else "FAIL")
    missing = verdict_of(lambda metrics: [one for one in metrics if one["name"] != name])
    assert missing == ("INCOMPLETE" if is_required else "PASS")


def plausible_entries(found, sku="auto"):
    run = make_run(stages=[*STAGES, "loading", "inference"], sku=sku)
    report = judge(run, RunEvidence(records={"node-1": found}), SHIPPED)
    schemas.validate("report", report, what="report")
    (node,) = report["nodes"]
    return node["verdict"], [one for one in node["checks"] if one["kind"] == "plausible"]


@pytest.mark.parametrize(
    ("stage", "name", "value", "unit", "reason"),
    [
        ("diagnostics", "diagnostics_matmul_bf16_tflops", 1300, None, "1.25 times that of NVIDIA H200 SXM"),
        ("diagnostics", "diagnostics_matmul_bf16_tflops", 7.45e5, None, "over 1,236 TFLOP/s"),
        ("diagnostics", "diagnostics_memory_bytes_per_second", 4285, "TB/s", "over 6.00 TB/s"),
        ("diagnostics", "diagnostics_memory_bytes_per_second", 4.285e12, "bytes", "no unit of bytes/s"),
        ("diagnostics", "diagnostics_host_to_device_bytes_per_second", 5.5e13, None, "over 78.76 GB/s"),
        ("diagnostics", "diagnostics_peer_bytes_per_second", 9e11, None, "over 562.50 GB/s"),
        ("diagnostics", "diagnostics_all_reduce_bus_bytes_per_second", 3.6e14, None, "over 1.12 TB/s"),
        ("diagnostics", "diagnostics_memory_tested_ratio", 1.5, None, "over 1.001"),
        ("diagnostics", "diagnostics_memory_error_count", -1, None, "under 0"),
        ("diagnostics", "diagnostics_launch_seconds", -4e-6, None, "under 0 s"),
        ("diagnostics", "gpu_temperature_max_celsius", 6500, None, "over 150"),
        ("diagnostics", "gpu_throttle_hardware_ratio", -0.5, None, "under 0"),
        ("facts", "gpu_memory_bytes", 1.5e14, None, "over 225.60 GB"),
        ("facts", "gpu_power_limit_watts", 7e5, None, "over 1,400 W"),
        ("training", "training_model_tflops", 451000, None, "over 1,236 TFLOP/s"),
        ("training", "training_tokens_per_second", 1e300, None, "over 1,000,000,000"),
        ("training", "training_loss_last", -1e300, None, "under -1,000,000"),
        ("loading", "loading_bytes", 1e300, None, "over"),
        ("loading", "loading_bytes_per_second", 7e14, None, "over 1.00 TB/s"),
        ("inference", "inference_tokens_per_second", 1e9, None, "over 10,000,000"),
        ("inference", "inference_generated_tokens_count", 1e300, None, "over"),
        ("fingerprint", "fingerprint_repeats_count", 1e300, None, "over"),
    ],
)
def test_nothing_is_too_good_to_be_true(stage, name, value, unit, reason):
    assert plausible_entries(whole_node()) == ("PASS", [])
    found = whole_node()
    one = next(one for one in found[stage]["metrics"] if one["name"] == name)
    one.update(value=value, unit=unit or one["unit"])
    verdict_, (entry,) = plausible_entries(found)
    assert verdict_ == "INCOMPLETE"
    assert (entry["name"], entry["part"], entry["metric"]) == (f"{stage}_plausible", one["scope"], name)
    assert entry["reason"].startswith("implausible: ")
    assert reason in entry["reason"]


def test_figures_in_other_units_are_converted_and_unknown_ones_of_other_workloads_left_alone():
    found = whole_node()
    for one in found["diagnostics"]["metrics"]:
        if one["name"] == "diagnostics_memory_bytes_per_second":
            one.update(value=one["value"] / 1e9, unit="GB/s")
    found["training"]["metrics"] += [
        metric("speedup_ratio", 7.9, "ratio"), metric("queue_seconds", 3, "ticks"), metric("score", -12, "points"),
    ]  # fmt: skip
    assert plausible_entries(found) == ("PASS", [])
    found["training"]["metrics"] += [metric("score", 1e300, "points")]
    assert plausible_entries(found)[0] == "INCOMPLETE"


def test_an_impossible_figure_of_a_gang_fails_none_of_its_nodes():
    run = make_run(stages=["facts", "collective"])
    run["nodes"]["node-1"]["gang_stages"] = ["collective"]
    gang = make_record(
        stage="collective", metrics=[metric("gang_all_reduce_bus_bytes_per_second", 1e300, "bytes/s")],
        environment={"gang": {"name": "gang-1", "nodes": 2}},
    )  # fmt: skip
    (node,) = judge(run, RunEvidence(records={"node-1": {"facts": facts(), "collective": gang}}), [])["nodes"]
    (entry,) = [one for one in node["checks"] if one["kind"] == "plausible"]
    assert entry["verdict"] == "missing"
    assert entry["reason"].startswith("gang gang-1 of 2 nodes: implausible: ")


@pytest.mark.parametrize(
    ("name", "unit", "most"),
    [
        ("clock_synchronised", "%", 100.1),
        ("diagnostics_matmul_bf16_tflops", "GFLOP/s", 1.25 * 989e3),
        ("loading_bytes_per_second", "Gbit/s", 8000),
        ("diagnostics_memory_bytes_per_second", "TB/s", 6),
    ],
)
def test_limits_hold_exactly_in_any_unit(name, unit, most):
    for value, problems in ((0, 0), (most, 0), (most * (1 + 1e-12), 1), (-5e-324, 1)):
        record = make_record(metrics=[metric(name, value, unit)])
        assert len(plausible.checks("node-1", "training", record, "h200")) == problems, value


def test_many_impossible_figures_are_counted():
    found = whole_node()
    found["training"]["metrics"] += [metric(f"made_up_{number}_count", -1) for number in range(20)]
    _, entries = plausible_entries(found)
    assert len(entries) == 8
    assert entries[-1]["reason"].endswith("; so are 12 more figures")


def test_a_node_does_not_choose_how_many_of_its_links_are_judged():
    def few(by_stage):
        record = by_stage["diagnostics"]
        kept = [one for one in record["metrics"] if not one["scope"].startswith("link:") or "gpu0>" in one["scope"]]
        record["metrics"] = kept
        change_metric("diagnostics", "diagnostics_links_count", 7)(by_stage)

    report = judged(few)
    assert (report["verdict"], of(report, "diagnostics_links_counted")["verdict"]) == ("FAIL", "fail")
    assert of(report, "diagnostics_links_counted")["reason"] == "diagnostics_links_count is 7, not 56"


def of(report, name):
    (entry,) = [one for one in report["nodes"][0]["checks"] if one["name"] == name]
    return entry


def test_with_nvls_the_floor_is_higher_and_a_node_does_not_escape_it():
    """366 GB/s is well without NVLS only, and only the settings say that it is off."""
    floor = "diagnostics_all_reduce_nvls_speed_h200"
    report = judged(nvls_on, nvls=True)
    assert (report["verdict"], of(report, floor)["verdict"]) == ("FAIL", "fail")
    report = judged(nvls=True)
    assert (report["verdict"], of(report, floor)["verdict"]) == ("INCOMPLETE", "missing")
    assert "diagnostics_nvls is off, but this run asks for on" in of(report, floor)["reason"]
    assert of(judged(nvls=False), floor)["verdict"] == "skipped"


@pytest.mark.parametrize("setup", ["llama-1b 8x2048 fp32 eager", "llama-small 16x1024 bf16 eager", "resnet18 8 bf16 x"])
def test_a_lone_node_does_not_escape_its_floor_by_naming_another_setup(setup):
    def slow(by_stage):
        by_stage["training"]["fingerprints"]["training_setup"] = setup
        for one in by_stage["training"]["metrics"]:
            if one["name"] == "training_model_tflops":
                one["value"] = 100.0

    report = judged(slow)
    assert (report["verdict"], of(report, "training_speed_h200")["verdict"]) == ("INCOMPLETE", "missing")
    assert of(report, "training_speed_h200")["reason"].startswith(f"training_setup is {setup}, but this run asks for ")


def test_settings_that_ask_for_another_training_have_no_floor():
    def small(by_stage):
        by_stage["training"]["fingerprints"]["training_setup"] = "llama-small 16x1024 bf16 eager"

    report = judged(small, training=["--size", "small"])
    assert (report["verdict"], of(report, "training_speed_h200")["verdict"]) == ("PASS", "skipped")
    report = judged(training=["--size", "small"])  # a node that says that it did the larger one chooses no check
    assert of(report, "training_speed_h200")["verdict"] == "skipped"


def test_seven_gpus_that_are_faster_than_the_floor_of_eight_do_not_pass():
    node = judged(one_of_eight_hidden, nvls=True)["nodes"][0]
    (entry,) = [one for one in node["checks"] if one["name"] == "diagnostics_all_reduce_nvls_speed_h200"]
    assert entry["verdict"] == "missing"
    assert "judged only when diagnostics_processes passes" in entry["reason"]


def test_a_wrong_bit_on_one_of_three_nodes():
    def change(by_stage):
        by_stage["fingerprint"]["fingerprints"]["fingerprint_training_sha256"] = "0" * 64

    report = judged(change, nodes=("node-1", "node-2", "node-3"))
    assert [node["verdict"] for node in report["nodes"]] == ["FAIL", "PASS", "PASS"]
    assert report["nodes"][0]["class"] == "fingerprint_training_agrees"


def test_a_pod_that_may_not_read_the_kernels_log_passes_with_a_warning():
    def change(by_stage):
        for stage in ("diagnostics", "training"):
            record = by_stage[stage]
            record["metrics"] = [
                one for one in record["metrics"] if "kernel_" not in one["name"] and "_xid" not in one["name"]
            ]
            record["environment"]["telemetry"] = {"absent": {"kernel_log": "not permitted"}}

    report = judged(change)
    assert report["verdict"] == "PASS"
    assert any("not permitted" in entry["reason"] for entry in report["nodes"][0]["checks"])

    def silently(by_stage):
        change(by_stage)
        by_stage["training"]["environment"].clear()

    assert judged(silently)["verdict"] == "INCOMPLETE"


def test_a_node_that_fell_back_to_training_without_compiling_is_not_accepted():
    def fallen(by_stage):
        by_stage["training"]["fingerprints"]["training_setup"] = "llama-1b 8x2048 bf16 slow"
        change_metric("training", "training_compile_failed_count", 1)(by_stage)

    report = judged(fallen, nodes=tuple(f"node-{number}" for number in range(1, 11)))
    assert [node["verdict"] for node in report["nodes"]] == ["INCOMPLETE", *["PASS"] * 9]
    assert report["nodes"][0]["class"] == "training_setup_agrees"
    checks = {one["name"]: one["verdict"] for one in report["nodes"][0]["checks"]}
    assert checks["training_setup_agrees"] == "fail"
    assert checks["training_speed_fleet"] == "missing"
    assert checks["training_compiled"] == "warn"
