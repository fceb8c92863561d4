"""A node's service for network tests by other nodes: it sends the node's name, time and bytes, and echoes packets."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Optional

from .packets import echo
from .tcp import GREETING

CONNECTION_SECONDS = 10
MOST_BYTES = 256 * 1024 * 1024
MOST_LINES, MOST_LINE = 16, 300
BLOCK = bytes(65536)


class GreetingService:
    """Greets each connection with the node's name. Answers `clock` with the time and `bulk N` with N bytes, its last
    answer. `bye NAME` marks that node of `askers`, the nodes that measure, as done."""

    def __init__(self, node: str, askers: Iterable[str] = ()) -> None:
        self._node, self._askers = node, set(askers)

    async def serve(
        self, listening: Sequence[socket.socket], echoing: Sequence[socket.socket] = (), seconds: Optional[float] = None
    ) -> None:
        """Serve sockets of TCP and of UDP for `seconds`, or until all nodes in `askers` are done."""
        self._done, loop = asyncio.Event(), asyncio.get_running_loop()
        serving: list[Any] = []
        try:
            for link in listening:
                serving.append(await asyncio.start_server(self._answer, sock=link, limit=MOST_LINE, backlog=1024))
            for link in echoing:
                serving.append((await loop.create_datagram_endpoint(_Echo, sock=link))[0])
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._done.wait(), seconds)
        finally:
            for service in serving:
                service.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(f"{GREETING} {self._node}\n".encode())
            for _ in range(MOST_LINES):
                line = await asyncio.wait_for(reader.readline(), CONNECTION_SECONDS)
                word, _, argument = line.decode("utf-8", "replace").strip().partition(" ")
                if word == "clock":
                    writer.write(f"{time.time()!r}\n".encode())
                elif word == "bye" and argument in self._askers:
                    self._askers.remove(argument)
                    if not self._askers:
                        self._done.set()
                else:
                    if word == "bulk" and argument.isdigit():
                        size = min(int(argument), MOST_BYTES)
                        await asyncio.wait_for(_send(writer, size), CONNECTION_SECONDS)
                    break
                await writer.drain()
        except (OSError, ValueError, asyncio.TimeoutError, asyncio.CancelledError):
            pass  # an unknown client, a closed connection, or this service is ending
        finally:
            writer.close()


async def _send(writer: asyncio.StreamWriter, size: int) -> None:
    for begin in range(0, size, len(BLOCK)):
        writer.write(BLOCK[: size - begin])
        await writer.drain()


class _Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        if answer := echo(data):
            with suppress(OSError):
                self._transport.sendto(answer, address)
