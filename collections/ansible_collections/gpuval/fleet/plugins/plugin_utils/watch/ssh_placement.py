"""The placement over SSH: Ansible's own tasks on nodes, several at once, each with a time limit."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from typing import Any, Literal

from ansible import context

from ..core.paths import ROLES
from ..ssh.node_tasks import MAX_WORKERS, NodeTasks
from .decisions import NodeView
from .placement import Event, LaunchEnd, NodeNews, Placement, PlannedAttempt

#: Task files of the role `run` with one task each.
TASKS = ROLES / "run/tasks"
#: How long `wait` blocks on launches and fetches before it looks at transfers.
TURN_SECONDS = 0.5


class SshPlacement(Placement):
    """Tasks of three kinds: launch, fetch, and send (images that do not come by the store)."""

    def __init__(
        self,
        action: Any,
        task_vars: Mapping[str, Any],
        seconds: Mapping[str, float],
        transfers: int,
        arguments: Mapping[str, Any],
    ) -> None:
        """`seconds`: the time limit on one node by kind; `arguments` are those that all tasks have."""
        self.present = set(task_vars["ansible_play_hosts"])
        self.everyone = set(task_vars["ansible_play_hosts_all"])
        self._seconds, self._arguments = seconds, dict(arguments)
        self._tasks = NodeTasks(action, task_vars, min(forks(), MAX_WORKERS))
        #: Separate workers: a transfer takes minutes, mostly waiting, and must not delay launches and fetches.
        self._sends = NodeTasks(action, task_vars, transfers or forks())
        #: Launches that wait for the node's images, with the time of their order and the seconds left then.
        self._ordered: dict[str, tuple[PlannedAttempt, float, float]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._tasks.busy or self._sends.busy)

    def launch(self, view: NodeView, attempt: PlannedAttempt, seconds: float) -> None:
        """Start the plan, after the transfer of images that do not come by the store."""
        if view.needs_images:
            self._ordered[view.name] = (attempt, time.monotonic(), seconds)
            self._sends.submit(view.name, "send", TASKS / "send.yml", self._arguments, self._seconds["send"])
        else:
            self._launch(view.name, attempt, seconds)

    def fetch(self, view: NodeView, *, by_store: bool) -> None:
        self._submit(view.name, "fetch", {"by_store": by_store})

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
                objects = result.get("objects", {})
                records = {key: base64.b64decode(text) for key, text in objects.items() if "/records/" in key}
                if records:
                    ended.append(NodeNews(outcome.node, records=records))
                ended.append(
                    LaunchEnd(outcome.node, kind, started, outcome.failed, outcome.unreachable, outcome.message)
                )
        return ended

    def close(self) -> None:
        self._tasks.close()
        self._sends.close()

    def _launch(self, name: str, attempt: PlannedAttempt, seconds: float) -> None:
        launch = {"attempt": attempt.number, "stages": list(attempt.stages), "deadline_seconds": seconds}
        self._submit(name, "launch", launch)

    def _submit(self, name: str, kind: Literal["launch", "fetch"], arguments: Mapping[str, Any]) -> None:
        self._tasks.submit(name, kind, TASKS / f"{kind}.yml", {**self._arguments, **arguments}, self._seconds[kind])


def forks() -> int:
    return context.CLIARGS.get("forks") or 5
