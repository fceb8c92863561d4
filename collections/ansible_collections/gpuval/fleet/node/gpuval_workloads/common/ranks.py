"""Runs one rank (process) of a distributed program: joins the process group, reports a failure, writes the result."""

from __future__ import annotations

import atexit
import ctypes
import datetime
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from gpuval_node.hardware.tools import toolbox

from .device import TorchDevices, choose_accelerator, describe_devices
from .launch import CRASH_FILE, FAILURE_FILE, LAUNCHER_VARIABLE, OUTCOME_FILE, RANK_DIRECTORY_VARIABLE
from .processes import die_with_parent
from .result import (
    EXIT_CRASH,
    EXIT_FAILURE,
    EXIT_SUCCESS,
    WorkloadCrash,
    WorkloadFailure,
    WorkloadResult,
    write_atomically,
)
from .stall import BEAT_FILE, RankProgress

COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=10)
GIB = 2**30
#: Maximum size of an item that a rank sends to ranks of other nodes.
MAX_ITEM_BYTES = 1 << 20

#: Query of nvidia-smi for processes. The name is last, as it may hold commas; memory is in MiB.
GPU_PROCESSES = ("--query-compute-apps=gpu_uuid,pid,used_memory,process_name", "--format=csv,noheader,nounits")
GPU_PROCESSES_SECONDS, MAX_GPU_PROCESSES = 10, 1000

_OUT_OF_MEMORY = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
_OUT_OF_MEMORY_WORDS = ("out of memory", "ALLOC_FAILED")
"""Words for a full device memory in errors of the driver, NCCL and cuBLAS, which PyTorch raises as other errors."""
_ADVICE = " If reserved but unallocated memory is large"
"""Start of PyTorch's advice on fragmentation, which follows the missing amount of memory in one line."""
_NCCL_LAST = "Last error:"
_MAX_LINES, _MAX_LINE = 4, 1000


@dataclass(frozen=True)
class Ranks:
    """This process's rank among all ranks of the node, or of several nodes (``node_ranks``: those of its node)."""

    rank: int
    world_size: int
    accelerator: TorchDevices
    progress: RankProgress | None = field(default=None, compare=False, repr=False)
    node_ranks: range | None = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def of_node(self) -> range:
        """Return the ranks of this rank's node."""
        return range(self.world_size) if self.node_ranks is None else self.node_ranks

    @property
    def local_rank(self) -> int:
        """Return the index of this rank's GPU on its node."""
        return self.rank - self.of_node.start

    @cached_property
    def device(self) -> torch.device:
        return torch.device(self.accelerator.kind, self.local_rank) if self.accelerator.is_gpu else torch.device("cpu")

    @property
    def scope(self) -> str:
        """Return the scope of this rank's metrics: its GPU, or on a CPU the rank."""
        return self.scope_of(self.rank)

    def scope_of(self, rank: int) -> str:
        """Return the scope of the metrics of another rank on this node."""
        return f"gpu:{rank - self.of_node.start}" if self.accelerator.is_gpu else f"rank:{rank}"

    def synchronize(self) -> None:
        """Wait until the device has done all queued work."""
        if self.accelerator.is_gpu:
            getattr(torch, self.accelerator.kind).synchronize()

    def empty_cache(self) -> None:
        """Release the device memory that PyTorch caches; on Gaudi only if its PyTorch has such a call."""
        if self.accelerator.is_gpu:
            getattr(getattr(torch, self.accelerator.kind), "empty_cache", lambda: None)()

    def memory(self) -> tuple[int, int]:
        """Return free and total bytes of this rank's GPU, after its cached memory is released."""
        self.empty_cache()
        return getattr(torch, self.accelerator.kind).mem_get_info()

    def tick(self) -> None:
        """Count progress, before a collective or a wait for others: these wait for the rank with the lowest count."""
        if self.progress:
            self.progress.tick()

    def follow(self, events: Sequence[Any]) -> None:
        """Report the device's progress by these CUDA (or ROCm) events, see ``RankProgress.follow``."""
        if self.progress and self.accelerator.kind == "cuda":
            self.progress.follow(events, lambda: torch.cuda.set_device(self.device))

    def patience(self, seconds: float) -> AbstractContextManager:
        """Return a context in which this rank may make no progress for ``seconds``, for work known to be long."""
        return self.progress.patience(seconds) if self.progress else nullcontext()

    def agree(self, number: int) -> int:
        """Return the first rank's number on every rank."""
        self.tick()
        agreed = torch.tensor([number], device=self.device)
        dist.broadcast(agreed, src=0)
        return int(agreed)

    def greatest(self, *values: float) -> list[float]:
        """Return the greatest of each value over all ranks, on every rank."""
        self.tick()
        greatest = torch.tensor(values, dtype=torch.float32, device=self.device)
        dist.all_reduce(greatest, op=dist.ReduceOp.MAX)
        return greatest.tolist()

    def gather(self, item: object) -> list:
        """Return every rank's item, in order, on every rank. Between nodes, items are sent as JSON (tuples become
        lists): to unpickle another node's data would run its code."""
        self.tick()
        if len(self.of_node) < self.world_size:
            data = json.dumps(item).encode()
            sizes = self.gather_tensor(torch.tensor([len(data)], device=self.device)).flatten().tolist()
            if not 0 < min(sizes) <= max(sizes) <= MAX_ITEM_BYTES:
                raise WorkloadCrash(f"a rank hands over {max(sizes)} bytes, not 1 to {MAX_ITEM_BYTES}")
            padded = torch.zeros(max(sizes), dtype=torch.uint8)
            padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            rows = self.gather_tensor(padded.to(self.device))
            return [json.loads(bytes(row[:size].tolist())) for row, size in zip(rows, sizes)]
        items: list = [None] * self.world_size
        dist.all_gather_object(items, item)
        return items

    def gather_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks, stacked in order, in host memory, on every rank."""
        self.tick()
        tensors = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(tensors, tensor)
        return torch.stack(tensors).cpu()

    def say(self, text: str) -> None:
        """Print a line on rank 0 alone."""
        if self.is_first:
            print(text, flush=True)


class Clock:
    """Measures when the device reaches points in its queue, without making the device wait."""

    def __init__(self, accelerator: TorchDevices) -> None:
        self._device = getattr(torch, accelerator.kind) if accelerator.is_gpu else None

    def mark(self) -> Any:
        """Return a mark of the present point: a recorded event, or seconds of the monotonic clock."""
        if self._device is None:
            return time.perf_counter()
        event = self._device.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        """Wait until the device has passed all marks."""
        if self._device is not None:
            self._device.synchronize()

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds from one mark to another; the device must have passed both."""
        return end - start if self._device is None else start.elapsed_time(end) / 1000

    def laps(self, marks: Sequence[Any]) -> list[float]:
        """Return the seconds between successive marks; waits for the device."""
        self.wait()
        return [self.between(start, end) for start, end in zip(marks, marks[1:])]


def run_rank(main: Callable[[Ranks, WorkloadResult], None]) -> int:
    """Run one rank's part of a workload and return its exit code. The result of the node's first rank is the outcome.
    ``WorkloadFailure`` and a lack of device memory are written to a file for the launcher, which ends the other ranks;
    other exceptions leave a note, too, which tells the rank that failed first from ranks that lost a peer."""
    die_with_parent()  # torchrun is the parent: this process has its own session
    launcher = os.environ.get(LAUNCHER_VARIABLE)  # not set under DeepSpeed, whose launcher is another process
    if launcher and os.getppid() != int(launcher):
        raise SystemExit("the launcher is gone")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    result = WorkloadResult()
    progress = RankProgress(Path(os.environ[RANK_DIRECTORY_VARIABLE], BEAT_FILE.format(rank=rank)))
    progress.start()
    ranks = None
    try:
        ranks = Ranks(rank, world_size, choose_accelerator(), progress, node_ranks(os.environ))
        if ranks.accelerator.kind == "hpu":
            import habana_frameworks.torch.distributed.hccl  # noqa: F401 - registers the backend
        options: dict[str, Any] = {}
        if ranks.accelerator.kind == "cuda":
            torch.cuda.set_device(ranks.device)
            options["device_id"] = ranks.device
        dist.init_process_group(ranks.accelerator.backend, timeout=COLLECTIVE_TIMEOUT, **options)
        main(ranks, result)
    except WorkloadFailure as failure:
        return _fail(rank, str(failure), failure.ranks)
    except Exception as error:
        if ranks and is_out_of_memory(error):
            return _fail(rank, f"{_memory_account(ranks)}. {_words(error)}")
        _leave_note(CRASH_FILE, rank, f"{type(error).__name__}: {_words(error)}")
        traceback.print_exc()
        return EXIT_CRASH
    if ranks.local_rank == 0:
        if result.state == "running":
            result.state = "success"
        result.write(Path(os.environ[RANK_DIRECTORY_VARIABLE], OUTCOME_FILE))
    ranks.tick()
    dist.barrier()
    dist.destroy_process_group()
    progress.stop()
    return EXIT_SUCCESS


def leave(code: int) -> NoReturn:
    """End a rank's process with this exit code, after its work is reported, without Python's shutdown, in which a
    thread that returns from PyTorch's code (gloo's: pytorch/pytorch#179291) would abort the process of a good node."""
    try:
        atexit._run_exitfuncs()  # ends helper processes of the compiler
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)  # writes NCCL's buffered output
    finally:
        os._exit(code)


def node_ranks(environ: Mapping[str, str]) -> range:
    """Return the ranks of this node by the variables of torchrun or DeepSpeed; ranks are numbered node by node."""
    first_rank = int(environ["RANK"]) - int(environ["LOCAL_RANK"])
    return range(first_rank, first_rank + int(environ.get("LOCAL_WORLD_SIZE") or environ["LOCAL_SIZE"]))


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an exception means that the device's memory is full, whichever layer raised it."""
    return isinstance(error, _OUT_OF_MEMORY) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY_WORDS)
    )


def software_environment(ranks: Ranks) -> dict:
    """Return the versions of the software with which the figures were measured."""
    accelerator = ranks.accelerator
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "python": platform.python_version(),
        "accelerator": accelerator.kind,
        "backend": accelerator.backend,
        "processes": ranks.world_size,
        "threads_per_process": torch.get_num_threads(),
        "devices": describe_devices(accelerator),
    }


def _fail(rank: int, message: str, about: Sequence[int] = ()) -> int:
    """Note a rank's failure for the launcher; `about` are the ranks at fault, by default this rank."""
    _leave_note(FAILURE_FILE, rank, message, about)
    print(f"rank {rank}: {message}", file=sys.stderr, flush=True)
    return EXIT_FAILURE


def _words(error: Exception) -> str:
    """Return the first line of an exception, and later lines that name the cause: NCCL's last error, memory."""
    first_line, *further_lines = str(error).split("\n")
    kept_lines, is_last = [first_line.partition(_ADVICE)[0]], False
    for line in further_lines:
        if line.strip() and (is_last or any(words in line for words in _OUT_OF_MEMORY_WORDS)):
            kept_lines.append(line.strip())
        is_last = line.strip() == _NCCL_LAST
    return "; ".join(line[:_MAX_LINE] for line in kept_lines[:_MAX_LINES])


def _leave_note(name: str, rank: int, message: str, about: Sequence[int] = ()) -> None:
    note = json.dumps({"time": time.time(), "rank": rank, "message": message, "about": list(about) or [rank]})
    write_atomically(Path(os.environ[RANK_DIRECTORY_VARIABLE], name.format(rank=rank)), note)


def _memory_account(ranks: Ranks) -> str:
    """Return a message that says what holds the memory of a full device, and what to do."""
    text = f"rank {ranks.rank} ({ranks.scope}) ran out of device memory"
    strangers: list[str] = []
    if ranks.accelerator.kind == "cuda":
        try:
            free, total = torch.cuda.mem_get_info()
            reserved = torch.cuda.memory_reserved()
            foreign = max(0, total - free - reserved)
            text += (
                f": of {total / GIB:.1f} GiB this process holds {reserved / GIB:.1f}, other processes and the driver "
                f"{foreign / GIB:.1f}, {free / GIB:.1f} are free ({free} of {total} bytes)"
            )
        except RuntimeError as error:  # a full device may refuse even the query
            text += f": how much is free is unknown ({_words(error)})"
        strangers = others_on(str(getattr(torch.cuda.get_device_properties(ranks.device), "uuid", "")))
    if strangers:
        return f"{text}. On this GPU are also: {'; '.join(strangers)}. Stop them and run the stage again"
    return (
        f"{text}. Lower --batch-size or --sequence-length or choose a smaller --size; if others hold the memory, stop "
        "them (nvidia-smi or rocm-smi lists the processes of the GPU)"
    )


def others_on(uuid: str, own_pid: int | None = None) -> list[str]:
    """Return a description of each other process on an NVIDIA GPU (``uuid`` with or without ``GPU-``), as far as
    ``nvidia-smi`` shows them: without the memory of other users' ("[N/A]"), in a container with the host's pids, or
    none."""
    answer = toolbox()("nvidia-smi", *GPU_PROCESSES, timeout=GPU_PROCESSES_SECONDS)
    descriptions = []
    for line in answer.stdout.splitlines()[:MAX_GPU_PROCESSES] if answer.ok else ():
        gpu, pid, memory, name, *_ = *(field.strip() for field in line.split(",", 3)), "", "", ""
        is_here = gpu.removeprefix("GPU-") == uuid.removeprefix("GPU-")
        if line.count(",") >= 3 and is_here and pid.isdecimal() and int(pid) != (own_pid or os.getpid()):
            printable = "".join(c for c in name if c.isprintable())[:200]
            amount = f"{int(memory) * 2**20 / GIB:.1f} GiB" if memory.isdecimal() else "an unknown amount"
            descriptions.append(f"pid {int(pid)} {printable} with {amount}")
    return descriptions
