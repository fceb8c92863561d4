"""A results folder as a run of many nodes of eight H200 leaves it: records, series and logs, some nodes with a fault.

Figures are those that real H200 reported (tests/data/h200), with noise between nodes, GPUs and repeats; where eight
GPUs report otherwise than two (sums, collectives) they are scaled. Serial numbers and identities are made up.
"""

from __future__ import annotations

import gc
import json
import math
import random
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MEASURED = json.loads((ROOT / "tests" / "data" / "h200" / "runs.json").read_text())["quick"]
GPUS = 8
#: Of so many racks that one has a slow uplink.
RACKS, SLOW_RACK = 12, 1
RUN_ID = "20261121-090000-demo"
EARLIER_ID = "20261114-090000-demo"
BEGIN = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)
#: Seconds that a stage takes, and the power that a GPU draws in it.
STAGES = {
    "facts": (2, 80), "diagnostics": (210, 560), "fingerprint": (75, 330), "training": (900, 668), "loading": (64, 130),
    "inference": (240, 430), "storage": (78, 110), "combined_load": (175, 610),
}  # fmt: skip
#: What eight GPUs report otherwise than two.
SCALED = {
    "training_tokens_per_second": 3.94, "cpu_logical_count": 6, "memory_bytes": 7.6, "gpu_count": 4,
    "gpu_hardware_count": 4, "training_processes_count": 4, "diagnostics_processes_count": 4,
    "fingerprint_processes_count": 4, "inference_tokens_per_second": 40, "inference_generated_tokens_count": 393,
    "inference_requests_done_count": 394, "inference_requests_per_second": 40, "loading_duration_seconds": 0,
    "diagnostics_all_reduce_bus_bytes_per_second": 1.35, "diagnostics_all_gather_bus_bytes_per_second": 1.25,
    "diagnostics_reduce_scatter_bus_bytes_per_second": 1.3, "diagnostics_all_to_all_bus_bytes_per_second": 1.05,
    "diagnostics_broadcast_bus_bytes_per_second": 1.1, "diagnostics_links_count": 28,
}  # fmt: skip
FIXED = {
    "clock_synchronised": 1, "loading_bytes": 16_070_000_000, "loading_duration_seconds": 21.4,
    "loading_bytes_per_second": 751e6, "training_duration_seconds": 862.4, "training_steps_count": 2400,
    "training_loss_last": 2.31, "inference_startup_seconds": 64.0, "inference_running_seconds": 160.0,
}  # fmt: skip
#: What those runs did not report yet: name, value, unit, scope. GPUs as H100 in docs/design/figures.md, one NVMe disk.
DISK, NVME = "link:models", "link:nvme0n1"
ADDED = {
    "facts": [
        ("gpu_links_count", 18, "count", "gpu:0"), ("clock_source_fast", 1, "ratio", "node"),
        ("cpu_idle_latency_max_seconds", 2e-6, "seconds", "node"),
        ("root_filesystem_used_ratio", 0.31, "ratio", "node"),
        *((name, 0, "count", "node") for name in ("memory_ecc_uncorrected_count", "cpu_slow_governor_count",
           "gpu_nic_far_count", "gpu_iommu_translated_count", "acs_redirecting_count", "services_failed_count")),
    ],
    "diagnostics": [
        ("diagnostics_both_ways_bytes_per_second", 88.3e9, "bytes/s", "gpu:0"),
        ("diagnostics_numa_memory_bytes_per_second", 221e9, "bytes/s", "node"),
        ("diagnostics_numa_balance_ratio", 0.985, "ratio", "node"),
        ("diagnostics_host_cpu_sustained_ratio", 0.97, "ratio", "node"),
        ("diagnostics_p2p_off_collective_error_count", 0, "count", "node"),
        ("diagnostics_p2p_off_all_reduce_bus_bytes_per_second", 27.1e9, "bytes/s", "node"),
        ("memory_ecc_uncorrected_new_count", 0, "count", "node"),
    ],
    "training": [("training_compile_failed_count", 0, "count", "node")],
    "storage": [
        *((f"storage_{name}_count", 1, "count", "node") for name in ("targets", "direct", "disks", "disks_with_media",
           "disks_with_power", "disks_with_used")),
        *((f"storage_disks_{name}_count", 0, "count", "node") for name in ("lost", "untested")),
        *((f"storage_{name}_count", 0, "count", DISK) for name in ("mismatch", "io_error", "floor_misses")),
        ("storage_verified_bytes", 4_294_967_296, "bytes", DISK),
        ("storage_sequential_read_bytes_per_second", 6.71e9, "bytes/s", DISK),
        ("storage_sequential_write_bytes_per_second", 4.05e9, "bytes/s", DISK),
        ("storage_random_read_requests_per_second", 903e3, "requests/s", DISK),
        ("storage_random_write_requests_per_second", 176e3, "requests/s", DISK),
        ("storage_random_read_single_p99_seconds", 93.4e-6, "seconds", DISK),
        *((f"storage_disk_{name}_count", 0, "count", NVME) for name in ("warning", "media_error", "media_error_new",
           "power_loss_new")),
        ("storage_disk_used_ratio", 0.04, "ratio", NVME),
    ],
    "combined_load": [
        ("combined_load_processes_count", GPUS, "count", "node"), ("combined_load_seconds", 120.0, "seconds", "node"),
        ("combined_load_gpu_ratio", 0.987, "ratio", "gpu:0"), ("combined_load_gpu_mismatch_count", 0, "count", "gpu:0"),
        *((f"combined_load_{name}_count", 0, "count", "node") for name in ("cpu_mismatch", "memory_mismatch",
           "left_out", "nics")),
        ("combined_load_cpu_bytes_per_second", 41.5e9, "bytes/s", "node"),
        ("combined_load_memory_bytes_per_second", 231e9, "bytes/s", "node"),
    ],
}  # fmt: skip
EVERY_STAGE = [
    ("gpu_link_error_new_count", 0, "count", "gpu:0"),
    ("memory_ecc_corrected_new_count", 0, "count", "node"),
]
CPU = "Intel(R) Xeon(R) Platinum 8480C"
NONCE = "5f" * 16
COUNTED = ("_count", "_bytes_count", "_max_count", "loading_bytes")

Records = dict[str, dict[str, Any]]


def name_of(number: int) -> str:
    """Racks of eight."""
    return f"gpu-r{number // 8 + 1:02d}-n{number % 8 + 1}"


def run_of(nodes: int, run_id: str = RUN_ID) -> dict[str, Any]:
    expected = {
        name_of(number): {
            "stages": list(STAGES), "sku": "auto", "gpu_count": GPUS, "versions": {"driver": ["580.*"]},
            "labels": {"rack": f"r{number // 8 + 1:02d}", "row": f"row-{number // 96 + 1}", "pdu": str(number % 2 + 1)},
        }
        for number in range(nodes)
    }  # fmt: skip
    return {
        "schema": "gpuval.run/1", "run_id": run_id, "folder": run_id, "bucket": "gpuval", "profile": "standard",
        "created_at": _time(0, run_id)[:19] + "Z", "finished_at": _time(1700 + 6 * nodes // 10, run_id)[:19] + "Z",
        "deadline_seconds": 7200, "narrowed_by": [], "nodes": expected,
    }  # fmt: skip


def write(folder: Path, nodes: int, seed: int = 1, points: int = 600, run_id: str = RUN_ID) -> None:
    """Write run.json, nodes/ and .state/ of a run into ``folder``; curves of ``points`` samples at most. The id of a
    run begins with its time. In the earlier run only the first two faults were there."""
    run = run_of(nodes, run_id)
    launches = folder / ".state" / "launches"
    launches.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(run))
    faults = planted(nodes)
    if run_id == EARLIER_ID:
        faults = dict(list(faults.items())[:2])
    for number, name in enumerate(run["nodes"]):
        rng = random.Random(f"{seed} {name}")  # noqa: S311 - simulated noise, no secret
        records = healthy(name, number, rng, run_id)
        launch = {"state": "finished", "message": "", "attempt": 2, "nonce": NONCE}
        if number // 8 % RACKS == SLOW_RACK:
            slow_uplink(records, rng)
        fault = faults.get(number)
        if fault:
            launch = fault(records, rng) or launch
        (launches / f"{name}.json").write_text(json.dumps(launch))
        _write_node(folder / "nodes" / name, records, rng, points)


def example(results: Path, nodes: int, points: int = 120) -> Path:
    """A run with faults and one of a week earlier, judged and reported as a run does it; returns the run's folder."""
    for seed, run_id in ((2, EARLIER_ID), (1, RUN_ID)):
        folder = results / run_id
        folder.mkdir(parents=True)
        write(folder, nodes, seed, points, run_id)
        judge(folder)
    report(folder)
    return folder


def judge(folder: Path) -> None:
    """Write report.json, as the action judge_run does."""
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import document, judging
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import actions, criteria
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import judged, write_file
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import earlier_faults, publishing
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder

    gc.disable()
    run_folder = RunFolder(folder)
    run = run_folder.read_run()
    checks = criteria.load(criteria.shipped_files())
    earlier, _ = earlier_faults.read(run_folder, run, actions.shipped()["window_days"])
    facts = judging.present_facts(run_folder, run, earlier=earlier)
    gangs = document.read(run_folder)
    inputs = judging.read_inputs(run_folder, run, checks, gangs=gangs, facts=facts, results=run_folder.results)
    made = judged.judge(inputs)
    write_file(folder / "report.json", made.lines())
    judging.keep_facts(run_folder, inputs.facts)
    publishing.keep_verdict(run_folder, made.report)
    gc.enable()


def report(folder: Path) -> None:
    """Write all forms of the report, as the action report_run does."""
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import write_forms
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as folder_module

    write_forms(folder_module.read_report(folder_module.RunFolder(folder)), folder)


def planted(nodes: int) -> dict[int, Callable[[Records, random.Random], dict[str, Any] | None]]:
    """Which node has which fault: one of each kind in every hundred, in a small fleet one of each kind."""
    kinds = (slow_gpu, fell_off, unreachable, wrong_result, old_driver, slow_loading, flaky, lost_metric)
    step = min(100, nodes)
    faults = {}
    for start in range(0, nodes, step):
        for index, kind in enumerate(kinds):
            number = start + 2 + index * max(1, (step - 3) // len(kinds))
            if number < nodes:
                faults[number] = kind
    return faults


def healthy(name: str, number: int, rng: random.Random, run_id: str = RUN_ID) -> Records:
    """The records of a node with nothing wrong."""
    start, speed = 20 + 0.6 * number + rng.uniform(0, 4), rng.gauss(1, 0.004)
    chips = [rng.gauss(1, 0.003) for _ in range(GPUS)]
    records = {}
    for stage, (lasts, _) in STAGES.items():
        figures = _figures_of(stage)
        seconds = lasts * (1 if stage == "facts" else rng.gauss(1, 0.01) / speed)
        metrics = [one for metric in figures["metrics"] for one in _spread(metric, speed, chips, rng)]
        metrics += _repeats(metrics, rng) if stage == "diagnostics" else []
        records[stage] = {
            "schema": "gpuval.record/1", "run_id": run_id, "node": name, "stage": stage,
            "workload": figures["workload"], "attempt": 1, "state": "success", "message": "",
            "started_at": _time(start, run_id), "updated_at": _time(start + seconds, run_id),
            "finished_at": _time(start + seconds, run_id),
            "duration_seconds": round(seconds, 3), "command": ["python3", "-m", f"gpuval_workloads.{stage}"],
            "image": None, "exit_code": 0, "signal": None, "metrics": metrics,
            "fingerprints": dict(figures["fingerprints"]), "environment": _environment(stage, name, figures),
            "artifacts": [], "attempts": [], "nonce": NONCE,
        }  # fmt: skip
        start += seconds + rng.uniform(0.5, 3)
    return records


def _figures_of(stage: str) -> dict[str, Any]:
    """What a stage reported, with ADDED. A stage that did not run then has the telemetry of one that loads as much."""
    alike = "diagnostics" if stage == "combined_load" else "loading"
    figures = MEASURED.get(stage) or {
        **MEASURED[alike], "workload": stage,
        "fingerprints": {"storage_io": "direct"} if stage == "storage" else {"combined_load_nics": "none"},
        "metrics": [metric for metric in MEASURED[alike]["metrics"] if not metric[0].startswith(alike)],
    }  # fmt: skip
    return {**figures, "metrics": [*figures["metrics"], *ADDED.get(stage, ()), *EVERY_STAGE]}


def _time(seconds: float, run_id: str) -> str:
    begin = datetime.strptime(f"{run_id[:15]}+0000", "%Y%m%d-%H%M%S%z")
    return (begin + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(seconds % 1 * 1000):03d}Z"


def _spread(metric: list[Any], speed: float, chips: list[float], rng: random.Random) -> list[dict[str, Any]]:
    """One metric of the two GPUs that were figures as those of eight."""
    name, value, unit, scope = metric
    kind = scope.partition(":")[0]
    if kind == "node" or scope in (DISK, NVME):
        value = FIXED.get(name, value * SCALED.get(name, 1))
        return [_metric(name, _noisy(name, value, speed, rng), unit, scope)]
    if kind == "link":
        if not scope.startswith("link:gpu0"):
            return []
        ends = [(one, other) for one in range(GPUS) for other in range(GPUS) if one != other]
        return [_metric(name, _noisy(name, value, 1, rng), unit, f"link:gpu{one}>gpu{other}") for one, other in ends]
    if not scope.endswith(":0"):
        return []
    return [
        _metric(name, _noisy(name, value, speed * chips[index], rng), unit, f"{kind}:{index}") for index in range(GPUS)
    ]


def _repeats(metrics: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    """What the repeats of each rate differ by; the H200 were measured before this was reported."""
    names = {one["name"] for one in metrics}
    found = []
    for one in metrics:
        name = re.sub(r"(_bus)?_(bytes_per_second|tflops)$", "_spread_ratio", one["name"])
        if name.startswith("diagnostics_") and name not in {*names, one["name"]}:
            found.append(_metric(name, float(f"{rng.uniform(0.001, 0.004):.3g}"), "ratio", one["scope"]))
    return found


def _metric(name: str, value: Any, unit: str, scope: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "scope": scope}


def _noisy(name: str, value: Any, speed: float, rng: random.Random) -> Any:
    is_speed = name.endswith(("per_second", "tflops"))
    if value is None or isinstance(value, int) or name.endswith(COUNTED) or (value == int(value) and not is_speed):
        return int(value) if value is not None and value == int(value) else value
    if name.endswith(("_ratio", "error", "_loss_first", "_limit_watts")):
        return value
    faster = speed if is_speed else 1 / speed
    return float(f"{value * faster * rng.gauss(1, 0.003):.6g}")


def _environment(stage: str, name: str, figures: dict[str, Any]) -> dict[str, Any]:
    environment, serial = json.loads(json.dumps(figures["environment"])), random.Random(name)  # noqa: S311 - made up
    if stage != "facts":
        return {
            **environment,
            "cpu_model": CPU,
            "python": "3.12.3",
            "cuda": "13.0",
            "collective_library": "2.28.9+cuda13.0",
        }
    first = environment["gpus"][0]
    environment["gpus"] = [
        {**first, "index": index, "serial": f"16549{serial.randrange(10**8):08d}", "power_limit_watts": 700.0,
         "pci_address": f"0000:{0x19 + 0x16 * index:02x}:00.0", "uuid": f"GPU-{name}-{index}"}
        for index in range(GPUS)
    ]  # fmt: skip
    environment["accelerator"] |= {"count": GPUS, "hardware_count": GPUS}
    uuids = [gpu["uuid"] for gpu in environment["gpus"]]
    environment["identity"] = {"machine_id": f"machine of {name}", "serial": f"SRV{name[5:]}", "gpu_uuids": uuids}
    environment["os"] = {"name": "Ubuntu 24.04.3 LTS", "kernel": "6.8.0-87-generic"}
    environment["cpu"] = {"model": CPU, "socket_count": 2, "core_count": 112}
    environment["firmware"] = {"product_name": "HGX H200 8-GPU", "bios_version": "2.4.1"}
    environment["engines"] = {"docker": "28.5.2", "nvidia_container_toolkit": "1.18.1"}
    return environment


def _change(record: dict[str, Any], scope: str, factor: float, endings: tuple[str, ...]) -> None:
    for metric in record["metrics"]:
        if metric["scope"] == scope and metric["name"].endswith(endings):
            metric["value"] *= factor


def slow_gpu(records: Records, rng: random.Random) -> None:
    """gpu:3 does 8 % less, and everybody waits for it."""
    _change(records["diagnostics"], "gpu:3", 0.92, ("_tflops",))
    _change(records["training"], "gpu:3", 1.08, ("training_compute_ratio", "training_compute_p50_seconds"))
    _change(records["training"], "node", 0.93, ("_tokens_per_second", "_model_tflops"))
    _change(records["training"], "node", 1.08, ("training_slowest_compute_ratio",))


def slow_uplink(records: Records, rng: random.Random) -> None:
    """The rack loads 12 % slower: within all limits, and seen only where racks are held against each other."""
    _change(records["loading"], "node", 0.88, ("loading_bytes_per_second",))
    _change(records["loading"], "node", 1 / 0.88, ("loading_duration_seconds",))


def fell_off(records: Records, rng: random.Random) -> None:
    record = records["training"]
    record |= {
        "state": "crash", "exit_code": 1, "metrics": [],
        "message": "rank 5 ended by SIGABRT: CUDA error: unspecified launch failure; "
        "XID 79 of gpu:5 (GPU has fallen off the bus)",
    }  # fmt: skip
    records["loading"] |= {"state": "skipped", "started_at": None, "metrics": [], "message": "training did not succeed"}


def unreachable(records: Records, rng: random.Random) -> dict[str, Any]:
    records.clear()
    return {"state": "unreachable", "message": "ssh: connect to host 10.0.0.9 port 22: No route to host"}


def wrong_result(records: Records, rng: random.Random) -> None:
    records["fingerprint"]["fingerprints"]["fingerprint_training_sha256"] = "5bad" * 16


def old_driver(records: Records, rng: random.Random) -> None:
    for gpu in records["facts"]["environment"]["gpus"]:
        gpu["driver_version"] = "570.133.20"


def slow_loading(records: Records, rng: random.Random) -> None:
    _change(records["loading"], "node", 0.4, ("loading_bytes_per_second",))
    _change(records["loading"], "node", 2.5, ("loading_duration_seconds",))
    _change(records["diagnostics"], "node", 0.2, ("disk_read_bytes_per_second",))


def flaky(records: Records, rng: random.Random) -> None:
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import evidence

    record = records["inference"]
    earlier = {**record, "state": "crash", "exit_code": 1, "metrics": [], "message": "server ended by SIGSEGV"}
    record |= {"attempt": 2, "attempts": [earlier], "nonce": evidence.nonce_of(NONCE, 2)}


def lost_metric(records: Records, rng: random.Random) -> None:
    record = records["training"]
    record["metrics"] = [metric for metric in record["metrics"] if metric["name"] != "training_loss_last"]


def _write_node(folder: Path, records: Records, rng: random.Random, points: int) -> None:
    if not records:
        return
    folder.mkdir(parents=True)
    for stage, record in records.items():
        (folder / f"{stage}.json").write_text(json.dumps(record))
        if record["started_at"] is None:
            continue
        (folder / f"{stage}.log").write_text(f"{stage}\n")
        document = {
            "schema": "gpuval.series/1", "run_id": record["run_id"], "node": record["node"], "stage": stage,
            "attempt": record["attempt"], "series": _series(stage, record, rng, points),
        }  # fmt: skip
        (folder / f"{stage}.series.json").write_text(json.dumps(document))


def _series(stage: str, record: dict[str, Any], rng: random.Random, points: int) -> list[dict[str, Any]]:
    lasts, watts = STAGES[stage]
    count = max(2, int(record["duration_seconds"]))
    while count > points:  # as the runner thins: each two become one
        count //= 2
    x = [round(lasts * index / count, 2) for index in range(count)]
    curves = []
    if stage == "training":
        steps = list(range(1, min(points, 400) + 1))
        loss = [round(2.3 + 8.4 * math.exp(-step / 45) + rng.gauss(0, 0.03), 4) for step in steps]
        curves.append(_curve("training_loss", "loss", "node", "step", steps, loss))
    if stage == "diagnostics":
        sizes = [8 * 16**power for power in range(8)]
        rates = [round(470e9 * size / (size + 4e7) * rng.gauss(1, 0.01)) for size in sizes]
        curves.append(_curve("diagnostics_all_reduce_bus_bytes_per_second", "bytes/s", "node", "bytes", sizes, rates))
    dead = 0.7 if record["state"] == "crash" else 2.0
    for gpu in range(GPUS):
        own = rng.gauss(0, 6)
        ramp = [min(1.0, (index + 1) / 6) if dead > index / count or gpu != 5 else 0.0 for index in range(count)]
        power = [round(80 + (watts - 80 + own) * part + rng.gauss(0, 8), 1) for part in ramp]
        heat = [
            round(34 + own / 6 + 34 * (watts / 700) * min(1.0, index / 40) + rng.random(), 1) for index in range(count)
        ]
        clock = [int(345e6 + (1755e6 - 345e6) * part) for part in ramp]
        busy = [round(0.97 * part + 0.03 * rng.random(), 3) for part in ramp]
        memory = [int(120e9 * part) for part in ramp]
        for name, unit, y in (
            ("gpu_power_watts", "watts", power),
            ("gpu_temperature_celsius", "celsius", heat),
            ("gpu_sm_clock_hertz", "hertz", clock),
            ("gpu_utilisation_ratio", "ratio", busy),
            ("gpu_memory_used_bytes", "bytes", memory),
        ):
            curves.append(_curve(name, unit, f"gpu:{gpu}", "seconds", x, y))
    return curves


def _curve(name: str, unit: str, scope: str, x_unit: str, x: list[Any], y: list[Any]) -> dict[str, Any]:
    return {"name": name, "unit": unit, "scope": scope, "x_unit": x_unit, "x": x, "y": y}
