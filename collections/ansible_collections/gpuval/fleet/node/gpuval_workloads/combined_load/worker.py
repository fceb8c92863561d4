"""A process that loads one part of the node: ``python -m gpuval_workloads.combined_load.worker KIND INDEX LOAD``.

It reads the orders ``run`` and ``pause`` on standard input and ends at its end; it prints ``ready``, then JSON lists:
monotonic time, amount of work so far, number of wrong results.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gpuval_node.hardware.tree import Tree

from ..common import fio
from ..common.device import choose_accelerator
from ..rdma import node, perftest

REPORT_SECONDS = 0.5
CPU_BYTES, MEMORY_BYTES, LOOPBACK_BYTES = 1 << 20, 64 << 20, 1 << 20
GPU_SIZE, CPU_SIZE = 8192, 512
QUEUED = 16  # matrix products between two readings of the clock
DISK_SECONDS = 2.0
NIC_SLACK_SECONDS = 15.0  # time for perftest beside its measurement
LEFT_OUT = "left out: "
DATA_FILE = "combined_load.data"  # a file in the stage's work directory
CHECK_EVERY = 20  # rounds between two comparisons of results
NICE = 10  # processes that feed the GPUs have priority


@dataclass(frozen=True)
class CombinedLoad:
    """The settings of all processes, sent as JSON: work directory with the disk's file, fio's engine and whether it
    bypasses the page cache, and the RDMA ports with a TCP port each."""

    work: str
    file_bytes: int = 0
    written_bytes: float = 0.0
    fio: tuple[str, bool] | None = None
    nics: tuple[tuple[str, int], ...] = ()
    tree: str = "/"


#: Yields, for each round, the amount of work and the number of wrong results.
Rounds = Iterator[tuple[float, int]]


def gpu(index: int, _load: CombinedLoad) -> Rounds:
    """Multiply bf16 matrices on a GPU, or the CPU without one; work in operations. All products must be equal."""
    import torch

    kind = choose_accelerator().kind
    size, dtype = (CPU_SIZE, torch.float32) if kind == "cpu" else (GPU_SIZE, torch.bfloat16)
    device = torch.device(kind, index) if kind != "cpu" else torch.device("cpu")
    if kind == "cpu":
        torch.set_num_threads(1)
    else:
        getattr(torch, kind).set_device(device)
    torch.manual_seed(7)
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    reference = torch.matmul(a, b)
    out = torch.empty_like(reference)
    while True:
        for _ in range(QUEUED):
            torch.matmul(a, b, out=out)
        # The comparison waits for the products, so the clock is read when they are done.
        yield QUEUED * 2.0 * size**3, int(not torch.equal(out, reference))


def cpu(_index: int, _load: CombinedLoad) -> Rounds:
    """Compute SHA-256 of a block again and again; work in bytes."""
    os.nice(NICE)
    block = bytes(range(256)) * (CPU_BYTES // 256)
    reference = hashlib.sha256(block).digest()
    while True:
        yield CPU_BYTES, int(hashlib.sha256(block).digest() != reference)


def memory(_index: int, _load: CombinedLoad) -> Rounds:
    """Copy a block larger than the caches; work in bytes read and written. Compares copies now and then."""
    os.nice(NICE)
    source = bytearray(os.urandom(1 << 20)) * (MEMORY_BYTES >> 20)
    target = bytearray(MEMORY_BYTES)
    number = 0
    while True:
        memoryview(target)[:] = source
        number += 1
        yield 2.0 * MEMORY_BYTES, int(number % CHECK_EVERY == 0 and target != source)


def loopback(_index: int, _load: CombinedLoad) -> Rounds:
    """Send data through TCP over the loopback interface; work in bytes."""
    os.nice(NICE)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname(), 10)
        receiver, _ = server.accept()
    block = bytes(LOOPBACK_BYTES)
    room = memoryview(bytearray(LOOPBACK_BYTES))
    with sender, receiver:
        sender.settimeout(None)
        while True:
            sending = threading.Thread(target=sender.sendall, args=(block,), daemon=True)
            sending.start()
            remaining = LOOPBACK_BYTES
            while remaining:
                remaining -= receiver.recv_into(room, remaining)
            sending.join()
            yield LOOPBACK_BYTES, 0


def disk(_index: int, load: CombinedLoad) -> Rounds:
    """Read and write an existing file, bypassing the page cache; work in bytes. Only reads once the limit of written
    bytes is reached. Prints ``LEFT_OUT`` for problems that prove no fault of the disk: no space left, or a request that
    hangs, perhaps of a network share. Raises ``OSError`` for an error of the disk."""
    assert load.fio
    program, file = fio.find() or "fio", Path(load.work) / DATA_FILE
    size, limit = load.file_bytes, load.written_bytes
    engine, measurement = fio.FioEngine(*load.fio), fio.FioMeasurement()
    written = 3 * size
    while not measurement.problem:
        rw = "randrw" if written < limit else "randread"
        most = int(max(limit - written, 1 << 20)) if rw == "randrw" else 0
        time_based = ("--time_based=1",) if rw == "randread" else ()
        arguments = ("--norandommap=1", "--rwmixread=70", *time_based)
        work = fio.FioWork(rw, "128k", 16, size, DISK_SECONDS, 1, most, arguments)
        measurement = fio.call(program, file, work, engine)
        sides = [side for side in (measurement.read, measurement.write) if side]
        written += measurement.write.total_bytes if measurement.write else 0
        yield float(sum(side.total_bytes for side in sides)), 0
    if not measurement.is_disk_error:
        _leave_out(measurement.problem)
    raise OSError(measurement.error, measurement.problem)


def _leave_out(problem: str) -> NoReturn:
    print(f"{LEFT_OUT}{problem}", flush=True)
    sys.stdin.read()  # waits for the end of the stage
    sys.exit(0)


def nic(index: int, load: CombinedLoad) -> Rounds:
    """Run perftest through an RDMA port and back, both directions at once; work in bytes, by the measured bandwidth.
    Prints ``LEFT_OUT`` if perftest cannot begin for a reason that is not the port's; exits with a port's problem."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # this process ends after its parent, once its tools have ended
    name, tcp_port = load.nics[index]
    rdma_node = node.look(Tree(load.tree), ["*"])
    end = next(rail.end for rail in rdma_node.rails if rail.port.name == name)
    test = perftest.PerftestMeasurement(perftest.WRITE, end, end, both_ways=True)
    tool = Path(shutil.which(test.tool) or test.tool)
    is_first = True
    while True:
        begin = time.monotonic()
        with redirect_stdout(io.StringIO()):  # the parent would read the tool's lines as reports
            outcome = perftest.run(test, tool, rdma_node.cpus, NIC_SLACK_SECONDS, tcp_port)
        speed = perftest.bandwidth(outcome.output)
        if is_first and outcome.is_setup_problem:
            _leave_out(outcome.problem)
        if speed is None:
            sys.exit(f"{test.title}: {outcome.problem or 'printed no bandwidth that makes sense'}")
        is_first = False
        # perftest's start and end move no data: count the bandwidth that it measured in between.
        yield speed * (time.monotonic() - begin), 0


PARTS: tuple[Callable[[int, CombinedLoad], Rounds], ...] = (gpu, cpu, memory, disk, loopback, nic)
KINDS = {part.__name__: part for part in PARTS}


def serve(rounds: Rounds) -> None:
    """Work while the parent orders it; end after the round in which the parent ends."""
    running, ended = threading.Event(), threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            (running.set if line.strip() == "run" else running.clear)()
        ended.set()
        running.set()

    _, wrong = next(rounds)  # the first round prepares data
    print("ready", flush=True)
    threading.Thread(target=listen, daemon=True).start()
    total, spoken = 0.0, 0.0
    while not ended.is_set():
        if not running.is_set():
            running.wait()
            spoken = 0.0
            continue
        amount, errors = next(rounds)
        total, wrong = total + amount, wrong + errors
        clock = time.monotonic()
        if errors or clock - spoken >= REPORT_SECONDS:
            spoken = clock
            print(json.dumps([clock, total, wrong]), flush=True)


if __name__ == "__main__":
    serve(KINDS[sys.argv[1]](int(sys.argv[2]), CombinedLoad(**json.loads(sys.argv[3]))))
