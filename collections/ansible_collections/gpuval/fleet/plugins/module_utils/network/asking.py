"""One node asks its peers: does it reach them, how fast, whole packets, which ports."""

from __future__ import annotations

import functools
import statistics
import time
from dataclasses import dataclass
from typing import Any, Optional

from . import ping, tcp
from .errors import HostNetworkError
from .host import Deadline, NetworkHost
from .parallel import in_parallel
from .state import NetworkState


@dataclass(frozen=True)
class Peer:
    name: str
    address: str
    port: int = 22  # where latency is measured: of its SSH server; refused is as good as accepted


@dataclass(frozen=True)
class Questions:
    ports: tuple[int, ...] = ()
    probe_port: int = 0
    bulk_bytes: int = 0
    tries: int = 5
    timeout_seconds: float = 2
    check_size: bool = True


RESOLVE_SECONDS = 10
BULK_SECONDS = 2
SHORTEST_SECONDS = 0.001


def ask(
    peers: list[Peer], questions: Questions, deadline: Deadline, state: NetworkState, host: NetworkHost
) -> dict[str, dict[str, Any]]:
    """What was found, by peer. Each has all keys; None is what was not measured."""
    answers = {peer.name: _blank() for peer in peers}
    addresses = in_parallel(
        {peer: functools.partial(tcp.resolve, peer.address) for peer in peers},
        max(0.0, min(RESOLVE_SECONDS, deadline.left())),
    )
    resolved = [peer for peer in peers if addresses.get(peer, (None, None))[0]]
    for peer in peers:
        if peer in resolved:
            answers[peer.name]["address"] = addresses[peer][0]
        else:
            answers[peer.name].update(
                state="unknown_name", message=f"the name {peer.address} is not known to this node"
            )
    first = {peer: functools.partial(_first, answers[peer.name]["address"], peer.port, questions) for peer in resolved}
    for peer, result in in_parallel(first, deadline.left()).items():
        answers[peer.name]["state"] = result
    answered = [peer for peer in resolved if answers[peer.name]["state"] in tcp.ANSWERED]
    for peer in answered:  # one after the other: what is measured is the network, not this machine at work
        answers[peer.name].update(_latency(answers[peer.name]["address"], peer.port, questions, deadline))
    pings = {}
    for peer in resolved:
        mtu = _mtu(answers[peer.name]["address"], state, host)
        answers[peer.name]["mtu_bytes"] = mtu
        big = questions.check_size and mtu is not None and mtu <= 65535
        pings[peer] = functools.partial(ping.probe, answers[peer.name]["address"], mtu or 0, big)
    for peer, result in in_parallel(pings, deadline.left()).items():
        answers[peer.name]["ping"] = result
    _ports(answered, questions, answers, deadline)
    if questions.bulk_bytes:
        for peer in answered:
            if deadline.left() > BULK_SECONDS:
                answers[peer.name]["bytes_per_second"] = tcp.receive(
                    answers[peer.name]["address"], questions.probe_port, questions.bulk_bytes, BULK_SECONDS
                )
    return answers


def say_bye(
    node: str, peers: list[Peer], answers: dict[str, dict[str, Any]], questions: Questions, deadline: Deadline
) -> None:
    """Tell the peers' listeners that this node needs them no more."""
    calls = {
        peer: functools.partial(tcp.say, answers[peer.name]["address"], questions.probe_port, f"bye {node}\n", 1)
        for peer in peers
        if answers[peer.name]["state"] in tcp.ANSWERED
    }
    in_parallel(calls, max(1.0, deadline.left()))


def _blank() -> dict[str, Any]:
    return {
        "address": None,
        "state": "not_asked",
        "message": "",
        "tcp_minimum_seconds": None,
        "tcp_median_seconds": None,
        "mtu_bytes": None,
        "ping": None,
        "ports": {},
        "bytes_per_second": None,
    }


def _first(address: str, port: int, questions: Questions) -> str:
    """The state of the first try that got an answer, else of the last."""
    state = "timeout"
    for _try in range(2):
        state, _spent, link = tcp.connect(address, port, questions.timeout_seconds)
        if link is not None:
            link.close()
        if state in tcp.ANSWERED:
            break
    return state


def _latency(address: str, port: int, questions: Questions, deadline: Deadline) -> dict[str, Optional[float]]:
    times = []
    for _try in range(questions.tries):
        if deadline.left() <= 0:
            break
        _state, spent, link = tcp.connect(address, port, questions.timeout_seconds)
        if link is not None:
            link.close()
        if spent is not None:
            times.append(spent)
        time.sleep(SHORTEST_SECONDS)
    if not times:
        return {}
    return {"tcp_minimum_seconds": min(times), "tcp_median_seconds": statistics.median(times)}


def _mtu(address: str, state: NetworkState, host: NetworkHost) -> Optional[int]:
    try:
        route = host.way_to(address)
    except HostNetworkError:
        return None
    return state.interfaces[route["dev"]].mtu if route and route.get("dev") in state.interfaces else None


def _ports(peers: list[Peer], questions: Questions, answers: dict[str, dict[str, Any]], deadline: Deadline) -> None:
    calls = {
        (peer.name, port): functools.partial(
            tcp.port_state, answers[peer.name]["address"], port, questions.timeout_seconds, peer.name
        )
        for peer in peers
        for port in questions.ports
    }
    for (name, port), result in in_parallel(calls, max(0.0, deadline.left())).items():
        answers[name]["ports"][str(port)] = result
