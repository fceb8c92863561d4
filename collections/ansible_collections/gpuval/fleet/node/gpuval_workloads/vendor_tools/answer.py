"""Runs a GPU vendor's diagnostic tool within its time and folder, and holds its answer in one form for all tools."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..common import command
from ..common.tool_output import error_lines, shortened

PASS, FAIL, UNANSWERED = "pass", "fail", "unanswered"
LEFT_OUT, SKIPPED, INAPPLICABLE = "left_out", "skipped", "inapplicable"
NODE = "node"

MAX_LOG_BYTES, MAX_FILE_BYTES = 8 << 20, 16 << 20
HINTS = ("error", "fail", "warn", "unable", "invalid", "cannot", "no such", "not found")

_GPU = re.compile(r"\bGPU[ _:#-]{0,2}(\d{1,2})\b", re.IGNORECASE)


@dataclass(frozen=True)
class ToolFigure:
    """A metric for the record that a vendor tool measured; its name ends in the base unit."""

    name: str
    value: float
    unit: str
    scope: str = NODE


@dataclass(frozen=True)
class ToolFault:
    """A fault that a tool reports, and its scope: ``gpu:3``, or the node if the tool names no GPU."""

    scope: str
    text: str

    def __str__(self) -> str:
        return self.text if self.scope == NODE else f"{self.scope} {self.text}"


@dataclass
class ToolAnswer:
    """A tool's answer. Verdicts: ``pass``: the tool completed without faults. ``fail``: it named faults.
    ``unanswered``: it gave no valid answer (see ``reason``), never a pass. ``left_out``: not started (see ``reason``).
    ``skipped``: it tested no hardware, or not that of all GPUs. ``inapplicable``: this node has nothing for it to test.
    The field ``not_run`` has requested tests that did not run, beside those that did."""

    verdict: str
    reason: str = ""
    summary: str = ""
    faults: list[ToolFault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    figures: list[ToolFigure] = field(default_factory=list)
    #: Curves: name, unit, message sizes in bytes, and the value at each size.
    curves: list[tuple[str, str, list[int], list[float]]] = field(default_factory=list)

    @classmethod
    def none(cls, reason: str) -> ToolAnswer:
        return cls(UNANSWERED, reason=reason)

    @classmethod
    def left_out(cls, reason: str) -> ToolAnswer:
        return cls(LEFT_OUT, reason=reason)


def scope_of(line: str) -> str:
    """Return ``gpu:<index>`` if a line of a tool's output names a GPU's index, else the node's scope."""
    gpu = _GPU.search(line)
    return f"gpu:{int(gpu[1])}" if gpu else NODE


def hold_against(answer: ToolAnswer, output: str, also: re.Pattern[str] | None = None) -> ToolAnswer:
    """Return the answer, turned into a fail if the tool's output also reports a hardware error. ``also``: the tool's
    own form of an error, which counts only beside complete results."""
    lines = error_lines(output, complete=answer.verdict in (PASS, SKIPPED), also=also)
    if answer.verdict != FAIL and lines:
        answer.verdict, answer.faults = FAIL, [ToolFault(scope_of(line), line) for line in lines]
    return answer


@dataclass
class ToolTask:
    """The task of a vendor tool: search of executables, expected GPUs, level (1 to 4), deadline (monotonic), folder."""

    tool: str
    search: command.ExecutableSearch
    gpus: int | None
    level: int
    deadline: float
    folder: Path

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def executable(self, name: str) -> Path:
        """Return the path of an executable, which must exist."""
        return self.search.find(name) or Path(name)

    def call(
        self,
        arguments: Sequence[str | Path],
        seconds: float,
        *,
        name: str = "",
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> command.ProgramEnd:
        """Run a command for at most ``seconds`` and write its output to a file in the tool's folder."""
        title = name or self.tool
        print(f"{title}: {' '.join(map(str, arguments))} (at most {seconds:.0f} s)", flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        ended = command.run(
            arguments,
            seconds,
            cwd=cwd or self.folder,
            environment={**os.environ, **(environment or {})},
            echo=lambda line: print(f"{title}: {line}", flush=True),
            say=lambda text: print(f"{title}: {text}", flush=True),
        )
        print(f"{title}: {ended.how()}, {ended.seconds:.1f} s", flush=True)
        try:
            (self.folder / f"{title}.txt").write_text(ended.output[:MAX_LOG_BYTES], encoding="utf-8", errors="replace")
        except OSError as error:
            print(f"{title}: its output could not be kept: {error.strerror}", flush=True)
        return ended

    def read(self, name: str) -> str:
        """Return the text of a file that the tool wrote into its folder; empty for a missing file."""
        try:
            with (self.folder / name).open("rb") as stream:
                return stream.read(MAX_FILE_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""


def settle(ended: command.ProgramEnd, answer: ToolAnswer) -> ToolAnswer:
    """Return a tool's answer, checked against the program's output and exit: a program that ended badly cannot pass,
    and an invalid answer gets the reason."""
    answer, doubt = hold_against(answer, ended.output), ""
    if ended.code != 0 or ended.timed_out or ended.problem:
        doubt = ended.how()
    elif ended.lost_bytes:
        doubt = f"printed so much that {ended.lost_bytes:,} bytes were left out"
    if answer.verdict == PASS and doubt:
        return ToolAnswer.none(doubt)
    if answer.verdict == SKIPPED and doubt:
        answer.verdict = UNANSWERED
    if answer.verdict == UNANSWERED:
        answer.reason = why(ended, answer.reason)
    return answer


def why(ended: command.ProgramEnd, reason: str) -> str:
    """Return why a program gave no answer: how it ended if badly, what its output lacks, its last error."""
    lines = [line for line in ended.output.splitlines()[-400:] if any(hint in line.lower() for hint in HINTS)]
    parts = [] if ended.code == 0 and not ended.timed_out and not ended.problem else [ended.how()]
    if ended.code is None:
        return parts[0]
    parts.append(reason if not ended.lost_bytes else f"{reason} ({ended.lost_bytes:,} bytes of its output left out)")
    return "; ".join(parts) + (f": {shortened(lines[-1], 200)}" if lines else "")
