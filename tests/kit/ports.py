"""Ports for servers of tests."""

import socket
from contextlib import ExitStack, suppress

from gpuval_workloads.common import ports


def free_port():
    """A port that is free with the three after it, and that no outgoing connection will occupy."""
    while True:
        first = ports.free_port()
        with ExitStack() as held, suppress(OSError):
            for port in range(first, first + 4):
                held.enter_context(socket.socket()).bind(("", port))
            return first
