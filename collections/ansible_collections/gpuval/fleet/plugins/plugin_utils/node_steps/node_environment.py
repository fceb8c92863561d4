"""Install the Python environment of a node and system packages, report what its workloads lack, or remove it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from ansible.errors import AnsibleActionFail

from ..core.action import ControllerAction
from ..core.paths import COLLECTION
from ..core.step_options import StepOptions, StoreOptions
from ..store.access import open_store
from ..watch import launch_inputs

REQUIREMENTS = COLLECTION / "node/requirements"
#: Seconds by which the time limit of the step's node half is shorter than that of the task.
SLACK_SECONDS = 60


class NodeEnvironmentOptions(StepOptions):
    state: Literal["present", "examined", "absent"] = "present"
    directory: str = ""
    #: The Python of workloads; any value but `auto` is the site's own.
    python: str = "auto"
    #: Vendor of the accelerators: `cpu`, or else that of the node.
    vendor: str = "auto"
    index: str = ""
    torch_index: str = ""
    torch_backend: str = "auto"
    #: Packages to install by the package manager of the node's system.
    packages: Sequence[str] = ()
    #: The archive of wheels, from the step pack_wheels; without one, packages come from `index`.
    wheels: Mapping[str, Any] = field(default_factory=dict)
    store: StoreOptions
    #: Stages, their declarations and their runtime: the node must have what they need.
    stages: Sequence[str] = ()
    workloads: Mapping[str, Any] = field(default_factory=dict)
    runtime: str = "host"
    timeout_seconds: float = 3600.0


def node_environment(action: ControllerAction, options: NodeEnvironmentOptions) -> dict[str, Any]:
    seconds = options.timeout_seconds - SLACK_SECONDS
    arguments = {name: getattr(options, name) for name in ("state", "directory", "python")}
    arguments["requirements"] = launch_inputs.requirements(
        {"stages": options.stages}, options.workloads, options.runtime
    )
    if options.state == "present":
        locks = [(REQUIREMENTS / "locked" / name).read_text() for name in ("node.txt", "gangs.txt", "uv.txt")]
        (torch,) = re.findall(r"^torch==\S+", (REQUIREMENTS / "node.txt").read_text(), re.MULTILINE)
        arguments |= {"locked": "\n".join(locks), "torch": torch, "timeout_seconds": seconds, "wheels": {}}
        names = ("vendor", "index", "torch_index", "torch_backend", "packages")
        arguments |= {name: getattr(options, name) for name in names}
    if options.wheels:
        access = open_store(options.store)
        url = access.store().sign_get(options.wheels["key"], int(seconds))
        arguments["wheels"] = {**options.wheels, "url": url, "authority": access.ca()}
    answer = action.ask_node("node_environment", arguments)
    if answer.get("failed"):
        raise AnsibleActionFail(answer.get("msg") or answer.get("module_stderr") or "the node does not answer")
    node = action.task_vars["inventory_hostname"]
    if answer.get("summary"):
        word = "installed: " if answer["changed"] and not action.check_mode else ""
        action.display.display(f"{node}: {word}{answer['summary']}")
    for remark in answer.get("remarks", ()):
        action.display.warning(f"{node}: {remark}")
    if options.state == "examined" and answer.get("remarks"):
        raise AnsibleActionFail(f"{answer['remarks'][0]}")
    return answer
