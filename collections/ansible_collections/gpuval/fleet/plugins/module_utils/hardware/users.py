"""Finds processes that use this node's accelerators now, and their containers."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..engines import engine_types
from ..process_stat import variable_of
from .tools import Run, ToolResult
from .tree import Tree

#: A hanging vendor tool must not delay a launch; the facts stage reports that it hangs.
QUERY_SECONDS = 20.0
ENGINE_SECONDS = 10.0
#: Vendors' daemons that hold the devices on any healthy node.
DAEMONS = frozenset(
    (
        "nvidia-persistenced",
        "nv-hostengine",
        "nv-fabricmanager",
        "nvidia-fabricmanager",
        "dcgm-exporter",
        "dcgmi",
        "nvidia-cuda-mps-server",
        "nvidia-smi",
        "amd-smi",
        "rocm-smi",
        "amdgpu-exporter",
        "device-metrics-exporter",
        "hl-smi",
        "hl-thunk",
        "gpud",
        "Xorg",
        "gnome-shell",
    )
)
#: Length to which the kernel cuts a process's name.
COMM_CHARACTERS = 15
_SHORT_DAEMONS = frozenset(name[:COMM_CHARACTERS] for name in DAEMONS)
MARKER = "GPUVAL_STAGE_ID"
_CONTAINER = re.compile(r"(?:docker|libpod|cri-containerd|crio)[-/]([0-9a-f]{64})|/([0-9a-f]{64})(?:\.scope)?$")
_HABANA_DEVICE = re.compile(r"/dev/(?:accel/accel\d+|hl\d+)$")


@dataclass(frozen=True)
class User:
    """A process that uses accelerators, with the names of its container and of its user; `parts`: `gpu:0, gpu:1`."""

    pid: int
    name: str
    container: str = ""
    run_id: str = ""
    owner: str = field(default="", compare=False)
    parts: str = field(default="", compare=False)

    def __str__(self) -> str:
        user = f" of user {self.owner}" if self.owner else ""
        on = f" on {self.parts}" if self.parts else ""
        where = f" in container {self.container}" if self.container else ""
        whose = f" of gpuval run {self.run_id}" if self.run_id else ""
        return f"{self.name} (pid {self.pid}){user}{on}{where}{whose}"


def accelerator_users(tree: Tree, run: Run, but_run: str = "") -> list[User]:
    """Return this node's processes that use accelerators, without vendors' daemons and the gpuval run `but_run`."""
    from . import nvidia_gpus  # noqa: PLC0415 - a launch on a node without accelerators must not import vendors' tools

    # AMD's kernel driver lists its processes, with or without tools
    of_amd = {int(entry): "" for entry in tree.entries("/sys/class/kfd/kfd/proc") if entry.isdigit()}
    processes = {**nvidia_gpus.processes(run, QUERY_SECONDS), **of_amd, **_gaudi(tree, run)}
    users = []
    for pid, named in sorted(processes.items()):
        comm, program = tree.read(f"/proc/{pid}/comm") or "", named.rpartition("/")[2]
        name = comm or program or "a process"
        run_id = variable_of(pid, MARKER, str(tree.path("/proc"))).partition("/")[0]
        if comm in _SHORT_DAEMONS or program in DAEMONS or (but_run and run_id == but_run):
            continue
        container = _container(tree, pid)
        container, labelled = _container_name(run, container) if container else ("", "")
        if but_run and labelled == but_run:
            continue
        users.append(User(pid, name, container, run_id or labelled, _owner(tree, pid)))
    parts = nvidia_gpus.gpus_of_processes(run, QUERY_SECONDS) if users else {}
    return [replace(user, parts=", ".join(parts.get(user.pid, ()))) for user in users]


def foreign_runs(run: Run, but_run: str) -> list[str]:
    """Return a text with name and run for each container on this node of a gpuval run other than `but_run`."""
    options = ("ps", "--filter=label=gpuval.run", "--format={{json .}}")
    containers = [
        pair for engine in engine_types() for pair in _labelled(run(engine, *options, timeout=ENGINE_SECONDS))
    ]
    return sorted({f"container {name} of gpuval run {run_id}" for name, run_id in containers if run_id != but_run})


def _labelled(result: ToolResult) -> list[tuple[str, str]]:
    if not result.ok:
        return []
    pairs = []
    for entry in _entries(result.stdout):
        if isinstance(entry.get("Pid"), int) and not Path(f"/proc/{entry['Pid']}").exists():
            continue  # podman reports a container as up whose monitor was killed
        labels, names = entry.get("Labels"), entry.get("Names")
        if isinstance(labels, str):  # docker: a=b,c=d
            labels = dict(pair.partition("=")[::2] for pair in labels.split(","))
        names = next(iter(names), "") if isinstance(names, list) else names
        if isinstance(labels, dict) and labels.get("gpuval.run"):
            pairs.append((str(names or entry.get("ID") or entry.get("Id") or "?"), str(labels["gpuval.run"])))
    return pairs


def _entries(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects that a container engine prints: docker one a line, podman a list over several lines."""
    for pieces in ([text], text.splitlines()):
        try:
            documents = [json.loads(piece) for piece in pieces if piece.strip()]
        except ValueError:
            continue
        flat = [entry for value in documents for entry in (value if isinstance(value, list) else [value])]
        return [entry for entry in flat if isinstance(entry, dict)]
    return []


def _gaudi(tree: Tree, run: Run) -> dict[int, str]:
    if not tree.entries("/dev/accel") and not any(name.startswith("hl") for name in tree.entries("/dev")):
        return {}
    from . import gaudi_gpus  # noqa: PLC0415 - only a node with Gaudi's devices needs them

    processes = gaudi_gpus.processes(run, QUERY_SECONDS)
    for pid in filter(str.isdigit, tree.entries("/proc")):  # as root, also finds processes that the tool leaves out
        for handle in tree.entries(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if _HABANA_DEVICE.search(str(tree.path(f"/proc/{pid}/fd/{handle}").readlink())):
                    processes.setdefault(int(pid), "")
    return processes


def _owner(tree: Tree, pid: int) -> str:
    """Return a process's user by name if /etc/passwd has it: a directory service that hangs must not delay a launch."""
    try:
        number = str(tree.path(f"/proc/{pid}").stat().st_uid)
    except OSError:
        return ""
    accounts = (line.split(":") for line in (tree.read("/etc/passwd") or "").splitlines())
    return next((account[0] for account in accounts if account[2:3] == [number]), number)


def _container(tree: Tree, pid: int) -> str:
    matches = map(_CONTAINER.search, (tree.read(f"/proc/{pid}/cgroup") or "").splitlines())
    return next((match[1] or match[2] for match in matches if match), "")


def _container_name(run: Run, identifier: str) -> tuple[str, str]:
    """Return the name of the container with an id, and the id of its gpuval run; empty if it is of none."""
    form = '--format={{.Name}} {{index .Config.Labels "gpuval.run"}}'
    for engine in engine_types():
        result = run(engine, "inspect", "--type=container", form, identifier, timeout=ENGINE_SECONDS)
        if result.ok and result.stdout.strip():
            name, _, run_id = result.stdout.strip().partition(" ")
            return name.lstrip("/"), "" if run_id == "<no value>" else run_id
    return identifier[:12], ""
