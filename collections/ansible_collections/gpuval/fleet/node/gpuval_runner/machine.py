"""The state machine of a plan: which stage comes next. Pure: no processes, no files, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from gpuval_runner.plan import Stage

STATES = ("pending", "running", "success", "failure", "crash", "timeout", "skipped", "cancelled")
FINISHED = frozenset(STATES) - {"pending", "running"}
#: States of a stage that end the plan, if the stage declares ``on_failure: stop``.
STOPPING = frozenset({"failure", "crash", "timeout", "cancelled"})
MAX_INTERRUPTIONS = 1


@dataclass(frozen=True)
class Close:
    """The step that ends a stage without running it."""

    stage: str
    state: str
    message: str


def opening(attempt: int, recorded: Optional[Mapping[str, Any]], interruptions: int = 0) -> str:
    """Return what a starting runner does with the record of a stage (None: no record). `attempt` is that of the plan,
    `interruptions` counts how often the stage was cut off in that attempt. ``new``: no record yet. ``keep``: the stage
    has ended or not begun. ``again``: the record is of an earlier attempt and moves into the history. ``resume``: cut
    off, run it once more. ``give_up``: cut off too often. ``newer``: the record is of a later attempt than the plan."""
    if recorded is None:
        return "new"
    if recorded["attempt"] > attempt:
        return "newer"
    if recorded["attempt"] < attempt:
        return "again"
    if recorded["state"] == "running":
        return "resume" if interruptions < MAX_INTERRUPTIONS else "give_up"
    return "keep"


def next_step(
    stages: Sequence[Stage], states: Mapping[str, str], halt: Optional[str] = None
) -> Union[str, Close, None]:
    """Return the next step of a plan: the name of the stage to run, a `Close` for a stage not to run, or None when all
    stages have ended. `states` holds the state of every stage that has a record, also of earlier plans; a stage without
    a record counts as pending. `halt` says why no stage may start any more."""
    stopped_by: Optional[str] = None
    for stage in stages:
        state = states.get(stage.name, "pending")
        if state in FINISHED:
            if stage.on_failure == "stop" and state in STOPPING and stopped_by is None:
                stopped_by = f"{stage.name} ended in {state} and stops the plan"
            continue
        if halt is not None:
            return Close(stage.name, "cancelled", halt)
        if stopped_by is not None:
            return Close(stage.name, "skipped", stopped_by)
        lacking = [_lack(name, states.get(name)) for name in stage.needs if states.get(name) != "success"]
        return Close(stage.name, "skipped", f"needs {', '.join(lacking)}") if lacking else stage.name
    return None


def outcome(states: Iterable[str]) -> str:
    """Return ``success`` (all stages succeeded), ``running`` (not all have ended), ``cancelled`` or ``failure``."""
    states = list(states)
    if any(state not in FINISHED for state in states):
        return "running"
    if all(state == "success" for state in states):
        return "success"
    return "cancelled" if "cancelled" in states else "failure"


def _lack(name: str, state: Optional[str]) -> str:
    if state is None:
        return f"{name}, which has no record"
    return f"{name}, which ended in {state}" if state in FINISHED else f"{name}, which has not ended"
