"""Runs nccl-tests or rccl-tests across several nodes: Open MPI starts a rank per GPU, over the nodes' SSH servers.

vendor_tools/collectives.py parses their output, as on one node.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..common.command import ExecutableSearch, run
from ..common.result import WorkloadResult
from ..vendor_tools import collectives
from ..vendor_tools.answer import FAIL, PASS, ToolAnswer, ToolFigure, settle
from . import wrong_values
from .config import SMALLEST_BYTES
from .members import Gang
from .membership import interface_of, network_of

FOLDER_VARIABLE = "NCCL_TESTS_DIR"
PREFIX = "gang"
#: File names of the programs of nccl-tests, by the collective's name in metrics.
PROGRAMS = {"send_receive" if name == "sendrecv" else name: path for name, path in collectives.BINARIES.items()}
#: Largest message sizes to try: a program that does not end in time with one runs with the next.
LARGEST_BYTES = (8 << 30, 1 << 30, 128 << 20)
START_SECONDS = 60.0
VERSION_SECONDS = 20.0


@dataclass(frozen=True)
class Tools:
    """Path of mpirun, and ``{collective: path}`` of nccl-tests' programs: all must be the same on all nodes."""

    mpirun: str
    programs: Mapping[str, str]


def find(environ: Mapping[str, str], only: Sequence[str] = ()) -> tuple[Tools | None, str]:
    """Return mpirun and nccl-tests of this node, for all collectives or those in ``only``; else None and the reason."""
    folders = [Path(environ[FOLDER_VARIABLE])] if environ.get(FOLDER_VARIABLE) else []
    places = ExecutableSearch(folders, environ)
    mpirun = places.find("mpirun")
    if mpirun is None:
        return None, "there is no mpirun on PATH"
    names = only or tuple(PROGRAMS)
    path_by_name = {name: places.find(PROGRAMS[name]) for name in names if name in PROGRAMS}
    lacking = [PROGRAMS.get(name, name) for name in names if not path_by_name.get(name)]
    if lacking:
        return None, f"{', '.join(lacking)} is neither in {FOLDER_VARIABLE}, on PATH, nor in the usual places"
    alone = [path.name for path in path_by_name.values() if path and not is_for_mpi(path)]
    if alone:
        return None, f"{', '.join(alone)} was built without MPI (make MPI=1)"
    if not is_open_mpi(mpirun):
        return None, f"{mpirun} is not that of Open MPI"
    return Tools(str(mpirun), {name: str(path) for name, path in path_by_name.items()}), ""


def is_for_mpi(path: Path) -> bool:
    """Whether a program is linked against MPI: without MPI, every rank would measure its own GPU and report success."""
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
    version = run([mpirun, "--version"], VERSION_SECONDS).output
    return "Open MPI" in version or "OpenRTE" in version


def differing(brought: Sequence[Mapping], gang: Gang) -> str:
    """Return why the gang cannot use nccl-tests; empty if it can. ``brought``: each member's data, with ``tools``."""
    for member, report in zip(gang.members, brought):
        if not report.get("tools"):
            return f"{member.node} has no nccl-tests: {report.get('no_tools') or 'none were looked for'}"
        if report["tools"] != brought[0]["tools"]:
            return f"{member.node} has its nccl-tests or mpirun elsewhere than {gang.leader.node}"
    return ""


def command(mpirun: str, gang: Gang, hostfile: Path, ssh_options: Sequence[str]) -> list[str]:
    """Return mpirun's command for a process per slot of every member, without program and arguments. The leader starts
    every daemon (no tree): other members cannot log in to each other. For Open MPI 5's names see
    :func:`environment`."""
    settings = {
        "plm_rsh_agent": "ssh",
        "plm_rsh_args": _ssh_arguments(gang, ssh_options),
        "plm_rsh_no_tree_spawn": "1",
        "pml": "ob1",
        "btl": "tcp,self",
    }
    # Members' interfaces may have different names, but each knows which of them is in a network.
    network = network_of(gang.own.address, [member.address for member in gang.members])
    interface = network or interface_of(gang.own.address)
    if interface:
        settings |= {"oob_tcp_if_include": interface, "btl_tcp_if_include": interface}
    return [
        mpirun,
        *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
        *("--hostfile", str(hostfile)),
        *("-np", str(gang.world_size)),
        *("--map-by", "slot", "--bind-to", "none"),
        *(word for name, value in settings.items() for word in ("--mca", name, value)),
    ]


def environment(gang: Gang, ssh_options: Sequence[str]) -> dict[str, str]:
    """Return the settings of :func:`command` as variables for Open MPI 5."""
    return {
        "PRTE_MCA_plm_ssh_agent": "ssh",
        "PRTE_MCA_plm_ssh_args": _ssh_arguments(gang, ssh_options),
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    }


def _ssh_arguments(gang: Gang, ssh_options: Sequence[str]) -> str:
    return " ".join([*ssh_options, "-p", str(gang.ssh_port)])  # Open MPI splits at blanks, without quotes


def arguments(largest_bytes: int) -> list[str]:
    """Return nccl-tests' arguments: sizes from 8 bytes doubled to ``largest_bytes``, a GPU per rank, with checks."""
    return ["-b", str(SMALLEST_BYTES), "-e", str(largest_bytes), "-f", "2", "-g", "1", "-c", "1"]


def measure(
    tools: Tools, gang: Gang, folder: Path, ssh_options: Sequence[str], stopped: Callable[[], bool],
    seconds: float, most_bytes: int | None,
) -> tuple[WorkloadResult | None, str]:  # fmt: skip
    """Measure all collectives by nccl-tests in ``seconds`` altogether; return the result, or None and the reason why
    there is no valid answer. Wrong elements are a valid answer, whatever else is wrong. ``folder`` has the hostfile;
    ``stopped`` tells whether the gang has ended; ``most_bytes``: largest message size."""
    sizes = [most_bytes] if most_bytes else []
    sizes += [size for size in LARGEST_BYTES if size < (most_bytes or size + 1)]
    answers: dict[str, ToolAnswer] = {}
    deadline = time.monotonic() + seconds
    for number, (name, program) in enumerate(tools.programs.items()):
        while True:
            share = max(5.0, (deadline - time.monotonic()) * 2 / (len(tools.programs) - number + 1))
            argv = [*command(tools.mpirun, gang, folder / "hostfile", ssh_options), program, *arguments(sizes[0])]
            print(f"{name}: {shlex.join(argv)}", flush=True)
            ended = run(
                argv,
                share + START_SECONDS,
                environment={**os.environ, **environment(gang, ssh_options)},
                echo=lambda line: print(line, flush=True),
                say=lambda text: print(f"nccl-tests: {text}", flush=True),
                stopped=stopped,
            )
            table = collectives.parse(ended.output)
            answer = settle(ended, collectives.judge(table, name, gang.world_size, PREFIX))
            if answer.verdict == FAIL and not table.wrong and not table.reported_failed:
                answer = ToolAnswer.none(str(answer.faults[0]))  # the node at fault is unknown
            if stopped() or not ended.timed_out or len(sizes) == 1 or answer.verdict == FAIL:
                break
            print(f"{name} up to {sizes[0]} bytes takes too long: up to {sizes[1]} bytes now", flush=True)
            sizes.pop(0)
        if answer.verdict == PASS and not any(figure.name == f"{PREFIX}_ranks_count" for figure in answer.figures):
            answer = ToolAnswer.none("does not say over which ranks")
        if answer.verdict == FAIL:
            errors = errors_of([*answers.values(), answer])
            wrong_values.keep(gang.first_rank(0), f"{PREFIX}_collective_error_count", errors)
        elif answer.verdict != PASS and any(figure.verdict == FAIL for figure in answers.values()):
            break
        elif answer.verdict != PASS:
            return None, f"{name}: {answer.reason}"
        answers[name] = answer
    return result_of(answers, gang)


def errors_of(answers: Iterable[ToolAnswer]) -> int:
    """Return the number of wrong elements by nccl-tests; a program that fails without a count adds 1."""
    return int(sum(max(answer.verdict == FAIL, _total(answer.figures, "error_count")) for answer in answers))


def _total(figures: Iterable[ToolFigure], name: str) -> float:
    return sum(figure.value for figure in figures if figure.name == f"{PREFIX}_{name}")


def result_of(answers: Mapping[str, ToolAnswer], gang: Gang) -> tuple[WorkloadResult | None, str]:
    """Return nccl-tests' figures, named as those of PyTorch; None and the reason if results were not checked."""
    figures = [figure for answer in answers.values() for figure in answer.figures]
    errors = errors_of(answers.values())
    unchecked = int(_total(figures, "unchecked_count"))
    if unchecked and not errors:
        return None, f"{unchecked} results were not checked (#wrong N/A)"
    result = WorkloadResult()
    result.add_metric("gang_nodes_count", len(gang.members), "count")
    result.add_metric("gang_absent_nodes_count", 0, "count")  # a table with fewer ranks is no valid answer
    result.add_metric("gang_processes_count", gang.world_size, "count")
    for figure in figures:
        if figure.name.endswith(("_bus_bytes_per_second", "_latency_seconds")) and "_in_place_" not in figure.name:
            result.add_metric(figure.name, figure.value, figure.unit)
    largest = [figure.value for figure in figures if figure.name.endswith("_largest_bytes")]
    if largest:
        result.add_metric(f"{PREFIX}_collective_largest_bytes", min(largest), "bytes")
    result.add_metric(f"{PREFIX}_collective_error_count", errors, "count")
    for curve in (curve for answer in answers.values() for curve in answer.curves):
        result.add_series(*curve, x_unit="bytes")
    return result, ""
