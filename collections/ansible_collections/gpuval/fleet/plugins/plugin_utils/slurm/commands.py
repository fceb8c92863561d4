"""Runs Slurm's commands on the controller, each with a time limit, and again if slurmctld did not answer."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..core.errors import GpuvalError
from ..core.escape import one_line
from . import jobs, nodes

COMMAND_SECONDS = 30.0
TRIES, PAUSE_SECONDS = 3, 2.0
MAX_OUTPUT_CHARACTERS = 256 << 20
_AWAY = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection (?:refused|timed out)|Zero Bytes were transmitted"
    r"|Unexpected message received|communication connection failure|temporarily unable to accept job|in standby mode",
    re.IGNORECASE,
)
#: sbatch's error when the user has reached a limit of submitted jobs.
_FULL = re.compile(r"(?:QOS|Assoc)\w*Submit\w*Limit")
#: Environment variables of the user that would hide jobs, or make sbatch wait for the job's end.
_HABITS = re.compile(r"(?:SQUEUE|SCANCEL)_|SBATCH_(?:WAIT|ARRAY_INX)$")
_ENVIRONMENT = {"SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"}


class SlurmError(GpuvalError):
    """A command of Slurm failed. `away`: slurmctld did not answer, a later try may succeed. `full`: the user's limit of
    submitted jobs is reached until a job ends. `short`: Slurm gives the job too little time."""

    def __init__(self, message: str, *, away: bool = False, full: bool = False, short: bool = False) -> None:
        super().__init__(message)
        self.away, self.full, self.short = away, full, short


class Slurm:
    """Slurm's commands on this machine. `call` runs a command (words, stdin, seconds): exit code, stdout, stderr."""

    def __init__(self, call: Callable[[Sequence[str], bytes, float], tuple[int, str, str]] | None = None) -> None:
        self._call = call or _called
        self.asked = 0

    def run(self, *command: str, data: bytes = b"", tries: int = TRIES) -> str:
        """Run a command and return its output; retried while slurmctld does not answer. `data`: standard input. Raises
        SlurmError."""
        for tries_left in range(tries - 1, -1, -1):
            self.asked += 1
            try:
                code, output, errors = self._call(command, data, COMMAND_SECONDS)
            except FileNotFoundError:
                raise SlurmError(
                    f"{command[0]} is not installed here: run gpuval on a login node of the Slurm cluster, or add the "
                    "folder of Slurm's commands to PATH"
                ) from None
            except subprocess.TimeoutExpired:
                code, output, errors = 1, "", f"Socket timed out: no answer within {COMMAND_SECONDS:.0f} s"
            if code == 0:
                return output
            text = one_line(errors.strip() or output.strip() or f"exit code {code}", 500)
            away = bool(_AWAY.search(text))
            if not (away and tries_left):
                raise SlurmError(f"{command[0]}: {text}", away=away, full=bool(_FULL.search(text)))
            time.sleep(PAUSE_SECONDS)
        raise AssertionError("unreachable")

    def nodes(self) -> list[dict[str, Any]]:
        """Descriptions of all nodes of the Slurm cluster. Raises SlurmError."""
        return nodes.from_text(self.run("scontrol", "show", "node", "-o"))

    def cluster_name(self) -> str:
        """The ClusterName, which identifies the cluster whichever slurm.conf leads to it. Raises SlurmError."""
        match = re.search(r"^ClusterName\s*=\s*(\S+)", self.run("scontrol", "show", "config"), re.MULTILINE)
        if match is None:
            raise SlurmError("scontrol show config: no ClusterName")
        return match[1]

    def reserved(self, reservation: str) -> set[str]:
        """The nodes of a reservation. Raises SlurmError."""
        text = self.run("scontrol", "show", "reservation", reservation, "-o")
        match = re.search(r"(?:^|\s)Nodes=(\S+)", text)
        if not match or match[1] == "(null)":
            return set()
        return set(self.run("scontrol", "show", "hostnames", match[1]).split())

    def jobs(self) -> dict[int, jobs.SlurmJob]:
        """gpuval's jobs of this user by id, also ended ones while Slurm remembers them. Raises SlurmError."""
        words = ("squeue", "--me", "--noheader", "--states=all", f"--format={jobs.FORMAT}")
        return jobs.parse(self.run(*words, tries=1))

    def exit_code(self, job: int) -> int | None:
        """The exit code of an ended job; None where Slurm does not remember it. Raises SlurmError."""
        match = re.search(r"(?:^|\s)ExitCode=(\d+):", self.run("scontrol", "show", "job", str(job), "-o", tries=1))
        return int(match[1]) if match else None

    def submit(self, arguments: Sequence[str], script: bytes) -> int:
        """Submit a job and return its id. Raises SlurmError; if its `away` is set, the job may exist all the same."""
        printed = self.run("sbatch", "--parsable", *arguments, data=script, tries=1)
        match = re.search(r"^(\d+)(?:;\S*)?\s*$", printed, re.MULTILINE)
        if not match:
            raise SlurmError(f"sbatch printed no job id: {one_line(printed, 200)}")
        return int(match[1])

    def cancel(self, ids: Sequence[int], *options: str) -> None:
        if ids:
            self.run("scancel", *options, *map(str, ids))


def _called(command: Sequence[str], data: bytes, seconds: float) -> tuple[int, str, str]:
    process = subprocess.run(
        list(command),
        input=data,
        capture_output=True,
        timeout=seconds,
        env={**{name: value for name, value in os.environ.items() if not _HABITS.match(name)}, **_ENVIRONMENT},
        check=False,
    )
    output, errors = process.stdout[:MAX_OUTPUT_CHARACTERS], process.stderr
    return process.returncode, output.decode(errors="replace"), errors.decode(errors="replace")
