"""The run of one tool: its time, its folder, its calls."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..common import command
from ..common.tool_output import shortened
from .answer import PASS, SKIPPED, UNANSWERED, ToolAnswer, hold_against
from .places import ExecutableSearch

MAX_LOG_BYTES = 8 << 20
HINTS = ("error", "fail", "warn", "unable", "invalid", "cannot", "no such", "not found")


@dataclass
class ToolTask:
    """What a tool is given: where executables are, the GPUs there should be, how thorough to be, and its deadline (of
    the monotonic clock)."""

    tool: str
    places: ExecutableSearch
    gpus: int | None
    level: int
    deadline: float
    folder: Path

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def executable(self, name: str) -> Path:
        """Return the path of an executable, which was found before the tool was started."""
        return self.places.find(name) or Path(name)

    def call(
        self,
        arguments: Sequence[str | Path],
        seconds: float,
        *,
        name: str = "",
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> command.ProgramEnd:
        """Run a command for at most so long and keep its output as a file beside the result."""
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
        self._keep(title, ended.output)
        return ended

    def _keep(self, title: str, output: str) -> None:
        log = self.folder / f"{title}.txt"
        try:
            log.write_text(output[:MAX_LOG_BYTES], encoding="utf-8", errors="replace")
        except OSError as error:
            print(f"{title}: its output could not be kept: {error.strerror}", flush=True)


def settle(ended: command.ProgramEnd, answer: ToolAnswer) -> ToolAnswer:
    """Return the answer, held against the program's output; no pass counts of a program that ended badly, and one
    without an answer gets the reason."""
    answer = hold_against(answer, ended.output)
    if answer.verdict == PASS and distrust(ended):
        return ToolAnswer.none(distrust(ended))
    if answer.verdict == SKIPPED and distrust(ended):
        answer.verdict = UNANSWERED
    if answer.verdict == UNANSWERED:
        answer.reason = why(ended, answer.reason)
    return answer


def why(ended: command.ProgramEnd, reason: str) -> str:
    """Return why a program gave no answer: how it ended if not well, what its output lacks, its own last complaint."""
    lines = [line for line in ended.output.splitlines()[-400:] if any(hint in line.lower() for hint in HINTS)]
    parts = [] if ended.code == 0 and not ended.timed_out and not ended.problem else [ended.how()]
    if ended.code is None:
        return parts[0]
    parts.append(reason if not ended.lost_bytes else f"{reason} ({ended.lost_bytes:,} bytes of its output left out)")
    return "; ".join(parts) + (f": {shortened(lines[-1], 200)}" if lines else "")


def distrust(ended: command.ProgramEnd) -> str:
    """Return why a program's output must not count as a pass although it reads like one; empty when it may."""
    if ended.code != 0 or ended.timed_out or ended.problem:
        return ended.how()
    if ended.lost_bytes:
        return f"printed so much that {ended.lost_bytes:,} bytes were left out"
    return ""
