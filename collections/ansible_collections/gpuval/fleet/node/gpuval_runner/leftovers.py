"""What a run may have left running on a node, ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from gpuval_node.engines import engine_of, engine_types
from gpuval_node.engines._engine import EngineError, EngineMissingError, labels

from gpuval_runner import descendants
from gpuval_runner.descendants import Process
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.plan import NodePlan
from gpuval_runner.state import NodeRunState

GRACE_SECONDS = 3.0
PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class RunTraces:
    """What tells which containers of a run may be on this node."""

    directory: NodeDirectory
    plan: Optional[NodePlan]
    state: NodeRunState

    @property
    def names(self) -> tuple[str, str]:
        """Ids of the run and of the node; where no file tells them, those of the folders."""
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
        """The engines that may have made containers of a run, the one that made some first."""
        made_by = [self.state.container.command] if self.state.container else []
        possible = [self.plan.runtime] if self.plan and self.plan.runtime in engine_types() else engine_types()
        return list(dict.fromkeys([*made_by, *possible]))


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


def containers(traces: RunTraces) -> dict[str, str]:
    """Ids of the containers of a run on this node with the command of their engine, of the engines that answer."""
    command_by_container: dict[str, str] = {}
    for command in traces.engines() if traces.may_have_containers else ():
        with contextlib.suppress(EngineError):
            command_by_container.update(dict.fromkeys(engine_of(command).find(traces.labels), command))
    return command_by_container


def remaining(command_by_container: Mapping[str, str], traces: RunTraces) -> dict[str, str]:
    """Which of these containers, by id with the command of their engine, are still there, or may be: it is silent."""
    survivors: dict[str, str] = {}
    for command in set(command_by_container.values()):
        identifiers = [identifier for identifier, owner in command_by_container.items() if owner == command]
        with contextlib.suppress(EngineError):
            still = engine_of(command).find(traces.labels)
            identifiers = [identifier for identifier in identifiers if identifier in still]
        survivors.update(dict.fromkeys(identifiers, command))
    return survivors


def end_containers(traces: RunTraces, patience: float = 0.0) -> tuple[list[str], list[str]]:
    """End the containers of a run on this node by their labels. Returns the ids of those ended, and problems. The state
    names the engine that made some, for ``auto`` too: it must answer, and is asked again for `patience` seconds, as it
    may be restarting. Any other engine that does not answer has none of ours, unless neither plan nor state says which
    was used."""
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
