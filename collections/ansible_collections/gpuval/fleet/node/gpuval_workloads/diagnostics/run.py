"""One rank of the diagnostics: runs measurement after measurement and combines the figures of all ranks."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from ..common.ranks import Ranks, leave, run_rank, software_environment
from ..common.result import RESULT_FILE_VARIABLE, WorkloadResult
from . import nccl_log, p2p_off
from .collectives import COLLECTIVES, collectives
from .config import parse_arguments
from .host import cpu_model, disk, memory_and_cores, numa_memory
from .matmul import matmul, precisions
from .measure import Meter, ProgressReporter
from .memory import copy, pattern
from .overlap import launch_latency, overlap
from .transfers import peers, transfers

ODD = 0.05
"""The result's message names a GPU or link that is slower than the node's median by more than this share."""
SHOWN = 4
MOST_OF_THE_MEMORY = 0.8
RATES = ("_tflops", "_bytes_per_second")
SUMMED = re.compile(
    r"diagnostics_host_(memory|cpu)_\w*(bytes_per_second|tflops)|diagnostics_(p2p_off_)?collective_error_count"
)


@dataclass(frozen=True)
class DiagnosticsPart:
    """A measurement of the diagnostics: name in the output, share of the time, function (which gets its seconds)."""

    name: str
    share: float
    run: Callable[[Ranks, Meter, float], None]


PARTS = (
    DiagnosticsPart("matrix products", 0.30, matmul),
    DiagnosticsPart("device memory, copies", 0.05, copy),
    DiagnosticsPart("collectives", 0.22, collectives),
    DiagnosticsPart("products beside an all-reduce", 0.06, overlap),
    DiagnosticsPart("links between devices", 0.06, peers),
    DiagnosticsPart("host to device and back", 0.10, transfers),
    DiagnosticsPart("kernel launches", 0.01, launch_latency),
    DiagnosticsPart("host memory and cores", 0.04, memory_and_cores),
    DiagnosticsPart("memory of NUMA nodes", 0.02, numa_memory),
    DiagnosticsPart("local disk", 0.03, disk),
    DiagnosticsPart("device memory, patterns", 0.14, pattern),
)
BASIC_PARTS = tuple(part for part in PARTS if part.run in (matmul, copy, collectives))


def run_parts(
    ranks: Ranks, result: WorkloadResult, seconds: float, parts: tuple[DiagnosticsPart, ...] = PARTS
) -> list[list[dict[str, Any]]]:
    """Run measurements for about ``seconds`` in all; add their metrics to ``result``. Rank 0 writes it after each, so
    that they survive one that hangs. Return the list of figures of each rank."""
    total_share = sum(part.share for part in parts)
    reporter, spent = ProgressReporter(ranks), {}
    meter = Meter(ranks, reporter.report)
    everyone: list[list[dict[str, Any]]] = []
    for part in parts:
        share = seconds * part.share / total_share
        reporter.begin(part.name, share)
        begun = time.perf_counter()
        part.run(ranks, meter, share)
        spent[part.name] = round(time.perf_counter() - begun, 2)
        ranks.empty_cache()
        everyone = ranks.gather(meter.figures)
        put_together(ranks, result, everyone)
        for name, unit, x, y in meter.curves:
            result.add_series(name, unit, x, y, x_unit="bytes")
        log = nccl_log.read(os.environ)
        result.fingerprints.update(nccl_log.fingerprints(log) if log else {})
        if not ranks.accelerator.is_gpu:
            result.fingerprints["diagnostics_transport"] = ranks.accelerator.backend
        result.environment.update(
            seconds_by_part=spent,
            cpu_model=cpu_model(),
            numa_bytes_per_second=meter.by_numa_node,
            left_out=meter.left_out,
            collective_library=nccl_log.version(log) if log else None,
        )
        if ranks.is_first and os.environ.get(RESULT_FILE_VARIABLE):
            result.write()
    return everyone


def put_together(ranks: Ranks, result: WorkloadResult, everyone: list[list[dict[str, Any]]]) -> None:
    """Add the figures of each rank (``everyone``) to the result. Figures of GPUs and links stay as they are. Of figures
    of the node, throughput and errors become sums over ranks; others are the first rank's."""
    node: dict[str, list[dict[str, Any]]] = {}
    links = 0
    for figure in (figure for figures in everyone for figure in figures):
        if figure["scope"] == "node":
            node.setdefault(figure["name"], []).append(figure)
        else:
            result.add_metric(**figure)
            links += figure["name"] == "diagnostics_peer_bytes_per_second"
    for name, figures in node.items():
        total = {"value": sum(figure["value"] or 0 for figure in figures)} if SUMMED.fullmatch(name) else {}
        result.add_metric(**{**figures[0], **total})
    result.add_metric("diagnostics_processes_count", ranks.world_size, "count")
    result.add_metric("diagnostics_links_count", links, "count")


def wrong(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those of one rank's figures that count wrong data and are not 0."""
    return [figure for figure in figures if figure["name"].endswith("_error_count") and figure["value"]]


def behind(result: WorkloadResult) -> list[str]:
    """Return texts on the GPUs and links whose rate is much below the node's median, the worst first."""
    rates: dict[str, list[tuple[float, str]]] = {}
    for metric in result.metrics:
        is_rate = metric["name"].endswith(RATES) and "_median_" not in metric["name"]
        if is_rate and metric["scope"] != "node" and metric["value"] is not None:
            rates.setdefault(metric["name"], []).append((metric["value"], metric["scope"]))
    named = []
    for name, values in rates.items():
        if len(values) < 2:
            continue
        middle = median([value for value, _ in values])
        named += [(value / middle - 1, f"{scope} {name}") for value, scope in values if value < middle * (1 - ODD)]
    return [f"{text} {difference:.0%}" for difference, text in sorted(named)]


def main(ranks: Ranks, result: WorkloadResult) -> None:
    config = parse_arguments(sys.argv[1:])
    result.environment.update(software_environment(ranks))
    if config.p2p_off:
        without_p2p = partial(collectives, prefix=p2p_off.PREFIX, chosen=COLLECTIVES[:1], most_bytes=p2p_off.MOST_BYTES)
        part = DiagnosticsPart("all-reduce without P2P", 1.0, without_p2p)
        run_parts(ranks, result, config.p2p_off_seconds, (part,))
        return
    everyone = run_parts(ranks, result, config.seconds)
    precision = precisions(ranks)[0][0].name
    slowest, scope = min(
        (result.metric(f"diagnostics_matmul_{precision}_tflops", ranks.scope_of(rank)), ranks.scope_of(rank))
        for rank in range(ranks.world_size)
    )
    parts = [
        f"{ranks.world_size} x {ranks.accelerator.kind}: slowest {precision} product {slowest:.3g} TFLOP/s ({scope})"
    ]
    if ranks.world_size > 1:
        rate = result.metric("diagnostics_all_reduce_bus_bytes_per_second") or 0.0
        parts.append(f"all_reduce {rate / 1e9:.3g} GB/s on the bus")
    errors = sum(figure["value"] for figures in everyone for figure in wrong(figures))
    parts.append(f"{errors} wrong words")
    parts += [
        f"{metric['scope']}: only {metric['value']:.0%} of its memory was free to be tested"
        for metric in result.metrics
        if metric["name"] == "diagnostics_memory_tested_ratio" and metric["value"] < MOST_OF_THE_MEMORY
    ]
    odd = behind(result)
    if odd and ranks.accelerator.is_gpu:  # other processes use the cores of a CPU node, too
        more = f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
        parts.append(f"behind the others: {', '.join(odd[:SHOWN])}{more}")
    result.message = "; ".join(parts)


if __name__ == "__main__":
    leave(run_rank(main))
