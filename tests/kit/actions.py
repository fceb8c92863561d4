"""Actions in this process: options checked as in a play, without a play around them."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.template import Templar
from ansible.utils.display import Display

PLUGINS = "ansible_collections.gpuval.fleet.plugins"
ACTIONS = f"{PLUGINS}.action"


@dataclass
class Outcome:
    """What an action returned; ``result`` is None and ``lines`` end with the message where it raised."""

    result: dict[str, Any] | None = None
    lines: list[str] = field(default_factory=list)
    verbosity = 0

    @property
    def failed(self) -> bool:
        return self.result is None or bool(self.result.get("failed"))

    @property
    def text(self) -> str:
        """Warnings, messages of the action and its ``msg``, each once, in one line."""
        return " ".join([*self.lines, str((self.result or {}).get("msg", ""))])

    def warning(self, text: str, **_: Any) -> None:
        self.lines.append(text)

    display = vv = vvv = warning

    def prompt_until(self, text: str, seconds: int) -> bytes:
        return Display().prompt_until(text, seconds=seconds)


def run_action(
    name: str, options: dict[str, Any], *, task_vars: dict[str, Any] | None = None, check_mode: bool = False
) -> Outcome:
    """Run an action of the collection, or a step of the controller or of nodes; a failure is an outcome."""
    outcome = Outcome()
    plugin = name if importlib.util.find_spec(f"{ACTIONS}.{name}") else "controller"
    if importlib.util.find_spec(f"{PLUGINS}.plugin_utils.node_steps.{name}"):
        plugin = "node"
    task = SimpleNamespace(
        action=f"gpuval.fleet.{plugin}",
        args=options if plugin == name else {**options, "step": name},
        async_val=0,
        check_mode=check_mode,
        diff=False,
        delegate_to=None,
        connection="local",
    )
    connection = SimpleNamespace(
        _shell=SimpleNamespace(tmpdir="none"), transport="local"
    )  # an action on the controller has none
    variables = task_vars or {}
    action = importlib.import_module(f"{ACTIONS}.{plugin}").ActionModule(
        task=task,
        connection=connection,
        play_context=None,
        loader=None,
        templar=Templar(variables=variables),
        shared_loader_obj=None,
    )
    action._display = outcome
    try:
        outcome.result = action.run(task_vars=variables)
    except AnsibleActionFail as error:
        outcome.lines.append(str(error))
    return outcome


def vars_of(hosts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return what a play over these hosts gives a task."""
    return {"ansible_play_hosts_all": list(hosts), "ansible_play_hosts": list(hosts), "hostvars": hosts}
