"""Finds the vendor tools for the node, runs them one after another within the stage's time, reports their answers."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..common.arguments import positive_float, workload_parser
from ..common.command import ExecutableSearch
from ..common.result import WorkloadFailure, WorkloadResult
from . import agfhc, collectives, dcgm, hl_qual, rvs
from .answer import FAIL, INAPPLICABLE, LEFT_OUT, PASS, SKIPPED, UNANSWERED, ToolAnswer, ToolTask

MAX_NOTES, MAX_NOT_RUN = 6, 16
MAX_MESSAGE = 4000
_KFD_NODES = "sys/class/kfd/kfd/topology/nodes"
_DEVICES = {"nvidia": ("dev", r"nvidia\d+"), "gaudi": ("dev/accel", r"accel\d+")}
_PRESENT = {"nvidia": "dev/nvidiactl", "amd": "dev/kfd", "gaudi": "dev/accel"}

TITLES = {UNANSWERED: "no answer", SKIPPED: "incomplete", LEFT_OUT: "left out", INAPPLICABLE: "left out"}


@dataclass(frozen=True)
class Tool:
    """A vendor tool: vendor of the accelerators, names of executables, share of the time (``weight``), function."""

    name: str
    vendor: str
    executables: tuple[str, ...]
    weight: int
    run: Callable[[ToolTask], ToolAnswer]


TOOLS = (
    Tool("nccl_tests", "nvidia", tuple(collectives.BINARIES.values()), 2, collectives.run),
    Tool("dcgm", "nvidia", (dcgm.BINARY,), 3, dcgm.run),
    Tool("rccl_tests", "amd", tuple(collectives.BINARIES.values()), 1, collectives.run),
    Tool("rvs", "amd", (rvs.BINARY,), 2, rvs.run),
    Tool("agfhc", "amd", (agfhc.BINARY,), 3, agfhc.run),
    Tool("hl_qual", "gaudi", (hl_qual.BINARY,), 1, hl_qual.run),
)
NAMES = ", ".join(tool.name for tool in TOOLS)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = workload_parser("vendor_tools", f"Run those of {NAMES} that are there and fit the node.")
    parser.add_argument("--tools", type=_tools, default="auto", help=f"auto, or some of {NAMES}")
    parser.add_argument("--level", type=int, choices=range(1, 5), default=2, help="of tests of dcgmi diag, RVS, AGFHC")
    parser.add_argument("--seconds", type=positive_float, default=300.0, help="for all tools together")
    parser.add_argument("--required", action="store_true", help="requested tests must run")
    parser.add_argument("--path", type=_folders, default=[], help="folders to search first, separated by colons")
    return parser.parse_args(list(arguments))


def _tools(text: str) -> list[str]:
    """Return the tools that the text of ``--tools`` names; empty for auto: all that fit the node and are available."""
    names = [] if text == "auto" else text.replace(",", " ").split()
    if text != "auto" and (not names or set(names) - {tool.name for tool in TOOLS}):
        raise argparse.ArgumentTypeError(f"want auto or some of {NAMES}, not {text!r}")
    return names


def _folders(text: str) -> list[Path]:
    return [Path(folder) for folder in text.split(":") if folder]


def vendor(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """Return ``nvidia``, ``amd``, ``gaudi`` or ``cpu``: by GPUVAL_ACCELERATOR, else by the node's devices."""
    declared = environ.get("GPUVAL_ACCELERATOR") or "auto"
    if declared != "auto":
        return declared
    return next((name for name, device in _PRESENT.items() if (root / device).exists()), "cpu")


def gpu_count(environ: Mapping[str, str], name: str, root: Path = Path("/")) -> int | None:
    """Return the expected number of GPUs, GPUVAL_GPU_COUNT, else the number of devices; None if unknown."""
    text = (environ.get("GPUVAL_GPU_COUNT") or "").strip()
    if text.isdecimal():
        return int(text)
    try:
        if name == "amd":
            nodes = (root / _KFD_NODES).iterdir()
            return sum((node / "gpu_id").read_text().strip() not in ("", "0") for node in nodes) or None
        folder, pattern = _DEVICES[name]
        return sum(bool(re.fullmatch(pattern, entry.name)) for entry in (root / folder).iterdir()) or None
    except (KeyError, OSError):
        return None


def main(result: WorkloadResult) -> None:
    """Run the vendor tools. Raises ``WorkloadFailure`` if a tool names a fault. ``vendor_tools_failed_count`` includes
    tools without an answer; the message names them, like tests that did not run. ``vendor_tools_answered_count`` is
    left out if evidence is missing: a tool skipped its hardware tests, or a required test did not run."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that running tools are ended too
    options = parse_arguments(sys.argv[1:])
    start = time.monotonic()
    kind = vendor(os.environ)
    search = ExecutableSearch(options.path, os.environ)
    selected = [tool for tool in TOOLS if (tool.name in options.tools if options.tools else tool.vendor == kind)]
    present = [tool for tool in selected if any(search.find(name) for name in tool.executables)]
    absent = [tool for tool in selected if tool not in present]
    result.environment.update(
        accelerator=kind,
        level=options.level,
        tools=[tool.name for tool in present],
        absent_tools=[tool.name for tool in absent],
    )
    answers = {
        tool.name: ToolAnswer.left_out(f"{tool.executables[0]} was found nowhere")
        for tool in absent
        if options.tools or not present
    }
    count = gpu_count(os.environ, kind)
    # The tools' output is also in the stage's log, which outlives this folder.
    folder = Path(os.environ.get("GPUVAL_WORK_DIR") or tempfile.mkdtemp(prefix="gpuval-"), "vendor_tools")
    for index, tool in enumerate(present):
        seconds_left = start + options.seconds - time.monotonic()
        share = seconds_left * tool.weight / sum(later.weight for later in present[index:])
        job = ToolTask(tool.name, search, count, options.level, time.monotonic() + share, folder)
        result.report(f"{tool.name} runs, for at most {share:.0f} s")
        answer = tool.run(job) if job.seconds_left() > 0 else ToolAnswer.none("no time was left for it")
        print(f"{tool.name}: {answer.verdict}: {_words(answer)}", flush=True)
        answers[tool.name] = answer
        for figure in answer.figures:
            result.add_metric(figure.name[:96], figure.value, figure.unit, figure.scope)
        for curve in answer.curves:
            result.add_series(*curve, x_unit="bytes")
    _conclude(result, answers, options.required)
    if not selected:
        result.message = f"no vendor tool is for a node of kind {kind}"
    elif present and absent:
        result.message += f"; not on this node: {', '.join(tool.name for tool in absent)}"
    if any(answer.verdict == FAIL for answer in answers.values()):
        raise WorkloadFailure(result.message)


def _conclude(result: WorkloadResult, answers: dict[str, ToolAnswer], is_required: bool) -> None:
    verdicts = Counter(answer.verdict for answer in answers.values())
    not_run = {
        name: answer.not_run or [name]
        for name, answer in answers.items()
        if answer.not_run or answer.verdict in (LEFT_OUT, SKIPPED)
    }
    answered = verdicts[PASS] + verdicts[FAIL]
    result.add_metric("vendor_tools_run_count", answered + verdicts[UNANSWERED] + verdicts[SKIPPED], "count")
    result.add_metric("vendor_tools_failed_count", verdicts[FAIL] + verdicts[UNANSWERED], "count")
    result.add_metric("vendor_tools_left_out_count", verdicts[LEFT_OUT] + verdicts[INAPPLICABLE], "count")
    result.add_metric("vendor_tools_not_run_count", sum(map(len, not_run.values())), "count")
    if not verdicts[SKIPPED] and not (is_required and not_run):
        result.add_metric("vendor_tools_answered_count", answered, "count")
    result.environment["not_run"] = {name: tests[:MAX_NOT_RUN] for name, tests in not_run.items()}
    # Problems come first: the message may be cut.
    order = (FAIL, UNANSWERED, SKIPPED, LEFT_OUT, INAPPLICABLE, PASS)
    in_order = sorted(answers.items(), key=lambda item: order.index(item[1].verdict))
    result.message = "; ".join(f"{name}: {_words(answer)}" for name, answer in in_order)[:MAX_MESSAGE]


def _words(answer: ToolAnswer) -> str:
    if answer.verdict == FAIL:
        more = len(answer.faults) - MAX_NOTES
        words = "; ".join(map(str, answer.faults[:MAX_NOTES])) + (f" and {more} more" if more > 0 else "")
        words = f"FAIL: {words}" + (f"; no answer: {answer.reason}" if answer.reason else "")
    elif answer.verdict == PASS:
        notes = "; ".join(answer.notes[:MAX_NOTES])
        words = answer.summary + (f" ({notes})" if notes else "")
    else:
        words = f"{TITLES[answer.verdict]}: {answer.reason}"
    return words + (f"; not run: {', '.join(answer.not_run[:MAX_NOT_RUN])}" if answer.not_run else "")
