"""Decides how a stage ended: its final state and message. Does no I/O."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from typing import Optional

from gpuval_runner.result import ResultFile
from gpuval_runner.text import one_line

LAST_LINE = 200


@dataclass(frozen=True)
class StageStop:
    """Why the runner ended a stage: the stage's final state and the reason in words."""

    state: str
    reason: str


@dataclass(frozen=True)
class StageEvidence:
    """All that is known about a stage that has ended. `signal` ended the main process, `oom` is the kernel's message
    about memory (or empty). `patterns` counts declared patterns and readers, `matched` the metrics that they found.
    `not_numbers`: metrics without a number (NaN); `unfilled`: an output line with ``{{ name }}`` in place of its
    figure. `stuck`: processes outlived KILL. `cause`: the root cause as a sentence; unless `cause_is_known`, the
    message also has the last output."""

    exit_code: Optional[int] = None
    signal: Optional[str] = None
    start_error: Optional[str] = None
    stop: Optional[StageStop] = None
    result: Optional[ResultFile] = None
    patterns: int = 0
    matched: int = 0
    not_numbers: tuple[str, ...] = ()
    unfilled: str = ""
    last_line: str = ""
    oom: str = ""
    stuck: bool = False
    cause: str = ""
    cause_is_known: bool = True


def judge(evidence: StageEvidence) -> tuple[str, str]:
    """Return the final state and message of a stage from the evidence."""
    result, reported = evidence.result, ""
    if result and result.state == "failure":
        reported = _sentence(result.message or "the workload reported failure without a message", evidence.cause)
    if evidence.start_error:
        return "crash", f"cannot start: {evidence.start_error}"
    if evidence.stop:
        return evidence.stop.state, _sentence(evidence.stop.reason, _last(evidence))
    if evidence.signal:
        return "crash", _sentence(f"killed by {evidence.signal}", evidence.oom, _last(evidence))
    if evidence.exit_code != 0:
        if reported:
            return "failure", reported
        number = (evidence.exit_code or 0) - 128  # a shell exits with 128 and the number of the signal
        cause = f"exit code {evidence.exit_code}" + (f" ({signal_name(number)})" if 0 < number <= 64 else "")
        cause += " after reporting success" if result and result.state == "success" else " without a result"
        progress = result.message if result and result.state == "running" else ""
        output_end = "" if progress and progress == evidence.last_line else _last(evidence)
        return "crash", _sentence(cause, evidence.oom, progress, output_end)
    if reported:
        return "failure", reported
    if evidence.unfilled:
        return "failure", f"its output has a template in place of a figure: `{evidence.unfilled}`"
    if (result and result.state == "success") or (evidence.patterns and evidence.matched):
        message = result.message if result else ""
        if evidence.stuck:
            return "failure", _sentence("it reported success but left processes that KILL did not end", message)
        return "success", message
    if evidence.not_numbers:
        return "failure", _sentence(f"not a number: {', '.join(evidence.not_numbers[:4])}", _last(evidence))
    if evidence.patterns:
        cause = (
            "ended without a result: its output has no declared figure; compare `patterns` and `output` with its log"
        )
    elif result:
        cause = "ended without a result: its result file never became final"
    else:
        cause = "ended without a result: it wrote no result file and declares no patterns"
    return "crash", _sentence(cause, evidence.oom, _last(evidence))


def signal_name(number: int) -> str:
    """Return the name of a signal number: SIGKILL for 9, SIG<number> for a signal without a name."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _last(evidence: StageEvidence) -> str:
    if evidence.cause and evidence.cause_is_known:
        return evidence.cause
    line = one_line(evidence.last_line.removeprefix("crash: "), LAST_LINE)  # gpuval's own begin so
    words = f"last output: {line}" if line else "no output"
    return words if line in evidence.cause else _sentence(evidence.cause, words)


def _sentence(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
