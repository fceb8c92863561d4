"""Start workloads as the runner does: a process with an environment and a result file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.kit.torch_server import TorchProcess

COLLECTION = Path(__file__).resolve().parents[2] / "collections" / "ansible_collections" / "gpuval" / "fleet"
NODE = COLLECTION / "node"


@dataclass(frozen=True)
class Ended:
    """How a workload ended, after how long, and what it left; ``result`` is None without a result file."""

    code: int
    out: str
    err: str
    result: dict | None
    seconds: float

    def metric(self, name: str, scope: str = "node") -> float:
        return next(m["value"] for m in self.result["metrics"] if (m["name"], m["scope"]) == (name, scope))


class Workload:
    """A workload that is running, started as the runner does."""

    popen = subprocess.Popen

    def __init__(self, directory: Path, module: str, *arguments: str, **variables: str) -> None:
        self._directory, self._result = directory, directory / "result.json"
        self._started = time.monotonic()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUVAL_")}
        environment.pop("OMP_NUM_THREADS", None)
        environment.update(
            GPUVAL_RESULT_FILE=str(self._result),
            GPUVAL_WORK_DIR=str(directory),
            GPUVAL_ACCELERATOR="cpu",
            PYTHONPATH=f"{NODE}:{directory}",
            PYTHONUNBUFFERED="1",
            TMPDIR=str(directory),
        )
        environment.update(variables)
        self.process = self.popen(
            [sys.executable, "-m", module, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_line(self, start: str) -> None:
        """Read the output up to a line that begins so; the workload's own end bounds the wait."""
        for line in self.process.stdout:
            if line.startswith(start):
                return
        raise AssertionError(f"no line {start!r}; standard error: {self.process.stderr.read()}")

    def ranks(self) -> list[int]:
        """Return the process ids of the ranks, in no order."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def rank(self, number: int) -> int:
        """Return the process id of a rank that is at work, from its heartbeat."""
        (beat,) = self._directory.glob(f"ranks-*/beat-{number}.json")
        return json.loads(beat.read_text())["pid"]

    def end(self) -> Ended:
        out, err = self.process.communicate(timeout=120)
        result = json.loads(self._result.read_text()) if self._result.exists() else None
        return Ended(self.process.returncode, out, err, result, time.monotonic() - self._started)


class TorchWorkload(Workload):
    """A workload whose processes are forked with PyTorch imported."""

    popen = TorchProcess


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
