"""Which processes hold the memory of an NVIDIA GPU, as far as ``nvidia-smi`` shows them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from . import command

QUERY = ("--query-compute-apps=gpu_uuid,pid,used_memory,process_name", "--format=csv,noheader,nounits")
"""The name comes last, for it may hold commas; memory is in MiB (``nvidia-smi --help-query-compute-apps``)."""

_MIB = 2**20
_TIMEOUT_SECONDS = 10
_MAX_LINES = 1000


@dataclass(frozen=True)
class GpuProcess:
    """One process on one GPU; bytes are None where the tool hides them ("[N/A]", other users' in a container)."""

    gpu_uuid: str
    pid: int
    memory_bytes: int | None
    name: str

    def __str__(self) -> str:
        memory = "an unknown amount" if self.memory_bytes is None else f"{self.memory_bytes / 2**30:.1f} GiB"
        return f"pid {self.pid} {self.name} with {memory}"


def parse(text: str) -> list[GpuProcess]:
    """Return the processes of the tool's output; lines that are something else are left out."""
    processes = []
    for line in text.splitlines()[:_MAX_LINES]:
        fields = [field.strip() for field in line.split(",", 3)]
        if len(fields) != 4 or not fields[1].isdecimal():
            continue
        uuid, pid, memory, name = fields
        memory_bytes = int(memory) * _MIB if memory.isdecimal() else None
        printable = "".join(c for c in name if c.isprintable())[:200]
        processes.append(GpuProcess(uuid, int(pid), memory_bytes, printable))
    return processes


def others_on(uuid: str, own_pid: int | None = None) -> list[GpuProcess] | None:
    """Return the processes on the GPU besides this one; None where the tool is not there or does not answer.

    ``uuid`` with or without the ``GPU-`` in front. Within a container the tool may show the host's process ids, or no
    processes at all.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    ended = command.run([tool, *QUERY], _TIMEOUT_SECONDS)
    if ended.code != 0:
        return None
    own_pid = os.getpid() if own_pid is None else own_pid
    bare = uuid.removeprefix("GPU-")
    return [p for p in parse(ended.output) if p.gpu_uuid.removeprefix("GPU-") == bare and p.pid != own_pid]
