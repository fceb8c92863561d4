"""Records of a whole H200 node as the shipped workloads report it."""

import hashlib

from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import expected_fingerprints

from tests.kit.builders import facts_record, make_record, metric

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


def setups_of(*, nvls=False, training=()):
    """What settings imply: the usual ones of a quick run, NVLS off, with arguments of the training."""
    declarations = {
        "diagnostics": {"environment": {} if nvls else {"NCCL_NVLS_ENABLE": "0"}},
        "training": {"command": ["{python}", "-m", "gpuval_workloads.training", "--seconds", 20, *training]},
    }
    return expected_fingerprints.of_stages(declarations, STAGES)


def per_gpu(name, value, unit, gpus=8):
    return [metric(name, value * (1 + NOISE[index]), unit, f"gpu:{index}") for index in range(gpus)]


def host_figures(gpus=8):
    return [
        *per_gpu("diagnostics_both_ways_bytes_per_second", 9.9e10, "bytes/s", gpus),
        metric("diagnostics_host_cpu_tflops", 2.0, "TFLOP/s"),
        metric("diagnostics_numa_memory_bytes_per_second", 2.1e11, "bytes/s"),
        metric("diagnostics_numa_balance_ratio", 0.98, "ratio"),
    ]


def telemetry(gpus=8):
    node = ("gpu_lost_count", "topology_changed_count", "kernel_xid_count", "kernel_xid_critical_count",
            "kernel_sxid_count", "kernel_ras_count", "kernel_mce_count", "kernel_oom_count",
            "kernel_link_flap_count")  # fmt: skip
    new = ("gpu_ecc_corrected_new_count", "gpu_ecc_uncorrected_new_count", "gpu_row_remap_new_count",
           "gpu_link_error_new_count", "gpu_pcie_replay_new_count", "gpu_xid_critical_count",
           "gpu_throttle_thermal_ratio", "gpu_throttle_hardware_ratio")  # fmt: skip
    figures = [metric("telemetry_samples_count", 60), *(metric(name, 0) for name in node)]
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
        figures.append(metric(f"diagnostics_{name}_spread_ratio", 0.002, "ratio"))
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
        ("gpu_links_count", 18, "count"),
    ):  # fmt: skip
        figures += [metric(name, value, unit, f"gpu:{index}") for index in range(gpus)]
    for gpu in record["environment"]["gpus"]:
        gpu.update(name="NVIDIA H200", driver_version="580.159.04", firmware_version="96.00.A5.00.01")
    record["metrics"] += figures
    return record


def records(node="node-1", gpus=8):
    hashes = {
        f"fingerprint_{name}_sha256": hashlib.sha256(name.encode()).hexdigest()
        for name in ("training", "decoding", "matmul")
    }
    return {
        "facts": facts(node, gpus),
        "diagnostics": make_record(
            node, "diagnostics", metrics=[*diagnostics(gpus), *host_figures(gpus), *telemetry(gpus)],
            fingerprints={"diagnostics_transport": "P2P", "diagnostics_nvls": "off"},
            environment={"torch": "2.11.0", "cpu_model": "Xeon"},
        ),
        "fingerprint": make_record(
            node, "fingerprint", fingerprints=hashes, environment={"fingerprint_group": "H200 torch 2.11 CUDA 13"},
            metrics=[
                metric("fingerprint_processes_count", gpus), *per_gpu("fingerprint_mismatch_count", 0, "count", gpus),
                *(metric("fingerprint_repeats_count", 9, "count", f"gpu:{index}") for index in range(gpus)),
                *telemetry(gpus),
            ],
        ),
        "training": make_record(
            node, "training", fingerprints={"training_setup": "llama-1b 8x2048 bf16 eager"},
            environment={"torch": "2.11.0"},
            metrics=[
                metric("training_loss_first", 10.4, "loss"), metric("training_loss_last", 6.1, "loss"),
                metric("training_nonfinite_count", 0), metric("training_processes_count", gpus),
                metric("training_steps_count", 400),
                metric("training_slowest_compute_ratio", 1.01, "ratio"), metric("training_compile_failed_count", 0),
                *per_gpu("training_model_tflops", 451, "TFLOP/s", gpus),
                *per_gpu("training_peak_memory_bytes", 9e10, "bytes", gpus),
                *per_gpu("training_compute_p50_seconds", 0.29, "seconds", gpus),
                *per_gpu("training_compute_ratio", 1.001, "ratio", gpus),
                *telemetry(gpus),
            ],
        ),
    }  # fmt: skip
