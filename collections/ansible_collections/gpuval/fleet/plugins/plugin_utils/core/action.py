"""Base class of the collection's action plugins."""

import json
from collections.abc import Mapping
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from . import answers, extensions
from .ansible_internal import OutputLimit
from .commands import pasteable
from .console import Console, folded
from .errors import GpuvalError, disk_problem, subject_of
from .escape import console_line
from .paths import project_path
from .step_options import argument_spec
from .text import some_of


def injected_settings(values: Mapping[str, Any]) -> list[str]:
    """Names of settings that a host's facts override: Ansible turns facts, which nodes report, into variables."""
    facts = values.get("ansible_facts") or () if constants.config.get_config_value("INJECT_FACTS_AS_VARS") else ()
    return answers.settings_among(facts)


def _printed(value: Any) -> Any:
    """A task's result with each text in it made one line, safe to print."""
    if isinstance(value, str):
        return console_line(pasteable(value))
    if isinstance(value, Mapping):
        return {key: _printed(item) for key, item in value.items()}
    return [_printed(item) for item in value] if isinstance(value, list) else value


class ControllerAction(OutputLimit, ActionBase):
    """Base of action plugins that run on the controller: checks options, makes expected failures one clear message."""

    _requires_connection = False
    _display: Any

    def run(self, tmp: Any = None, task_vars: Any = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        self._display = Console(self._display)
        self.task_vars = task_vars or {}
        if foreign := injected_settings(self.task_vars):
            raise AnsibleActionFail(
                f"facts of {self.task_vars.get('inventory_hostname')} have names of settings ({some_of(foreign)}), "
                "which they would override: set inject_facts_as_vars = false in ansible.cfg, clear the fact cache, and "
                "check which task returned them"
            )
        extensions.use_setting(self._templar, self.task_vars)
        options: dict[str, Any] = {}
        try:
            _checked, options = self.validate_argument_spec(self.spec())
            result |= self.work(options, self.task_vars)
        except AnsibleActionFail as error:
            text = pasteable(error.message)
            if text == error.message:
                raise
            raise AnsibleActionFail(text, result=error.result) from None
        except GpuvalError as error:
            failure = {"failed_subject": subject} if (subject := subject_of(error)) else {}
            raise AnsibleActionFail(folded(str(error)), result=failure) from None  # Ansible would print causes, too
        except OSError as error:
            paths = {**(options.get("store") or {}), **options}
            settings = [name for name in ("results_dir", "state_dir") if paths.get(name)]
            problem = disk_problem(error, {f"gpuval_{name}": project_path(paths[name]) for name in settings})
            if not problem:
                raise
            raise AnsibleActionFail(folded(problem)) from None
        except AnsibleConnectionFailure as error:  # the message contains text from the node's SSH server
            raise AnsibleConnectionFailure(folded(str(error.message))) from None
        if result.get("failed"):
            result = _printed(result)
        elif isinstance(result.get("msg"), str):
            result["msg"] = console_line(pasteable(result["msg"]))
        facts = result.pop("ansible_facts", {})
        if self._discovered_interpreter_key:  # keep the path of the node's Python, so that Ansible searches once
            facts[self._discovered_interpreter_key] = self._discovered_interpreter
        facts = {name: value for name, value in facts.items() if name in answers.FACTS}
        return {**result, "ansible_facts": facts} if facts else result

    def work(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def ask_node(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run a node step with `arguments`, or a module with the task's options, on the task's node. Returns the
        declared fields of its answer, or a failed answer if it is invalid. Raises AnsibleError if it is unreachable."""
        try:
            return answers.accept(name, self.execute_on_node(name, arguments))
        except answers.InvalidAnswerError as error:
            return {"failed": True, "msg": str(error)}

    def execute_on_node(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run a node step or module like `ask_node`, but return the node's answer unchecked."""
        module = "node" if answers.is_node_step(name) else name
        module_arguments = {"step": name, "arguments": json.dumps(arguments, default=str)} if module == "node" else None
        answer: dict[str, Any] = self._execute_module(
            module_name=f"gpuval.fleet.{module}", module_args=module_arguments, task_vars=self.task_vars
        )
        return answer

    def spec(self) -> dict[str, Any]:
        """The argument spec of the action, which is that of the module with its name."""
        return argument_spec(self.name)

    @property
    def display(self) -> Any:
        return self._display

    @property
    def diff(self) -> bool:
        return bool(self._task.diff)

    @property
    def connection(self) -> str:
        """The name of the task's connection plugin, such as ssh or local."""
        return str(self._task.connection)

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    @property
    def check_mode(self) -> bool:
        return bool(self._task.check_mode)
