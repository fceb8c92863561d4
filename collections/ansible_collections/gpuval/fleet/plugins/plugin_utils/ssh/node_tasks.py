"""Tasks on chosen nodes from within one action: several at once, each with a deadline, independent of each other.

An Ansible strategy starts a task on all hosts of a play and waits for the slowest. Here the watch's action decides
which node needs what, and runs it in Ansible's own worker processes, as a strategy does: with the host's variables,
connection, become and interpreter.

Used of Ansible beyond its public interface, the same in ansible-core 2.19 to 2.21: `current_worker`, `WorkerProcess`
with its arguments, and `VariableManager.get_vars`. tests/unit/ssh checks them in the installed version.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.executor.process import worker as ansible_worker
from ansible.playbook.task import Task
from ansible.plugins.loader import action_loader, filter_loader, test_loader
from ansible.template import Templar
from ansible.utils.display import Display

from ..core.parent_process import Parent
from ..core.step_options import load_step
from .templates import compile_once

#: A worker that still runs this long after its deadline is killed.
SLACK_SECONDS = 10
#: Each takes some 100 MB (much of it shared); with few cores more of them bring nothing.
MAX_WORKERS = 12
END_SECONDS = 3.0
#: What is used of a task's result.
RETURNED = ("changed", "diff", "plan", "skipped", "objects", "problems", "store_failed")

display = Display()


@dataclass(frozen=True)
class TaskOutcome:
    """How a task on a node ended. `message` is Ansible's, when it failed."""

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
    """At most `limit` tasks at once; further ones wait their turn in order."""

    def __init__(self, action: Any, task_vars: Mapping[str, Any], limit: int) -> None:
        self._task = action._task
        self._worker = ansible_worker.current_worker
        if self._worker is None:
            raise AnsibleError("gpuval tasks on nodes need a worker process of ansible-playbook around them")
        self._variables = self._worker._variable_manager
        self._hosts = list(task_vars["ansible_play_hosts"])
        self._all_hosts = list(task_vars["ansible_play_hosts_all"])
        self._limit = max(1, limit)
        self._parent = Parent()
        self._waiting: deque[tuple[str, str, dict[str, Any], float]] = deque()
        self._running: dict[str, _Running] = {}
        self._not_begun: list[TaskOutcome] = []
        self._files: dict[Path, list[dict[str, Any]]] = {}
        self._templated: set[str] = set()
        compile_once()

    @property
    def busy(self) -> set[str]:
        """Nodes with a task under way or waiting for its turn."""
        return {
            *self._running,
            *(item[0] for item in self._waiting),
            *(outcome.node for outcome in self._not_begun),
        }

    def submit(self, node: str, kind: str, file: Path, arguments: Mapping[str, Any], seconds: float) -> None:
        """Run the one task of a task file on a node, with further arguments of its action, within so many seconds.

        They are values, not templates: Ansible takes some milliseconds to render one, on each node.
        """
        if file not in self._files:
            self._files[file] = self._worker._loader.load_from_file(str(file), cache="none", trusted_as_template=True)
        (definition,) = self._files[file]
        if arguments:
            action = next(key for key in definition if key.startswith("gpuval."))
            definition = {**definition, action: {**definition[action], **arguments}}
        definition = {**definition, "timeout": int(seconds)}
        self._waiting.append((node, kind, definition, seconds))
        self._start_waiting()

    def wait(self, seconds: float) -> list[TaskOutcome]:
        """Wait at most this long for tasks to end; returns those that ended, at once when there are any."""
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
        """Let further tasks on the node use this Python."""
        host = self._variables._inventory.get_host(node)
        self._variables.set_host_facts(host, {"discovered_interpreter_python": path})

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
            except Exception as error:  # one node's variables, or no memory for a worker: the others go on
                message = f"the controller could not start the task: {type(error).__name__}: {error}"
                self._not_begun.append(TaskOutcome(node, kind, failed=True, message=message))

    def _start(self, node: str, kind: str, definition: dict[str, Any], seconds: float) -> _Running:
        host = self._variables._inventory.get_host(node)
        loader = self._worker._loader
        task = Task.load(
            definition,
            block=self._task._parent,
            role=self._task._role,
            variable_manager=self._variables,
            loader=loader,
        )
        _load(task.action, task.args["step"] if task.action == "gpuval.fleet.node" else "")
        variables = self._variables.get_vars(
            play=self._task.get_play(), host=host, task=task, _hosts=self._hosts, _hosts_all=self._all_hosts
        )
        self._prepare_fork(task, variables)
        reader, writer = multiprocessing.Pipe(duplex=False)
        process = ansible_worker.WorkerProcess(
            final_q=_Answers(writer),
            task_vars=variables,
            host=host,
            task=task,
            play_context=self._worker._play_context.copy(),
            loader=loader,
            variable_manager=self._variables,
            shared_loader_obj=self._worker._shared_loader_obj,
            worker_id=0,
            cliargs=self._worker._cliargs,
        )
        process.start()
        writer.close()
        return _Running(process, reader, kind, time.monotonic() + seconds + SLACK_SECONDS, seconds)

    def _prepare_fork(self, task: Task, variables: Mapping[str, Any]) -> None:
        """Do once what each worker of an action would do: compile the templates of its arguments, look for garbage."""
        name = f"{task.action} {task.args.get('step', '')}"
        if name not in self._templated:
            self._templated.add(name)
            with suppress(AnsibleError):  # the worker meets it again, and reports it
                Templar(loader=self._worker._loader, variables=variables).template(task.args)
            gc.freeze()  # otherwise each worker looks through all of it for garbage, and copies its pages

    def _collect(self, seconds: float) -> list[TaskOutcome]:
        by_pipe: dict[Any, str] = {running.pipe: node for node, running in self._running.items()}
        ended = []
        for pipe in wait(list(by_pipe), timeout=seconds) if by_pipe else ():
            node = by_pipe[pipe]
            if not self._hear(node, self._running[node]):
                ended.append(self._ended(node))
        now = time.monotonic()
        for node, running in list(self._running.items()):
            if now > running.deadline:
                running.outcome = TaskOutcome(
                    node, running.kind, True, True, f"no answer within {running.seconds:.0f} s: is the node overloaded?"
                )
                ended.append(self._ended(node))
        return ended

    def _hear(self, node: str, running: _Running) -> bool:
        """Read one message; False after the last one."""
        try:
            kind, content = running.pipe.recv()
        except (EOFError, OSError):
            return False
        if kind == "display":
            method, words, options = content
            getattr(display, method)(*words, **options)
        else:
            running.outcome = TaskOutcome(node, running.kind, **content)
        return True

    def _ended(self, node: str) -> TaskOutcome:
        running = self._running.pop(node)
        running.pipe.close()
        _end(running.process)
        return running.outcome or TaskOutcome(
            node, running.kind, True, False, "the worker process of Ansible exited unexpectedly (out of memory?)"
        )


@cache
def _load(action: str, step: str) -> None:
    """Import before the fork what each worker would import for itself: action and step, Ansible's filters and tests."""
    action_loader.get(action, class_only=True)
    if step:
        load_step(step, "node_steps")
    filter_loader.get("default")
    test_loader.get("defined")


def _end(process: Any) -> None:
    """End a worker that is done or late: terminate it, then kill it with its children."""
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


class _Answers:
    """Replaces a worker's queue to Ansible's main process: its messages go to the action."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def send_display(self, method: str, *words: Any, **options: Any) -> None:
        self._pipe.send(("display", (method, words, options)))

    def send_callback(self, *_words: Any, **_options: Any) -> None:
        """Callbacks are for tasks of the play; the action reports these tasks itself."""

    def send_prompt(self, **_options: Any) -> None:
        raise AnsibleError("a node's task cannot ask a question: give passwords by -k, -K or variables")

    def send_task_result(self, *result: Any) -> None:
        self._pipe.send(("result", _result_of(result)))


def _result_of(result: tuple[Any, ...]) -> dict[str, Any]:
    """The used part of a result: ansible-core up to 2.20 hands over one object, later ones host, task and result."""
    data = result[0]._return_data if len(result) == 1 else result[2].as_result_dict()
    facts = data.get("ansible_facts") or {}
    kept = {name: data[name] for name in RETURNED if name in data}
    if facts.get("discovered_interpreter_python"):
        kept["interpreter"] = str(facts["discovered_interpreter_python"])
    return {
        "failed": bool(data.get("failed")),
        "unreachable": bool(data.get("unreachable")),
        "message": str(data.get("msg") or ""),
        "result": kept,
    }
