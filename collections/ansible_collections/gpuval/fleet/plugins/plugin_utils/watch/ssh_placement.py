"""How plans get to nodes over SSH: by Ansible's own tasks on them, each with a time limit, some at once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible import context
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.node_tasks import MOST_WORKERS, NodeTasks, Outcome
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.decisions import NodeView

SHOW_SECONDS = 60
#: How long one of the two kinds of tasks is waited for before the other is looked at.
TURN_SECONDS = 0.5


@dataclass(frozen=True)
class Work:
    """A task file with one task, and how many seconds it may take on one node."""

    file: Path
    seconds: float


class SshPlacement:
    """A `Placement`. `work` has the kinds launch, fetch and send: images that do not come by the store."""

    def __init__(
        self,
        action: Any,
        task_vars: Mapping[str, Any],
        work: Mapping[str, Work],
        transfers: int,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """`variables` are for every task, beside those of its kind."""
        self._variables = dict(variables or {})
        self.present = set(task_vars["ansible_play_hosts"])
        self.everyone = set(task_vars["ansible_play_hosts_all"])
        self._names = list(task_vars["ansible_play_hosts"])
        self._work = work
        forks = context.CLIARGS.get("forks") or 5
        self._tasks = NodeTasks(action, task_vars, min(forks, MOST_WORKERS))
        #: Sending takes minutes, and mostly waits: it must not keep others from their launch or from being asked.
        self._sends = NodeTasks(action, task_vars, transfers or forks)
        #: Launches that wait for the node's images, with when they were ordered and what was left then.
        self._ordered: dict[str, tuple[Mapping[str, Any], float, float]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._tasks.busy or self._sends.busy)

    def plans(self) -> Iterator[Outcome]:
        """Have each node's plan made, for check mode."""
        for name in self._names:
            self._tasks.submit(name, "launch", self._work["launch"].file, {"run_launch": {}}, SHOW_SECONDS)
        while self.busy:
            yield from self._tasks.wait(SHOW_SECONDS)

    def begin(self, views: Mapping[str, NodeView]) -> None:
        """Nothing: the connections are Ansible's."""

    def again(self, _view: NodeView) -> None:
        """A runner that is gone is started again by the watch itself."""

    def unsettled(self) -> bool:
        return False

    def joined(self) -> Mapping[str, Any]:
        """Nobody: over SSH a node is known by the inventory alone."""
        return {}

    def welcome(self, _view: NodeView) -> None:
        """Nothing: nobody joins."""

    def launch(self, view: NodeView, order: Mapping[str, Any], seconds: float) -> None:
        """Start the plan, after images that go over the connection: a node that is slow to take them delays nobody."""
        if view.brings_images:
            self._ordered[view.name] = (order, time.monotonic(), seconds)
            send = self._work["send"]
            self._sends.submit(view.name, "send", send.file, self._variables, send.seconds)
        else:
            self._launch(view.name, order, seconds)

    def fetch(self, view: NodeView) -> None:
        self._submit(view.name, "fetch", {"run_fetch": {}})

    def wait(self, seconds: float) -> list[Outcome]:
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            ended = self._ended(max(0.0, min(left, TURN_SECONDS)))
            if ended or left <= 0:
                return ended

    def _ended(self, seconds: float) -> list[Outcome]:
        ended = []
        for outcome in (*self._sends.wait(0.0), *self._tasks.wait(seconds)):
            if outcome.result and outcome.result.get("interpreter"):
                self._tasks.use_interpreter(outcome.node, outcome.result["interpreter"])
            if outcome.kind == "send":  # what became of its images, its image stage says in a record
                order, at, left = self._ordered.pop(outcome.node)
                self._launch(outcome.node, order, max(1.0, left - (time.monotonic() - at)))
            else:
                ended.append(outcome)
        return ended

    def close(self) -> None:
        self._tasks.close()
        self._sends.close()

    def _launch(self, name: str, order: Mapping[str, Any], seconds: float) -> None:
        self._submit(name, "launch", {"run_launch": {**order, "deadline_seconds": seconds}})

    def _submit(self, name: str, kind: str, variables: Mapping[str, Any]) -> None:
        work = self._work[kind]
        self._tasks.submit(name, kind, work.file, {**self._variables, **variables}, work.seconds)
