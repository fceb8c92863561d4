"""Ports for servers of tests, which may listen seconds after they have chosen one."""

import os
import random
import socket
from contextlib import ExitStack, suppress

#: Above those that the product chooses, below those of outgoing connections; each worker of pytest has its own.
RANGE, WORKERS = range(30000, 32760), 8


def free_port():
    """A port that is free with the three after it, and that no outgoing connection nor another worker will occupy."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    size = len(RANGE) // WORKERS
    own = RANGE[worker * size : (worker + 1) * size]
    while True:
        first = random.choice(own[:-3])
        with ExitStack() as held, suppress(OSError):
            for port in range(first, first + 4):
                held.enter_context(socket.socket()).bind(("", port))
            return first
