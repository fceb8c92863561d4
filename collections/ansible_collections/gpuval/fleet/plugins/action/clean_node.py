# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Clean one node in one round trip. Every result, failures too, is an outcome that clean_run reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError

from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.ssh.findings import REACHABLE
from ..plugin_utils.watch import cleaning


@dataclass(frozen=True, kw_only=True)
class CleanNodeOptions:
    directory: str = ""
    run_ids: Sequence[str] = ()
    keep_models: bool = False
    remove_images: bool = False
    #: Findings of the step probe_nodes by node; a node that is not reachable is not contacted.
    probe: Mapping[str, Any] = field(default_factory=dict)


class ActionModule(ControllerAction):
    options_type = CleanNodeOptions
    _requires_connection = True

    def work(self, options, task_vars):
        found = options.probe.get(task_vars["inventory_hostname"]) or {}
        if found.get("state", REACHABLE) != REACHABLE:
            state = str(found["state"])
            outcome = cleaning.unreached(str(found.get("message") or state), state, str(found.get("remedy") or ""))
        else:
            outcome = self._clean(options, task_vars)
        if outcome["state"] != cleaning.CLEAN:
            word = f" ({outcome['class']})" if outcome.get("class") else ""
            self._display.warning(f"{task_vars['inventory_hostname']}: {outcome['state']}{word}: {outcome['message']}")
        return {"changed": bool(outcome.pop("changed", False)), "outcome": outcome}

    def _clean(self, options, task_vars):
        arguments = {name: getattr(options, name) for name in ("directory", "run_ids", "keep_models")}
        if options.remove_images:
            arguments["remove_images"] = True
        try:
            answer = self.ask_node("clean_node", arguments, task_vars)
        except AnsibleConnectionFailure as error:
            return cleaning.unreached(str(error.message))
        except AnsibleError as error:  # become, the interpreter, a temporary folder
            return cleaning.answered({"failed": True, "msg": str(error.message)})
        if answer.get("unreachable"):
            return cleaning.unreached(str(answer.get("msg", "unreachable")))
        return {**cleaning.answered(answer), "changed": answer.get("changed", False)}
