"""Starts a gang's ranks: by torchrun on every member, or by DeepSpeed's launcher from the leader over SSH."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ..common.launch import RANK_DIRECTORY_VARIABLE, StallError
from ..common.processes import process_state
from ..common.result import WorkloadFailure
from ..common.stall import BEAT_FILE, Beat, read_beat
from .config import template
from .control_channel import GangStop
from .members import Gang

#: Python program that starts DeepSpeed's launcher without the variables that it would export from the leader to all
#: nodes: each node's SSH server sets them to values for that node.
BEGIN = (
    "import os, sys; from deepspeed.launcher import runner; "
    "names = tuple([*runner.EXPORT_ENVS, *runner.get_accelerator().export_envs()]); "
    "[os.environ.pop(name) for name in list(os.environ) if name.startswith(names)]; "
    "runner.main(sys.argv[1:])"
)
RUN_TEMPLATE, ENVIRONMENT_TEMPLATE = "run.sh", "deepspeed_env"
#: Environment variable with the node's own PYTHONPATH: DeepSpeed's launcher exports one PYTHONPATH, which refers to it.
PATH_VARIABLE = "GPUVAL_PYTHONPATH"
#: Folder into which DeepSpeed's launcher writes the output of each rank, within the node's temporary folder.
OUTPUT_FOLDER = "ranks"


class Stopper:
    """Calls ``end`` to end this node's ranks when the control channel reports that the gang stops, for ``verdict``."""

    def __init__(self, end: Callable[[], object]) -> None:
        self.verdict: str | None = None
        self.stop: GangStop | None = None
        self._end = end
        self._is_running = False
        self._lock = threading.Lock()

    def __call__(self, stop: GangStop) -> None:
        with self._lock:
            self.stop, self.verdict = stop, stop.message
            if self._is_running:
                print(f"the gang ends: {stop.message}", file=sys.stderr, flush=True)
                self._end()

    def __enter__(self) -> Stopper:
        with self._lock:
            self._is_running = self.stop is None
        self.check()
        return self

    def check(self) -> None:
        """Raise ``StallError`` once a stop was reported."""
        if self.stop:
            raise StallError(self.stop.message)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_running = False


def beats_of(directory: Path, gang: Gang) -> dict[int, tuple[Beat, str]]:
    """Return ``{local rank: (last heartbeat, process state)}`` of this node's ranks, by the files in ``directory``."""
    first_rank, beats = gang.first_rank(gang.index), {}
    for local_rank in range(gang.own.slots):
        beat = read_beat(directory / BEAT_FILE.format(rank=first_rank + local_rank))
        if beat:
            beats[local_rank] = (beat, process_state(beat.pid))
    return beats


def torchrun_place(gang: Gang) -> list[str]:
    """Return torchrun's arguments for a gang: a static rendezvous at the leader, and this node's place among nodes."""
    return [
        f"--nnodes={len(gang.members)}",
        f"--node-rank={gang.index}",
        f"--master-addr={gang.leader.address}",
        f"--master-port={gang.port}",
        f"--local-addr={gang.own.address}",
    ]


def hostfile(gang: Gang) -> str:
    """Return the hostfile for DeepSpeed and MPI: a line ``address slots=N`` for each member, the leader first."""
    return "".join(f"{member.address} slots={member.slots}\n" for member in gang.members)


def put(path: Path, text: str) -> None:
    """Write a file for a launcher, and print its text: the log keeps it when the file's folder is deleted."""
    path.write_text(text, encoding="utf-8")
    print(f"{path.name}:\n{text}", flush=True)


def check_deepspeed(gang: Gang) -> None:
    """Raise ``WorkloadFailure`` if nodes run different numbers of processes, which DeepSpeed's launcher miscounts."""
    for index, member in enumerate(gang.members):
        if gang.first_rank(index) % member.slots:
            raise WorkloadFailure(
                f"{member.node} has {member.slots} processes and its first one is rank {gang.first_rank(index)}: "
                "DeepSpeed's launcher would number those of the node wrongly. Choose launcher torchrun, or gangs of "
                "nodes with as many GPUs each (gpuval_gang_group_by: [sku])"
            )


def check_blanks(*paths: object) -> None:
    """Raise ``WorkloadFailure`` for a path with blanks, which pdsh, ssh and Open MPI would split."""
    for path in paths:
        if any(letter.isspace() for letter in str(path)):
            raise WorkloadFailure(
                f"{str(path)!r} has a blank, which launchers over SSH take for the end of a word: choose another "
                "folder on the nodes, or launcher torchrun"
            )


class DeepSpeedLauncher:
    """Runs DeepSpeed's launcher on the leader, with pdsh over the members' SSH servers."""

    def __init__(self, gang: Gang, folder: Path, ssh_options: Sequence[str]) -> None:
        self._gang, self._folder, self._ssh_options = gang, folder, ssh_options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, module: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start ``module`` on all nodes; return the process of DeepSpeed's launcher. Raises ``WorkloadFailure`` if pdsh
        is missing."""
        if not shutil.which("pdsh"):
            raise WorkloadFailure(
                "pdsh, by which DeepSpeed reaches the nodes, is not there: install it, or choose launcher torchrun"
            )
        environment_path = self._folder / ENVIRONMENT_TEMPLATE
        put(environment_path, template(ENVIRONMENT_TEMPLATE).substitute(path_variable=PATH_VARIABLE))
        put(self._folder / "hostfile", hostfile(self._gang))
        command = [
            *(sys.executable, "-c", BEGIN),
            f"--hostfile={self._folder / 'hostfile'}",
            f"--master_addr={self._gang.leader.address}",
            f"--master_port={self._gang.port}",
            f"--ssh_port={self._gang.ssh_port}",
            f'--enable_each_rank_log="${RANK_DIRECTORY_VARIABLE}"/{OUTPUT_FOLDER}',  # expanded by each node's shell
            *("--no_ssh_check", "--force_multi", "--no_local_rank", "--module"),
            module,
            *arguments,
        ]
        script = self._folder / RUN_TEMPLATE
        text = template(RUN_TEMPLATE).substitute(
            environment=shlex.quote(str(environment_path)),
            ssh_options=shlex.quote(shlex.join(self._ssh_options)),
            command=shlex.join(command),
        )
        put(script, text)
        self._process = subprocess.Popen(["sh", str(script)], stdin=subprocess.DEVNULL, start_new_session=True, cwd="/")
        return self._process

    def poll(self) -> int | None:
        """Return the launcher's exit code; None while it runs."""
        return self._process.poll() if self._process else None

    def end(self) -> None:
        """End the launcher, pdsh and ssh, by KILL: at TERM, the launcher would kill processes by name on all nodes,
        also those of others. Each member ends its own ranks."""
        if self._process and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
