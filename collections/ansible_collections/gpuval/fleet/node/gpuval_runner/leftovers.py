"""What a run may have left running on a node, ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Optional

from gpuval_node.engines import engine_of, engine_types
from gpuval_node.engines._engine import EngineError, EngineMissingError, labels

from gpuval_runner import descendants
from gpuval_runner.descendants import Process
from gpuval_runner.plan import NodePlan
from gpuval_runner.state import NodeRunState

GRACE_SECONDS = 3.0
PAUSE_SECONDS = 1.0


def end_processes(marker: str, *, session: Optional[int] = None) -> tuple[list[Process], list[Process]]:
    """End all processes that carry a marker: TERM, a grace, KILL. Returns those found and those that stayed."""
    return descendants.end_all(
        lambda: descendants.belonging(descendants.snapshot(), marker, session=session), GRACE_SECONDS
    )


def live_session(current: Optional[dict[str, int]]) -> Optional[int]:
    """Return the session of a stage that an earlier runner started, unless its number has gone to another process."""
    if not current:
        return None
    leader = descendants.look(current.get("pid", 0))
    if leader and leader.start_ticks != current.get("start_ticks"):
        return None
    return current.get("pid")


def containers(run_id: str, node: str, plan: Optional[NodePlan], state: NodeRunState) -> dict[str, str]:
    """Ids of the containers of a run on this node with the command of their engine, of the engines that answer."""
    if plan and state.container is None and not plan.containers:
        return {}
    command_by_container: dict[str, str] = {}
    for command in _engines(plan, state):
        with contextlib.suppress(EngineError):
            command_by_container.update(dict.fromkeys(engine_of(command).find(labels(run_id, node)), command))
    return command_by_container


def remaining(command_by_container: Mapping[str, str], run_id: str, node: str) -> dict[str, str]:
    """Which of these containers, by id with the command of their engine, are still there, or may be: it is silent."""
    survivors: dict[str, str] = {}
    for command in set(command_by_container.values()):
        identifiers = [identifier for identifier, owner in command_by_container.items() if owner == command]
        with contextlib.suppress(EngineError):
            still = engine_of(command).find(labels(run_id, node))
            identifiers = [identifier for identifier in identifiers if identifier in still]
        survivors.update(dict.fromkeys(identifiers, command))
    return survivors


def _engines(plan: Optional[NodePlan], state: NodeRunState) -> list[str]:
    """The engines that may have made containers of a run, the one that made some first."""
    made_by = [state.container.command] if state.container else []
    possible = [plan.runtime] if plan and plan.runtime in engine_types() else engine_types()
    return list(dict.fromkeys([*made_by, *possible]))


def end_containers(
    run_id: str, node: str, plan: Optional[NodePlan], state: NodeRunState, patience: float = 0.0
) -> tuple[list[str], list[str]]:
    """End the containers of a run on this node by their labels. Returns the ids of those ended, and problems. The state
    names the engine that made some, for ``auto`` too: it must answer, and is asked again for `patience` seconds, as it
    may be restarting. Any other engine that does not answer has none of ours, unless neither plan nor state says which
    was used."""
    mark = state.container
    if plan and mark is None and not plan.containers:
        return [], []
    must_answer = (mark.command if mark else "",) if plan or state.run_id else engine_types()
    deadline = time.monotonic() + patience
    ended: list[str] = []
    while True:
        problems = []
        for command in _engines(plan, state):
            try:
                ended += engine_of(command).stop(labels(run_id, node))
            except EngineMissingError:
                continue
            except EngineError as error:
                if command in must_answer:
                    problems.append(str(error))
        if not problems or time.monotonic() >= deadline:
            return ended, problems
        time.sleep(PAUSE_SECONDS)
