"""One rank of collectives between nodes: measures bandwidth and latency, checks every element, finds the network."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from gpuval_node.hardware.tree import Tree

from ..common.device import TorchDevices
from ..common.ranks import Ranks, leave, run_rank, software_environment
from ..common.result import WorkloadResult
from ..diagnostics import nccl_log
from ..diagnostics.collectives import COLLECTIVES, SEND_RECEIVE, collectives
from ..diagnostics.measure import Meter, ProgressReporter
from . import transport, wrong_values
from .config import AUTO, NAMES, NETWORK, NVLINK, CollectivesConfig, parse_arguments
from .host import rdma
from .members import Gang

PREFIX = "gang"
ERRORS = f"{PREFIX}_collective_error_count"
SYSFS = Tree()
MAX_NETWORKS, MAX_NAME = 16, 64
NODES_VARIABLE = "GPUVAL_GANG_NODES"
"""Environment variable with the number of nodes of the gang."""
FABRIC_VARIABLE = "GPUVAL_GANG_FABRIC"
"""Environment variable that names what carries the collectives between nodes: auto, network or nvlink."""
SENT_VARIABLE = "GPUVAL_GANG_NVLINK_SENT_BYTES"
"""Environment variable with the bytes that the node's NVLinks had sent before the collectives began."""


def main(ranks: Ranks, result: WorkloadResult) -> None:
    config = parse_arguments(sys.argv[1:])
    assert isinstance(config, CollectivesConfig)
    result.environment.update(software_environment(ranks), tool="torch")
    reporter = ProgressReporter(ranks)
    reporter.begin("collectives across the gang", config.seconds)
    chosen = [c for c in (*COLLECTIVES, SEND_RECEIVE) if not config.only or c.name in config.only]
    if ranks.world_size == 1:
        chosen = [c for c in chosen if c is not SEND_RECEIVE]
    meter = Meter(ranks, reporter.report)
    collectives(
        ranks, meter, config.seconds, PREFIX, chosen, config.most_bytes,
        lambda errors: wrong_values.keep(ranks.rank, ERRORS, errors),
    )  # fmt: skip
    nodes = len(set(ranks.gather(ranks.of_node.start)))
    result.add_metric("gang_nodes_count", nodes, "count")
    result.add_metric("gang_absent_nodes_count", absent_nodes(nodes), "count")
    result.add_metric("gang_processes_count", ranks.world_size, "count")
    for figure in meter.figures:
        result.add_metric(**figure)
    for name, unit, x, y in meter.curves:
        result.add_series(name, unit, x, y, x_unit="bytes")
    errors = sum(ranks.gather(result.metric(ERRORS)))
    result.add_metric(ERRORS, errors, "count")
    if ranks.local_rank == 0:  # the result of local rank 0 becomes that of the node
        complete(result, config, ranks.accelerator, nodes, len(ranks.of_node))


def absent_nodes(nodes: int) -> int:
    """Return how many nodes of the gang have no rank in the process group, which spans ``nodes`` nodes."""
    return int(os.environ.get(NODES_VARIABLE, nodes)) - nodes


def complete(
    result: WorkloadResult, config: CollectivesConfig, accelerator: TorchDevices, nodes: int, slots: int
) -> None:
    """Add the networks in NCCL's logs, and a message, to a node's result; ``nodes`` nodes ran ``slots`` ranks each."""
    requested = config.only or NAMES
    result.fingerprints.update({f"{PREFIX}_{name}_asked": "yes" if name in requested else "no" for name in NAMES})
    buses = {m["name"]: m["value"] for m in result.metrics if m["name"].endswith("_bus_bytes_per_second")}
    measured = sum(bool(buses.get(f"{PREFIX}_{name}_bus_bytes_per_second")) for name in NAMES)
    result.add_metric("gang_collectives_count", measured, "count")
    result.add_metric("gang_collectives_left_out_count", len(NAMES) - len(set(requested)), "count")
    networks = _add_transport(result, accelerator)
    result.fingerprints["gang_shape"] = f"{nodes}x{slots}"
    complaint = _complain(result, config, accelerator, networks) if nodes > 1 else ""
    count = result.metric(ERRORS)
    assert count is not None  # a missing count is not 0
    errors = int(count)
    if errors or complaint:
        nccl_log.print_logs(os.environ)
    network = result.fingerprints.get("gang_network", "")
    largest = next((m["value"] for m in result.metrics if m["name"] == f"{PREFIX}_collective_largest_bytes"), 0)
    rates = ", ".join(
        f"{name.removeprefix(PREFIX + '_').removesuffix('_bus_bytes_per_second')} {value / 1e9:.3g}"
        for name, value in buses.items()
    )
    result.message = f"{nodes} nodes by {network or 'no network'}: {rates} GB/s on the bus at {largest} bytes"
    if complaint:
        result.message = (
            f"{complaint}: see networks_initialised in the environment, NCCL's log in that of the stage, and the host "
            f"checks; {result.message}"
        )
    if errors:
        result.state, result.message = "failure", f"{errors} elements are wrong; {result.message}"


def _add_transport(result: WorkloadResult, accelerator: TorchDevices) -> list[str]:
    """Add network and GPUDirect RDMA by NCCL's logs to a node's result, to compare nodes. Return the networks."""
    if not accelerator.is_gpu:
        result.fingerprints["gang_network"] = "gloo"
    if accelerator.kind != "cuda":
        return []
    text = nccl_log.read(os.environ)
    networks = sorted(transport.networks(text))
    if networks:
        result.fingerprints["gang_network"] = "+".join(networks)
        direct = transport.reads_gpu_memory(text)
        result.fingerprints["gang_gpu_direct"] = "on" if direct else "off"
        if transport.is_ib(networks):
            result.add_metric("gang_gpu_direct_off_count", int(not direct), "count")
    result.environment["networks_initialised"] = sorted(transport.initialised(text))
    chosen = transport.choices(text.splitlines())
    result.environment["algorithms"] = {
        name: {str(size): "/".join(choice) for size, choice in sorted(sizes.items())} for name, sizes in chosen.items()
    }
    version = nccl_log.version(text)
    if version:
        result.environment["nccl"] = version
    return networks


def fabric_environment(config: CollectivesConfig, gang: Gang) -> dict[str, str]:
    """Return environment variables that bind NCCL to NVLink or the network; none if nodes share the network alone."""
    if config.fabric == NVLINK:
        sent = transport.nvlink_sent_bytes()
        return {FABRIC_VARIABLE: NVLINK, "NCCL_MNNVL_ENABLE": "1", SENT_VARIABLE: "" if sent is None else str(sent)}
    return {} if gang.own.clique is None else {FABRIC_VARIABLE: NETWORK, "NCCL_MNNVL_ENABLE": "0"}


def name_after_nvlink(result: WorkloadResult) -> None:
    """Add ``nvlink`` to the names of figures and curves in a result: none is compared with one over a network."""
    for named in (*result.metrics, *result.series):
        name = named["name"].removeprefix(f"{PREFIX}_")
        if name.startswith(NAMES) and name != named["name"]:
            named["name"] = f"{PREFIX}_nvlink_{name}"


def add_failure(result: WorkloadResult) -> None:
    """After a failure, print NCCL's logs; add the networks that they name, and numbers of wrong values, to a result."""
    wrong_values.add_to(result)
    nccl_log.print_logs(os.environ)
    text = ""
    with suppress(OSError):  # no error here may hide the reason of the failure
        text = nccl_log.read(os.environ)
    networks = {"networks": transport.networks(text), "networks_initialised": transport.initialised(text)}
    for key, names in networks.items() if text else ():
        result.environment[key] = sorted(name[:MAX_NAME] for name in names)[:MAX_NETWORKS]


def _complain(result: WorkloadResult, config: CollectivesConfig, accelerator: TorchDevices, networks: list[str]) -> str:
    """Add figures on the collectives' network; return what is wrong, else empty. `networks`: those in NCCL's log."""
    ports = rdma.ports(SYSFS)
    result.add_metric("gang_rdma_ports_count", len(ports), "count")
    if accelerator.kind != "cuda":
        return ""
    bus = next((m["value"] for m in result.metrics if m["name"] == f"{PREFIX}_all_reduce_bus_bytes_per_second"), None)
    carried = sum(port.rate_bits_per_second or 0 for port in ports if port.is_active) / 8
    if carried and bus is not None and transport.is_ib(networks):
        result.add_metric("gang_bus_over_ports_ratio", bus / carried, "ratio")
    fabric = os.environ.get(FABRIC_VARIABLE, AUTO)
    complaint = transport.complaint(networks, config.expect_network, ports, rdma.without_driver(SYSFS), fabric)
    if complaint == "" and fabric == NVLINK and (doubt := _doubt_nvlink(result)):
        return doubt
    if complaint is None:
        return "NCCL's log does not tell by which network the collectives went"
    result.add_metric("gang_network_unexpected_count", int(bool(complaint)), "count")
    return complaint


def _doubt_nvlink(result: WorkloadResult) -> str:
    """Add the bytes that NVLinks sent to the result; return what contradicts NCCL's log of NVLink alone, else empty."""
    reached, ranks = transport.largest_clique(nccl_log.read(os.environ)), result.metric("gang_processes_count")
    if reached != ranks:
        return f"NCCL's log shows an NVLink clique of {reached} of {ranks} GPUs: compare the cliques in the facts"
    before, after = os.environ.get(SENT_VARIABLE), transport.nvlink_sent_bytes()
    if not before or after is None:
        return ""
    sent, largest = after - int(before), result.metric(f"{PREFIX}_collective_largest_bytes") or 0
    result.add_metric("gang_nvlink_sent_bytes", sent, "bytes")
    counted = f"the node's NVLinks sent {sent} bytes by their counters (nvidia-smi nvlink -gt d)"
    return f"{counted}, less than one collective of {largest} bytes" if sent < largest else ""


if __name__ == "__main__":
    leave(run_rank(main))
