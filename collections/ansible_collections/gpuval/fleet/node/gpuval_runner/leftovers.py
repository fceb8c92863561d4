"""What a run may have left running on a node, ended."""

from __future__ import annotations

import signal
import time
from typing import Optional

from gpuval_runner import descendants
from gpuval_runner.descendants import Process
from gpuval_runner.engine import Engine, EngineError, labels
from gpuval_runner.plan import Plan

GRACE_SECONDS = 3.0
KILL_SECONDS = 15.0


def end_processes(
    marker: str, *, session: Optional[int] = None, grace_seconds: float = GRACE_SECONDS
) -> tuple[list[Process], list[Process]]:
    """End all processes that carry a marker: TERM, a grace, KILL. Returns those found and those that stayed."""

    def members() -> list[Process]:
        return descendants.belonging(descendants.snapshot(), marker, session=session)

    found: dict[tuple[int, int], Process] = {}
    left = members()
    begun = time.monotonic()
    if left and grace_seconds > 0:
        found.update({(p.pid, p.start_ticks): p for p in left})
        descendants.send_all(left, signal.SIGTERM)
        descendants.send_all(left, signal.SIGCONT)
        while left and time.monotonic() - begun < grace_seconds:
            time.sleep(0.05)
            left = members()
    while left and time.monotonic() - begun < grace_seconds + KILL_SECONDS:
        found.update({(p.pid, p.start_ticks): p for p in left})
        descendants.send_all(left, signal.SIGKILL)
        time.sleep(0.05)
        left = members()
    return list(found.values()), left


def live_session(current: Optional[dict[str, int]]) -> Optional[int]:
    """Return the session of a stage that an earlier runner started, unless its number has gone to another process."""
    if not current:
        return None
    leader = descendants.look(current.get("pid", 0))
    if leader and leader.start_ticks != current.get("start_ticks"):
        return None
    return current.get("pid")


def end_containers(plan: Plan, stage: str = "", grace_seconds: float = 0.0) -> tuple[list[str], list[str]]:
    """End the containers of a run or a stage, where the plan has a container engine. Returns ids ended and problems."""
    if not plan.containers or not any(s.image for s in plan.stages):
        return [], []
    try:
        return Engine(plan.runtime).stop(labels(plan.run_id, plan.node, stage), grace_seconds), []
    except EngineError as error:
        return [], [str(error)]
