"""Finds and ends what a run may have left running on a node: processes and containers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from gpuval_node.engines import engine_of, engine_types
from gpuval_node.engines._engine import EngineError, EngineMissingError, labels
from gpuval_node.process_stat import Process, look, snapshot

from gpuval_runner import descendants
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.plan import NodePlan
from gpuval_runner.state import NodeRunState

GRACE_SECONDS = 3.0
PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class RunTraces:
    """Documents of a run on this node, by which its processes and containers are found."""

    directory: NodeDirectory
    plan: Optional[NodePlan]
    state: NodeRunState

    @property
    def names(self) -> tuple[str, str]:
        """Run id and node name from plan or state; without these, from the names of the folders."""
        root, source = self.directory.root, self.plan or self.state
        return source.run_id or root.parent.name, source.node or root.name

    @property
    def labels(self) -> dict[str, str]:
        return labels(*self.names)

    @property
    def may_have_containers(self) -> bool:
        if self.plan:
            return self.state.container is not None or self.plan.containers
        return bool(self.state.run_id) or self.directory.plan.exists()

    def engines(self) -> list[str]:
        """Commands of the engines that may have made the run's containers; the engine that surely did comes first."""
        made_by = [self.state.container.command] if self.state.container else []
        possible = [self.plan.runtime] if self.plan and self.plan.runtime in engine_types() else engine_types()
        return list(dict.fromkeys([*made_by, *possible]))


def end_processes(marker: str, *, session: Optional[int] = None) -> tuple[list[Process], list[Process]]:
    """End all processes that have a stage's marker in their environment, or are in its POSIX session: TERM, a grace,
    KILL. Returns the processes found and those that KILL did not end."""
    return descendants.end_all(lambda: descendants.belonging(snapshot(), marker, session=session), GRACE_SECONDS)


def live_session(current: Optional[dict[str, int]]) -> Optional[int]:
    """Return the id of the POSIX session of a stage that an earlier runner started; None without a stage, or when
    another process has the pid now. `current` has `pid` and `start_ticks` of the stage's first process."""
    if not current:
        return None
    leader = look(current.get("pid", 0))
    if leader and leader.start_ticks != current.get("start_ticks"):
        return None
    return current.get("pid")


def containers(traces: RunTraces) -> dict[str, str]:
    """Return the run's containers on this node, `{container id: engine's command}`, of the engines that answer."""
    command_by_container: dict[str, str] = {}
    for command in traces.engines() if traces.may_have_containers else ():
        with contextlib.suppress(EngineError):
            command_by_container.update(dict.fromkeys(engine_of(command).find(traces.labels), command))
    return command_by_container


def remaining(command_by_container: Mapping[str, str], traces: RunTraces) -> dict[str, str]:
    """Return the containers (`{id: engine's command}`) that exist, or may exist as their engine does not answer."""
    survivors: dict[str, str] = {}
    for command in set(command_by_container.values()):
        identifiers = [identifier for identifier, owner in command_by_container.items() if owner == command]
        with contextlib.suppress(EngineError):
            still = engine_of(command).find(traces.labels)
            identifiers = [identifier for identifier in identifiers if identifier in still]
        survivors.update(dict.fromkeys(identifiers, command))
    return survivors


def end_containers(traces: RunTraces, patience: float = 0.0) -> tuple[list[str], list[str]]:
    """End the run's containers on this node, found by label. Returns the ids of the ended containers, and problems.
    The engine that made containers, as the state names it, must answer: it is retried for `patience` seconds, since it
    may be restarting. Another engine without an answer counts as having no containers of the run, unless neither plan
    nor state names the engine in use."""
    if not traces.may_have_containers:
        return [], []
    mark = traces.state.container
    must_answer = (mark.command if mark else "",) if traces.plan or traces.state.run_id else engine_types()
    deadline = time.monotonic() + patience
    ended: list[str] = []
    while True:
        problems = []
        for command in traces.engines():
            try:
                ended += engine_of(command).stop(traces.labels)
            except EngineMissingError:
                continue
            except EngineError as error:
                if command in must_answer:
                    problems.append(str(error))
        if not problems or time.monotonic() >= deadline:
            return ended, problems
        time.sleep(PAUSE_SECONDS)
