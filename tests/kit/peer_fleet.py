"""Fleets of healthy nodes that report every metric of every stage (reported_metrics.yml), and faults of one node."""

import copy
import hashlib
import math
import random
from fnmatch import fnmatchcase

from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.comparisons import comparison_rule_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit.builders import SHIPPED, TIME, judge, make_record, make_run, metric
from tests.kit.h200 import setups_of
from tests.kit.reported import ANYWHERE, REPORTED

#: Vendor, model and number of GPUs by SKU.
FAMILIES = {
    "h200": ("nvidia", "NVIDIA H200", 8),
    "mi300x": ("amd", "AMD Instinct MI300X", 8),
    "gaudi3": ("gaudi", "HL-325L", 8),
    "cpu": ("cpu", "", 0),
}
GANG_STAGES = ["rdma_rails", "collective", "deepspeed", "fabric"]
PARTS = {
    "gpu": [f"gpu:{index}" for index in range(8)],
    "rank": [f"rank:{index}" for index in range(2)],
    "peer": [f"link:gpu{one}>gpu{other}" for one in range(8) for other in range(8) if one != other],
    "port": [f"link:mlx5_{index}/1" for index in range(4)],
    "target": ["link:scratch", "link:nvme0n1"],
    "endpoint": ["link:store"],
    "node": ["node"],
}
#: The parts of a metric: the first pattern of stage/metric that fits.
SCOPES = (
    ("*/gpu_count", "node"), ("*/gpu_hardware_count", "node"), ("*/gpu_without_driver_count", "node"),
    ("*/gpu_faulty_count", "node"), ("*/gpu_ecc_off_count", "node"), ("*/gpu_ecc_unknown_count", "node"),
    ("*/gpu_partitioned_count", "node"), ("*/gpu_fabric_not_ready_count", "node"),
    ("*/gpu_pcie_degraded_count", "node"), ("*/gpu_nic_far_count", "node"), ("*/gpu_iommu_translated_count", "node"),
    ("*/gpu_lost_count", "node"), ("*/gpu_*", "gpu"), ("diagnostics/diagnostics_peer_*", "peer"),
    ("diagnostics/diagnostics_matmul_*", "gpu"), ("diagnostics/diagnostics_memory_*", "gpu"),
    ("diagnostics/diagnostics_host_to_device_*", "gpu"), ("diagnostics/diagnostics_device_to_host_*", "gpu"),
    ("diagnostics/diagnostics_both_ways_*", "gpu"), ("diagnostics/diagnostics_launch_*", "gpu"),
    ("diagnostics/diagnostics_overlap_*", "gpu"), ("diagnostics/diagnostics_transfer_*", "gpu"),
    ("fingerprint/fingerprint_processes_count", "node"), ("fingerprint/fingerprint_*", "gpu"),
    ("training/training_model_tflops", "gpu"), ("training/training_step_*", "gpu"),
    ("training/training_compute_*", "gpu"), ("training/training_wait_*", "gpu"), ("training/training_peak_*", "gpu"),
    ("combined_load/combined_load_gpu_*", "gpu"), ("combined_load/combined_load_nic_*", "port"),
    ("rdma/*_ratio", "port"), ("rdma/*_per_second", "port"), ("rdma/*_seconds", "port"),
    ("rdma_rails/*_ratio", "port"), ("storage/storage_targets_count", "node"),
    ("storage/storage_direct_count", "node"), ("storage/storage_disks_*", "node"), ("storage/*", "target"),
    ("endpoints/endpoints_reached_count", "endpoint"), ("endpoints/endpoints_floor_misses_count", "endpoint"),
    ("endpoints/endpoints_*count", "node"), ("endpoints/*", "endpoint"), ("vendor_tools/dcgm_pcie_*", "gpu"),
    ("vendor_tools/dcgm_diagnostic_*", "gpu"), ("vendor_tools/dcgm_targeted_*", "gpu"),
    ("vendor_tools/rvs_gst_*", "gpu"), ("vendor_tools/rvs_iet_*", "gpu"), ("*", "node"),
)  # fmt: skip
#: What a healthy node reports, its unit, and by what share nodes differ; the first pattern of the name that fits.
FIGURES = (
    ("*_steps_count", 400, "count", 0.005), ("telemetry_samples_count", 120, "count", 0.0),
    ("*_repeats_count", 12, "count", 0.0), ("*_requests_done_count", 640, "count", 0.01),
    ("*_tokens_count", 64000, "count", 0.01), ("training_duration_seconds", 600, "seconds", 0.001),
    ("cpu_logical_count", 192, "count", 0.0), ("gpu_links_count", 18, "count", 0.0),
    ("gpu_nvlinks_up_count", 18, "count", 0.0), ("gpu_fabric_joined_count", 1, "count", 0.0),
    ("gpu_fabric_clique_count", 1, "count", 0.0),
    ("gpu_pcie_width*_count", 16, "count", 0.0), ("gpu_pcie_generation*_count", 5, "count", 0.0),
    ("gpu_count", 8, "count", 0.0), ("gpu_hardware_count", 8, "count", 0.0), ("*_processes_count", 8, "count", 0.0),
    ("*_ranks_count", 8, "count", 0.0), ("hl_qual_devices_count", 8, "count", 0.0),
    ("diagnostics_links_count", 56, "count", 0.0), ("storage_targets_count", 2, "count", 0.0),
    ("storage_direct_count", 2, "count", 0.0), ("storage_disks_count", 2, "count", 0.0),
    ("storage_disks_with_*", 2, "count", 0.0), ("endpoints_floor_misses_count", 0, "count", 0.0),
    ("endpoints_*count", 1, "count", 0.0), ("*_ports_down_count", 0, "count", 0.0),
    ("rdma_closed_devices_count", 0, "count", 0.0), ("*_ports_count", 4, "count", 0.0),
    ("*_devices_count", 4, "count", 0.0), ("*_nics_count", 4, "count", 0.0), ("*_measured_count", 4, "count", 0.0),
    ("gang_nodes_count", 16, "count", 0.0), ("gang_collectives_count", 6, "count", 0.0),
    ("gang_peers_count", 15, "count", 0.0), ("gang_peers_asked_count", 15, "count", 0.0),
    ("rdma_pkey_tables_count", 1, "count", 0.0), ("loading_files_count", 12, "count", 0.0),
    ("*_results_count", 42, "count", 0.0), ("*_actions_count", 18, "count", 0.0),
    ("agfhc_tests_count", 9, "count", 0.0), ("vendor_tools_run_count", 2, "count", 0.0),
    ("vendor_tools_answered_count", 2, "count", 0.0), ("*_count", 0, "count", 0.0),
    ("gpu_throttle_*_ratio", 0.0, "ratio", 0.0), ("*_loss_ratio", 0.0, "ratio", 0.0),
    ("link_*_ratio", 0.0, "ratio", 0.0),
    ("gang_loss_spread_ratio", 1e-6, "ratio", 0.014), ("*_error_ratio", 5e-5, "ratio", 0.0),
    ("*_lost_ratio", 0.005, "ratio", 0.2), ("*_uncertainty_ratio", 0.001, "ratio", 0.2),
    ("*_slowest_hundredth_ratio", 0.9, "ratio", 0.02), ("diagnostics_overlap_median_ratio", 1.49, "ratio", 0.01),
    ("*_spread_ratio", 0.002, "ratio", 0.2), ("training_*compute_ratio", 1.002, "ratio", 0.001),
    ("diagnostics_overlap_ratio", 1.49, "ratio", 0.01), ("*_used_ratio", 0.3, "ratio", 0.1),
    ("clock_*", 1, "ratio", 0.0), ("*_tested_ratio", 0.97, "ratio", 0.0), ("*_ratio", 0.98, "ratio", 0.004),
    ("*_loss_first", 10.4, "loss", 0.0), ("*_loss_last", 5.0, "loss", 0.05), ("*_loss_step_*", 1.08, "loss", 0.002),
    ("diagnostics_matmul_tf32_*tflops", 350, "TFLOP/s", 0.008),
    ("diagnostics_matmul_fp8_*tflops", 1240, "TFLOP/s", 0.008), ("training_model_tflops", 451, "TFLOP/s", 0.008),
    ("*host_cpu_*tflops", 2.0, "TFLOP/s", 0.01), ("diagnostics_matmul_fp32_*tflops", 48, "TFLOP/s", 0.008),
    ("diagnostics_matmul_bf16_*tflops", 670, "TFLOP/s", 0.008),
    ("*_tflops", 640, "TFLOP/s", 0.008), ("*_requests_per_second", 9e4, "requests/s", 0.012),
    ("*_tokens_per_second", 5e4, "tokens/s", 0.01), ("*_samples_per_second", 900, "samples/s", 0.01),
    ("diagnostics_memory_*bytes_per_second", 4.28e12, "bytes/s", 0.003),
    ("*_bus_*bytes_per_second", 3.6e11, "bytes/s", 0.01), ("diagnostics_peer_*_per_second", 3.55e11, "bytes/s", 0.004),
    ("rdma_rate_bytes_per_second", 5e10, "bytes/s", 0.0), ("gang_nic_pcie_bytes_per_second", 6.3e10, "bytes/s", 0.0),
    ("diagnostics_both_ways_*", 9e10, "bytes/s", 0.01), ("*_bytes_per_second", 5.4e10, "bytes/s", 0.012),
    ("gpu_memory_bytes", 1.5e11, "bytes", 0.0), ("gpu_memory_used_bytes", 6e8, "bytes", 0.1),
    ("*_used_max_bytes", 9e10, "bytes", 0.01), ("memory_bytes", 2.1e12, "bytes", 0.0005),
    ("*_mtu_bytes", 9000, "bytes", 0.0), ("*_peak_memory_bytes", 9e10, "bytes", 0.0),
    ("*_tested_bytes", 1.4e11, "bytes", 0.001), ("*_bytes", 8589934592, "bytes", 0.0),
    ("gpu_power_limit_watts", 700, "watts", 0.0), ("*_watts", 620, "watts", 0.012),
    ("*_celsius", 55, "celsius", 0.012), ("*_hertz", 1.6e9, "hertz", 0.01),
    ("gang_clock_skew_*", 1e-4, "seconds", 0.5), ("cpu_idle_latency_max_seconds", 2e-6, "seconds", 0.0),
    ("endpoints_certificate_left_seconds", 3e6, "seconds", 0.0), ("gang_peers_round_trip_*", 2e-5, "seconds", 0.014),
    ("inference_startup_seconds", 65, "seconds", 0.014), ("image_duration_seconds", 90, "seconds", 0.014),
    ("diagnostics_launch_seconds", 4e-6, "seconds", 0.014), ("*_latency_*seconds", 3.4e-5, "seconds", 0.014),
    ("*_seconds", 20, "seconds", 0.014),
)  # fmt: skip
#: Figures of a family that are others; by name, or by its end after the first word.
OF_FAMILY = {
    "mi300x": {"gpu_memory_bytes": 2.06e11, "gpu_power_limit_watts": 750, "gpu_links_count": 7},
    "gaudi3": {"gpu_memory_bytes": 1.37e11, "diagnostics_matmul_bf16_tflops": 1100, "training_model_tflops": 600,
               "gpu_power_limit_watts": 900},
    "cpu": {"gpu_count": 0, "gpu_hardware_count": 0, "_processes_count": 2},
}  # fmt: skip
#: The texts that stages report, and that are compared.
FINGERPRINTS = {
    "diagnostics": {"diagnostics_transport": "P2P", "diagnostics_nvls": "off", "diagnostics_p2p_off_transport": "SHM"},
    "fingerprint": {
        f"fingerprint_{work}_sha256": hashlib.sha256(work.encode()).hexdigest()
        for work in ("training", "decoding", "matmul")
    },
    "training": {"training_setup": "llama-1b 8x2048 bf16 eager", "training_course": "llama-1b 8x2048 bf16 x8"},
    "inference": {"inference_warm_up_answer": "5f" * 32},
    "storage": {"storage_io": "direct"},
    "combined_load": {"combined_load_nics": "present"},
    "rdma": {"rdma": "present", "rdma_ports": "4 x InfiniBand ACTIVE 400", "rdma_pkeys": "0xffff"},
    "rdma_rails": {"rdma_rails": "present"},
    "endpoints": {"endpoints_rates": "measured"},
    "collective": {
        "gang_shape": "16x8", "gang_network": "IB", "gang_gpu_direct": "on", "rdma_ports": "4 x InfiniBand ACTIVE 400",
        "rdma_firmware": "28.39", "rdma_gids": "3", "gang_mtu": "9000", "gang_nic_pcie": "16x5",
        **{f"gang_{name}_asked": "yes" for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")},
    },
    "collective_nvlink": {
        "gang_shape": "16x8", "gang_network": "MNNVL",
        **{f"gang_{name}_asked": "yes" for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")},
    },
    "deepspeed": {
        "rdma_ports": "4 x InfiniBand ACTIVE 400", "rdma_firmware": "28.39", "rdma_gids": "3", "gang_mtu": "9000",
        "gang_nic_pcie": "16x5",
    },
}  # fmt: skip
ENVIRONMENTS = {
    "diagnostics": {"torch": "2.11.0", "cpu_model": "Xeon"},
    "training": {"torch": "2.11.0"},
    "fingerprint": {"fingerprint_group": "torch 2.11"},
    "inference": {"server": "vllm", "server_version": "0.12", "accelerator": "cuda", "tensor_parallel_size": 8,
                  "gpu_count": 8},
    "rdma": {"infiniband": "present"},
}  # fmt: skip


def _first(rules, name):
    return next(rule[1:] for rule in rules if fnmatchcase(name, rule[0]))


def metrics_of(stage, family):
    """The names that a node of the family reports in a stage."""
    names = [*REPORTED[stage], *(sorted(ANYWHERE) if stage != "facts" else ())]
    if family != "cpu":
        return names
    return [name for name in names if not name.startswith("gpu_") or parts_of(stage, name, "h200") == PARTS["node"]]


def stages_of(family):
    return [stage for stage in REPORTED if family != "cpu" or stage != "vendor_tools"]


def parts_of(stage, name, family):
    """The parts that report a metric."""
    (kind,) = _first(SCOPES, f"{stage}/{name}")
    if family == "cpu" and kind == "gpu":
        kind = "node" if name == "training_model_tflops" else "rank"
    return PARTS[kind]


def value_of(name, family):
    """(value, unit, spread) of a healthy node."""
    value, unit, spread = _first(FIGURES, name)
    of_family = OF_FAMILY.get(family, {})
    return of_family.get(name.removeprefix(name.split("_")[0]), of_family.get(name, value)), unit, spread


def healthy_fleet(family, nodes=16, seed=1, *, stages=None, tails=0, scale=1.0):
    """A run and its evidence. Nodes differ in all speeds alike, in each figure, and in each part of it; with ``tails``
    as Student's t of so many degrees. ``scale`` makes them differ by more."""
    rng = random.Random(f"{family} {nodes} {seed}")

    def noise(spread):
        drawn = rng.gauss(0, 1)
        if tails:
            drawn /= math.sqrt(rng.gammavariate(tails / 2, 2) / tails)
        return spread * scale * drawn

    names = [f"node-{number:04}" for number in range(nodes)]
    stages = stages_of(family) if stages is None else stages
    run = make_run(names, stages=[stage for stage in stages if stage not in GANG_STAGES])
    run["setups"] = setups_of()
    run["workloads"] |= {stage: stage for stage in stages}
    evidence = RunEvidence(launches={name: {"state": "started", "message": ""} for name in names})
    for number, name in enumerate(names):
        gang = [stage for stage in stages if stage in GANG_STAGES]
        run["nodes"][name] |= {"gang_stages": gang, "stages": stages}
        node = noise(0.4)
        evidence.records[name] = {stage: _record(stage, name, number, family, node, noise) for stage in stages}
    return run, evidence


def _record(stage, name, number, family, node, noise):
    metrics = []
    for metric_name in metrics_of(stage, family):
        value, unit, spread = value_of(metric_name, family)
        # A figure that does not scatter takes no draw: one that is added leaves the others as they are.
        of_node = spread * node + noise(0.8 * spread) if spread else 0
        for part in parts_of(stage, metric_name, family):
            off = of_node + (noise(0.4 * spread) if spread and part != "node" else 0)
            figure = value * max(0.05, 1 + off) if spread else value
            metrics.append(metric(metric_name, round(figure) if unit == "count" else figure, unit, part))
    environment = dict(ENVIRONMENTS.get(stage, {}))
    if stage == "facts":
        environment = _facts(name, number, family)
    return make_record(
        name, stage, metrics=metrics, fingerprints=dict(FINGERPRINTS.get(stage, {})), environment=environment
    )


def _facts(name, number, family):
    vendor, model, gpus = FAMILIES[family]
    ports = [{"port": 1, "link_layer": "InfiniBand", "state": "ACTIVE", "rate_bits_per_second": 400_000_000_000}]
    return {
        "accelerator": {"vendor": vendor, "count": gpus},
        "identity": {"machine_id": f"machine-{number}", "serial": f"S-{number}",
                     "gpu_uuids": [f"GPU-{name}-{index}" for index in range(gpus)]},
        "gpus": [
            {"index": index, "name": model, "uuid": f"GPU-{name}-{index}", "serial": f"{number:05}{index}",
             "driver_version": "580.1", "firmware_version": "96.0", "ecc_mode": "enabled"}
            for index in range(gpus)
        ],
        "firmware": {"product_name": "HGX", "bios_version": "1.2", "bmc_version": "3.4"},
        "cpu": {"model": "Xeon 8480C"},
        "os": {"kernel": "6.8.0-60", "name": "Ubuntu", "version": "24.04"},
        "nics": [
            *({"kind": "rdma", "name": f"mlx5_{index}", "board_id": "MT_1", "firmware_version": "28.39",
               "ports": copy.deepcopy(ports)} for index in range(4)),
            *({"kind": "interface", "name": f"eth{index}", "driver": "mlx5_core", "interface_firmware": "28.39",
               "speed_bits_per_second": 100_000_000_000} for index in range(2)),
        ],
        "disks": [{"kind": "disk", "name": f"nvme{index}n1", "model": "PM1743"} for index in range(2)],
        "tuning": {"governor": "performance"},
        "topology": [{"index": index, "links": "NV18", "nic": "PIX"} for index in range(gpus)],
    }  # fmt: skip


def spoil(record, name, parts):
    """A third slower, lower or higher; half the count where any other number is wrong; an error where there is none."""
    worse = comparison_rule_of(name).worse
    for one in record["metrics"]:
        if one["name"] == name and one["scope"] in parts:
            value = one["value"]
            if value <= comparison_rule_of(name).offset / 10:
                one["value"] = 0.5 if one["unit"] == "ratio" else 100
            elif one["unit"] == "count" and worse == "either":
                one["value"] = value // 2
            else:
                one["value"] = value * (4 / 3 if worse == "higher" else 2 / 3)


def named(report):
    """By node the stages and metrics of its entries that say that something is wrong."""
    return {
        node["name"]: {
            (check["stage"], check["metric"])
            for check in node["checks"]
            if check["metric"] and check["verdict"] in ("fail", "warn", "missing")
        }
        for node in report["nodes"]
    }


def judged(run, evidence):
    return judge(run, evidence, SHIPPED)


__all__ = ["FAMILIES", "FINGERPRINTS", "TIME", "healthy_fleet", "judged", "metrics_of", "named", "parts_of", "spoil"]
