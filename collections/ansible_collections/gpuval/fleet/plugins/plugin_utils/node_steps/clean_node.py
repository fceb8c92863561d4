"""Clean a node by one call. Every result, failures too, is an outcome that the step clean_run reports."""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError

from ..core.action import ControllerAction
from ..ssh.findings import REACHABLE
from ..watch import cleaning


def clean_node(
    action: ControllerAction,
    directory: str = "",
    run_ids: Sequence[str] = (),
    keep_models: bool = False,
    remove_images: bool = False,
    probe: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Clean a node of runs, unless `probe`, the findings of the step probe_nodes by node, has it as not reachable."""
    node = action.task_vars["inventory_hostname"]
    finding = (probe or {}).get(node) or {}
    if finding.get("state", REACHABLE) != REACHABLE:
        state = str(finding["state"])
        outcome = cleaning.unreached(str(finding.get("message") or state), state, str(finding.get("remedy") or ""))
    else:
        arguments = {"directory": directory, "run_ids": run_ids, "keep_models": keep_models}
        try:
            answer = action.ask_node("clean_node", {**arguments, "remove_images": remove_images})
        except AnsibleConnectionFailure as error:
            answer = {"unreachable": True, "msg": str(error.message)}
        except AnsibleError as error:  # such as become, the interpreter or a temporary folder
            answer = {"failed": True, "msg": str(error.message)}
        if answer.get("unreachable"):
            outcome = cleaning.unreached(str(answer.get("msg", "unreachable")))
        else:
            outcome = {**cleaning.answered(answer), "changed": answer.get("changed", False)}
    if outcome["state"] != cleaning.CLEAN:
        word = f" ({outcome['class']})" if outcome.get("class") else ""
        action.display.warning(f"{node}: {outcome['state']}{word}: {outcome['message']}")
    return {"changed": bool(outcome.pop("changed", False)), "outcome": outcome}
