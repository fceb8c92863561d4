"""The answer of a tool, in one form for all of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..common.tool_output import error_lines

PASS, FAIL, UNANSWERED = "pass", "fail", "unanswered"
LEFT_OUT, SKIPPED, INAPPLICABLE = "left_out", "skipped", "inapplicable"
NODE = "node"

_GPU = re.compile(r"\bGPU[ _:#-]{0,2}(\d{1,2})\b", re.IGNORECASE)


@dataclass(frozen=True)
class ToolFigure:
    """A metric of the record: base unit last in its name."""

    name: str
    value: float
    unit: str
    scope: str = NODE


@dataclass(frozen=True)
class SizeCurve:
    """A figure by message size in bytes."""

    name: str
    unit: str
    x: tuple[int, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class ToolFault:
    """A fault that a tool reports, and where: ``gpu:3``, or the node where it names no GPU."""

    scope: str
    text: str

    def __str__(self) -> str:
        return self.text if self.scope == NODE else f"{self.scope} {self.text}"


@dataclass
class ToolAnswer:
    """``pass``: it ran to its end and found nothing. ``fail``: it named faults. ``unanswered``: it gave no answer that
    counts (``reason`` says why): never a pass. ``left_out``: it was not started, for the reason given. ``skipped``: it
    ran and tested no hardware, or not that of all GPUs. ``inapplicable``: this node has nothing for it to test.
    ``not_run``: tests asked for that it did not run, beside those that it did."""

    verdict: str
    reason: str = ""
    summary: str = ""
    faults: list[ToolFault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    figures: list[ToolFigure] = field(default_factory=list)
    curves: list[SizeCurve] = field(default_factory=list)

    @classmethod
    def none(cls, reason: str) -> ToolAnswer:
        return cls(UNANSWERED, reason=reason)

    @classmethod
    def left_out(cls, reason: str) -> ToolAnswer:
        return cls(LEFT_OUT, reason=reason)


def scope_of(line: str) -> str:
    """Return the GPU that a line names by its index, else the node."""
    gpu = _GPU.search(line)
    return f"gpu:{int(gpu[1])}" if gpu else NODE


def hold_against(answer: ToolAnswer, output: str, also: re.Pattern[str] | None = None) -> ToolAnswer:
    """Return the answer, which fails where the tool's output has the text of an error beside its results.

    ``also`` matches the tool's own form of an error. It counts beside complete results alone.
    """
    lines = error_lines(output, complete=answer.verdict in (PASS, SKIPPED), also=also)
    if answer.verdict != FAIL and lines:
        answer.verdict, answer.faults = FAIL, [ToolFault(scope_of(line), line) for line in lines]
    return answer
