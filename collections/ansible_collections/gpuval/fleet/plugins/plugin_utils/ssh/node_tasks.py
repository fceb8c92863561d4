"""Runs Ansible tasks on chosen nodes from within one action: several at once, each with a deadline of its own.

An Ansible strategy starts a task on all hosts of a play and waits for the slowest. Here the watch's action decides
which node needs what, and runs it in Ansible's own worker processes, as a strategy does: with the host's variables,
connection, become and interpreter.
"""

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ..core.ansible_internal import PlayWorker, show_message
from ..core.processes import Parent
from ..core.step_options import load_step

#: Seconds after the deadline of its task at which a worker process that still runs is killed.
SLACK_SECONDS = 10
#: Maximum number of workers: each uses some 100 MB, much of it shared, and few cores cannot use more.
MAX_WORKERS = 12
END_SECONDS = 3.0


@dataclass(frozen=True)
class TaskOutcome:
    """The end of a task on a node. `kind`: the submitter's word for it, such as `launch`. `message`: Ansible's, if the
    task failed."""

    node: str
    kind: str
    failed: bool = False
    unreachable: bool = False
    message: str = ""
    result: Mapping[str, Any] | None = None


@dataclass
class _Running:
    process: Any
    pipe: Connection
    kind: str
    deadline: float
    seconds: float
    outcome: TaskOutcome | None = None


class NodeTasks:
    """Runs tasks on nodes, at most `limit` at once; further tasks wait in order."""

    def __init__(self, action: Any, task_vars: Mapping[str, Any], limit: int) -> None:
        self._worker = PlayWorker(action, task_vars)
        self._limit = max(1, limit)
        self._parent = Parent()
        self._waiting: deque[tuple[str, str, dict[str, Any], float]] = deque()
        self._running: dict[str, _Running] = {}
        self._not_begun: list[TaskOutcome] = []
        self._files: dict[Path, list[dict[str, Any]]] = {}

    @property
    def busy(self) -> set[str]:
        """Nodes with a task that runs or waits."""
        waiting = (node for node, *_task in self._waiting)
        return {*self._running, *waiting, *(outcome.node for outcome in self._not_begun)}

    def submit(self, node: str, kind: str, file: Path, arguments: Mapping[str, Any], seconds: float) -> None:
        """Run the only task of a task file on a node, within `seconds`. `arguments`: further arguments of its action.

        Arguments are values, not templates: to render a template takes Ansible some milliseconds for each node.
        """
        if file not in self._files:
            self._files[file] = self._worker.read_tasks(file)
        (definition,) = self._files[file]
        if arguments:
            action = next(key for key in definition if key.startswith("gpuval."))
            definition = {**definition, action: {**definition[action], **arguments}}
        definition = {**definition, "timeout": int(seconds)}
        self._waiting.append((node, kind, definition, seconds))
        self._start_waiting()

    def wait(self, seconds: float) -> list[TaskOutcome]:
        """Wait until tasks have ended, at most `seconds`, and return their outcomes."""
        until = time.monotonic() + seconds
        while True:
            ended, self._not_begun = self._not_begun, []
            ended += self._collect(0.0 if ended else max(0.0, min(until - time.monotonic(), 1.0)))
            self._parent.check()
            self._start_waiting()
            if ended or time.monotonic() >= until:
                return ended
            if not self._running:
                time.sleep(max(0.0, until - time.monotonic()))

    def use_interpreter(self, node: str, path: str) -> None:
        self._worker.set_facts(node, {"discovered_interpreter_python": path})

    def close(self) -> None:
        """End running tasks."""
        self._waiting.clear()
        for running in self._running.values():
            _end(running.process)
            running.pipe.close()
        self._running.clear()

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._limit:
            node, kind, definition, seconds = self._waiting.popleft()
            try:
                self._running[node] = self._start(node, kind, definition, seconds)
            except Exception as error:  # wrong variables of a node, or no memory for a worker: other nodes continue
                message = f"the controller could not start the task: {type(error).__name__}: {error}"
                self._not_begun.append(TaskOutcome(node, kind, failed=True, message=message))

    def _start(self, node: str, kind: str, definition: dict[str, Any], seconds: float) -> _Running:
        if step := definition.get("gpuval.fleet.node", {}).get("step"):
            load_step(step, "node_steps")  # import before the fork, or each worker process would import
        reader, writer = multiprocessing.Pipe(duplex=False)
        process = self._worker.start(node, definition, writer)
        writer.close()
        return _Running(process, reader, kind, time.monotonic() + seconds + SLACK_SECONDS, seconds)

    def _collect(self, seconds: float) -> list[TaskOutcome]:
        pipes = [running.pipe for running in self._running.values()]
        ready = wait(pipes, timeout=seconds) if pipes else []
        now = time.monotonic()  # read once: ending a worker takes time, which does not make other workers late
        ended = []
        for node, running in list(self._running.items()):
            is_over = running.pipe in ready and not self._hear(node, running)
            if not is_over and now > running.deadline:
                message = f"no answer within {running.seconds:.0f} s: is the node overloaded?"
                running.outcome = TaskOutcome(node, running.kind, True, True, message)
                is_over = True
            if is_over:
                del self._running[node]
                running.pipe.close()
                _end(running.process)
                message = "the worker process of Ansible exited unexpectedly (out of memory?)"
                ended.append(running.outcome or TaskOutcome(node, running.kind, True, False, message))
        return ended

    def _hear(self, node: str, running: _Running) -> bool:
        """Read one message of a worker. Returns False after the last message."""
        try:
            kind, content = running.pipe.recv()
        except (EOFError, OSError):
            return False
        if kind == "display":
            show_message(content)
        else:
            running.outcome = TaskOutcome(node, running.kind, **content)
        return True


def _end(process: Any) -> None:
    """End a worker that is done or late: first SIGTERM, then SIGKILL for the worker and its children."""
    process.join(0.5)
    if process.is_alive():
        process.terminate()
        process.join(END_SECONDS)
    if process.is_alive():
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            process.kill()
        process.join(END_SECONDS)
