"""Measures the network from one node to its peers: reachability, latency, speed, packet size, ports."""

from __future__ import annotations

import functools
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional

from ..hardware.tools import toolbox
from . import tcp
from .host import Deadline
from .packets import HEADERS, LARGEST, SIZES
from .parallel import in_parallel
from .routes import next_hop
from .state import NetworkState

RESOLVE_SECONDS = 10
BULK_SECONDS = 2
SHORTEST_SECONDS = 0.001
#: Lines that `ping` prints at its end: counts of packets, and times.
COUNTS = re.compile(r"(\d+) packets transmitted, (\d+) (?:packets )?received")
TIMES = re.compile(r"(?:rtt|round-trip) min/avg/max(?:/\w+)? = [\d.]+/([\d.]+)/")


@dataclass
class LinkAnswer:
    """One node's measurements of the network path to another node. None: not measured."""

    address: Optional[str] = None
    state: str = "not_asked"
    message: str = ""
    tcp_minimum_seconds: Optional[float] = None
    tcp_median_seconds: Optional[float] = None
    large_packet_seconds: Optional[float] = None
    #: MTU of the interface that leads to the other node, and whether packets of this size were sent.
    mtu_bytes: Optional[int] = None
    size_tried: bool = False
    path_mtu_bytes: Optional[int] = None
    ping_sent: int = 0
    ping_received: int = 0
    bytes_per_second: Optional[float] = None
    ports: dict[str, str] = field(default_factory=dict)

    @property
    def reached(self) -> bool:
        """Whether the other node answered, even by refusing."""
        return self.state in tcp.ANSWERED


@dataclass(frozen=True)
class Peer:
    name: str
    address: str
    port: int = 22  # SSH: of the TCP handshakes that measure latency; a refused one measures it as well


@dataclass(frozen=True)
class EndpointOptions:
    """A service to which the path is measured: HTTP with a URL, else TCP alone."""

    name: str
    #: URL whose answer is read up to a limit. Any HTTP status counts as reachable.
    url: Optional[str] = None
    #: Host and port of a service, as registry.example.com:5000.
    address: Optional[str] = None
    #: URL of an HTTP proxy; None connects directly.
    proxy: Optional[str] = None
    #: File of a certificate authority on the node; None uses the system's.
    ca_file: Optional[str] = None


@dataclass(frozen=True)
class PeerProbeOptions:
    #: Name of this node in the inventory.
    node: str
    #: `listen` starts listeners and returns; `ask` measures.
    phase: Literal["listen", "ask"] = "ask"
    peers: Sequence[Annotated[dict[str, Any], Peer]] = ()
    #: Names of the nodes that probe this one. Its listeners end when all of them are done, or after `listen_seconds`.
    askers: Sequence[str] = ()
    #: Ports that must be open between nodes.
    ports: Sequence[int] = ()
    #: Port of gpuval's listeners, which send the node's name and bytes to measure speed.
    probe_port: int = 47600
    #: Bytes to receive from each peer; 0 measures no speed.
    bulk_bytes: int = 0
    #: Also send packets as large as the interface's MTU.
    check_size: bool = True
    #: Number of TCP connections to each peer.
    tries: int = 5
    #: Time limits of one peer's answer, of all measurements of a node, and of its listeners.
    timeout_seconds: float = 2.0
    deadline_seconds: float = 60.0
    listen_seconds: float = 120.0
    endpoints: Sequence[Annotated[dict[str, Any], EndpointOptions]] = ()
    #: Limits of an endpoint's answer in bytes, and of its measurement in seconds.
    endpoint_bytes: int = 16777216
    endpoint_seconds: float = 5.0
    directory: str = ""


def ask(questions: PeerProbeOptions, deadline: Deadline, state: NetworkState) -> dict[str, LinkAnswer]:
    """Measure the network path from this node to each peer; return the measurements by the peer's name."""
    peers = [Peer(**peer) for peer in questions.peers]
    answers = {peer.name: LinkAnswer() for peer in peers}
    names = {peer: functools.partial(tcp.resolve, peer.address) for peer in peers}
    addresses = in_parallel(names, max(0.0, min(RESOLVE_SECONDS, deadline.left())))
    known = {peer: address for peer, (address, _seconds) in addresses.items() if address}
    for peer in peers:
        answer = answers[peer.name]
        answer.address = known.get(peer)
        if not answer.address:
            answer.state, answer.message = "unknown_name", f"the name {peer.address} is not known to this node"
    first = {peer: functools.partial(_first, address, peer.port, questions) for peer, address in known.items()}
    for peer, reached_state in in_parallel(first, deadline.left()).items():
        answers[peer.name].state = reached_state
    reached = {peer: address for peer, address in known.items() if answers[peer.name].reached}
    for peer, address in reached.items():  # one after the other, to measure the network and not this machine's load
        times = _latencies(address, peer.port, questions, deadline)
        if times:
            answers[peer.name].tcp_minimum_seconds = min(times)
            answers[peer.name].tcp_median_seconds = statistics.median(times)
    pings = {}
    for peer, address in known.items():
        interface = state.interfaces.get(next_hop(address)[0] or "")
        mtu = answers[peer.name].mtu_bytes = interface.mtu if interface else None
        is_whole = questions.check_size and mtu is not None and mtu <= LARGEST
        pings[peer] = functools.partial(ping, address, mtu or 0, is_whole)
    for peer, figures in in_parallel(pings, deadline.left()).items():
        vars(answers[peer.name]).update(figures)
    calls = {
        (peer, port): functools.partial(tcp.port_state, address, port, questions.timeout_seconds, peer.name)
        for peer, address in reached.items()
        for port in questions.ports
    }
    for (peer, port), port_state in in_parallel(calls, max(0.0, deadline.left())).items():
        answers[peer.name].ports[str(port)] = port_state
    for peer, address in reached.items() if questions.bulk_bytes else ():
        if deadline.left() > BULK_SECONDS:
            speed = tcp.receive(address, questions.probe_port, questions.bulk_bytes, BULK_SECONDS)
            answers[peer.name].bytes_per_second = speed
    return answers


def say_bye(questions: PeerProbeOptions, answers: dict[str, LinkAnswer], deadline: Deadline) -> None:
    """Report to the peers' listeners that this node is done with them."""
    calls = {
        name: functools.partial(tcp.say, answer.address, questions.probe_port, f"bye {questions.node}\n", 1)
        for name, answer in answers.items()
        if answer.reached and answer.address
    }
    in_parallel(calls, max(1.0, deadline.left()))


def _first(address: str, port: int, questions: PeerProbeOptions) -> str:
    """Return the state of a TCP port: of the first try of two if that got an answer, else of the second."""
    for _try in range(2):
        state = tcp.handshake(address, port, questions.timeout_seconds)[0]
        if state in tcp.ANSWERED:
            break
    return state


def _latencies(address: str, port: int, questions: PeerProbeOptions, deadline: Deadline) -> list[float]:
    """Return the seconds of several TCP handshakes with a port of a peer, of those that were answered."""
    times = []
    for _try in range(questions.tries):
        if deadline.left() <= 0:
            break
        seconds = tcp.handshake(address, port, questions.timeout_seconds)[1]
        times += [] if seconds is None else [seconds]
        time.sleep(SHORTEST_SECONDS)
    return times


def ping(address: str, mtu_bytes: int, check_size: bool) -> dict[str, Any]:
    """Ping with small packets, then with packets of the interface's MTU, then smaller ones until they pass. Returns the
    figures of a LinkAnswer."""
    sent, received, _seconds = run_ping(ping_command(address, 3))
    figures: dict[str, Any] = {"ping_sent": sent, "ping_received": received}
    if not (check_size and received):
        return figures
    sent, received, seconds = run_ping(ping_command(address, 4, mtu_bytes))
    figures |= {"size_tried": sent > 0, "large_packet_seconds": seconds}
    if received:
        return {**figures, "path_mtu_bytes": mtu_bytes}
    smaller = (size for size in SIZES if sent and size < mtu_bytes and run_ping(ping_command(address, 1, size))[1])
    return {**figures, "path_mtu_bytes": next(smaller, None)}


def ping_command(address: str, count: int, packet_bytes: Optional[int] = None) -> list[str]:
    words = ["ping", "-n", "-q", "-c", str(count), "-i", "0.2", "-W", "1", "-w", str(count + 1)]
    if packet_bytes is not None:
        words += ["-M", "do", "-s", str(packet_bytes - HEADERS[6 if ":" in address else 4])]
    return [*words, address]


def run_ping(words: list[str]) -> tuple[int, int, Optional[float]]:
    """Run a ping command; return packets sent, packets received, and the mean round trip in seconds. Both counts are 0
    if the node has no `ping` with these options."""
    text = toolbox()(*words).stdout
    counts, times = COUNTS.search(text), TIMES.search(text)
    if counts is None:
        return 0, 0, None
    return int(counts[1]), int(counts[2]), float(times[1]) / 1000 if times else None
