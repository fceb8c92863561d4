"""Measures between each two members: reachability, round trip, clock offset, packet size.

A member listens at a port that the kernel chooses, over TCP and UDP, as gloo and NCCL do: this reveals a firewall that
passes only known ports. Nothing here needs privileges.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import socket
import struct
import threading
import time
from collections.abc import Sequence
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass

from ..threads import LoopThread
from .routes import is_ip

BIND_TRIES = 5
CONNECT_SECONDS, ANSWER_SECONDS = 2.0, 2.0
AT_ONCE = 64
EXCHANGES = 5
MOST_LINES, MOST_LINE = 16, 256
#: Usual packet sizes in bytes, tried if the interface's MTU does not pass.
SIZES = (9000, 8000, 4200, 4096, 2044, 1500, 1450, 1400)
SMALL, LARGEST = 1280, 65535
WAITS = (0.2, 0.3, 0.5)
_HEADERS = {4: 28, 6: 48}
#: Socket options of <linux/in.h> and <linux/in6.h>: never fragment, and ignore the path MTU that the kernel knows.
_DO_NOT_CUT = {4: (socket.IPPROTO_IP, 10, 3), 6: (socket.IPPROTO_IPV6, 23, 3)}
_PROBE = struct.Struct("!8sI")
_MAGIC = b"gpuvalps"

OK, LATE = "ok", "not asked in time"


@dataclass(frozen=True)
class MeshPeer:
    """Another member: its index in the gang, its address and port, and the size of packets to it in bytes."""

    index: int
    address: str
    port: int
    packet_bytes: int | None = None
    ssh_port: int | None = None


@dataclass
class PeerAnswer:
    """The measurements of a peer; None is not measured. ``state`` and ``ssh`` are OK, or the obstacle."""

    state: str = LATE
    round_trip_seconds: float | None = None
    clock_offset_seconds: float | None = None
    clock_error_seconds: float | None = None
    path_mtu_bytes: int | None = None
    ssh: str | None = None


class Mesh:
    """This member's listener, and its measurements of peers. Enter it before the others get ``port``."""

    def __init__(self, gang: str, index: int, address: str) -> None:
        self._gang, self._index, self._address = gang, index, address
        self.port: int | None = None
        self.problem = ""
        self._listens = threading.Event()
        self._thread = LoopThread("mesh of the gang")
        self._loop = self._thread.loop

    def __enter__(self) -> Mesh:
        self._thread.start(self._listen())
        if not self._listens.wait(ANSWER_SECONDS):
            self.problem = f"{self._address} cannot be listened at: it takes too long"
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.cancel(ANSWER_SECONDS)

    def ask(self, peers: Sequence[MeshPeer], seconds: float) -> dict[int, PeerAnswer]:
        """Measure all peers within ``seconds`` in all; return the answers by index in the gang."""
        answers = {peer.index: PeerAnswer() for peer in peers}
        if peers and not self._loop.is_closed():
            asking = asyncio.run_coroutine_threadsafe(self._ask_all(peers, answers, seconds), self._loop)
            with suppress(futures.TimeoutError, futures.CancelledError):
                asking.result(seconds + 1)
        return answers

    # Listening.

    async def _listen(self) -> None:
        server = None
        for _ in range(BIND_TRIES):
            port, host = 0, _place(self._address)
            try:
                server = await asyncio.start_server(self._answer, host, port, limit=MOST_LINE, backlog=1024)
                port = server.sockets[0].getsockname()[1]
                await self._loop.create_datagram_endpoint(_Echo, (host, port))
            except OSError as error:
                self.problem = f"{self._address} port {port} cannot be listened at: {error.strerror or error}"
                if server:  # the UDP port of the same number is in use
                    server.close()
                continue
            self.port, self.problem = port, ""
            break
        self._listens.set()
        await asyncio.Event().wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for _ in range(MOST_LINES):
                if not await asyncio.wait_for(reader.readline(), ANSWER_SECONDS):
                    break
                greeting = {"gang": self._gang, "index": self._index, "clock": time.time()}
                writer.write(json.dumps(greeting).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, asyncio.TimeoutError, asyncio.CancelledError):
            pass  # an unknown client, a closed connection, or this listener is ending
        finally:
            writer.close()

    # Asking.

    async def _ask_all(self, peers: Sequence[MeshPeer], answers: dict[int, PeerAnswer], seconds: float) -> None:
        places = asyncio.Semaphore(AT_ONCE)
        # Begin after this member, so that not all query the same peer at once.
        ordered = sorted(peers, key=lambda peer: (peer.index < self._index, peer.index))

        async def one(peer: MeshPeer) -> None:
            async with places:
                await self._ask(peer, answers[peer.index])

        tasks = [self._loop.create_task(one(peer)) for peer in ordered]
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()

    async def _ask(self, peer: MeshPeer, answer: PeerAnswer) -> None:
        if peer.ssh_port:
            answer.ssh = await _ssh(peer.address, peer.ssh_port)
        reader = writer = None
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(peer.address, peer.port, limit=MOST_LINE), CONNECT_SECONDS
            )
            answer.state = await self._exchange(reader, writer, peer.index, answer)
            if answer.state == OK and peer.packet_bytes:
                address = writer.get_extra_info("peername")[0]
                answer.path_mtu_bytes = await path_mtu(self._loop, address, peer.port, peer.packet_bytes)
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            if answer.state != OK:
                answer.state = _why(error)
        finally:
            if writer:
                writer.close()

    async def _exchange(self, reader, writer, index: int, answer: PeerAnswer) -> str:
        for _ in range(EXCHANGES):
            sent, begun = time.time(), time.perf_counter()
            writer.write(b"?\n")
            line = await asyncio.wait_for(reader.readline(), ANSWER_SECONDS)
            trip = time.perf_counter() - begun
            answered = json.loads(line) if line else None
            if not isinstance(answered, dict) or not isinstance(answered.get("clock"), (int, float)):
                return "something else answers there"
            if (answered.get("gang"), answered.get("index")) != (self._gang, index):
                return "another member answers there"
            if not math.isfinite(answered["clock"]):
                return "it tells no time"
            if answer.round_trip_seconds is None or trip < answer.round_trip_seconds:
                answer.round_trip_seconds = trip
                answer.clock_offset_seconds = answered["clock"] - (sent + trip / 2)
                answer.clock_error_seconds = trip / 2
        return OK


class _Echo(asyncio.DatagramProtocol):
    """Answers each probe with the size that arrived, in fewer bytes than the probe."""

    def connection_made(self, transport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, address) -> None:
        if len(data) > _PROBE.size and data.startswith(_MAGIC):
            with suppress(OSError):
                self._transport.sendto(data[: _PROBE.size], address)


async def path_mtu(loop: asyncio.AbstractEventLoop, address: str, port: int, most: int) -> int | None:
    """The largest packet, in bytes, that gets to a peer whole, up to ``most``; None where no packet gets through.

    Of sizes below ``most`` only usual ones are tried.
    """
    most = min(most, LARGEST)
    version = ipaddress.ip_address(address.partition("%")[0]).version
    with socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probing:
        probing.setblocking(False)
        probing.setsockopt(*_DO_NOT_CUT[version])
        probing.connect((address, port))
        came = await _came(loop, probing, {most, min(SMALL, most)}, version)
        if came and most not in came:
            came |= await _came(loop, probing, {size for size in SIZES if size < most}, version)
    return max(came, default=None)


async def _came(loop: asyncio.AbstractEventLoop, probing: socket.socket, sizes: set[int], version: int) -> set[int]:
    """Which of these sizes were confirmed; the others are sent again, since packets may be lost by chance."""
    came: set[int] = set()
    for wait in WAITS:
        for size in sizes - came:
            with suppress(OSError):  # larger than the interface's MTU, or no buffer now
                probing.send(_PROBE.pack(_MAGIC, size).ljust(size - _HEADERS[version], b"\0"))
        deadline = loop.time() + wait
        while sizes - came and loop.time() < deadline:
            try:
                data = await asyncio.wait_for(loop.sock_recv(probing, 64), deadline - loop.time())
            except (OSError, asyncio.TimeoutError):
                break
            if len(data) == _PROBE.size and _PROBE.unpack(data)[0] == _MAGIC:
                came.add(_PROBE.unpack(data)[1])
        if sizes <= came:
            break
    return came & sizes


async def _ssh(address: str, port: int) -> str:
    writer = None
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_SECONDS)
        begin = await asyncio.wait_for(reader.readexactly(4), ANSWER_SECONDS)
    except (OSError, EOFError, asyncio.TimeoutError) as error:
        return _why(error)
    finally:
        if writer:
            writer.close()
    return OK if begin == b"SSH-" else "something else answers there"


def _place(address: str) -> str:
    """Return the address to listen on: all for a name, which may mean the loopback interface on its own host."""
    return address if is_ip(address) else "0.0.0.0"  # noqa: S104 - as gloo and NCCL do


def _why(error: Exception) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return "no answer"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, socket.gaierror):
        return "its name is not known here"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return (error.strerror or str(error)).lower()
    return "the connection broke off" if isinstance(error, EOFError) else "something else answers there"
