"""What a run may have left running on a node, ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Iterable
from typing import Optional

from gpuval_runner import descendants
from gpuval_runner.descendants import Process
from gpuval_runner.engine import Engine, EngineError, EngineMissingError, labels
from gpuval_runner.plan import ENGINES, Plan
from gpuval_runner.state import ContainerMark

GRACE_SECONDS = 3.0
KILL_SECONDS = 15.0
PAUSE_SECONDS = 1.0


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


def end_containers(
    plan: Plan, mark: Optional[ContainerMark] = None, patience: float = 0.0
) -> tuple[list[str], list[str]]:
    """End the containers of a run on this node. Returns the ids of those ended, and problems.

    `mark` names the engine that made some, which stands for ``auto`` too. Without it an engine that is not there or
    does not answer has none of ours. One that made some is asked again for `patience` seconds: it may be restarting.
    """
    if mark is None and not plan.containers:
        return [], []
    named = [mark.command] if mark else []
    named += [plan.runtime] if plan.runtime in ENGINES else list(ENGINES)
    deadline = time.monotonic() + patience
    made_by = [mark.command] if mark else []
    ended, problems = end_labelled(plan.run_id, plan.node, named, made_by)
    while problems and time.monotonic() < deadline:
        time.sleep(PAUSE_SECONDS)
        more, problems = end_labelled(plan.run_id, plan.node, named, made_by)
        ended += more
    return ended, problems


def end_labelled(
    run_id: str, node: str, commands: Iterable[str], must_answer: Collection[str]
) -> tuple[list[str], list[str]]:
    """End the containers with a run's labels in these engines. Returns the ids of those ended, and problems.

    It is a problem where an engine of `must_answer` does not; any other counts as having no container of the run.
    """
    ended: list[str] = []
    problems: list[str] = []
    for command in dict.fromkeys(commands):
        try:
            ended += Engine(command).stop(labels(run_id, node))
        except EngineMissingError:
            continue
        except EngineError as error:
            if command in must_answer:
                problems.append(str(error))
    return ended, problems
