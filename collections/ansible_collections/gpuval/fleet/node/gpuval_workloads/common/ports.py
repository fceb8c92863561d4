"""A TCP port for a server of this node."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

from .result import WorkloadFailure

#: Below those that Linux gives to outgoing connections, which may occupy a port before the server listens.
RANGE = range(20000, 29000)


def free_port(host: str = "") -> int:
    """A port that is free on ``host``, by default on all addresses. Raises ``WorkloadFailure`` without one."""
    for port in random.sample(RANGE, 50):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host, port))
            return port
    raise WorkloadFailure(f"no port is free on {host or 'this node'}")
