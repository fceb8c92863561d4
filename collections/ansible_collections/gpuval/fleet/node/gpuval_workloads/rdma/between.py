"""The stage ``rdma_rails``: runs ib_write_bw between pairs of nodes, rail by rail, both directions at once: each node
with both neighbours in a ring, a slow node with further ones. Members exchange their measurements after each round."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Optional

from gpuval_node.hardware.tree import Tree
from gpuval_node.network.routes import is_ip

from ..common.arguments import positive_float, workload_parser
from ..common.processes import free_port
from ..common.result import WorkloadCrash, WorkloadResult, link_scope, run_workload
from ..gang import membership
from ..gang.control_channel import ChannelLimits, ControlChannel, StoppedError
from ..gang.host import rdma
from ..gang.members import Gang, from_environment
from . import attribution, perftest, program
from . import node as nodes
from .attribution import RailPair, Rounds
from .node import RdmaNode
from .perftest import PerftestMeasurement, PerftestOutcome

CONNECT_SECONDS, POLL_SECONDS, MAX_LINE = 30.0, 0.2, 65536
#: Seconds that a test takes at most beside its measurement; fewer than on one node, since it opens no GPU.
SLACK_SECONDS = 15.0
#: Number of hung rails after which the other rails of a pair of nodes are not measured.
MAX_HUNG = 2
MAX_OUTPUT, MAX_MESSAGE, MAX_NAMED, MAX_LISTED = 4000, 900, 6, 64
HUNG = "not run, since other rails of the pair hung"


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = workload_parser("rdma.between", "Measure RDMA between the nodes of a gang.")
    add = parser.add_argument
    add("--seconds", type=positive_float, default=5.0, help="measuring time of each rail")
    add("--least", type=positive_float, default=0.8, help="minimum share of the bidirectional rate")
    add("--devices", nargs="*", default=["*"], metavar="NAME", help="devices to test; * is any text")
    add("--join-seconds", type=positive_float, default=300.0, help="limit for all nodes to join")
    return parser.parse_args(list(arguments))


def main(result: WorkloadResult) -> None:
    options, gang = parse_arguments(sys.argv[1:]), from_environment(os.environ)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that running tools are ended too
    membership.introduce(gang)
    take_part(result, options, gang, Tree())


def take_part(
    result: WorkloadResult, options: argparse.Namespace, gang: Gang, tree: Tree, slack: float = SLACK_SECONDS
) -> None:
    """Measure RDMA between the nodes of the gang and fill this node's result. Without evidence the result lacks
    ``rdma_rails_measured_count``, and its message says why. ``slack``: seconds of a test beside its measurement."""
    node, tool = nodes.look(tree, options.devices), shutil.which(perftest.WRITE)
    driverless = rdma.without_driver(tree) if options.devices else []
    bring = {
        "ports": {rail.end.name: rail.most_bytes_per_second for rail in node.rails},
        "lacks": _lacks(node, tool, driverless, nodes.absent(tree, options.devices)),
    }
    described: dict[str, Any] = {"name": gang.name, "nodes": len(gang.members), "node": gang.own.node}
    result.environment.update(gang=described, rdma=node.described())
    limits = ChannelLimits(join_seconds=options.join_seconds)
    try:
        with membership.taking_part(gang, described, limits, bring) as channel:
            brought = membership.join(channel, gang)
            described["joined"] = True
            member = RdmaMember(options, gang, channel, node, Path(tool or perftest.WRITE), brought, slack)
            pairs = member.measure(attribution.ring(member.able))
            pairs += member.measure(attribution.second_look(pairs, options.least))
            channel.end(None, membership.FAREWELL_SECONDS)
    except StoppedError as error:
        result.write()
        raise WorkloadCrash(f"the gang has ended: {error}") from None
    _conclude(result, member, pairs)


def _lacks(node: RdmaNode, tool: Optional[str], driverless: Sequence[str], absent: Sequence[str]) -> str:
    """Return why this node cannot take part; empty if it can, or has no RDMA device."""
    if driverless:
        return f"{driverless[0]} is an InfiniBand controller without a driver: load it (mlx5_ib)"
    if absent:
        return f"{absent[0]}: {program.NO_DEVICE}"
    if not node.rails:
        return "no port has a link: bring them up, or leave their devices out of rdma_devices" if node.devices else ""
    return "" if tool else f"{perftest.WRITE} not found: {program.INSTALL}"


class RdmaMember:
    """This node as a member of its gang. ``brought``: each member's ports with rates in bytes/s, and what it lacks."""

    def __init__(
        self,
        options: argparse.Namespace,
        gang: Gang,
        channel: ControlChannel,
        node: RdmaNode,
        tool: Path,
        brought: Sequence[Mapping[str, Any]],
        slack: float,
    ) -> None:
        self.options, self.gang = options, gang
        self._channel, self._node, self._tool, self._slack, self._meetings = channel, node, tool, slack, 0
        self.ports: list[dict[str, Optional[float]]] = [report["ports"] for report in brought]
        self.lacks: list[str] = [report["lacks"] for report in brought]
        self.able = [index for index, report in enumerate(brought) if report["ports"] and not report["lacks"]]

    def name(self, index: int) -> str:
        return self.gang.members[index].node

    def title(self, pair: RailPair) -> str:
        server_port = "" if pair.other == pair.rail else f">{pair.other}"
        return f"{self.name(pair.client)}>{self.name(pair.server)} {pair.rail}{server_port}"

    def measure(self, rounds: Rounds) -> list[RailPair]:
        """Measure the pairs of nodes in each round; return all members' measurements. Raises ``StoppedError``."""
        rail_pairs: list[RailPair] = []
        for number, pairs in enumerate(rounds, 1):
            print(f"round {number} of {len(rounds)}", flush=True)
            own_pairs = [self._pair(*pair) for pair in pairs if self.gang.index in pair]
            self._meetings += 1
            word = json.dumps([rail_pair for measured in own_pairs for rail_pair in measured])
            for words in membership.meet(self._channel, f"end of round {self._meetings}", word):
                rail_pairs += [RailPair(*rail_pair) for rail_pair in json.loads(words)]
        return rail_pairs

    def _pair(self, client_index: int, server_index: int) -> list[RailPair]:
        """Measure the rails between two nodes, one after another; return the measurements, on the server none."""
        serves, hung = self.gang.index == server_index, 0
        results: list[RailPair] = []
        matched = attribution.matched(self.ports[client_index], self.ports[server_index])
        rails = [RailPair(client_index, client_port, server_index, their) for client_port, their in matched]
        try:
            with _connect(self.gang.members[server_index].address, self.gang.port, serves) as peer:
                peer.settimeout(2 * (self.options.seconds + self._slack) + perftest.LISTEN_SECONDS)
                with peer.makefile("rw", encoding="utf-8") as stream:
                    for rail in rails:
                        if serves:
                            self._run_server(stream, self._test(rail.other))
                        elif hung >= MAX_HUNG:
                            results.append(rail._replace(problem=HUNG, tested=False))
                        else:
                            outcome, printed = self._run_client(stream, self._test(rail.rail), server_index)
                            hung += outcome.hung
                            results.append(self._with_outcome(rail, outcome, printed))
        except (OSError, ValueError, TypeError) as error:
            why = f"lost the connection to the other node: {error or type(error).__name__}"
            print(why, flush=True)
            results += [rail._replace(problem=why, tested=False) for rail in rails[len(results) :]]
        return [] if serves else results

    def _test(self, port: str) -> PerftestMeasurement:
        end = next(rail.end for rail in self._node.rails if rail.end.name == port)
        return PerftestMeasurement(perftest.WRITE, end, end, int(self.options.seconds), both_ways=True)

    def _run_server(self, stream: IO[str], test: PerftestMeasurement) -> None:
        port = free_port()
        side = perftest.PerftestSide(test, self._tool, self._node.cpus, port, perftest.limit(test, self._slack))
        try:
            _send(stream, port if side.is_listening(port, self._slack) else None)
            _receive(stream)
        finally:
            side.end()
        _send(stream, side.ended.output[-MAX_OUTPUT:] if side.ended else "")

    def _run_client(self, stream: IO[str], test: PerftestMeasurement, server_index: int) -> tuple[PerftestOutcome, str]:
        """Run the client's end of a test; return its outcome, and the server's output from the other node."""
        port, outcome = _receive(stream), PerftestOutcome(problem="the server did not begin to listen")
        if isinstance(port, int):
            address = self.gang.members[server_index].address
            seconds = perftest.limit(test, self._slack)
            side = perftest.PerftestSide(test, self._tool, self._node.cpus, port, seconds, address)
            try:
                side.thread.join()
            finally:
                side.end()
            outcome = perftest.outcome(None, side.ended)
        _send(stream, "ended")
        return outcome, str(_receive(stream))

    def _with_outcome(self, rail: RailPair, outcome: PerftestOutcome, printed: str) -> RailPair:
        speed = perftest.bandwidth(outcome.output)
        rates = [self.ports[rail.client][rail.rail], self.ports[rail.server][rail.other]]
        rates_known = [rate for rate in rates if rate]
        if speed and rates_known:
            measured = rail._replace(share=speed / (2 * min(rates_known)))
        elif speed:
            measured = rail._replace(problem=f"{speed:.3g} bytes/s, port rate unknown", tested=False)
        else:
            complaint, problem = perftest.complaint([printed]), outcome.problem or "printed no bandwidth"
            problem += f"; on {self.name(rail.server)}: {complaint}" if complaint else ""
            is_setup = not outcome.hung and (outcome.is_setup_problem or perftest.is_setup_problem([printed]))
            measured = rail._replace(problem=problem, tested=not is_setup)
        print(f"{self.title(rail)}: {_speed(measured)}", flush=True)
        return measured


def _connect(host: str, port: int, serves: bool) -> socket.socket:
    """Return the TCP connection of a pair of nodes; ``host`` is the server's, which listens. Raises ``OSError``."""
    if serves:
        own_host = host if is_ip(host) else ""  # a host's own name may mean its loopback interface
        is_dual = not own_host and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual or ":" in own_host else socket.AF_INET
        with socket.create_server((own_host, port), family=family, dualstack_ipv6=is_dual) as door:
            door.settimeout(CONNECT_SECONDS)
            return door.accept()[0]
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return socket.create_connection((host, port), timeout=CONNECT_SECONDS)
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(POLL_SECONDS)


def _send(stream: IO[str], message: Any) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


def _receive(stream: IO[str]) -> Any:
    line = stream.readline(MAX_LINE)
    if not line:
        raise OSError("it closed the connection")
    return json.loads(line)


def _speed(pair: RailPair) -> str:
    return pair.problem if pair.share is None else f"{pair.share:.0%} of its rate"


def _conclude(result: WorkloadResult, member: RdmaMember, pairs: Sequence[RailPair]) -> None:
    index = member.gang.index
    own_pairs = [pair for pair in pairs if index in (pair.client, pair.server)]
    is_there = bool(member.options.devices) and any((*member.ports, *member.lacks))
    result.fingerprints["rdma_rails"] = "present" if is_there else "none"
    attributed = attribution.attribute(pairs, member.options.least)
    slow = [rail for node, rail in sorted(attributed.bad | attributed.shared) if node == index]
    shared = [rail for rail in slow if (index, rail) in attributed.shared]
    unexplained = [pair for pair in attributed.unexplained if pair in own_pairs]
    untested = _untested(member, own_pairs) if is_there else {}
    result.environment["pairs"] = {member.title(pair): _speed(pair) for pair in own_pairs[:MAX_LISTED]}
    best: dict[str, float] = {}
    for pair in own_pairs:
        (_, rail), (partner, _) = pair.ends if pair.client == index else pair.ends[::-1]
        if pair.share is not None:
            scope = link_scope(f"{rail}>{member.name(partner)}")
            result.add_metric("rdma_rails_pair_ratio", pair.share, "ratio", scope)
            best[rail] = max(pair.share, best.get(rail, 0.0))
    for rail, share in best.items():
        result.add_metric("rdma_rails_ratio", share, "ratio", link_scope(rail))
    result.add_metric("rdma_rails_ports_count", len(member.ports[index]), "count")
    result.add_metric("rdma_rails_bad_count", len(slow) - len(shared), "count")
    result.add_metric("rdma_rails_unexplained_count", len(unexplained) + len(shared), "count")
    if not is_there:
        result.message = "not tested: no node of the gang has an RDMA device to test"
        result.environment["left_out"] = {"pairs of nodes": result.message}
        return
    if not untested:
        result.add_metric("rdma_rails_measured_count", sum(pair.tested for pair in own_pairs), "count")
    parts = []
    for rail in slow[:MAX_NAMED]:
        speeds = "; ".join(f"{member.title(pair)}: {_speed(pair)}" for pair in own_pairs if (index, rail) in pair.ends)
        alike = ", as on many nodes: look at the switch that they share" if rail in shared else ""
        parts.append(f"{member.name(index)} {rail} is slow with partners that are good with others{alike} ({speeds})")
    for pair in unexplained[:MAX_NAMED]:
        are_good = attributed.good.issuperset(pair.ends)
        why = "both ends are good with others" if are_good else "too few good partners to tell which end"
        parts.append(f"{member.title(pair)}: {_speed(pair)}, {why}")
    parts.append(program.listed("not tested", untested))
    if best:
        parts.append(f"{len(own_pairs)} pairs of ports, the slowest port reached {min(best.values()):.0%} of its rate")
    result.message = "; ".join(filter(None, parts))[:MAX_MESSAGE]


def _untested(member: RdmaMember, own_pairs: Sequence[RailPair]) -> dict[str, str]:
    """Return ``{port of this node: why it was not tested}``."""
    index = member.gang.index
    ports = member.ports[index]
    if member.lacks[index]:
        return {"all ports": member.lacks[index]}
    if not ports:
        return {"all ports": "this node has no RDMA device, and others of its gang have"}
    if len(member.able) < 2:
        return {"all ports": "no other node of the gang can take part"}
    absent = attribution.absent({node: member.ports[node] for node in member.able}, index)
    reason_by_port = dict.fromkeys(absent, "no link on this node, others of its gang have one")
    for port in ports:
        port_pairs = [pair for pair in own_pairs if (index, port) in pair.ends]
        if not any(pair.tested for pair in port_pairs):
            lacking = "its partners have no port of this name with a link"
            reason_by_port[port] = port_pairs[-1].problem if port_pairs else lacking
    return reason_by_port


if __name__ == "__main__":
    sys.exit(run_workload(main))
