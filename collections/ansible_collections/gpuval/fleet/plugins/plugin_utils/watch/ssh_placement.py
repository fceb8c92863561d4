"""The placement over SSH: Ansible's own tasks on nodes, several at once, each with a time limit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ansible import context
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.node_tasks import MOST_WORKERS, NodeTasks, Outcome
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.decisions import NodeView
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.placement import Attempt, Ended, Event, Placement

SHOW_SECONDS = 60
#: How long `wait` blocks on launches and fetches before it looks at transfers.
TURN_SECONDS = 0.5


@dataclass(frozen=True)
class Work:
    """A task file with one task, and its time limit on one node in seconds."""

    file: Path
    seconds: float


class SshPlacement(Placement):
    """`work` has the kinds launch, fetch and send (images that do not come by the store)."""

    def __init__(
        self,
        action: Any,
        task_vars: Mapping[str, Any],
        work: Mapping[str, Work],
        transfers: int,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """`variables` are added to those of every task."""
        self._variables = dict(variables or {})
        self.present = set(task_vars["ansible_play_hosts"])
        self.everyone = set(task_vars["ansible_play_hosts_all"])
        self._names = list(task_vars["ansible_play_hosts"])
        self._work = work
        forks = context.CLIARGS.get("forks") or 5
        self._tasks = NodeTasks(action, task_vars, min(forks, MOST_WORKERS))
        #: Separate workers: a transfer takes minutes, mostly waiting, and must not delay launches and fetches.
        self._sends = NodeTasks(action, task_vars, transfers or forks)
        #: Launches that wait for the node's images, with the time of their order and the seconds left then.
        self._ordered: dict[str, tuple[Attempt, float, float]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._tasks.busy or self._sends.busy)

    def plans(self) -> Iterator[Outcome]:
        """The plan of each node, for check mode."""
        for name in self._names:
            self._tasks.submit(name, "launch", self._work["launch"].file, {"run_launch": {}}, SHOW_SECONDS)
        while self.busy:
            yield from self._tasks.wait(SHOW_SECONDS)

    def launch(self, view: NodeView, attempt: Attempt, seconds: float) -> None:
        """Start the plan, after the transfer of images that do not come by the store."""
        if view.needs_images:
            self._ordered[view.name] = (attempt, time.monotonic(), seconds)
            send = self._work["send"]
            self._sends.submit(view.name, "send", send.file, self._variables, send.seconds)
        else:
            self._launch(view.name, attempt, seconds)

    def fetch(self, view: NodeView) -> None:
        self._submit(view.name, "fetch", {"run_fetch": {}})

    def wait(self, seconds: float) -> list[Event]:
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            ended = self._ended(max(0.0, min(left, TURN_SECONDS)))
            if ended or left <= 0:
                return ended

    def _ended(self, seconds: float) -> list[Event]:
        ended: list[Event] = []
        for outcome in (*self._sends.wait(0.0), *self._tasks.wait(seconds)):
            result = outcome.result or {}
            if result.get("interpreter"):
                self._tasks.use_interpreter(outcome.node, result["interpreter"])
            if outcome.kind == "send":  # a transfer that failed shows in the record of the image stage
                attempt, at, left = self._ordered.pop(outcome.node)
                self._launch(outcome.node, attempt, max(1.0, left - (time.monotonic() - at)))
            else:
                kind: Literal["launch", "fetch"] = "launch" if outcome.kind == "launch" else "fetch"
                started = bool(result.get("changed"))
                ended.append(Ended(outcome.node, kind, started, outcome.failed, outcome.unreachable, outcome.message))
        return ended

    def close(self) -> None:
        self._tasks.close()
        self._sends.close()

    def _launch(self, name: str, attempt: Attempt, seconds: float) -> None:
        launch = {"attempt": attempt.number, "stages": list(attempt.stages), "deadline_seconds": seconds}
        self._submit(name, "launch", {"run_launch": launch})

    def _submit(self, name: str, kind: str, variables: Mapping[str, Any]) -> None:
        work = self._work[kind]
        self._tasks.submit(name, kind, work.file, {**self._variables, **variables}, work.seconds)
