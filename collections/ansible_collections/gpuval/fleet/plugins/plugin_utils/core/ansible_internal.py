"""All uses of ansible-core's unpublished interfaces, each with its reason; no other file of the collection has any.

They are equal in ansible-core 2.19 to 2.21 unless a comment names versions; tests/unit/core/test_ansible_internal.py
checks the installed version. The import raises AnsibleError if ansible-core is older.
"""

import atexit
import gc
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, wraps
from importlib.machinery import SourceFileLoader
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType
from typing import Any

from ansible.errors import AnsibleError
from ansible.executor.process import worker as ansible_worker
from ansible.playbook.task import Task
from ansible.plugins.inventory import BaseFileInventoryPlugin
from ansible.plugins.loader import action_loader, filter_loader, test_loader
from ansible.release import __version__
from ansible.template import Templar
from ansible.utils.collection_loader import _collection_finder
from ansible.utils.display import Display

from .node_ranges import with_colons

#: Oldest supported ansible-core, as `requires_ansible` in meta/runtime.yml, whose violation Ansible only warns about.
OLDEST = "2.19"

try:
    # The file and line where a variable was set, for messages. ansible-core 2.18 had `ansible_pos` instead.
    from ansible._internal._datatag._tags import Origin

    # Needed to compile templates once for all forked workers, see `compile_once`.
    from ansible._internal._templating._jinja_bits import AnsibleEnvironment, _TemplateCompileContext
except ModuleNotFoundError:
    raise AnsibleError(
        f"gpuval needs ansible-core {OLDEST} or newer, and this is {__version__}: in an environment of Python 3.11 or "
        f"newer, pip install 'ansible-core>={OLDEST}'"
    ) from None

__all__ = ["Origin", "OutputLimit", "PlayWorker", "file_loader", "is_set_by_task", "show_message", "task_id"]

#: Prefix of the names of this collection's Python modules.
OWN = __name__.removesuffix("plugins.plugin_utils.core.ansible_internal")
#: Maximum number of compiled templates to keep; a run's arguments have some hundred.
MAX_TEMPLATES = 2000
#: Maximum length of a module's output; the largest answer, of `fetch_evidence`, has a third of that.
MAX_OUTPUT_CHARACTERS = 128 << 20
#: Keys of a task's result that a worker sends to the action.
RETURNED = ("changed", "diff", "plan", "skipped", "objects", "problems", "store_failed", "more", "running", "stated")
display = Display()


class PlayWorker:
    """Gives an action the variables of all hosts of the play, and starts tasks on them.

    An action plugin gets the variables of its own host only, and cannot run a task on another one: a strategy starts a
    task on all hosts and waits for the slowest. This class uses what a strategy uses for both: `current_worker` and its
    attributes, `VariableManager.get_vars` with host lists, a task's block and role, `WorkerProcess` and its queue.
    """

    def __init__(self, action: Any, task_vars: Mapping[str, Any]) -> None:
        self._worker = ansible_worker.current_worker
        if self._worker is None:
            raise AnsibleError("gpuval works on other nodes within a worker process of ansible-playbook only")
        self._task = action._task
        self._manager = self._worker._variable_manager
        self._hosts = list(task_vars["ansible_play_hosts"])
        self._all_hosts = list(task_vars["ansible_play_hosts_all"])
        self._prepared: set[str] = set()
        compile_once()

    def _host(self, node: str) -> Any:
        return self._manager._inventory.get_host(node)

    def variables_of(self, node: str, task: Task | None = None) -> dict[str, Any]:
        """All variables of a host of the play, untemplated, as the action's task or another `task` sees them."""
        hosts = {"host": self._host(node), "_hosts": self._hosts, "_hosts_all": self._all_hosts}
        variables: dict[str, Any] = self._manager.get_vars(play=self._task.get_play(), task=task or self._task, **hosts)
        return variables

    def set_facts(self, node: str, facts: Mapping[str, Any]) -> None:
        self._manager.set_host_facts(self._host(node), facts)

    def read_tasks(self, file: Path) -> list[dict[str, Any]]:
        """The tasks in a task file, with templates not yet rendered."""
        return list(self._worker._loader.load_from_file(str(file), cache="none", trusted_as_template=True))

    def start(self, node: str, definition: Mapping[str, Any], results: Connection) -> Any:
        """Start a process that runs a task on a node and sends its displayed messages and its result to `results`.
        `definition`: the task as in a task file."""
        loader = self._worker._loader
        parents = {"block": self._task._parent, "role": self._task._role}
        task = Task.load(definition, **parents, variable_manager=self._manager, loader=loader)
        _load(task.action)
        variables = self.variables_of(node, task)
        name = f"{task.action} {task.args.get('step', '')}"
        if name not in self._prepared:
            self._prepared.add(name)
            with suppress(AnsibleError):  # the worker raises it again, and reports it
                Templar(loader=loader, variables=variables).template(task.args)
            gc.freeze()  # otherwise a garbage collection in each worker would copy the memory pages of all objects
        process = ansible_worker.WorkerProcess(
            final_q=_ResultQueue(results),
            task_vars=variables,
            host=self._host(node),
            task=task,
            play_context=self._worker._play_context.copy(),
            loader=loader,
            variable_manager=self._manager,
            shared_loader_obj=self._worker._shared_loader_obj,
            worker_id=0,
            cliargs=self._worker._cliargs,
        )
        process.start()
        return process


def file_loader(action: Any) -> Any:
    """The file loader of an action, which decrypts vault files, and which Ansible's `load_extra_vars` takes."""
    return action._loader


def is_set_by_task(node: str, name: str) -> bool:
    """Whether a task set a node's variable ``name`` by `set_fact`, so that it has no origin. False outside workers."""
    worker = ansible_worker.current_worker
    return bool(worker) and name in worker._variable_manager._nonpersistent_fact_cache.get(node, {})


@cache
def _load(action: str) -> None:
    """Import an action plugin, Ansible's filters and tests before the fork, so that workers need not import them."""
    action_loader.get(action, class_only=True)
    filter_loader.get("default")
    test_loader.get("defined")


def compile_once() -> None:
    """Make this process, and processes that it forks, compile each template only once.

    Ansible compiles a template each time it is used. Without this, the worker of a launch compiles 69 templates in
    58 ms of processor time, an eighth of what a node costs the controller.
    """
    compiled: dict[tuple[str, bool], CodeType] = {}
    compile_anew = AnsibleEnvironment.compile
    if hasattr(compile_anew, "__wrapped__"):
        return

    @wraps(compile_anew)
    def compile_kept(self: AnsibleEnvironment, source: Any, *words: Any, **options: Any) -> Any:
        # Not cached: an overlay, which has its own delimiters, and a syntax tree, which is part of another template.
        if words or options or self.overlayed or not isinstance(source, str):
            return compile_anew(self, source, *words, **options)
        context = _TemplateCompileContext.current(optional=True)
        key = (str(source), bool(context and context.escape_backslashes))
        code = compiled.get(key)
        if code is None:
            code = compile_anew(self, source)
            if len(compiled) < MAX_TEMPLATES:
                compiled[key] = code
        return code

    AnsibleEnvironment.compile = compile_kept


def cache_bytecode() -> None:
    """Let this process import the collection's files from bytecode in ``__pycache__``, as Python imports packages.

    Ansible compiles each file of a collection at every import: 0.4 s of a command's processor time.
    """
    loader = _collection_finder._AnsibleCollectionPkgLoaderBase
    compile_anew = loader.get_code
    if hasattr(compile_anew, "__wrapped__"):
        return

    @wraps(compile_anew)
    def get_code(self: Any, fullname: str) -> Any:
        path = str(self._source_code_path)
        if self._compiled_code is None and fullname.startswith(OWN) and path.endswith(".py"):
            self._compiled_code = SourceFileLoader(fullname, path).get_code(fullname)
        return compile_anew(self, fullname)

    loader.get_code = get_code


cache_bytecode()  # before the collection's other modules are imported
# At exit Python searches all of Ansible's objects for garbage several times: a fifth of a short command's time. Where
# DuckDB is loaded that stays: without it DuckDB prints fifty lines about objects that were not collected.
atexit.register(lambda: None if "duckdb" in sys.modules else gc.freeze())


def accept_dashes() -> None:
    """Make Ansible's inventory plugins (YAML, INI, TOML) accept the range `gpu[01-16]` as `gpu[01:16]`."""
    expand = BaseFileInventoryPlugin._expand_hostpattern
    if not hasattr(expand, "__wrapped__"):
        expand_both = wraps(expand)(lambda self, pattern: expand(self, with_colons(pattern)))
        BaseFileInventoryPlugin._expand_hostpattern = expand_both


class _ResultQueue:
    """Replaces the queue from a worker to Ansible's main process: sends the worker's messages to the action."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def send_display(self, method: str, *words: Any, **options: Any) -> None:
        self._pipe.send(("display", (method, words, options)))

    def send_callback(self, *_words: Any, **_options: Any) -> None:
        """Does nothing: callbacks are for tasks of the play, and the action reports its tasks itself."""

    def send_prompt(self, **_options: Any) -> None:
        raise AnsibleError("a node's task cannot ask a question: give passwords by -k, -K or variables")

    def send_task_result(self, *result: Any) -> None:
        """Send the used part of a task's result: one object in ansible-core up to 2.20, then host, task, result."""
        values = result[0]._return_data if len(result) == 1 else result[2].as_result_dict()
        returned = {name: values[name] for name in RETURNED if name in values}
        if python := (values.get("ansible_facts") or {}).get("discovered_interpreter_python"):
            returned["interpreter"] = str(python)
        # Warnings of a task are objects of ansible-core.
        returned["warnings"] = [getattr(warning, "event", warning).msg for warning in values.get("warnings") or ()]
        states = {state: bool(values.get(state)) for state in ("failed", "unreachable")}
        self._pipe.send(("result", {**states, "message": str(values.get("msg") or ""), "result": returned}))


class OutputLimit:
    """Base class before ActionBase: refuses too large an output of a module before it is parsed as JSON, which takes
    many times its size in memory. Ansible itself has no limit."""

    def _parse_returned_data(self, res: dict[str, Any], *profile: Any) -> dict[str, Any]:
        size = len(res.get("stdout") or "")
        if size > MAX_OUTPUT_CHARACTERS:
            return {"failed": True, "msg": f"the node's answer has {size:,} characters: no module prints so much"}
        parsed: dict[str, Any] = super()._parse_returned_data(res, *profile)  # type: ignore[misc]
        return parsed


def task_id(task: Task) -> str:
    """The id by which a task and its results, which hold a copy of the task, belong together."""
    return str(task._uuid)


def show_message(message: Sequence[Any]) -> None:
    """Display a message that a worker sent: (method of Ansible's display, arguments, keyword arguments)."""
    method, words, options = message
    getattr(display, method)(*words, **options)
