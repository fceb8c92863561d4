"""Find the tools that fit the node, run one after another within the stage's time, hand over what they say."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..common.result import Result, WorkloadFailure
from . import agfhc, collectives, dcgm, hl_qual, rvs
from .answer import FAIL, LEFT_OUT, PASS, Answer
from .config import Config, parse_arguments
from .job import Job
from .places import Places, gpu_count, vendor

MAX_NOTES = 6
MAX_MESSAGE = 4000


@dataclass(frozen=True)
class Tool:
    """A tool: whose accelerators it is for, what its executables are called, its part of the time, how it is run."""

    name: str
    vendor: str
    executables: tuple[str, ...]
    weight: int
    run: Callable[[Job], Answer]


TOOLS = (
    Tool("nccl_tests", "nvidia", tuple(collectives.BINARIES.values()), 2, collectives.run),
    Tool("dcgm", "nvidia", (dcgm.BINARY,), 3, dcgm.run),
    Tool("rccl_tests", "amd", tuple(collectives.BINARIES.values()), 1, collectives.run),
    Tool("rvs", "amd", (rvs.BINARY,), 2, rvs.run),
    Tool("agfhc", "amd", (agfhc.BINARY,), 3, agfhc.run),
    Tool("hl_qual", "gaudi", (hl_qual.BINARY,), 1, hl_qual.run),
)


def main(result: Result) -> None:
    """Run the tools. A tool that names a fault is a ``WorkloadFailure``; one that gave no answer is counted in
    ``vendor_tools_failed_count`` and named in the message; none at all is a success that says what was looked for."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that running tools are ended too
    config = parse_arguments(sys.argv[1:])
    start = time.monotonic()
    kind = vendor(os.environ)
    places = Places(config.paths, os.environ)
    wanted = [tool for tool in TOOLS if (tool.name in config.tools if config.tools else tool.vendor == kind)]
    present = [tool for tool in wanted if any(places.find(name) for name in tool.executables)]
    result.environment.update(accelerator=kind, level=config.level, tools=[tool.name for tool in present])
    answers = {tool.name: _absent(tool) for tool in wanted if tool not in present and config.tools}
    count = gpu_count(os.environ, kind)
    with _folder() as folder:
        for place, tool in enumerate(present):
            left = start + config.seconds - time.monotonic()
            share = left * tool.weight / sum(later.weight for later in present[place:])
            job = Job(tool.name, places, count, config.level, time.monotonic() + share, folder)
            result.report(f"{tool.name}: runs, {share:.0f} s are for it")
            answers[tool.name] = _take(result, tool, job)
            _add(result, answers[tool.name])
    _conclude(result, answers, wanted, config, kind)


def _take(result: Result, tool: Tool, job: Job) -> Answer:
    answer = tool.run(job) if job.seconds_left() > 0 else Answer.none("no time was left for it")
    print(f"{tool.name}: {answer.verdict}: {_words(tool.name, answer)}", flush=True)
    return answer


def _absent(tool: Tool) -> Answer:
    return Answer.none(f"asked for, but {' and '.join(tool.executables[:1])} was found nowhere")


def _add(result: Result, answer: Answer) -> None:
    for figure in answer.figures:
        result.add_metric(figure.name[:96], figure.value, figure.unit, figure.scope)
    for curve in answer.curves:
        result.add_series(curve.name, curve.unit, curve.x, curve.y, x_unit="bytes")


def _conclude(result: Result, answers: dict[str, Answer], wanted: list[Tool], config: Config, kind: str) -> None:
    started = {name: answer for name, answer in answers.items() if answer.verdict != LEFT_OUT}
    ran = [name for name in started if name in result.environment["tools"]]
    bad = [name for name, answer in started.items() if answer.verdict != PASS]
    result.add_metric("vendor_tools_run_count", len(ran), "count")
    result.add_metric("vendor_tools_failed_count", len(bad), "count")
    result.add_metric("vendor_tools_left_out_count", len(answers) - len(started), "count")
    # What went wrong comes first: the message may be cut.
    in_order = sorted(answers.items(), key=lambda item: (item[1].verdict != FAIL, item[1].verdict == PASS))
    message = "; ".join(f"{name}: {_words(name, answer)}" for name, answer in in_order)[:MAX_MESSAGE]
    if not answers:
        names = ", ".join(sorted({name for tool in wanted for name in tool.executables}))
        message = f"no vendor tool is there for a node of kind {kind}" + (f": looked for {names}" if names else "")
    result.message = message
    if any(answer.verdict == FAIL for answer in answers.values()):
        raise WorkloadFailure(message)


def _words(name: str, answer: Answer) -> str:
    if answer.verdict == FAIL:
        more = len(answer.faults) - MAX_NOTES
        words = "; ".join(map(str, answer.faults[:MAX_NOTES])) + (f" and {more} more" if more > 0 else "")
        return f"FAIL: {words}" + (f"; no answer: {answer.reason}" if answer.reason else "")
    if answer.verdict == PASS:
        notes = "; ".join(answer.notes[:MAX_NOTES])
        return answer.summary + (f" ({notes})" if notes else "")
    return f"left out: {answer.reason}" if answer.verdict == LEFT_OUT else f"no answer: {answer.reason}"


@contextmanager
def _folder() -> Iterator[Path]:
    """Give a folder for the tools' files; what they print is in the log of the stage, which outlasts it."""
    work = os.environ.get("GPUVAL_WORK_DIR")
    if work:
        yield Path(work, "vendor_tools")
        return
    with tempfile.TemporaryDirectory(prefix="vendor-tools-") as folder:
        yield Path(folder)
