"""nccl-tests and rccl-tests across a gang: Open MPI starts a rank per GPU, over the members' SSH servers.

What they print is read by the same parser as on one node (vendor_tools/collectives.py).
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..common.result import Result
from ..vendor_tools import collectives
from ..vendor_tools.answer import FAIL, PASS, Answer
from ..vendor_tools.places import Places
from . import wrong
from .config import SMALLEST_BYTES
from .members import Gang
from .network import interface_of, network_of

FOLDER_VARIABLE = "NCCL_TESTS_DIR"
PREFIX = "gang"
#: The collectives by their names in the figures, with nccl-tests' programs.
PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
    "broadcast": "broadcast_perf",
    "send_receive": "sendrecv_perf",
}
#: What does not end in time with one largest size is tried with the next.
LARGEST_BYTES = (8 << 30, 1 << 30, 128 << 20)
START_SECONDS = 60.0
VERSION_SECONDS = 20.0
DELIVERY_SECONDS = 60.0
MAX_OUTPUT = 16 << 20
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Tools:
    """Where mpirun and the programs lie, by collective."""

    mpirun: str
    programs: Mapping[str, str]

    def to_json(self) -> dict:
        """As a member tells it to the others: all have to have the same."""
        return {"mpirun": self.mpirun, "programs": dict(self.programs)}


def find(environ: Mapping[str, str], only: Sequence[str] = ()) -> tuple[Tools | None, str]:
    """The tools of this node for all collectives, or those named; else None, and why not."""
    first = [Path(environ[FOLDER_VARIABLE])] if environ.get(FOLDER_VARIABLE) else []
    places = Places(first, environ)
    mpirun = places.find("mpirun")
    if mpirun is None:
        return None, "there is no mpirun on PATH"
    wanted = only or tuple(PROGRAMS)
    found = {name: places.find(PROGRAMS[name]) for name in wanted if name in PROGRAMS}
    lacking = [PROGRAMS.get(name, name) for name in wanted if not found.get(name)]
    if lacking:
        return None, f"{', '.join(lacking)} is neither in {FOLDER_VARIABLE}, on PATH, nor in the usual places"
    alone = [path.name for path in found.values() if not is_for_mpi(path)]
    if alone:
        return None, f"{', '.join(alone)} was built without MPI (make MPI=1)"
    if not is_open_mpi(mpirun):
        return None, f"{mpirun} is not that of Open MPI"
    return Tools(str(mpirun), {name: str(path) for name, path in found.items()}), ""


def is_for_mpi(path: Path) -> bool:
    """Whether a program is linked against MPI: else every rank measures its own GPU, and says it went well."""
    try:
        with path.open("rb") as file:
            before = b""
            while part := file.read(1 << 20):
                if b"libmpi" in before + part:
                    return True
                before = part[-16:]
    except OSError:
        pass
    return False


def is_open_mpi(mpirun: Path) -> bool:
    with suppress(OSError, subprocess.TimeoutExpired):
        version = subprocess.run(
            [str(mpirun), "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
        )
        return "Open MPI" in version.stdout or "OpenRTE" in version.stdout
    return False


def differing(brought: Sequence[Mapping], gang: Gang) -> str:
    """Why the members' tools cannot be used together; empty where they can."""
    for member, theirs in zip(gang.members, brought):
        if not theirs.get("tools"):
            return f"{member.node} has no nccl-tests: {theirs.get('no_tools') or 'none were looked for'}"
        if theirs["tools"] != brought[0]["tools"]:
            return f"{member.node} has its nccl-tests or mpirun elsewhere than {gang.leader.node}"
    return ""


def command(mpirun: str, gang: Gang, hostfile: Path, ssh_options: Sequence[str]) -> list[str]:
    """How mpirun starts a process per slot of every member. It follows the program and its arguments.

    Every daemon is started from here (no tree), since the others cannot log in to each other. Open MPI 5 calls the same
    settings plm_ssh: :func:`environment` has those.
    """
    settings = {
        "plm_rsh_agent": "ssh",
        "plm_rsh_args": _ssh_arguments(gang, ssh_options),
        "plm_rsh_no_tree_spawn": "1",
        "pml": "ob1",
        "btl": "tcp,self",
    }
    # The others' interfaces may have other names; all of them know which of theirs is in a network.
    network = network_of(gang.own.address, [member.address for member in gang.members])
    way = network or interface_of(gang.own.address)
    if way:
        settings |= {"oob_tcp_if_include": way, "btl_tcp_if_include": way}
    return [
        mpirun,
        *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
        *("--hostfile", str(hostfile)),
        *("-np", str(gang.world_size)),
        *("--map-by", "slot", "--bind-to", "none"),
        *(word for name, value in settings.items() for word in ("--mca", name, value)),
    ]


def environment(gang: Gang, ssh_options: Sequence[str]) -> dict[str, str]:
    """The settings of :func:`command` as Open MPI 5 wants them."""
    return {
        "PRTE_MCA_plm_ssh_agent": "ssh",
        "PRTE_MCA_plm_ssh_args": _ssh_arguments(gang, ssh_options),
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    }


def _ssh_arguments(gang: Gang, ssh_options: Sequence[str]) -> str:
    return " ".join([*ssh_options, "-p", str(gang.ssh_port)])  # split at blanks, without quotes


def arguments(largest_bytes: int) -> list[str]:
    """Of each program: sizes doubled from 8 bytes, one GPU per rank, every element checked."""
    return ["-b", str(SMALLEST_BYTES), "-e", str(largest_bytes), "-f", "2", "-g", "1", "-c", "1"]


class Bench:
    """Runs the programs one after another. ``stopped`` says whether the gang has ended meanwhile."""

    def __init__(
        self, tools: Tools, gang: Gang, folder: Path, ssh_options: Sequence[str], stopped: Callable[[], bool]
    ) -> None:
        self._tools, self._gang, self._folder = tools, gang, folder
        self._ssh_options, self._stopped = list(ssh_options), stopped
        self._process: subprocess.Popen | None = None

    def measure(self, seconds: float, most_bytes: int | None) -> tuple[Result | None, str]:
        """The figures of all collectives; else None, and why they gave no answer that counts.

        Wrong elements are an answer, whatever else is amiss. ``seconds`` is for all together, starting apart.
        """
        sizes = [size for size in LARGEST_BYTES if size < (most_bytes or size + 1)] or []
        sizes = [most_bytes, *sizes] if most_bytes else sizes
        answers: dict[str, Answer] = {}
        deadline = time.monotonic() + seconds
        for done, name in enumerate(self._tools.programs):
            left = len(self._tools.programs) - done
            while True:
                share = max(5.0, (deadline - time.monotonic()) * 2 / (left + 1))
                text, is_late, code = self._run(name, sizes[0], share)
                answer = collectives.judge(collectives.parse(text), name, self._gang.world_size, PREFIX)
                if self._stopped() or not is_late or len(sizes) == 1 or answer.verdict == FAIL:
                    break
                print(f"{name} up to {sizes[0]} bytes takes too long: up to {sizes[1]} bytes now", flush=True)
                sizes.pop(0)
            why = ""
            if is_late:
                why = f"{name}: had not ended after {share + START_SECONDS:.0f} s and was stopped"
            elif answer.verdict != PASS:
                why = answer.reason
            elif not any(one.name == f"{PREFIX}_ranks_count" for one in answer.figures):
                why = f"{name}: it does not say over which ranks"
            elif code:
                why = f"{name}: mpirun ended with exit code {code}"
            if answer.verdict == FAIL:
                wrong.keep(
                    self._gang.first_rank(0), f"{PREFIX}_collective_error_count", errors_of([*answers.values(), answer])
                )
            elif why and any(one.verdict == FAIL for one in answers.values()):
                break
            elif why:
                return None, why
            answers[name] = answer
        return result_of(answers, self._gang)

    def _run(self, name: str, largest_bytes: int, seconds: float) -> tuple[str, bool, int | None]:
        """What a program printed, whether it was stopped at its deadline, and mpirun's exit code."""
        whole = [
            *command(self._tools.mpirun, self._gang, self._folder / "hostfile", self._ssh_options),
            self._tools.programs[name],
            *arguments(largest_bytes),
        ]
        print(f"{name}: {shlex.join(whole)}", flush=True)
        path = self._folder / f"{name}.txt"
        with path.open("wb") as output:
            self._process = subprocess.Popen(
                whole, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, **environment(self._gang, self._ssh_options)},
            )  # fmt: skip
        deadline, is_late = time.monotonic() + seconds + START_SECONDS, False
        while self._process.poll() is None and not self._stopped():
            is_late = time.monotonic() > deadline
            if is_late or path.stat().st_size > MAX_OUTPUT:
                break
            time.sleep(POLL_SECONDS)
        self.end()
        with path.open("rb") as file:
            text = file.read(MAX_OUTPUT).decode("utf-8", "replace")
        print(text[-200_000:], flush=True)
        return text, is_late, self._process.poll()

    def end(self) -> None:
        """End mpirun; the members end what it has started there."""
        process = self._process
        if process and process.poll() is None:
            for word, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
                with suppress(OSError):
                    os.killpg(process.pid, word)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(patience)
                    return


def errors_of(answers: Iterable[Answer]) -> int:
    """How many elements were wrong; of a program that says so and counts none, one."""
    counts = [
        (answer.verdict == FAIL, sum(one.value for one in answer.figures if one.name == f"{PREFIX}_error_count"))
        for answer in answers
    ]
    return int(sum(max(is_wrong, count) for is_wrong, count in counts))


def result_of(answers: Mapping[str, Answer], gang: Gang) -> tuple[Result | None, str]:
    """Their figures under the names that torch's measurement has; None where results were not checked, and why."""
    figures = [figure for answer in answers.values() for figure in answer.figures]
    errors = errors_of(answers.values())
    unchecked = int(sum(figure.value for figure in figures if figure.name == f"{PREFIX}_unchecked_count"))
    if unchecked and not errors:
        return None, f"{unchecked} results were not checked (#wrong N/A)"
    result = Result()
    result.add_metric("gang_nodes_count", len(gang.members), "count")
    result.add_metric("gang_absent_nodes_count", 0, "count")  # a table of fewer ranks is no answer
    result.add_metric("gang_processes_count", gang.world_size, "count")
    for figure in figures:
        if figure.name.endswith(("_bus_bytes_per_second", "_latency_seconds")) and "_in_place_" not in figure.name:
            result.add_metric(figure.name, figure.value, figure.unit)
    largest = [figure.value for figure in figures if figure.name.endswith("_largest_bytes")]
    if largest:
        result.add_metric(f"{PREFIX}_collective_largest_bytes", min(largest), "bytes")
    result.add_metric(f"{PREFIX}_collective_error_count", errors, "count")
    for curve in (curve for answer in answers.values() for curve in answer.curves):
        result.add_series(curve.name, curve.unit, curve.x, curve.y, x_unit="bytes")
    return result, ""


def deliver(gang: Gang, ssh_options: Sequence[str], user: str, variable: str, name: str, text: str) -> list[str]:
    """Write a file into the folder that ``variable`` names on every other member; return nodes not reached."""
    place = shlex.quote(f"/{name}")
    script = f'umask 077; cat > "${variable}"{place}.part && mv "${variable}"{place}.part "${variable}"{place}'
    sending = {}
    for member in gang.members[1:]:
        sending[member.node] = subprocess.Popen(
            ["ssh", *ssh_options, "-p", str(gang.ssh_port), "-l", user, member.address, script],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    for process in sending.values():
        with suppress(OSError):
            process.stdin.write(text.encode())
        with suppress(OSError):
            process.stdin.close()
    deadline, missed = time.monotonic() + DELIVERY_SECONDS, []
    for node, process in sending.items():
        try:
            code = process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if code:
            missed.append(node)
    return missed
