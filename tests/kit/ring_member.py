"""A member of a gang that measures an all-reduce over plain sockets: a program of a node, which a search compares.

It costs a node no import of PyTorch. Every byte is checked, and the result has what collectives of PyTorch report.
"""

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

ATTEMPT_SECONDS, SILENCE_SECONDS = 0.2, 60.0
#: Long enough that a wait for a core, after which a shaped link catches up, makes no difference.
MEASURED_SECONDS = 2.5
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_receive")


def workload(size, seconds=MEASURED_SECONDS, **declared):
    """The declaration of a stage that measures with so many bytes: fit for `<stage>_workload`."""
    command = ["{runner_python}", "-c", Path(__file__).read_text(encoding="utf-8"), str(size), str(seconds)]
    return {"command": command, "needs": ["facts"], "timeout_seconds": 240, "inactivity_seconds": 0, **declared}


class Ring:
    """Sends to the next member, receives from the previous one."""

    def __init__(self, gang):
        members, self.index = gang["members"], gang["index"]
        self.count = len(members)
        self.errors = 0
        after = members[(self.index + 1) % self.count]
        with socket.create_server(("", gang["port"])) as server:
            server.settimeout(SILENCE_SECONDS)
            self._next = connected(after["address"], gang["port"])
            self._previous, _ = server.accept()
        for one in (self._next, self._previous):
            one.settimeout(SILENCE_SECONDS)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def all_reduce(self, size):
        """The steps of a ring all-reduce of so many bytes; returns the seconds that they took."""
        began = time.monotonic()
        for step in range(2 * (self.count - 1)):
            self._exchange(max(1, size // self.count), step)
        return time.monotonic() - began

    def agree(self, number):
        """The leader's number, at most 255."""
        if self.index > 0:
            number = self._previous.recv(1)[0]
        if self.index < self.count - 1:
            self._next.sendall(bytes([number]))
        return number

    def _exchange(self, size, step):
        sending = threading.Thread(target=self._next.sendall, args=(pattern(self.index, step, size),))
        sending.start()
        received = bytearray()
        while len(received) < size:
            piece = self._previous.recv(size - len(received))
            if not piece:
                raise ConnectionError("the previous member closed the connection")
            received += piece
        sending.join()
        self.errors += received != pattern((self.index - 1) % self.count, step, size)


def connected(address, port):
    deadline = time.monotonic() + SILENCE_SECONDS
    while True:
        try:
            return socket.create_connection((address, port), timeout=SILENCE_SECONDS)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(ATTEMPT_SECONDS)


def pattern(index, step, size):
    return bytes([index + 1, step]) * (size // 2) + b"." * (size % 2)


def measure(gang, size, least_seconds):
    ring = Ring(gang)
    ring.all_reduce(1)  # all have begun
    latency = min(ring.all_reduce(1) for _ in range(3))
    ring.all_reduce(size)  # uses up what a shaped link sends faster at first
    repeats, seconds = 0, 0.0
    while ring.agree(int(seconds < least_seconds)):
        seconds += ring.all_reduce(size)
        repeats += 1
    rate = 2 * (ring.count - 1) / ring.count * size * repeats / seconds
    print(f"{ring.count} members, {rate:.0f} bytes/s", flush=True)
    figures = {
        ("gang_nodes_count", "count"): ring.count,
        ("gang_absent_nodes_count", "count"): 0,
        ("gang_processes_count", "count"): ring.count,
        ("gang_collectives_count", "count"): 1,
        ("gang_collectives_left_out_count", "count"): len(COLLECTIVES) - 1,
        ("gang_collective_error_count", "count"): ring.errors,
        ("gang_collective_largest_bytes", "bytes"): size,
        ("gang_all_reduce_latency_seconds", "s"): latency,
        ("gang_all_reduce_bus_bytes_per_second", "bytes/s"): rate,
    }
    described = {
        "name": gang["name"],
        "nodes": ring.count,
        "node": gang["members"][gang["index"]]["node"],
        "leader": gang["members"][0]["node"],
        "launcher": "sockets",
        "joined": True,
    }
    return {
        "state": "failure" if ring.errors else "success",
        "message": f"{ring.count} members, {ring.errors} errors",
        "metrics": [
            {"name": name, "value": value, "unit": unit, "scope": "node"} for (name, unit), value in figures.items()
        ],
        "environment": {"gang": described},
        "fingerprints": {
            "gang_network": "sockets",
            "gang_shape": f"{ring.count}x1",
            **{f"gang_{name}_asked": "yes" if name == "all_reduce" else "no" for name in COLLECTIVES},
        },
    }


if __name__ == "__main__":
    document = json.loads(Path(os.environ["GPUVAL_GANG_FILE"]).read_text(encoding="utf-8"))
    outcome = measure(document, int(sys.argv[1]), float(sys.argv[2]))
    Path(os.environ["GPUVAL_RESULT_FILE"]).write_text(json.dumps(outcome), encoding="utf-8")
