"""Starts one process (rank) per device by torchrun, over the loopback interface, and reads why it ended. Calling
torchrun's ``run`` in this process saves a Python, and reports a failed rank as data instead of text."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .device import TorchDevices
from .result import RESULT_FILE_VARIABLE, WorkloadCrash, WorkloadFailure, WorkloadResult
from .stall import RankWatcher

RANK_DIRECTORY_VARIABLE = "GPUVAL_RANK_DIR"
LAUNCHER_VARIABLE = "GPUVAL_LAUNCHER_PID"
OUTCOME_FILE = "outcome.json"
FAILURE_FILE = "failure-{rank}.json"
CRASH_FILE = "crash-{rank}.json"

KILLED = frozenset({signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
"""Signals from outside or of a broken process. NCCL aborts (SIGABRT) healthy ranks that lost a peer."""

_LOOPBACK = "127.0.0.1"
_SHUTDOWN_SECONDS = 10
_SAME_CAUSE_SECONDS = 5
_STALL_REMEDY = (
    "Look for XID errors, for a GPU that does not answer (nvidia-smi hangs or shows ERR!), and for what stopped the "
    "process"
)


class StallError(WorkloadCrash):
    """A rank stalled, and the watcher ended all ranks: their errors about each other do not matter."""


class KilledError(WorkloadCrash):
    """A rank was killed by a signal of :data:`KILLED`: the cause of the other ranks' errors, not an effect."""


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_count(accelerator: TorchDevices, requested: int | None = None) -> int:
    """Return how many processes to start: one per GPU; on a CPU ``requested``, else 2 if there are 2 cores. Raises
    ``WorkloadFailure`` when more are requested than there are GPUs."""
    if not accelerator.is_gpu:
        return requested or min(2, available_cores())
    if requested and requested > accelerator.count:
        raise WorkloadFailure(f"--processes {requested} is more than the {accelerator.count} GPUs that are there")
    return requested or accelerator.count


def alone() -> list[str]:
    """Return torchrun's arguments for ranks on this node alone: all traffic stays on the loopback interface."""
    place = (f"--rdzv-endpoint={_LOOPBACK}:0", f"--rdzv-id={uuid.uuid4().hex}", f"--local-addr={_LOOPBACK}")
    return ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-conf=is_host=1", *place]


def run_ranks(
    result: WorkloadResult, module: str, arguments: Sequence[str], accelerator: TorchDevices, processes: int
) -> None:
    """Run ``python -m module arguments`` in ``processes`` ranks until all have ended, and adopt rank 0's result. Raises
    ``WorkloadFailure`` with the message of a rank that failed, ``WorkloadCrash`` naming a rank that crashed or stalled
    while the others waited (``stall.py``). SIGTERM and SIGINT end all ranks, then this process (exit code 128 + n)."""
    with tempfile.TemporaryDirectory(prefix="ranks-", dir=os.environ.get("GPUVAL_WORK_DIR")) as directory:
        os.environ.update(rank_environment(os.environ, accelerator, processes))
        os.environ.update({RANK_DIRECTORY_VARIABLE: directory, LAUNCHER_VARIABLE: str(os.getpid())})
        watcher = RankWatcher(Path(directory), processes, lambda rank, pid: name_of(rank, pid, accelerator.is_gpu))
        try:
            torchrun(alone(), module, arguments, accelerator, processes, Path(directory), watcher)
        except WorkloadCrash as crash:
            if not isinstance(crash, StallError):
                take_failure(result, Path(directory))
            raise
        take_outcome(result, Path(directory))


def take_failure(result: WorkloadResult, directory: Path) -> None:
    """Raise ``WorkloadFailure`` with message and figures of the rank that failed first, by notes in a folder."""
    failure, so_far = first_failure(directory), Path(os.environ.get(RESULT_FILE_VARIABLE, ""))
    if failure is not None:
        _adopt(result, so_far.read_text(encoding="utf-8") if so_far.is_file() else "{}")
        raise WorkloadFailure(failure["message"])


def take_outcome(result: WorkloadResult, directory: Path) -> None:
    """Copy the result that this node's first rank left in a folder. Raises ``WorkloadCrash`` if it left none."""
    outcome = directory / OUTCOME_FILE
    if not outcome.exists():
        raise WorkloadCrash("all ranks ended with exit code 0 but the first left no outcome")
    _adopt(result, outcome.read_text(encoding="utf-8"))


def rank_environment(environ: Mapping[str, str], accelerator: TorchDevices, processes: int) -> dict[str, str]:
    """Return environment variables for the ranks: share of cores, loopback for gloo. Variables in ``environ`` stay."""
    variables = {"OMP_NUM_THREADS": str(max(1, available_cores() // processes))}
    if not accelerator.is_gpu:
        loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
        variables.update({"GLOO_SOCKET_IFNAME": loopback[0]} if loopback else {})
    return {name: value for name, value in variables.items() if name not in environ}


def torchrun(
    rendezvous: Sequence[str],
    module: str,
    arguments: Sequence[str],
    accelerator: TorchDevices,
    processes: int,
    directory: Path,
    watcher: Any,
) -> None:
    """Run ``processes`` ranks of a module; ``rendezvous``: options for the address of other nodes' ranks. ``watcher``,
    a context manager, watches the ranks; its ``verdict`` says why it ended them, None if it did not. Raises
    ``StallError`` for a verdict, and ``WorkloadCrash`` naming the rank that crashed first."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    settings = (f"--nproc-per-node={processes}", "--max-restarts=0", "--monitor-interval=0.2", f"--log-dir={directory}")
    options = run.parse_args([*rendezvous, *settings, "--module", module, *arguments])
    if hasattr(options, "shutdown_timeout"):
        options.shutdown_timeout = _SHUTDOWN_SECONDS
    try:
        with watcher:
            run.run(options)
    except ChildFailedError as error:
        if watcher.verdict:
            raise StallError(f"{watcher.verdict}. {_STALL_REMEDY}") from None
        ends = [(f.local_rank, f.pid, f.exitcode, f.timestamp) for f in error.failures.values()]
        exceptions = {note["rank"]: (note["time"], note["message"]) for note in notes_of(directory, CRASH_FILE)}
        kind = KilledError if -first_end(ends, exceptions)[2] in KILLED else WorkloadCrash
        raise kind(describe_end(ends, exceptions, accelerator.is_gpu)) from None
    except SignalException as error:
        if watcher.verdict:
            raise StallError(watcher.verdict) from None
        print(f"ended by {error.sigval.name}; all ranks are stopped", flush=True)
        raise SystemExit(128 + error.sigval) from None


def name_of(rank: int, pid: int | None, is_gpu: bool) -> str:
    """Return a rank's name for the operator: with its GPU, and its pid if known."""
    details = [f"gpu:{rank}"] * is_gpu + [f"pid {pid}"] * (pid is not None)
    return f"rank {rank} ({', '.join(details)})" if details else f"rank {rank}"


def describe_end(
    ends: Sequence[tuple[int, int, int, float]], exceptions: Mapping[int, tuple[float, str]], is_gpu: bool = False
) -> str:
    """Return a message that names the rank that crashed first (:func:`first_end`), and how."""
    rank, pid, code, _ = first_end(ends, exceptions)
    if code >= 0:
        _, text = exceptions.get(rank, (0, f"exit code {code}"))
        return f"{name_of(rank, pid, is_gpu)} broke off with {text}; see its output above"
    hint = ": look in the kernel log for an out-of-memory kill" if code == -signal.SIGKILL else ""
    return f"{name_of(rank, pid, is_gpu)} was killed by {signal.Signals(-code).name}{hint}"


def first_end(
    ends: Sequence[tuple[int, int, int, float]], exceptions: Mapping[int, tuple[float, str]]
) -> tuple[int, int, int, float]:
    """Return the entry of the rank that crashed first; ``ends`` has rank, pid, exit code and time of each crashed rank,
    ``exceptions`` time and text of the ranks' exceptions. Ranks that lose a peer fail, too, and torchrun terminates the
    rest; its times are whole seconds. So of ranks that ended together, a killed rank comes first, then one that ended
    by another signal than torchrun's SIGTERM, the one that raised first, one with only an exit code."""

    def order(end: tuple[int, int, int, float]) -> tuple[int, float, int]:
        rank, _, code, _ = end
        raised, _ = exceptions.get(rank, (math.inf, ""))
        return (0 if -code in KILLED else 3 if code == -signal.SIGTERM else 2 if code > 0 else 1), raised, rank

    start = min(when for *_, when in ends)
    return min((end for end in ends if end[3] - start <= _SAME_CAUSE_SECONDS), key=order)


def first_failure(directory: Path) -> dict | None:
    """Return the note of the rank that first raised a ``WorkloadFailure``; None if no rank did."""
    return min(notes_of(directory, FAILURE_FILE), key=lambda failure: failure["time"], default=None)


def notes_of(directory: Path, name: str) -> list[dict]:
    """Return the notes that ranks left in files of this name pattern: time, rank and message."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in directory.glob(name.format(rank="*"))]


def _adopt(result: WorkloadResult, text: str) -> None:
    vars(result).update(vars(WorkloadResult.from_json(text)))
