"""The shipped criteria on a whole H200 node, healthy and with one thing wrong: found, classed and localised."""

import copy

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils import criteria, schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence import Evidence
from builders import facts_record, judge, make_record, make_run, metric

SHIPPED = criteria.load(criteria.shipped_files())
STAGES = ["facts", "diagnostics", "fingerprint", "training"]
COLLECTIVES = {
    "all_reduce": 366.5,
    "all_gather": 358.7,
    "reduce_scatter": 361.6,
    "all_to_all": 344.6,
    "broadcast": 362.8,
}
#: A little noise, the same in every run, so that figures differ as those of real parts do.
NOISE = (0.0, 0.004, -0.003, 0.002, -0.005, 0.001, 0.003, -0.002)


def per_gpu(name, value, unit, gpus=8):
    return [metric(name, value * (1 + NOISE[index]), unit, f"gpu:{index}") for index in range(gpus)]


def telemetry(gpus=8):
    node = ("gpu_lost_count", "topology_changed_count", "kernel_xid_count", "kernel_xid_critical_count",
            "kernel_sxid_count", "kernel_ras_count", "kernel_mce_count", "kernel_oom_count",
            "kernel_link_flap_count")  # fmt: skip
    new = ("gpu_ecc_corrected_new_count", "gpu_ecc_uncorrected_new_count", "gpu_row_remap_new_count",
           "gpu_link_error_new_count", "gpu_pcie_replay_new_count", "gpu_xid_critical_count",
           "gpu_throttle_thermal_ratio", "gpu_throttle_hardware_ratio")  # fmt: skip
    figures = [metric(name, 0) for name in node]
    for name in new:
        figures += per_gpu(name, 0, "ratio" if name.endswith("ratio") else "count", gpus)
    figures += per_gpu("gpu_temperature_max_celsius", 65, "celsius", gpus)
    figures += per_gpu("gpu_power_busy_ratio", 0.99, "ratio", gpus)
    figures += per_gpu("gpu_sm_clock_busy_mean_hertz", 1.5e9, "hertz", gpus)
    figures += [metric("gpu_pcie_width_min_count", 16, "count", f"gpu:{index}") for index in range(gpus)]
    figures += [metric("gpu_pcie_generation_min_count", 5, "count", f"gpu:{index}") for index in range(gpus)]
    return figures


def diagnostics(gpus=8):
    figures = [metric("diagnostics_processes_count", gpus), metric("diagnostics_links_count", gpus * (gpus - 1))]
    for precision, rate, error in (("bf16", 745, 4e-3), ("fp16", 745, 5e-4), ("tf32", 400, 5e-4), ("fp8", 1300, 4e-3)):
        figures += per_gpu(f"diagnostics_matmul_{precision}_tflops", rate, "TFLOP/s", gpus)
        figures += per_gpu(f"diagnostics_matmul_{precision}_error_ratio", error, "ratio", gpus)
        figures += per_gpu(f"diagnostics_matmul_{precision}_spread_ratio", 0.002, "ratio", gpus)
    figures += per_gpu("diagnostics_memory_bytes_per_second", 4.285e12, "bytes/s", gpus)
    figures += per_gpu("diagnostics_memory_tested_bytes", 1.4e11, "bytes", gpus)
    figures += per_gpu("diagnostics_memory_tested_ratio", 0.97, "ratio", gpus)
    for name in ("memory", "host_to_device", "device_to_host"):
        figures += per_gpu(f"diagnostics_{name}_spread_ratio", 0.002, "ratio", gpus)
    for name in ("memory_error", "memory_pattern_error", "transfer_error"):
        figures += per_gpu(f"diagnostics_{name}_count", 0, "count", gpus)
    for name, rate in (("host_to_device", 55e9), ("device_to_host", 55e9), ("host_to_device_together", 20.6e9),
                       ("device_to_host_together", 12.7e9)):  # fmt: skip
        figures += per_gpu(f"diagnostics_{name}_bytes_per_second", rate, "bytes/s", gpus)
    figures += per_gpu("diagnostics_launch_seconds", 4e-6, "seconds", gpus)
    figures += per_gpu("diagnostics_overlap_ratio", 1.1, "ratio", gpus)
    for one in range(gpus):
        for other in range(gpus):
            if one != other:
                link, noise = f"link:gpu{one}>gpu{other}", 1 + NOISE[(one + other) % 8]
                figures.append(metric("diagnostics_peer_bytes_per_second", 380e9 * noise, "bytes/s", link))
                figures.append(metric("diagnostics_peer_spread_ratio", 0.002, "ratio", link))
                figures.append(metric("diagnostics_peer_error_count", 0, "count", link))
    for name, rate in COLLECTIVES.items():
        figures.append(metric(f"diagnostics_{name}_bus_bytes_per_second", rate * 1e9, "bytes/s"))
        figures.append(metric(f"diagnostics_{name}_latency_seconds", 34e-6, "seconds"))
    figures.append(metric("diagnostics_collective_largest_bytes", 2**33, "bytes"))
    figures.append(metric("diagnostics_collective_error_count", 0))
    return figures


def facts(node="node-1", gpus=8):
    record = facts_record(node, gpus=gpus)
    figures = [metric("gpu_without_driver_count", 0), metric("gpu_faulty_count", 0), metric("gpu_ecc_off_count", 0),
               metric("gpu_partitioned_count", 0), metric("gpu_fabric_not_ready_count", 0),
               metric("gpu_pcie_degraded_count", 0), metric("clock_synchronised", 1, "ratio")]  # fmt: skip
    for name, value, unit in (
        ("gpu_memory_bytes", 150_754_820_096, "bytes"), ("gpu_power_limit_watts", 700, "watts"),
        ("gpu_temperature_celsius", 30, "celsius"), ("gpu_ecc_uncorrected_count", 0, "count"),
        ("gpu_row_remap_pending_count", 0, "count"), ("gpu_row_remap_failed_count", 0, "count"),
        ("gpu_pcie_generation_max_count", 5, "count"), ("gpu_pcie_width_max_count", 16, "count"),
    ):  # fmt: skip
        figures += [metric(name, value, unit, f"gpu:{index}") for index in range(gpus)]
    for gpu in record["environment"]["gpus"]:
        gpu.update(name="NVIDIA H200", driver_version="580.159.04", firmware_version="96.00.A5.00.01")
    record["metrics"] += figures
    return record


def records(node="node-1", gpus=8):
    hashes = {f"fingerprint_{name}_sha256": name * 8 for name in ("training", "decoding", "matmul")}
    return {
        "facts": facts(node, gpus),
        "diagnostics": make_record(
            node, "diagnostics", metrics=[*diagnostics(gpus), *telemetry(gpus)],
            fingerprints={"diagnostics_transport": "P2P", "diagnostics_nvls": "off"}, environment={"torch": "2.11.0"},
        ),
        "fingerprint": make_record(
            node, "fingerprint", fingerprints=hashes, environment={"fingerprint_group": "H200 torch 2.11 CUDA 13"},
            metrics=[
                metric("fingerprint_processes_count", gpus), *per_gpu("fingerprint_mismatch_count", 0, "count", gpus),
                *telemetry(gpus),
            ],
        ),
        "training": make_record(
            node, "training", fingerprints={"training_setup": "llama-1b 8x2048 bf16 eager"},
            environment={"torch": "2.11.0"},
            metrics=[
                metric("training_loss_first", 10.4, "loss"), metric("training_loss_last", 6.1, "loss"),
                metric("training_nonfinite_count", 0), metric("training_processes_count", gpus),
                metric("training_slowest_compute_ratio", 1.01, "ratio"), metric("training_compile_failed_count", 0),
                *per_gpu("training_model_tflops", 451, "TFLOP/s", gpus),
                *per_gpu("training_peak_memory_bytes", 9e10, "bytes", gpus),
                *per_gpu("training_compute_p50_seconds", 0.29, "seconds", gpus),
                *per_gpu("training_compute_ratio", 1.001, "ratio", gpus),
                *telemetry(gpus),
            ],
        ),
    }  # fmt: skip


def judged(change=None, *, gpus=8, sku="auto", gpu_count=None, nodes=("node-1",)):
    run = make_run(nodes, stages=STAGES, sku=sku, gpu_count=gpu_count)
    evidence = Evidence(
        records={name: copy.deepcopy(records(name, gpus)) for name in nodes},
        launches={name: {"state": "started", "message": ""} for name in nodes},
    )
    for number, name in enumerate(nodes):
        for gpu in evidence.records[name]["facts"]["environment"]["gpus"]:
            gpu["serial"] = f"16549{number}{gpu['index']}"
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
def test_a_healthy_node_passes_without_a_word(gpus, fields, warned):
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
        (nvls_on, "diagnostics_all_reduce_nvls_speed_h200", "node"),  # 366 GB/s is well without NVLS only
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


def test_seven_gpus_that_are_faster_than_the_floor_of_eight_do_not_pass():
    node = judged(one_of_eight_hidden)["nodes"][0]
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
    assert [node["verdict"] for node in report["nodes"]] == ["FAIL", *["PASS"] * 9]
    checks = {one["name"]: one["verdict"] for one in report["nodes"][0]["checks"]}
    assert checks["training_setup_agrees"] == "fail"
    assert checks["training_speed_fleet"] == "missing"
    assert checks["training_compiled"] == "warn"
