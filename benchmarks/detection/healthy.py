"""How many healthy nodes fail, lack evidence or are warned about, with every metric of every stage reported.

    python benchmarks/detection/healthy.py --nodes 16,64 --fleets 9

Figures of one source (cores, memory, PCIe, links, host, network, disk) move together on a node; in three settings they
scatter normally, as Student's t with 3 degrees, and with each measurement of a node off as a whole.
"""

from __future__ import annotations

import argparse
import functools
import gc
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT)]

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import units
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.text import pattern_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import plausible, sku_catalogue, verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.kinds import KINDS
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.peer_statistics import MEDIAN_ERROR
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence
from fleets import REPEATS, Noise, rack_of

from tests.kit.builders import SHIPPED, make_record, make_run
from tests.kit.h200 import records as h200_records
from tests.kit.h200 import setups_of
from tests.kit.reported import ANYWHERE, REPORTED

TABLE = yaml.safe_load(Path(__file__).with_name("whole_figures.yml").read_text())
FIGURES, TRAY_FIGURES = (
    [(pattern_of(name), figure) for name, figure in TABLE[nodes].items()] for nodes in ("figures", "trays")
)
MODELS = {
    "h100": ("NVIDIA H100 80GB HBM3", "nvidia"),
    "h200": ("NVIDIA H200", "nvidia"),
    "mi300x": ("AMD Instinct MI300X", "amd"),
}
#: Models of racks (tests/kit/rack_lab), whose nodes have fewer GPUs.
TRAYS = {"gb200": ("NVIDIA GB200", "nvidia"), "gb300": ("NVIDIA GB300", "nvidia")}
GPUS = 8
TRAY_GPUS = 4
GANG_STAGES = ("collective", "deepspeed", "fabric", "rdma_rails")
#: Stages that no single node runs in one run with all others, or that need files or an NVLink domain of their own.
LEFT_OUT = ("image", "collective_nvlink", "fabric_nvlink")
#: A healthy figure is so far from its floor, and from its limit.
OVER_FLOOR, UNDER_LIMIT = 1.15, 0.6
#: What a figure depends on, by the first word of its name that is here.
SOURCES = {
    "matmul": "cores", "tflops": "cores", "tokens": "cores", "samples": "cores", "step": "cores", "compute": "cores",
    "memory": "memory", "host": "pcie", "device": "pcie", "both": "pcie", "launch": "pcie", "peer": "links",
    "reduce": "links", "gather": "links", "scatter": "links", "broadcast": "links", "numa": "host", "cpu": "host",
    "rdma": "network", "gang": "network", "endpoints": "network", "nic": "network", "storage": "disk",
    "disk": "disk", "loading": "disk", "temperature": "air", "power": "air", "clock": "air", "inference": "engine",
    "requests": "engine",
}  # fmt: skip
#: How much healthy nodes differ by a source, relative; what is not here as cores do.
SPREADS = {"cores": 0.005, "memory": 0.003, "pcie": 0.005, "links": 0.005, "host": 0.01, "network": 0.02,
           "disk": 0.05, "air": 0.05, "engine": 0.01}  # fmt: skip
#: The same for the slowest hundredth and thousandth of the requests.
TAILS = {"p99": 0.1, "p999": 0.3}
SETTINGS = {
    "normal": {"repeat": 0.003, "gpu_cv": 0.002},
    "long tails": {"repeat": 0.003, "gpu_cv": 0.002, "tails": 3},
    "disturbed": {"repeat": 0.01, "gpu_cv": 0.002, "disturbed": 0.01},
}
FINGERPRINTS = {
    "collective": {"gang_network": "IB", "gang_shape": "2x8", "rdma_ports": "8 x 400", "rdma_firmware": "28.43",
                   "rdma_gids": "3", "gang_mtu": "4096", "gang_nic_pcie": "5 x16",
                   **{f"gang_{way}_asked": "yes" for way in ("all_reduce", "all_gather", "all_to_all", "broadcast",
                                                             "reduce_scatter", "send_receive")}},
    "combined_load": {"combined_load_nics": "present"},
    "endpoints": {"endpoints_rates": "measured"},
    "rdma": {"rdma": "present", "rdma_ports": "8 x 400", "rdma_pkeys": "ffff"},
    "rdma_rails": {"rdma_rails": "present"},
    "storage": {"storage_io": "direct"},
}  # fmt: skip
FINGERPRINTS["collective_nvlink"] = {**FINGERPRINTS["collective"], "gang_network": "MNNVL", "gang_shape": "18x4"}
FINGERPRINTS["deepspeed"] = {key: FINGERPRINTS["collective"][key] for key in
                             ("rdma_ports", "rdma_firmware", "rdma_gids", "gang_mtu", "gang_nic_pcie")}  # fmt: skip
STAGES = tuple(stage for stage in REPORTED if stage not in LEFT_OUT)


@functools.cache
def _checks(stage: str, metric: str, sku: str) -> list[Any]:
    vendor = {**MODELS, **TRAYS}[sku][1]
    return [
        check
        for check in SHIPPED
        if (check.stage, check.metric) == (stage, metric) and check.catalogue_sku in (None, sku)
        and (not check.applies.accelerator or {vendor, "gpu"} & set(check.applies.accelerator))
        and "training_validation" not in check.applies.workload
    ]  # fmt: skip


@functools.cache
def nominal(stage: str, metric: str, sku: str) -> tuple[float, str, str]:
    """Value, unit and kind of part of a figure of a healthy node of the SKU."""
    checks = _checks(stage, metric, sku)
    tables = [*(TRAY_FIGURES if sku in TRAYS else ()), *FIGURES]
    listed = next((figure for pattern, figure in tables if pattern.fullmatch(metric)), None)
    allowed = plausible.range_of(metric)
    unit = next((check.unit for check in checks if check.unit), listed[1] if listed else allowed.unit)
    scope = next((check.scope for check in checks if check.scope != "node"), listed[2] if listed else "node")
    if not listed and not checks:
        scope = "gpu" if metric.startswith("gpu_") and metric in ANYWHERE else scope
    value = float(listed[0]) if listed else 0.0
    if metric.endswith("_spread_ratio") and not listed:
        return 0.003, "ratio", _scope_of_spread(metric, scope)
    if metric.endswith("_error_ratio") and not metric.startswith("link_") and not listed:
        return 1e-4, "ratio", scope if checks else "gpu"
    for check in checks:
        if check.kind == "min" and check.value is not None and value < check.value * 1.1:
            value = check.value * OVER_FLOOR if check.unit not in ("count", "ratio") else check.value
        elif check.kind == "max" and check.value and value > check.value:
            value = check.value * UNDER_LIMIT
        elif check.kind == "equal" and check.catalogue_sku and isinstance(check.value, (int, float)):
            value = check.value
    value = max(value, 1.01 * sku_catalogue.by_name(sku).measured.get((metric, 1), 0.0))
    highest = allowed.highest(sku_catalogue.by_name(sku))
    if highest is not None and is_measured(metric, unit) and units.compatible(unit, allowed.unit):
        value = min(value, 0.9 * units.to_float(units.convert(highest, allowed.unit, unit)))
    return value, unit, scope


def _scope_of_spread(metric: str, scope: str) -> str:
    if "peer" in metric:
        return "link"
    return "node" if any(way in metric for way in ("all_", "scatter", "broadcast", "send_", "p2p_")) else "gpu"


def gpus_of(sku: str) -> int:
    return TRAY_GPUS if sku in TRAYS else GPUS


def parts_of(stage: str, metric: str, scope: str, gpus: int) -> list[str]:
    if scope == "node":
        return ["node"]
    if scope == "link" and stage == "diagnostics":
        return [f"link:gpu{one}>gpu{other}" for one in range(gpus) for other in range(gpus) if one != other]
    if scope == "link":
        return [f"link:{stage}-{number}" for number in range(TABLE["parts"]["link"].get(stage, 1))]
    return [f"{scope}:{number}" for number in range(gpus)]


@functools.cache
def _source(metric: str) -> str:
    return next((SOURCES[word] for word in metric.split("_") if word in SOURCES), "cores")


@functools.cache
def _spread(metric: str) -> float:
    return next((spread for word, spread in TAILS.items() if word in metric.split("_")), SPREADS[_source(metric)])


@functools.cache
def is_measured(metric: str, unit: str) -> bool:
    """Whether the figure scatters in proportion to itself: counts, sizes, losses, states and margins do not."""
    if metric.endswith(("_spread_ratio", "_limit_watts", "_margin_min_celsius")) or unit in ("count", "bytes", "loss"):
        return False
    return units.is_timed(unit) or unit in ("celsius", "watts", "hertz")


def figures_of(stage: str, sku: str, noise: Noise, node: dict[str, float], parts: dict[Any, float]) -> Iterator[dict]:
    names = dict.fromkeys([*REPORTED[stage], *(sorted(ANYWHERE) if stage != "facts" else ())])
    for metric in names:
        value, unit, scope = nominal(stage, metric, sku)
        if not is_measured(metric, unit):
            for part in parts_of(stage, metric, scope, gpus_of(sku)):
                yield {"name": metric, "value": value, "unit": unit, "scope": part}
            continue
        source = _source(metric)
        own = 1 + _spread(metric) / SPREADS[source] * (node[source] - 1)  # a tail differs more than what it is of
        level = max(0.3, own) * noise.measurement()
        for part in parts_of(stage, metric, scope, gpus_of(sku)):
            middle = noise.draw.gauss(1, noise.repeat * MEDIAN_ERROR / REPEATS**0.5)
            if part != "node":
                middle *= parts.setdefault((source, part), noise.part())
            rate = level * middle
            drawn = value / rate if unit == "seconds" else value * rate
            yield {"name": metric, "value": drawn, "unit": unit, "scope": part}


def fleet(sku: str, count: int, setting: str, seed: int) -> tuple[dict[str, Any], RunEvidence]:
    """A run of healthy nodes and its evidence."""
    options = SETTINGS[setting]
    noise = Noise(f"healthy {sku} {count} {setting} {seed}", 1.0, **options)
    names = [f"node-{number:03}" for number in range(count)]
    run = make_run(names, stages=STAGES, sku=sku, gpu_count=GPUS, setups=setups_of(nvls=sku != "mi300x"))
    evidence = RunEvidence(launches={name: {"state": "finished", "message": ""} for name in names})
    for number, name in enumerate(names):
        run["nodes"][name] |= {"labels": {"rack": rack_of(number)}, "gang_stages": list(GANG_STAGES)}
        node = {source: noise._differing(spread) for source, spread in SPREADS.items()}
        evidence.records[name] = records(name, number, sku, noise, node)
    return run, evidence


def records(
    name: str,
    number: int,
    sku: str,
    noise: Noise,
    node: dict[str, float],
    parts: dict[Any, float] | None = None,
    stages: Sequence[str] = STAGES,
) -> dict[str, dict[str, Any]]:
    """What the node reports; ``parts`` is what its parts differ by, which is drawn where it lacks them."""
    model, vendor = {**MODELS, **TRAYS}[sku]
    gpus = gpus_of(sku)
    like = h200_records(name, gpus)
    parts = {} if parts is None else parts
    found = {}
    for stage in stages:
        record = like.get(stage) or make_record(name, stage)
        record["metrics"] = list(figures_of(stage, sku, noise, node, parts))
        record["exit_code"] = None  # each figure scatters by itself here, so that none is held against another
        record["fingerprints"] = {**record["fingerprints"], **FINGERPRINTS.get(stage, {})}
        if stage in GANG_STAGES:
            pair = number // 2
            record["environment"] = {"gang": {"name": f"pair-{pair}", "nodes": 2, "joined": True}}
        found[stage] = record
    if sku != "mi300x" and "diagnostics" in found:
        found["diagnostics"]["fingerprints"]["diagnostics_nvls"] = "on"
    facts = found["facts"]["environment"]
    facts["accelerator"]["vendor"] = vendor
    uuids = [f"GPU-{number:05}-{gpu}" for gpu in range(gpus)]
    facts["identity"] = {"machine_id": f"machine-{number:05}", "serial": f"S-{number:05}", "gpu_uuids": uuids}
    for gpu, uuid in zip(facts["gpus"], uuids, strict=True):
        gpu.update(name=model, uuid=uuid, serial=f"{number:06}{gpu['index']}")
    facts |= {
        "firmware": {"product_name": "a server", "bios_version": "2.1", "bmc_version": "1.0"},
        "cpu": {"model": "Xeon"}, "os": {"kernel": "6.8.0"}, "tuning": {"governor": "performance"},
        "topology": [{"index": gpu, "links": "NV18", "nic": f"mlx5_{gpu}"} for gpu in range(gpus)],
        "nics": [{"name": f"mlx5_{nic}", "kind": "rdma", "board_id": "MT_1", "firmware_version": "28.43",
                  "driver": "mlx5_core", "interface_firmware": "28.43",
                  "ports": [{"port": 1, "state": "ACTIVE", "rate_bits_per_second": 4e11}]} for nic in range(8)],
    }  # fmt: skip
    if "rdma" in found:
        found["rdma"]["environment"]["infiniband"] = "yes"
    return found


class Tally:
    """What became of healthy nodes in one setting."""

    def __init__(self) -> None:
        self.nodes = 0
        self.verdicts: Counter[str] = Counter()
        self.warned = 0
        #: Nodes that a comparison with other nodes, or of their parts, failed: the rest fell under a floor of the SKU.
        self.failed_beside_others = 0
        self.open: Counter[tuple[str, str]] = Counter()

    def add(self, report: dict[str, Any]) -> None:
        for node in report["nodes"]:
            self.nodes += 1
            self.verdicts[node["verdict"]] += 1
            found = {(check["verdict"], check["name"]) for check in node["checks"]
                     if check["verdict"] in ("fail", "missing", "warn")}  # fmt: skip
            self.open.update(found)
            self.warned += any(verdict_ == "warn" for verdict_, _ in found)
            self.failed_beside_others += any(
                check["verdict"] == "fail" and KINDS[check["kind"]].compares
                for check in node["checks"]
                if check["severity"] == "required" and check["kind"] in KINDS
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="16,64", help="sizes of fleets")
    parser.add_argument("--fleets", type=int, default=9, help="of each size, SKU and setting")
    parser.add_argument("--skus", default=",".join(MODELS))
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--most", type=int, default=12, help="how many checks to name")
    options = parser.parse_args()
    gc.disable()  # none of millions of objects is garbage before the end of a fleet
    began, total = time.process_time(), Tally()
    print("| setting | SKU | nodes of a fleet | healthy nodes | FAIL | of these by comparison | INCOMPLETE | warned |")
    print("|---|---|---|---|---|---|---|---|")
    for setting in options.settings.split(","):
        for sku in options.skus.split(","):
            for count in map(int, options.nodes.split(",")):
                tally = Tally()
                for seed in range(options.fleets):
                    run, evidence = fleet(sku, count, setting, seed)
                    at = "2026-11-02T10:00:00Z"
                    report = verdict.judge(run, evidence, SHIPPED, judged_at=at, for_report=False)
                    tally.add(report)
                    total.add(report)
                    del run, evidence, report
                    gc.collect()
                print(_row(f"{setting} | {sku} | {count}", tally), flush=True)
    print(_row("all | all | all", total))
    metrics = {name for stage in STAGES for name in REPORTED[stage]} | ANYWHERE
    print(f"\n{len(metrics)} names of metrics in {len(STAGES)} stages; {time.process_time() - began:.0f} s of CPU")
    for (verdict_, name), count in total.open.most_common(options.most):
        print(f"{verdict_} {name}: {count} nodes, {100 * count / total.nodes:.3g} %")


def _row(what: str, tally: Tally) -> str:
    fail, incomplete = tally.verdicts["FAIL"], tally.verdicts["INCOMPLETE"]
    return f"| {what} | {tally.nodes} | {fail} | {tally.failed_beside_others} | {incomplete} | {tally.warned} |"


if __name__ == "__main__":
    main()
