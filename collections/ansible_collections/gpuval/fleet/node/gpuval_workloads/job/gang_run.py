"""Runs a job on several nodes, as members of a gang: a step begins when the step before has ended on all nodes.

Members meet on the gang's control channel. A step that fails, or a member that is lost, ends the job on all members,
with the names of step and node. Needs only the standard library; launchers are those of the image.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Optional

from ..common.command import ExecutableSearch
from ..common.launch import RANK_DIRECTORY_VARIABLE
from ..common.processes import signal_group
from ..common.result import EXIT_CRASH, EXIT_SUCCESS, WorkloadCrash, WorkloadFailure, write_atomically
from ..gang import membership, mpi
from ..gang.control_channel import CAUSE, EFFECT, SHARED, ChannelLimits, ControlChannel, GangStop, StoppedError
from ..gang.launching import OUTPUT_FOLDER, DeepSpeedLauncher, check_deepspeed, hostfile, torchrun_place
from ..gang.members import Gang, from_environment
from ..gang.membership import client, interface_environment, own_address
from ..gang.threads import Forwarder
from . import launcher, rank
from .program import (
    EXIT_TIMEOUT,
    MASTER_PORT,
    VARIABLE,
    JobRun,
    JobStep,
    JobSteps,
    command_of,
    environment,
    identifier_of,
)

NONE, TORCHRUN, DEEPSPEED, MPIRUN = "none", "torchrun", "deepspeed", "mpirun"
#: Launchers with which the first member starts processes on all members.
OVER_SSH = (DEEPSPEED, MPIRUN)
RANK_MODULE = "gpuval_workloads.job.rank"
HOSTFILE = "hostfile"
POLL_SECONDS = 0.2


def shaped(gang: Gang, request: Mapping[str, Any], is_cpu: bool) -> Gang:
    """Return the gang as a job's ``request`` shapes it: order of members, their maximum number, processes on each. On a
    node beyond the maximum, ``index`` is not below the number of members. Raises ``WorkloadFailure``."""
    members = list(gang.members)
    if request["order"] != "inventory":
        groups: dict[str, list[int]] = {}
        for position, member in enumerate(members):
            groups.setdefault(member.labels.get(request["order"], ""), []).append(position)
        members = [members[position] for places in groups.values() for position in places]
    index = members.index(gang.own)
    if len(members) < request["least"]:
        raise WorkloadFailure(
            f"gang {gang.name} has {len(members)} nodes and the job needs {request['least']} (least_nodes): "
            "add nodes of this kind, or repair those that are left out"
        )
    members = members[: request["most"] or len(members)]
    count = request["gpus_per_node"]
    if count:
        few = [f"{member.node} has {member.slots}" for member in members if member.slots < count and not is_cpu]
        if few:
            raise WorkloadFailure(
                f"the job needs {count} GPUs per node (gpus_per_node), and {', '.join(few[:10])}: ask for fewer, or "
                "leave these nodes out (--limit)"
            )
        members = [replace(member, slots=count) for member in members]
    return replace(gang, members=tuple(members), index=index)


class GangRun(JobRun):
    """Runs a multi-node job on one of its nodes."""

    def __init__(self, job: JobSteps, folder: Path, result: Path) -> None:
        super().__init__(job, folder, result)
        self._launchers = {step.launcher for step in job.steps if not step.skip} - {NONE}
        self._described: dict[str, Any] = {}
        self._options: list[str] = []
        self._deepspeed: Optional[DeepSpeedLauncher] = None
        self._mpirun: Optional[Path] = None
        self._state, self._what = "running", ""
        self._gang: Gang
        self._channel: ControlChannel

    def run(self) -> int:
        is_cpu = os.environ.get("GPUVAL_ACCELERATOR", "cpu") == "cpu"
        os.environ.pop(VARIABLE, None)  # too long for the SSH server, and not needed any more
        try:
            declared = from_environment(os.environ)
            gang = shaped(declared, self._job.gang, is_cpu)
        except WorkloadFailure as error:
            return self._fail(str(error))
        self._described = {"name": gang.name, "nodes": len(gang.members), "node": declared.own.node, "joined": False}
        if gang.index >= len(gang.members):
            count = f"{len(gang.members)} of {len(declared.members)} nodes"
            self._write("success", f"spare: the job uses {count} (most_nodes)")
            return EXIT_SUCCESS
        self._gang = gang
        self._described["leader"] = gang.leader.node
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._leave)
        membership.introduce(gang)
        try:
            with ExitStack() as stack:
                stack.callback(self._end_step)
                return self._take_part(stack)
        except StoppedError as error:
            return self._stopped(error.stop)
        except (WorkloadFailure, WorkloadCrash) as error:
            return self._fail(str(error))

    def _take_part(self, stack: ExitStack) -> int:
        gang, seconds = self._gang, float(self._job.gang["join_seconds"])
        (self._folder / HOSTFILE).write_text(hostfile(gang), encoding="utf-8")
        is_gpu = os.environ.get("GPUVAL_ACCELERATOR") in ("nvidia", "amd")
        interfaces = interface_environment(gang, own_address(gang, seconds), with_nccl=is_gpu)
        os.environ.update({name: value for name, value in interfaces.items() if name not in os.environ})
        os.environ[RANK_DIRECTORY_VARIABLE] = str(self._folder)
        bring: dict[str, Any] = {"python": sys.executable, "time": int(time.time())}
        try:
            bring |= self._prepare(stack)
        except WorkloadFailure as error:
            bring["lacks"] = str(error)
        limits = ChannelLimits(join_seconds=seconds)
        taking_part = membership.taking_part(gang, self._described, limits, bring, on_stop=self._show_stop)
        self._channel = stack.enter_context(taking_part)
        try:
            brought = membership.join(self._channel, gang)
            lacking = self._lacking(brought)
            if lacking:
                with suppress(StoppedError):  # all members decide the same
                    self._channel.end(lacking, membership.FAREWELL_SECONDS, weight=SHARED)
                return self._fail(lacking)
            self._described["joined"] = True
            together = self._together(str(brought[0]["time"]))
            self._variables = environment(self._job, os.environ, str(self._folder), together)
            if self._launchers & set(OVER_SSH):
                keys = [report["host_key"] for report in brought]
                self._options = client(
                    gang, self._folder, membership.keys_folder(os.environ) / membership.KEY_FILE, keys
                )
            code = self._work()
        except (WorkloadFailure, WorkloadCrash) as error:  # from a launcher, or a rank on this node
            self._write("running", str(error))
            self._report(self._message, CAUSE)
            print(self._message, file=sys.stderr, flush=True)
            return EXIT_CRASH
        except SystemExit:
            self._write("running", self._message)
            raise
        if not code:
            self._channel.end(None, membership.FAREWELL_SECONDS)
            return EXIT_SUCCESS
        is_named = self._state == "failure" or code == EXIT_TIMEOUT
        ending = self._message if is_named else f"{self._message}: exit code {code}"
        self._report(ending, EFFECT if code < 128 else CAUSE)
        return code

    def _report(self, message: str, weight: int) -> None:
        """Report the failure of the job on this node to the other nodes; ``weight``: CAUSE or EFFECT of another's."""
        try:
            self._channel.end(message, membership.FAREWELL_SECONDS, weight=weight)
        except StoppedError as error:
            self._described["stopped_by"] = error.stop.node
            self._write(self._state, f"{self._message}; the gang has ended: {error.stop.message}")

    def _stopped(self, stop: GangStop) -> int:
        self._write("running", f"the gang has ended: {stop.message}")
        print(self._message, file=sys.stderr, flush=True)
        return EXIT_CRASH

    def _show_stop(self, stop: GangStop) -> None:
        if stop.node != self._gang.own.node:  # this node's own output explains more
            print(f"the gang ends: {stop.message}", file=sys.stderr, flush=True)

    def _prepare(self, stack: ExitStack) -> dict[str, Any]:
        """Start what the job's launchers need on this node; return data for other nodes. Raises ``WorkloadFailure``."""
        if TORCHRUN in self._launchers and find_spec("torch") is None:
            raise WorkloadFailure(_missing(TORCHRUN, f"PyTorch in {sys.executable}"))
        if DEEPSPEED in self._launchers:
            if find_spec("deepspeed") is None:
                raise WorkloadFailure(_missing(DEEPSPEED, f"DeepSpeed in {sys.executable}"))
            if self._gang.is_leader and not shutil.which("pdsh"):
                raise WorkloadFailure(_missing(DEEPSPEED, "pdsh on PATH"))
            check_deepspeed(self._gang)
            stack.enter_context(Forwarder(self._folder / OUTPUT_FOLDER))
        if MPIRUN in self._launchers:
            self._mpirun = ExecutableSearch((), os.environ).find(MPIRUN)
            if self._mpirun is None or not mpi.is_open_mpi(self._mpirun):
                raise WorkloadFailure(_missing(MPIRUN, "mpirun of Open MPI on PATH"))
        if self._launchers & {TORCHRUN, DEEPSPEED}:
            membership.check_port(self._gang, self._port(), "MASTER_PORT in the job's environment")
        if self._launchers & set(OVER_SSH):
            server = membership.serve_ssh(self._gang, self._folder, membership.keys_folder(os.environ), stack)
            return {"host_key": server.host_key}
        return {}

    def _lacking(self, brought: Sequence[Mapping[str, Any]]) -> str:
        """Return why the job cannot run, empty if it can. ``brought``: data of each node from its greeting."""
        by_reason: dict[str, list[str]] = {}
        for member, report in zip(self._gang.members, brought):
            if report.get("lacks"):
                by_reason.setdefault(str(report["lacks"]), []).append(member.node)
            elif self._launchers & set(OVER_SSH) and report["python"] != brought[0]["python"]:
                reason = "Python is at another path than on the first node: set gpuval_workload_python or use one image"
                by_reason.setdefault(reason, []).append(member.node)
        return "; ".join(f"{', '.join(nodes[:10])}: {reason}" for reason, nodes in by_reason.items())

    def _port(self) -> int:
        port_text = os.environ.get("MASTER_PORT", MASTER_PORT)
        if not port_text.isdigit():
            raise WorkloadFailure(f"MASTER_PORT {port_text!r} is not a port: correct the job's environment")
        return int(port_text)

    def _together(self, timestamp: str) -> dict[str, str]:
        """Return the environment variables that multi-node scripts read. ``timestamp``: Unix time in seconds."""
        gang, identifier = self._gang, identifier_of(self._job, os.environ)
        return {
            "MASTER_ADDR": gang.leader.address,
            "RANK_0_FQDN": gang.leader.address,
            "WORLD_SIZE": str(gang.world_size),
            "NNODES": str(len(gang.members)),
            "NODE_RANK": str(gang.index),
            "JOB_COMPLETION_INDEX": str(gang.index),
            "GPUS_PER_NODE": str(gang.own.slots),
            "JOB_UUID": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{identifier}/{gang.name}")),
            "JOB_TIMESTAMP": timestamp,
            "GPUVAL_HOSTFILE": str(self._folder / HOSTFILE),
            **({launcher.VARIABLE: f"{sys.executable} {launcher.__file__}"} if self._mpirun else {}),
        }

    # Steps.

    def _skip_reason(self, step: JobStep) -> str:
        is_elsewhere = step.once and not self._gang.is_leader
        reason = "" if is_elsewhere else super()._skip_reason(step)
        if step.launcher == NONE:
            return reason
        if step.launcher in OVER_SSH:
            launch = {
                "command": command_of(step),
                "folder": str(self._folder),
                "environment": {**self._variables, "GPUVAL_STEP": step.name, **step.environment},
            }
            if step.launcher == MPIRUN:
                launch |= {"launcher": self._mpi_command(), "settings": mpi.environment(self._gang, self._options)}
            write_atomically(self._folder / rank.FILE, json.dumps(launch))
        return self._meet(f"begin of step {step.name}", reason)

    def _step(self, step: JobStep, title: str) -> int:
        self._what = title
        if self._gang.is_leader or not (step.once or step.launcher in OVER_SSH):
            return super()._step(step, title)
        launch_words = "runs there" if step.once else f"is started from there by {step.launcher}"
        print(f"== {title}: waiting for {self._gang.leader.node}: it {launch_words}", flush=True)
        self._write("running", f"{title}: waiting for {self._gang.leader.node}")
        return EXIT_SUCCESS

    def _after(self, step: JobStep, *, ran: bool) -> None:
        """Wait until the step has ended on all nodes. Raises ``WorkloadCrash`` if a process on this node did not end by
        itself, or if this node and the first differ on whether the step was skipped."""
        reports, leader = self._meet(f"end of step {step.name}", self._inapplicable), self._gang.leader.node
        if step.once:
            self._inapplicable = reports
        if bool(reports) != bool(self._inapplicable):
            where = f"on {leader} and not here" if reports else f"here and not on {leader}"
            raise WorkloadCrash(f"{self._what}: skipped {where}: choose nodes of one kind")
        if ran and step.launcher in OVER_SSH and not step.once:
            ended_ranks = len(list(self._folder.glob(rank.DONE.format(step=step.name, rank="*"))))
            if ended_ranks < self._gang.own.slots:
                raise WorkloadCrash(
                    f"{self._what}: {self._gang.own.slots - ended_ranks} of {self._gang.own.slots} processes here "
                    "never ended by themselves: look in the log and in the kernel log (out of memory?)"
                )

    def _start(self, step: JobStep, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        gang, self._deepspeed = self._gang, None
        if step.launcher == NONE or step.once:
            return super()._start(step, variables)
        gang = replace(gang, port=self._port())
        if step.launcher == TORCHRUN:
            rendezvous = [*torchrun_place(gang), f"--nproc-per-node={gang.own.slots}", "--no-python"]
            torchrun = [sys.executable, "-m", "torch.distributed.run", *rendezvous]
            return self._popen([*torchrun, *command_of(step)], variables)
        if step.launcher == DEEPSPEED:
            self._deepspeed = DeepSpeedLauncher(gang, self._folder, self._options)
            return self._deepspeed.start(RANK_MODULE, [])
        mpi_argv = [*self._mpi_command(), sys.executable, "-m", RANK_MODULE]
        return self._popen(mpi_argv, {**variables, **mpi.environment(gang, self._options)})

    def _mpi_command(self) -> list[str]:
        return mpi.command(str(self._mpirun), self._gang, self._folder / HOSTFILE, self._options)

    def _await(self, process: subprocess.Popen[bytes], seconds: Optional[float]) -> None:
        begun = time.monotonic()
        while process.poll() is None:
            if seconds and time.monotonic() - begun > seconds:
                raise subprocess.TimeoutExpired(process.args, seconds)
            self._look()
            time.sleep(POLL_SECONDS)

    def _meet(self, name: str, word: str) -> str:
        """Wait until all members reach the meeting point ``name``; return the word that the leader sent. Raises
        ``StoppedError``, and ``WorkloadCrash`` for a rank that failed: its launcher may succeed all the same."""
        return membership.meet(self._channel, name, word, self._look)[0]

    def _look(self) -> None:
        """Raise ``StoppedError`` when the gang has ended, ``WorkloadCrash`` for a rank on this node that failed."""
        if self._channel.stopped:
            raise StoppedError(self._channel.stopped)
        for note in sorted(self._folder.glob(rank.NOTE.format(rank="*"))):
            with suppress(OSError, ValueError, KeyError):  # partially written: the next check reads it
                raise WorkloadCrash(f"{self._what}: {json.loads(note.read_text(encoding='utf-8'))['message']}")

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        if self._deepspeed:
            self._deepspeed.end()  # not by TERM, at which the launcher would kill processes by name on all nodes
        else:
            super()._stop(process)

    def _end_step(self) -> None:
        if self._process is not None:
            self._stop(self._process)
            signal_group(self._process.pid, signal.SIGKILL)  # what it left running

    def _leave(self, number: int, _frame: object) -> None:
        """Handle a signal that ends the stage: end the step's process and exit, which reports to other members."""
        if self._process is not None and not self._deepspeed:
            signal_group(self._process.pid, signal.SIGTERM)
        raise SystemExit(128 + number)

    def _finish(self, skipped: list[str]) -> int:
        members = len(self._gang.members)
        if self._gang.index == (members - 1 if self._job.gang["figures"] == "last" else 0):
            return super()._finish(skipped)
        self._write("success", f"{len(self._job.steps) - len(skipped)} of {len(self._job.steps)} steps")
        return EXIT_SUCCESS  # another node has the figures

    def _write(self, state: str, message: str) -> None:
        self._state = state
        self._collected["environment"]["gang"] = self._described
        super()._write(state, message)


def _missing(launcher: str, program: str) -> str:
    return f"launcher {launcher}: there is no {program}: use an image that has it, or another launcher"
