"""The stage ``rdma``: measures bandwidth and latency of every port, counts errors, and names untested ports."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuval_node.hardware.pci import accelerators
from gpuval_node.hardware.tree import Tree

from ..common import command
from ..common.arguments import positive_float, workload_parser
from ..common.result import WorkloadResult, link_scope
from ..gang.host import rdma
from . import node as nodes
from . import perftest
from .node import Rail, RdmaNode
from .perftest import PerftestMeasurement

HELP_SECONDS = 20.0
MAX_MESSAGE, MAX_NAMED = 900, 6
INSTALL = "install perftest (apt-get install perftest, dnf install perftest), or use an image that has it"
NO_DEVICE = "no such RDMA device: correct rdma_devices, or look for a NIC that is gone"
_NAMES = {perftest.WRITE: "write", perftest.SEND: "send"}
_LATENCIES = {perftest.READ_LATENCY: "read", perftest.WRITE_LATENCY: "write"}


@dataclass
class RdmaReport:
    """Failed and untested measurements of a node, with reasons; ``slowest``: ratios of measured to maximum speeds."""

    failed: dict[str, str] = field(default_factory=dict)
    untested: dict[str, str] = field(default_factory=dict)
    gpu_untested: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    slowest: list[float] = field(default_factory=list)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = workload_parser("rdma", "Measure RDMA of this node by perftest.")
    add = parser.add_argument
    add("--seconds", type=positive_float, default=60.0, help="time for all measurements of bandwidth")
    add("--devices", nargs="*", default=["*"], metavar="NAME", help="devices to test; * is any text")
    add("--ordered", type=int, metavar="COUNT", help="ports the node was ordered with")
    add("--without-pairs", action="store_true", help="do not measure between ports")
    return parser.parse_args(list(arguments))


def main(result: WorkloadResult) -> None:
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that running tools are ended too
    measure(result, parse_arguments(sys.argv[1:]), Tree())


def measure(
    result: WorkloadResult, options: argparse.Namespace, tree: Tree, slack: float = perftest.SLACK_SECONDS
) -> None:
    """Measure the node's RDMA ports and fill the result; if evidence is missing, it lacks ``rdma_measured_count``."""
    patterns = [] if options.ordered == 0 else options.devices
    node, report = nodes.look(tree, patterns), RdmaReport()
    for pattern in nodes.absent(tree, patterns):
        report.untested[pattern] = NO_DEVICE
    ports = [port for device in node.devices for port in device.ports]
    result.environment.update(rdma=node.described(), infiniband="present" if node.pkeys else "none")
    result.fingerprints.update(
        rdma="present" if node.rails else "none",
        rdma_ports=rdma.describe_ports(ports)[:200] or "none",
        rdma_firmware=rdma.describe_firmware(node.devices)[:200] or "none",
        # without counts: a port without a link is in no other partition
        rdma_pkeys=", ".join(sorted({" ".join(keys) or "empty" for keys in node.pkeys}))[:200] or "none",
    )
    result.add_metric("rdma_devices_count", len(node.devices), "count")
    result.add_metric("rdma_ports_count", len(node.rails), "count")
    result.add_metric("rdma_ports_down_count", len(node.down), "count")
    result.add_metric("rdma_ports_other_count", len(node.other), "count")
    result.add_metric("rdma_pkey_tables_count", len(set(node.pkeys)), "count")
    result.add_metric("rdma_nics_slow_count", sum(link.is_slow for link in node.links.values()), "count")
    has_gpus = bool(accelerators(tree))
    before = rdma.counters(tree, [rail.port for rail in node.rails])
    measured = 0
    tools = _tools(node, report, has_gpus, options.ordered, rdma.without_driver(tree))
    if tools:
        perftest_options = perftest.options(command.run([tools[perftest.WRITE], "--help"], HELP_SECONDS).output)
        tests = nodes.tests(node.rails, perftest_options, options.seconds, not options.without_pairs)
        near = [rail for rail in node.rails if rail.gpu_address]
        if near and not nodes.memory_of(near[0], perftest_options):
            report.gpu_untested[f"{len(near)} ports"] = "perftest was built without CUDA and ROCm"
        elif has_gpus and node.rails and not near:
            report.gpu_untested[f"{len(node.rails)} ports"] = "no GPU shares a PCIe switch with a port"
        measured = _run_all(result, node, report, tests, tools, options.seconds, slack)
    _count_errors(result, tree, node, report, before)
    _conclude(result, node, report, measured)


def _tools(
    node: RdmaNode, report: RdmaReport, has_gpus: bool, ordered: int | None, driverless: Sequence[str]
) -> dict[str, Path]:
    """Return ``{tool of perftest: path}``; empty if a tool is missing, or no port to test (``ordered`` 0: by order)."""
    if ordered == 0:
        return {}
    for address in driverless:
        report.untested[address] = "InfiniBand controller without a driver: load it (mlx5_ib)"
    if not node.rails:
        if node.devices and not ordered and not node.other:
            remedy = "bring them up, or declare gpuval_nic_count: 0 where none is to be used"
            report.untested["ports"] = f"no port has a link: {remedy}"
        return {}
    path_by_tool = {name: Path(path) for name in perftest.TOOLS if (path := shutil.which(name))}
    missing = [name for name in perftest.TOOLS if name not in path_by_tool]
    if missing:
        report.untested[f"{len(node.rails)} ports"] = f"{', '.join(missing)} not found: {INSTALL}"
        if has_gpus:
            report.gpu_untested["all GPUs"] = "perftest is missing"
        return {}
    return path_by_tool


def _run_all(
    result: WorkloadResult,
    node: RdmaNode,
    report: RdmaReport,
    tests: Sequence[PerftestMeasurement],
    tools: dict[str, Path],
    seconds: float,
    slack: float,
) -> int:
    """Run the measurements one after another; return how many have a figure. ``tools``: paths by name."""
    rails = {rail.end: rail for rail in node.rails}
    deadline = time.monotonic() + 2 * seconds + len(tests) * (perftest.LEAST_SECONDS + 1) + slack
    hung: set[str] = set()
    pairs: dict[str, str] = {}
    measured = 0
    for number, test in enumerate(tests, 1):
        stuck = hung & {test.client.name, test.server.name}
        if stuck or time.monotonic() > deadline:
            why = f"not run, {min(stuck)} hung" if stuck else "not run: time of the stage used up"
            report.untested[test.title] = why
            continue
        result.report(f"{number} of {len(tests)}: {test.title}")
        outcome = perftest.run(test, tools[test.tool], node.cpus, slack)
        problem = outcome.problem or _add_figures(result, report, test, rails, outcome.output)
        if not problem:
            measured += 1
            continue
        print(f"{test.title}: {problem}", flush=True)
        if outcome.hung:
            hung |= {test.client.name, test.server.name} if not test.is_pair else set()
        kind = report.untested if outcome.is_setup_problem else pairs if test.is_pair else report.failed
        kind = report.gpu_untested if outcome.is_setup_problem and test.memory else kind
        kind[test.title] = problem
    _sort_pairs(report, [test for test in tests if test.is_pair and test.title not in report.untested], pairs)
    return measured


def _sort_pairs(report: RdmaReport, tests: Sequence[PerftestMeasurement], problems: dict[str, str]) -> None:
    """Sort pairs of ports with ``problems`` (by title) into the report. A pair has failed if one end also fails alone,
    or if other pairs prove a common network. Else it is untested: its ends may be in two networks."""
    alone = {title.split()[1] for title in report.failed}
    networks = {end.name: {end.name} for test in tests for end in (test.client, test.server)}
    for test in tests:
        if test.title not in problems:
            joined = networks[test.client.name] | networks[test.server.name]
            networks.update(dict.fromkeys(joined, joined))
    apart = []
    for test in (test for test in tests if test.title in problems):
        if {test.client.name, test.server.name} & alone or test.server.name in networks[test.client.name]:
            report.failed[test.title] = problems[test.title]
        else:
            apart.append(test)
    if apart:
        report.untested[f"pairs {', '.join(test.name for test in apart[:MAX_NAMED])}"] = (
            f"do not reach each other ({problems[apart[0].title]}): check cable and switch port, set rdma_pairs: "
            "false if each rail is a separate network, or exclude ports of other networks from rdma_devices"
        )


def _add_figures(
    result: WorkloadResult,
    report: RdmaReport,
    test: PerftestMeasurement,
    rails: dict[perftest.PerftestEnd, Rail],
    output: str,
) -> str:
    """Add the figures in a client's ``output`` to the result; return why there are none, or an empty text."""
    scope = link_scope(test.name)
    if test.tool in _LATENCIES:
        latency, name = perftest.latency(output), f"rdma_{_LATENCIES[test.tool]}_latency"
        if not latency:
            return "printed no plausible latency"
        for percentile, seconds in zip(("p50", "p99", "p999"), latency):
            result.add_metric(f"{name}_{percentile}_seconds", seconds, "seconds", scope)
        return ""
    speed = perftest.bandwidth(output)
    if speed is None:
        return "printed no plausible bandwidth"
    name = "pair" if test.is_pair else "gpu_write" if test.memory else _NAMES[test.tool]
    result.add_metric(f"rdma_{name}_bytes_per_second", speed, "bytes/s", scope)
    most = nodes.most_of(rails[test.client], rails[test.server], test.both_ways)
    if most:
        ratio = speed / most
        result.add_metric(f"rdma_{name}_ratio", ratio, "ratio", scope)
        report.slowest.append(ratio)
    else:
        report.untested[test.title] = f"{speed:.3g} bytes/s, port rate unknown: no floor applied"
    return ""


def _count_errors(
    result: WorkloadResult, tree: Tree, node: RdmaNode, report: RdmaReport, before: dict[str, dict[str, int]]
) -> None:
    ports = [rail.port for rail in node.rails]
    moved = rdma.moved(before, rdma.counters(tree, ports))
    for port, change in moved.items():
        result.add_metric("rdma_link_error_count", change.link_errors, "count", f"link:{port}")
        result.add_metric("rdma_retransmission_count", change.retransmissions, "count", f"link:{port}")
        words = change.words((*rdma.LINK_ERRORS, *rdma.RETRANSMISSIONS))
        if words:
            report.errors[port] = words
    if before.keys() - moved.keys():  # counters that vanished: their metrics must be missing, not 0
        return
    unread = sorted({port.name for port in ports} - moved.keys())
    if unread:
        result.environment["left_out"] = {"counters": f"the driver of {', '.join(unread[:8])} has no error counters"}
    if ports and not moved:
        return
    result.add_metric("rdma_link_error_count", sum(change.link_errors for change in moved.values()), "count")
    result.add_metric("rdma_retransmission_count", sum(change.retransmissions for change in moved.values()), "count")
    result.add_metric("rdma_full_counters_count", sum(len(change.full) for change in moved.values()), "count")


def _conclude(result: WorkloadResult, node: RdmaNode, report: RdmaReport, measured: int) -> None:
    result.add_metric("rdma_failed_count", len(report.failed), "count")
    result.add_metric("rdma_gpu_untested_count", len(report.gpu_untested), "count")
    if not report.untested:
        result.add_metric("rdma_measured_count", measured, "count")
    for name in ("failed", "untested", "gpu_untested", "errors"):
        result.environment[name] = dict(list(getattr(report, name).items())[:32])
    parts = [listed("failed", report.failed), listed("not tested", report.untested), listed("counted", report.errors)]
    if node.down:
        names = {port.name: f"{port.state} ({port.physical_state})" for port in node.down}
        parts.append(listed("no link", names))
    if len(set(node.pkeys)) > 1:
        parts.append(f"P_Keys: {rdma.describe_pkeys(node.pkeys)[:200]}")
    parts.append(listed("GPU memory not tested", report.gpu_untested))
    untestable = {port.name: f"{port.link_layer or 'unknown'}, neither InfiniBand nor RoCE" for port in node.other}
    parts.append(listed("not testable by perftest", untestable))
    if node.rails and report.slowest:
        rates = rdma.describe_ports([rail.port for rail in node.rails])
        parts.append(f"{rates}: {measured} tests, the slowest reached {min(report.slowest):.0%} of its maximum")
    elif not any(parts):
        parts.append("no RDMA device to test")
        result.environment["left_out"] = {"rdma": parts[-1]}  # under the stage's name: the whole stage
    result.message = "; ".join(part for part in parts if part)[:MAX_MESSAGE]


def listed(title: str, reason_by_name: dict[str, str]) -> str:
    if not reason_by_name:
        return ""
    # equal reasons once: a missing tool is missing for all
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, why in reason_by_name.items():
        by_reason[why].append(name)
    groups = [f"{', '.join(names[:MAX_NAMED])}: {why}" for why, names in list(by_reason.items())[:MAX_NAMED]]
    return f"{title}: {'; '.join(groups)}"
