"""hl_qual, Intel's qualification tool for Gaudi: the functional test on all devices.

Its report ends with a banner ``hl qual report``, the verdict of the run on the line below it; before that ``Test result
summary`` has a line for each device, its third part (after ``: ``) PASSED or FAILED. That much is known from scripts of
others who run it, see docs/design/vendor_tools.md.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..common.tool_output import plain, shortened
from .answer import FAIL, NODE, PASS, ToolAnswer, ToolFault, ToolFigure
from .gaudi_ports import GaudiPorts
from .job import ToolTask, settle

BINARY = "hl_qual"
SHORTEST_SECONDS, START_SECONDS = 30, 60

_BANNER = re.compile(r"\bhl[ _]qual report\b", re.IGNORECASE)
_VERDICT = re.compile(r"\b(PASSED|FAILED)\b")
_SUMMARY = re.compile(r"\bTest result summary\b", re.IGNORECASE)
_ADDRESS = re.compile(r"\b(?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b")
_INDEX = re.compile(r"\b(?:accel|hl|device[ #:]{0,2}|card[ #:]{0,2})(\d{1,2})\b", re.IGNORECASE)
_MODEL = re.compile(r"gaudi\d?")


def judge(text: str, gpus: int | None) -> ToolAnswer:
    """Return what the output or the report file proves; ``gpus`` is how many the node is to have. Never raises."""
    lines = plain(text).split("\n")[:-1]  # the last has no line end: it may be cut short
    passed: bool | None = None  # the run's own verdict
    devices: list[tuple[str, bool]] = []
    in_summary = False
    for index, line in enumerate(lines):
        verdict = _VERDICT.search(line)
        if _SUMMARY.search(line):
            in_summary = True
        elif _BANNER.search(line):
            match = _VERDICT.search(next((below for below in lines[index + 1 :] if below.strip()), ""))
            passed = match[1] == "PASSED" if match else None
            in_summary = False
        elif in_summary and verdict and ": " in line:
            devices.append((shortened(line, 120), verdict[1] == "PASSED"))
        elif in_summary and devices and not line.strip():
            in_summary = False
    faults = [ToolFault(_scope(line), line) for line, is_good in devices if not is_good]
    figures = [
        ToolFigure("hl_qual_devices_count", len(devices), "count"),
        ToolFigure("hl_qual_failed_count", len(faults), "count"),
    ]
    if passed is False and not faults:
        faults = [ToolFault(NODE, "the report says FAILED and names no device")]
    if faults:
        return ToolAnswer(FAIL, faults=faults, figures=figures)
    if passed is None:
        return ToolAnswer.none("its report is missing or cut short")
    if not devices:
        return ToolAnswer.none("its report says PASSED and names no device")
    if gpus and len(devices) != gpus:
        return ToolAnswer.none(f"it tested {len(devices)} devices of {gpus}")
    return ToolAnswer(PASS, summary="functional test passed", figures=figures)


def _scope(line: str) -> str:
    index = _INDEX.search(_ADDRESS.sub("", line))
    return f"gpu:{int(index[1])}" if index else NODE


def run(job: ToolTask) -> ToolAnswer:
    """Run the functional test on all devices at once, in its own folder, and bring the network ports up after it."""
    path = job.executable(BINARY)
    model = next((part for part in reversed(path.resolve().parts) if _MODEL.fullmatch(part)), None)
    if model is None:
        return ToolAnswer.left_out(f"{path} lies in no folder named after a Gaudi, so its device switch is not known")
    ports = GaudiPorts(job, path.resolve().parent)
    seconds = int(job.seconds_left()) - START_SECONDS
    if seconds < SHORTEST_SECONDS:
        needed = SHORTEST_SECONDS + START_SECONDS
        return ToolAnswer.left_out(f"{max(job.seconds_left(), 0):.0f} s are left, it needs {needed}")
    test = ["-f2", "-l", "high", "-t", str(seconds)]
    arguments: list[str | Path] = [path, f"-{model}", "-c", "all", "-rmod", "parallel", "-dis_mon", *test]
    python = os.environ.get("__python_cmd", "python3")  # noqa: SIM112 - hl_qual's own name for it
    environment = {"__python_cmd": python, "HABANA_LOGS": str(job.folder / "habana")}
    try:
        ended = job.call(arguments, job.seconds_left(), cwd=path.resolve().parent, environment=environment)
    finally:
        ports.bring_up()
    answer = settle(ended, judge(ended.output + "\n", job.gpus))
    lost = ports.lost()
    if lost:
        answer.verdict, answer.faults = FAIL, [*answer.faults, *lost]
    elif ports.known:
        answer.notes.append("network ports brought up again")
    return answer
