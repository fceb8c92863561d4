"""Measures the network from one node to its peers: reachability, latency, speed, packet size, ports."""

from __future__ import annotations

import functools
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

from ..hardware.tools import toolbox
from . import tcp
from .host import Deadline, NetworkHost
from .parallel import in_parallel
from .state import NetworkState

RESOLVE_SECONDS = 10
BULK_SECONDS = 2
SHORTEST_SECONDS = 0.001
#: The measurements of a peer; None is not measured.
BLANK = {
    **dict.fromkeys(
        ("address", "tcp_minimum_seconds", "tcp_median_seconds", "mtu_bytes", "ping", "bytes_per_second"), None
    ),
    "state": "not_asked",
    "message": "",
}
#: Lines of `ping`'s output.
COUNTS = re.compile(r"(\d+) packets transmitted, (\d+) (?:packets )?received")
TIMES = re.compile(r"(?:rtt|round-trip) min/avg/max(?:/\w+)? = ([\d.]+)/([\d.]+)/([\d.]+)")
#: Usual packet sizes in bytes, tried from the largest if the interface's MTU does not pass.
SIZES = (9000, 8000, 4200, 4096, 2044, 1500, 1450, 1400, 1280)
#: Bytes of the IP and ICMP headers, by IP version.
HEADERS = {4: 28, 6: 48}


@dataclass(frozen=True)
class Peer:
    name: str
    address: str
    port: int = 22  # for the latency of TCP, SSH's; a refused connection is as good as an accepted one


@dataclass(frozen=True)
class EndpointOptions:
    """A service to which the path is measured: HTTP with a URL, else TCP alone."""

    name: str
    #: The answer is read up to a limit. Any HTTP status counts as reachable.
    url: Optional[str] = None
    #: Host and port, as registry.example.com:5000.
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
    #: Port of the listeners that greet and send bytes.
    probe_port: int = 47600
    #: Bytes to receive from each peer; 0 is no measurement of speed.
    bulk_bytes: int = 0
    #: Also send packets of the interface's MTU.
    check_size: bool = True
    #: Number of TCP connections to each peer.
    tries: int = 5
    #: Time limits of one answer, of all measurements, and of the listeners.
    timeout_seconds: float = 2.0
    deadline_seconds: float = 60.0
    listen_seconds: float = 120.0
    endpoints: Sequence[Annotated[dict[str, Any], EndpointOptions]] = ()
    #: Limits of an endpoint's answer in bytes, and of its measurement.
    endpoint_bytes: int = 16777216
    endpoint_seconds: float = 5.0
    directory: str = ""


def ask(
    questions: PeerProbeOptions, deadline: Deadline, state: NetworkState, host: NetworkHost
) -> dict[str, dict[str, Any]]:
    """Measure all peers; return the results by peer, each with all keys of BLANK, and `ports`."""
    peers = [Peer(**peer) for peer in questions.peers]
    answers: dict[str, dict[str, Any]] = {peer.name: {**BLANK, "ports": {}} for peer in peers}
    names = {peer: functools.partial(tcp.resolve, peer.address) for peer in peers}
    addresses = in_parallel(names, max(0.0, min(RESOLVE_SECONDS, deadline.left())))
    for peer in peers:
        address = addresses.get(peer, (None, None))[0]
        missing = {"state": "unknown_name", "message": f"the name {peer.address} is not known to this node"}
        answers[peer.name].update({"address": address} if address else missing)
    resolved = {peer: answers[peer.name] for peer in peers if answers[peer.name]["address"]}
    first = {
        peer: functools.partial(_first, answer["address"], peer.port, questions) for peer, answer in resolved.items()
    }
    for peer, result in in_parallel(first, deadline.left()).items():
        resolved[peer]["state"] = result
    answered = {peer: answer for peer, answer in resolved.items() if answer["state"] in tcp.ANSWERED}
    for peer, answer in answered.items():  # one after the other, to measure the network and not this machine's load
        answer.update(_latency(answer["address"], peer.port, questions, deadline))
    pings = {}
    for peer, answer in resolved.items():
        route = host.way_to(answer["address"]) or {}
        interface = state.interfaces.get(route.get("dev", ""))
        mtu = answer["mtu_bytes"] = interface.mtu if interface else None
        is_whole = questions.check_size and mtu is not None and mtu <= 65535
        pings[peer] = functools.partial(ping, answer["address"], mtu or 0, is_whole)
    for peer, result in in_parallel(pings, deadline.left()).items():
        resolved[peer]["ping"] = result
    calls = {
        (peer, port): functools.partial(tcp.port_state, answer["address"], port, questions.timeout_seconds, peer.name)
        for peer, answer in answered.items()
        for port in questions.ports
    }
    for (peer, port), result in in_parallel(calls, max(0.0, deadline.left())).items():
        answered[peer]["ports"][str(port)] = result
    for answer in answered.values() if questions.bulk_bytes else ():
        if deadline.left() > BULK_SECONDS:
            answer["bytes_per_second"] = tcp.receive(
                answer["address"], questions.probe_port, questions.bulk_bytes, BULK_SECONDS
            )
    return answers


def say_bye(questions: PeerProbeOptions, answers: dict[str, dict[str, Any]], deadline: Deadline) -> None:
    """Report to the peers' listeners that this node is done with them."""
    calls = {
        name: functools.partial(tcp.say, answer["address"], questions.probe_port, f"bye {questions.node}\n", 1)
        for name, answer in answers.items()
        if answer["state"] in tcp.ANSWERED
    }
    in_parallel(calls, max(1.0, deadline.left()))


def _first(address: str, port: int, questions: PeerProbeOptions) -> str:
    """Return the state of a TCP port at the first of two tries that got an answer, else at the last."""
    for _try in range(2):
        state = tcp.handshake(address, port, questions.timeout_seconds)[0]
        if state in tcp.ANSWERED:
            break
    return state


def _latency(address: str, port: int, questions: PeerProbeOptions, deadline: Deadline) -> dict[str, float]:
    times = []
    for _try in range(questions.tries):
        if deadline.left() <= 0:
            break
        seconds = tcp.handshake(address, port, questions.timeout_seconds)[1]
        times += [] if seconds is None else [seconds]
        time.sleep(SHORTEST_SECONDS)
    return {"tcp_minimum_seconds": min(times), "tcp_median_seconds": statistics.median(times)} if times else {}


def ping(address: str, mtu: int, check_size: bool) -> dict[str, Any]:
    """Ping with small packets, then with packets of the interface's MTU, then smaller ones until they pass. Returns the
    measurements."""
    small = run_ping(ping_command(address, 3))
    sizes: dict[str, Any] = {"small": small, "large": None, "path_mtu_bytes": None}
    if not (check_size and small and small["received"]):
        return sizes
    sizes["large"] = large = run_ping(ping_command(address, 4, mtu))
    if large is None:
        return sizes
    for size in () if large["received"] else SIZES:
        smaller = run_ping(ping_command(address, 1, size)) if size < mtu else None
        if smaller and smaller["received"]:
            return {**sizes, "path_mtu_bytes": size}
    return {**sizes, "path_mtu_bytes": mtu if large["received"] else None}


def ping_command(address: str, count: int, packet_bytes: Optional[int] = None) -> list[str]:
    words = ["ping", "-n", "-q", "-c", str(count), "-i", "0.2", "-W", "1", "-w", str(count + 1)]
    if packet_bytes is not None:
        words += ["-M", "do", "-s", str(packet_bytes - HEADERS[6 if ":" in address else 4])]
    return [*words, address]


def run_ping(words: list[str]) -> Optional[dict[str, Any]]:
    """Return packets sent and received, and round trips; None without a `ping` that supports the options."""
    text = toolbox()(*words).stdout
    counts, times = COUNTS.search(text), TIMES.search(text)
    if counts is None:
        return None
    seconds = [float(value) / 1000 for value in times.groups()] if times else [None] * 3
    names = ("minimum_seconds", "mean_seconds", "maximum_seconds")
    return {"sent": int(counts[1]), "received": int(counts[2]), **dict(zip(names, seconds))}
