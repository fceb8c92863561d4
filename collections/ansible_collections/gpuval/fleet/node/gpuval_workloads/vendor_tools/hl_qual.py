"""Runs hl_qual, Intel's qualification tool for Gaudi: the functional test on all devices.

Its report ends with a banner ``hl qual report``, the verdict of the run on the line below it; before that ``Test result
summary`` has a line for each device, its third part (after ``: ``) PASSED or FAILED. That much is known from scripts of
others who run it, see docs/design/vendor_tools.md.

It may leave the Gaudis' network ports down; Intel's script beside it brings them up and counts them. The script's
status has ``accel0``, below it ``3 ports up (1, 8, 22)`` or ``3 ports down (1, 8, 22)``, and so for each device. Ports
without a cable stay down, so only ports count that were up before. The wait for ports is not part of the tool's time.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from ..common.tool_output import plain, shortened
from .answer import FAIL, NODE, PASS, SKIPPED, ToolAnswer, ToolFault, ToolFigure, ToolTask, settle

BINARY = "hl_qual"
SHORTEST_SECONDS, START_SECONDS = 30, 60
SCRIPT = "manage_network_ifs.sh"
CALL_SECONDS = 30.0
#: Seconds to wait for links, which need up to a minute, and between checks.
SETTLE_SECONDS, PAUSE_SECONDS = 60.0, 5.0

_BANNER = re.compile(r"\bhl[ _]qual report\b", re.IGNORECASE)
_VERDICT = re.compile(r"\b(PASSED|FAILED)\b")
_SUMMARY = re.compile(r"\bTest result summary\b", re.IGNORECASE)
_ADDRESS = re.compile(r"\b(?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b")
_INDEX = re.compile(r"\b(?:accel|hl|device[ #:]{0,2}|card[ #:]{0,2})(\d{1,2})\b", re.IGNORECASE)
_STATUS = re.compile(r"^\s*(?:accel|hl)_?(\d{1,2})\b|(\d{1,3}) ports? (up|down)\b", re.MULTILINE)
_MODEL = re.compile(r"gaudi\d?")


def judge(text: str, gpus: int | None) -> ToolAnswer:
    """Return the answer that hl_qual's output proves; ``gpus`` is the expected number of devices. Never raises."""
    lines = plain(text).split("\n")[:-1]  # the last line has no line end: it may be cut off
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


def count_ports(text: str) -> dict[int, int]:
    """Return ``{device index: number of ports that are up}`` for the devices in the output of Intel's script."""
    ports: dict[int, int] = {}
    device = None
    for index, count, state in _STATUS.findall(text):
        if index:
            device = int(index)
        elif device is not None:
            ports.setdefault(device, 0)
            if state == "up":
                ports[device] = int(count)
    return ports


class GaudiPorts:
    """The Gaudi network ports of a node, with their state at creation; none without Intel's script. ``before``: {device
    index: number of ports up before hl_qual}. ``unreported``: indices of devices without a state after hl_qual."""

    def __init__(self, job: ToolTask, folder: Path) -> None:
        self._job, self._script = job, folder / SCRIPT
        self.known = self._script.is_file()
        self.before, self.unreported = self._count(), list[int]()

    def bring_up(self) -> None:
        if self.known:
            self._call("--up")

    def lost(self) -> list[ToolFault]:
        """Return a fault for each device with fewer ports up than before hl_qual, after waiting for links."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            now = self._count() if self.before else {}
            less = {index: up - now.get(index, 0) for index, up in self.before.items() if now.get(index, 0) < up}
            if not less or time.monotonic() >= deadline:
                break
            time.sleep(PAUSE_SECONDS)
        self.unreported = sorted(less.keys() - now.keys())
        remedy = f"run {self._script} --up on the node, check its cables"
        texts = {index: f"{lost} ports are down since hl_qual: {remedy}" for index, lost in less.items()}
        return [ToolFault(f"gpu:{index}", text) for index, text in texts.items() if index in now]

    def _count(self) -> dict[int, int]:
        return count_ports(self._call("--status")) if self.known else {}

    def _call(self, operation: str) -> str:
        return self._job.call([self._script, operation], CALL_SECONDS, name="hl_qual_ports").output


def run(job: ToolTask) -> ToolAnswer:
    """Run hl_qual's functional test on all devices at once, in its own folder, and bring network ports up after it."""
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
    elif ports.unreported and answer.verdict == PASS:
        answer.verdict, indices = SKIPPED, ", ".join(f"gpu:{index}" for index in ports.unreported)
        answer.reason = f"{SCRIPT} --status did not report the network ports of {indices} after it: run it on the node"
    elif ports.known:
        reported = "brought up again" if ports.before else f"not compared: {SCRIPT} --status reported none before it"
        answer.notes.append(f"network ports {reported}")
    return answer
