"""The program of one node of a gang: joins the other nodes, runs this node's ranks, ends when any node is lost."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..common import launch, processes
from ..common.device import TorchDevices, choose_accelerator
from ..common.result import EXIT_CRASH, WorkloadCrash, WorkloadFailure, WorkloadResult, run_workload
from ..common.stall import GONE, stall_seconds
from ..diagnostics import nccl_log
from . import collectives, launching, membership, mpi, wrong_values
from .collectives import FABRIC_VARIABLE, NODES_VARIABLE
from .config import NVLINK, RANKS, CollectivesConfig, GangConfig, parse_arguments
from .control_channel import CAUSE, EFFECT, OWN, SHARED, ChannelLimits, ControlChannel, StoppedError
from .host.checks import HostChecks
from .members import Gang, from_environment
from .membership import client, interface_environment, own_address
from .threads import Forwarder, progress, progress_printer

#: Networks that need no RDMA device.
OVER_TCP = ("Socket", "gloo")
#: Seconds after which this program ends hard: torchrun's ranks have ended by then, but a wait in PyTorch ignores TERM.
HARD_SECONDS = 30.0
POLL_SECONDS = 0.2


class SharedError(WorkloadCrash):
    """The reason for which all members end; none of them is at fault."""


@dataclass
class GangWork:
    """The work of this node in its gang: settings, accelerator, temporary folder, result; ``channel`` is set later."""

    gang: Gang
    config: GangConfig
    accelerator: TorchDevices
    folder: Path
    result: WorkloadResult
    channel: ControlChannel = field(init=False)


def main(result: WorkloadResult) -> None:
    arguments = sys.argv[1:]
    config = parse_arguments(arguments)
    gang = from_environment(os.environ)
    if isinstance(config, CollectivesConfig) and config.fabric == NVLINK:
        gang = gang.within_clique()
    accelerator = choose_accelerator()
    if accelerator.is_gpu and gang.own.slots > accelerator.count:
        raise WorkloadFailure(f"the gang expects {gang.own.slots} GPUs here, PyTorch sees {accelerator.count}")
    described: dict[str, Any] = {"name": gang.name, "nodes": len(gang.members), "node": gang.own.node}
    described |= {"leader": gang.leader.node, "launcher": config.launcher, "joined": False}
    result.environment["gang"] = described
    with tempfile.TemporaryDirectory(prefix="gang-", dir=os.environ.get("GPUVAL_WORK_DIR")) as name:
        folder = Path(name)
        address = own_address(gang, config.join_seconds)
        os.environ.update(_environment(os.environ, gang, accelerator, folder, address))
        nccl_log.ask(os.environ, folder)
        if isinstance(config, CollectivesConfig):
            os.environ["NCCL_DEBUG_SUBSYS"] += ",TUNING"  # logs a line for each call: too many in a training
            os.environ.update(collectives.fabric_environment(config, gang))
        membership.introduce(gang, f" on {accelerator.kind}")
        expected = set(getattr(config, "expect_network", ()))
        expects_rdma = bool(expected) and expected.isdisjoint(OVER_TCP)
        checks = HostChecks(gang, config.launcher == "deepspeed", expects_rdma=expects_rdma)
        try:
            member = GangWork(gang, config, accelerator, folder, result)
            _take_part(member, arguments, checks)
        except (StoppedError, WorkloadFailure, WorkloadCrash) as error:
            result.environment["gang"] = described  # with a rank's failure, that of the result as last written
            collectives.add_failure(result)
            checks.end()
            checks.add_to(result)
            result.write()
            if isinstance(error, StoppedError):
                raise WorkloadCrash(checks.explain(f"the gang has ended: {error}")) from None
            raise type(error)(checks.explain(str(error))) from None
        except BaseException:  # a signal, or a defect
            collectives.add_failure(result)
            with suppress(OSError):
                result.write()
            raise
        environment = dict(result.environment)
        launch.take_outcome(result, folder)
        result.environment.update(environment)
        if os.environ.get(FABRIC_VARIABLE) == NVLINK:
            collectives.name_after_nvlink(result)
        checks.end()
        checks.add_to(result)


def _environment(
    environ: Mapping[str, str], gang: Gang, accelerator: TorchDevices, folder: Path, address: str
) -> dict[str, str]:
    """Return the variables to add to this process's environment for the ranks, which listen at the IP ``address`` and
    leave their files in ``folder``. Threads, accelerator and interfaces that ``environ`` sets stay."""
    defaults = {
        "OMP_NUM_THREADS": str(max(1, launch.available_cores() // gang.own.slots)),
        "DS_ACCELERATOR": accelerator.kind,  # DeepSpeed would use any accelerator that it finds
    }
    defaults |= interface_environment(gang, address, with_nccl=accelerator.kind == "cuda")
    variables = {name: value for name, value in defaults.items() if name not in environ}
    count = {"GPUVAL_GPU_COUNT": str(gang.own.slots)} if accelerator.is_gpu else {}
    return {**variables, **count, launch.RANK_DIRECTORY_VARIABLE: str(folder), NODES_VARIABLE: str(len(gang.members))}


def _take_part(member: GangWork, arguments: list[str], checks: HostChecks) -> None:
    """Join the gang and run the work. ``environment.gang.joined`` in the result tells whether the work has begun."""
    gang, config, result, folder = member.gang, member.config, member.result, member.folder
    described = result.environment["gang"]
    membership.check_port(gang, gang.port, "gpuval_gang_port")
    limits = ChannelLimits(join_seconds=config.join_seconds, stall_seconds=stall_seconds(os.environ))
    bring: dict[str, Any] = {"torch": torch.__version__, "python": sys.executable}
    module = RANKS[type(config)]
    work: _RankLauncher = _OverSsh(member, module) if config.launcher == "deepspeed" else _ByTorchrun(member, module)
    if isinstance(config, CollectivesConfig) and config.tool != "torch":
        work = _ByMpi(member, config, work)
    with ExitStack() as stack:
        bring.update(work.begin(stack))
        bring["host"] = checks.begin(stack)
        stopper = launching.Stopper(work.stop)
        member.channel = stack.enter_context(
            membership.taking_part(gang, described, limits, bring, lambda: launching.beats_of(folder, gang), stopper)
        )
        signal.signal(signal.SIGTERM, _end_by_signal)  # else this member would count as lost
        try:
            brought = membership.join(member.channel, gang)
            stack.enter_context(progress_printer(work.progress))
            _compare(gang, brought, config)
            described["joined"] = True
            result.write()  # a member that is killed from here on has joined
            checks.ask([report.get("host") for report in brought])
            work.run(brought, arguments, stopper)
            member.channel.end(None, membership.FAREWELL_SECONDS)
        except (WorkloadFailure, WorkloadCrash, SystemExit) as error:
            rank_failure = launch.first_failure(folder)  # a rank's own message explains more than its exit
            stop = stopper.stop if isinstance(error, (launch.StallError, SystemExit)) else None
            if isinstance(error, SystemExit) and not stop:
                wrong_values.add_to(result)
                with suppress(OSError):
                    result.write()  # before the last message: KILL may follow soon
                raise
            try:
                _report_end(member.channel, gang, error, rank_failure)
            except StoppedError as stopped:
                stop = stopped.stop
            if rank_failure and stop:
                described["stopped_by"] = stop.node
            launch.take_failure(result, folder)
            if stop:
                raise StoppedError(stop) from None
            raise
        result.environment.update(work.environment)


def _end_by_signal(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _report_end(channel: ControlChannel, gang: Gang, error: BaseException, rank_failure: Mapping | None) -> None:
    """Report to the gang why this node ends and which node is at fault. ``rank_failure``: note of this node's rank that
    failed first; if it is about ranks of one node, that node is at fault, if about several nodes, none."""
    node: str | None = OWN
    message, weight = str(error), EFFECT
    if rank_failure:
        about = {gang.members[gang.owner(rank)[0]].node for rank in rank_failure["about"]}
        message, weight, node = rank_failure["message"], CAUSE, about.pop() if len(about) == 1 else None
    elif isinstance(error, SharedError):
        weight = SHARED
    elif isinstance(error, (launch.KilledError, WorkloadFailure)):
        weight = CAUSE
    channel.end(message, membership.FAREWELL_SECONDS, weight=weight, node=node)


def _compare(gang: Gang, brought: list[dict], config: GangConfig) -> None:
    """Raise ``SharedError`` if a member's PyTorch version, or path of Python for DeepSpeed, is not the leader's."""
    compared = ["torch"] + (["python"] if config.launcher == "deepspeed" else [])
    for member, versions in zip(gang.members, brought):
        for component in compared:
            if versions[component] != brought[0][component]:
                raise SharedError(
                    f"{member.node} has {component} {versions[component]}, {gang.leader.node} has "
                    f"{brought[0][component]}: a gang needs the same everywhere"
                )


class _RankLauncher(ABC):
    """Starts the ranks, which run ``module``, on this node. ``begin`` returns data for the greeting to all members."""

    environment: Mapping[str, str] = {}

    def __init__(self, member: GangWork, module: str) -> None:
        self._member, self._gang, self._folder, self._module = member, member.gang, member.folder, module

    def begin(self, _stack: ExitStack) -> dict[str, Any]:
        return {}

    def progress(self) -> str:
        return progress(launching.beats_of(self._folder, self._gang), self._gang.own.slots)

    @abstractmethod
    def run(self, brought: list[dict], arguments: list[str], stopper: launching.Stopper) -> None:
        """Run the work to its end; ``brought``: data of each member from its greeting, ``arguments``: the ranks'."""

    @abstractmethod
    def stop(self) -> None:
        """End the ranks, since the gang has ended."""


class _ByTorchrun(_RankLauncher):
    """Starts the ranks by torchrun on every member."""

    def __init__(self, member: GangWork, module: str) -> None:
        super().__init__(member, module)
        self._returned = threading.Event()
        os.environ[launch.LAUNCHER_VARIABLE] = str(os.getpid())

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Thread(target=self._end_hard, name="end of the gang", daemon=True).start()

    def run(self, _brought: list[dict], arguments: list[str], stopper: launching.Stopper) -> None:
        rendezvous, self._stopper = launching.torchrun_place(self._gang), stopper
        accelerator, slots = self._member.accelerator, self._gang.own.slots
        try:
            launch.torchrun(rendezvous, self._module, arguments, accelerator, slots, self._folder, stopper)
        finally:
            self._returned.set()
            signal.signal(signal.SIGTERM, _end_by_signal)  # torchrun has replaced the handler

    def _end_hard(self) -> None:
        """End the program if torchrun does not: the last message was sent, and the ranks end with this process."""
        stop, result = self._stopper.stop, self._member.result
        if stop is None or self._returned.wait(HARD_SECONDS):
            return
        result.environment["gang"]["stopped_by"] = stop.node
        wrong_values.add_to(result)
        rank_failure = launch.first_failure(self._folder)
        reason = f"{rank_failure['message']}; " if rank_failure else ""
        with suppress(OSError):
            result.write()
        print(f"crash: {reason}the gang has ended: {stop.message}", file=sys.stderr, flush=True)
        os._exit(EXIT_CRASH)


class _OverSsh(_RankLauncher):
    """Starts the ranks by DeepSpeed's launcher on the leader; the other members run an SSH server and wait."""

    def __init__(self, member: GangWork, module: str = "") -> None:
        super().__init__(member, module)
        self._keys = membership.keys_folder(os.environ)
        self._launcher: launching.DeepSpeedLauncher | None = None

    def begin(self, stack: ExitStack) -> dict:
        if self._module:
            launching.check_deepspeed(self._gang)
            stack.enter_context(Forwarder(self._folder / launching.OUTPUT_FOLDER))
        return {"host_key": membership.serve_ssh(self._gang, self._folder, self._keys, stack).host_key}

    def stop(self) -> None:
        if self._launcher:
            self._launcher.end()

    def run(self, brought: list[dict], arguments: list[str], stopper: launching.Stopper) -> None:
        if self._gang.is_leader:
            self._launcher = launching.DeepSpeedLauncher(self._gang, self._folder, self.ssh_options(brought))
            self._launcher.start(self._module, arguments)
        with stopper:
            while not self._is_over():
                time.sleep(POLL_SECONDS)
                stopper.check()

    def ssh_options(self, brought: list[dict]) -> list[str]:
        """Return ssh's options for the members' SSH servers; ``brought``: data of each member, with its host key."""
        host_keys = [report["host_key"] for report in brought]
        return client(self._gang, self._folder, self._keys / membership.KEY_FILE, host_keys)

    def _is_over(self) -> bool:
        """Whether the work on this node is done. Raises ``KilledError`` for a killed rank, else the rank's error."""
        code = self._launcher.poll() if self._launcher else 0
        launcher_end = f"DeepSpeed's launcher ended with exit code {code}"
        outcome = self._folder / launch.OUTCOME_FILE
        if outcome.exists():  # all nodes have an outcome when the first rank ends
            if code:
                raise WorkloadCrash(launcher_end)
            return code is not None
        notes = launch.notes_of(self._folder, launch.FAILURE_FILE) + launch.notes_of(self._folder, launch.CRASH_FILE)
        if notes:
            earliest = min(notes, key=lambda note: note["time"])
            raise WorkloadCrash(f"rank {earliest['rank']} broke off with {earliest['message']}")
        for local_rank, (beat, state) in launching.beats_of(self._folder, self._gang).items():
            if state in GONE and not outcome.exists():  # the rank may have succeeded meanwhile
                rank = self._gang.first_rank(self._gang.index) + local_rank
                raise launch.KilledError(
                    f"rank {rank} (pid {beat.pid}) was killed: look in the kernel log for an out-of-memory kill"
                )
        if self._launcher and code is not None:
            raise WorkloadCrash(f"{launcher_end} and no rank has left a result")
        return False


class _ByMpi(_RankLauncher):
    """Runs nccl-tests by mpirun on the leader, if all members have them; then the leader sends the result to all.
    Without a valid answer, ``otherwise`` runs PyTorch's measurement, unless only nccl-tests were requested."""

    def __init__(self, member: GangWork, config: CollectivesConfig, otherwise: _RankLauncher) -> None:
        super().__init__(member, "")
        self._config, self._otherwise = config, otherwise
        self._active: _RankLauncher = self
        self._over_ssh = otherwise if isinstance(otherwise, _OverSsh) else _OverSsh(member)
        self._tools: mpi.Tools | None = None
        self.environment: dict[str, str] = {"tool": "nccl-tests"}

    def begin(self, stack: ExitStack) -> dict:
        self._tools, why = mpi.find(os.environ, self._config.only)
        if not self._member.accelerator.is_gpu:
            self._tools, why = None, "it measures GPUs"
        brings = {}
        if self._tools or self._over_ssh is self._otherwise:
            try:
                brings = self._over_ssh.begin(stack)
            except WorkloadFailure as error:
                if self._over_ssh is self._otherwise or self._config.tool == "nccl-tests":
                    raise
                self._tools, why = None, str(error)
        return {**brings, "tools": self._tools and asdict(self._tools), "no_tools": why}

    def stop(self) -> None:
        if self._active is not self:  # the measurement checks the stopper itself
            self._active.stop()

    def progress(self) -> str:
        return "" if self._active is self else super().progress()  # a program of nccl-tests is stopped at its deadline

    def run(self, brought: list[dict], arguments: list[str], stopper: launching.Stopper) -> None:
        why = mpi.differing(brought, self._gang)
        if not why:
            with stopper:
                own = self._lead(brought, stopper) if self._gang.is_leader else ("", "")
                words = membership.meet(self._member.channel, "end of nccl-tests", json.dumps(own), stopper.check)
            text, why = json.loads(words[0])
            if text:  # completed with the networks in this node's logs, it becomes the node's outcome
                result, slots = WorkloadResult.from_json(text), self._gang.own.slots
                collectives.complete(result, self._config, self._member.accelerator, len(self._gang.members), slots)
                (self._folder / launch.OUTCOME_FILE).write_text(result.to_json(), encoding="utf-8")
        if not why:
            return
        if self._config.tool == "nccl-tests":
            raise SharedError(f"nccl-tests gave no answer: {why}")
        print(f"torch measures, not nccl-tests: {why}", flush=True)
        self.environment.update(tool="torch", no_nccl_tests=why)
        if self._over_ssh is not self._otherwise:
            processes.end_below()  # a rank that hangs would keep its GPU
        self._active = self._otherwise
        self._otherwise.run(brought, arguments, stopper)

    def _lead(self, brought: list[dict], stopper: launching.Stopper) -> tuple[str, str]:
        """Run nccl-tests on the leader; return the result as JSON, or an empty text and why there is no result."""
        assert self._tools  # all members have the tools, so the leader has
        options = self._over_ssh.ssh_options(brought)
        launching.put(self._folder / "hostfile", launching.hostfile(self._gang))
        result, why = mpi.measure(
            self._tools, self._gang, self._folder, options, lambda: stopper.stop is not None,
            self._config.seconds * 2, self._config.most_bytes,
        )  # fmt: skip
        stopper.check()
        return (result.to_json() if result else ""), why


if __name__ == "__main__":
    sys.exit(run_workload(main))
