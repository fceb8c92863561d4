"""Measures between each two nodes of a gang: reachability, round trip, clock offset, packet size, without privileges.

A node listens at a TCP and UDP port that the kernel chooses, as gloo and NCCL do: this reveals a firewall that passes
only known ports.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO

from gpuval_node.network.greeting import GreetingService
from gpuval_node.network.packets import path_mtu
from gpuval_node.network.parallel import in_parallel
from gpuval_node.network.routes import is_ip
from gpuval_node.network.tcp import GREETING

from ..threads import LoopThread

BIND_TRIES = 5
CONNECT_SECONDS, ANSWER_SECONDS = 2.0, 2.0
AT_ONCE = 64
EXCHANGES = 5
MOST_LINE = 256

OK, LATE, STRANGER = "ok", "not asked in time", "something else answers there"


@dataclass(frozen=True)
class MeshPeer:
    """Another member: index in its gang, address, port, largest packet to try, SSH port (None: these are not tried)."""

    index: int
    address: str
    port: int
    packet_bytes: int | None = None
    ssh_port: int | None = None


@dataclass
class PeerAnswer:
    """Measurements of a peer, None if not measured. ``state`` and ``ssh`` are OK, or what prevents a connection."""

    state: str = LATE
    round_trip_seconds: float | None = None
    clock_offset_seconds: float | None = None
    clock_error_seconds: float | None = None
    path_mtu_bytes: int | None = None
    ssh: str | None = None


class Mesh:
    """This member's listener, and its measurements of peers. Enter it before the peers get ``port``."""

    def __init__(self, gang: str, index: int, address: str) -> None:
        self._gang, self._index, self._address = gang, index, address
        self._thread: LoopThread | None = None
        self.port: int | None = None
        self.problem = ""

    def __enter__(self) -> Mesh:
        # A name may mean the loopback interface on its own host.
        host = self._address if is_ip(self._address) else "0.0.0.0"  # noqa: S104 - as gloo and NCCL do
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        for _ in range(BIND_TRIES):
            port, echoing = 0, socket.socket(family, socket.SOCK_DGRAM)
            try:
                echoing.bind((host, 0))
                port = echoing.getsockname()[1]
                listening = socket.create_server((host, port), family=family)
            except OSError as error:  # another program may have the TCP port of the same number
                self.problem = f"{self._address} port {port} cannot be listened at: {error.strerror or error}"
                echoing.close()
                continue
            self.port, self.problem, self._thread = port, "", LoopThread("mesh of the gang")
            self._thread.start(GreetingService(self._name(self._index)).serve([listening], [echoing]))
            break
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread:
            self._thread.cancel(ANSWER_SECONDS)

    def ask(self, peers: Sequence[MeshPeer], seconds: float) -> dict[int, PeerAnswer]:
        """Measure all peers within ``seconds`` in all; return the answers by index in the gang."""
        answers = {peer.index: PeerAnswer() for peer in peers}
        # Begin after this member, so that not all query the same peer at once.
        ordered = sorted(peers, key=lambda peer: (peer.index < self._index, peer.index))
        in_parallel({peer: partial(self._ask, peer, answers[peer.index]) for peer in ordered}, seconds, AT_ONCE)
        return {index: replace(answer) for index, answer in answers.items()}  # a late thread may still write

    def _ask(self, peer: MeshPeer, answer: PeerAnswer) -> None:
        if peer.ssh_port:
            answer.ssh = _connected(peer.address, peer.ssh_port, _ssh)
        answer.state = _connected(peer.address, peer.port, partial(self._exchange, peer, answer))

    def _exchange(self, peer: MeshPeer, answer: PeerAnswer, link: socket.socket, stream: BinaryIO) -> str:
        greeting, _, name = stream.readline(MOST_LINE).decode("utf-8", "replace").strip().partition(" ")
        if greeting != GREETING:
            return STRANGER
        if name != self._name(peer.index):
            return "another member answers there"
        for _ in range(EXCHANGES):
            sent, begun = time.time(), time.perf_counter()
            link.sendall(b"clock\n")
            line = stream.readline(MOST_LINE)
            trip, clock = time.perf_counter() - begun, float(line)
            if not math.isfinite(clock):
                return "its answer has no valid time"
            if answer.round_trip_seconds is None or trip < answer.round_trip_seconds:
                answer.round_trip_seconds = trip
                answer.clock_offset_seconds = clock - (sent + trip / 2)
                answer.clock_error_seconds = trip / 2
        answer.state = OK
        if peer.packet_bytes:
            with suppress(OSError):
                answer.path_mtu_bytes = path_mtu(link.getpeername()[0], peer.port, peer.packet_bytes)
        return OK

    def _name(self, index: int) -> str:
        return f"{self._gang}/{index}"


def _connected(address: str, port: int, work: Callable[[socket.socket, BinaryIO], str]) -> str:
    """Connect to a TCP port, and return what ``work`` returns of the connection, or what prevented the connection."""
    try:
        with socket.create_connection((address, port), CONNECT_SECONDS) as link, link.makefile("rb") as stream:
            link.settimeout(ANSWER_SECONDS)
            return work(link, stream)
    except socket.timeout:
        return "no answer"
    except ConnectionRefusedError:
        return "refused"
    except socket.gaierror:
        return "its name is not known here"
    except EOFError:
        return "the connection broke off"
    except (OSError, ValueError) as error:
        return str(error.strerror).lower() if isinstance(error, OSError) and error.strerror else STRANGER


def _ssh(_link: socket.socket, stream: BinaryIO) -> str:
    begin = stream.read(4)
    if len(begin) < 4:
        raise EOFError
    return OK if begin == b"SSH-" else STRANGER
