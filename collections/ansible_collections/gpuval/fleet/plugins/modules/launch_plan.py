#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: launch_plan
short_description: Place a node's plan and start its runner
version_added: 0.1.0
description:
  - Writes the plan, the signed URLs, the runner and the workloads into the run's folder on the node.
  - Starts the runner, which goes on by itself when the connection ends.
  - Started again, it takes the plan up where it stands. A plan that is done is left alone.
  - The role P(gpuval.fleet.run#role) calls it through the action plugin of the same name, which builds the plan.
author:
  - gpuval contributors (@gpuval)
attributes:
  check_mode:
    support: full
    description: Starts nothing; the action plugin shows the plan.
  diff_mode:
    support: full
    description: Shows the stages of the plan.
options:
  directory:
    description:
      - Base folder of gpuval on the node.
      - Empty is C(/var/lib/gpuval) for root and C(/var/tmp/gpuval-USER) for others.
    type: str
    default: ''
  plan:
    description: The plan (gpuval.plan/1).
    type: dict
    required: true
  store:
    description: Signed URLs, one for each key that the node may write.
    type: dict
    required: true
  ca:
    description: Certificate authority of the store as PEM; empty is the system's own.
    type: str
    default: ''
  rclone_config:
    description: Configuration that rclone reads the model store with; empty when the plan loads no model.
    type: str
    default: ''
  runner:
    description: The runner, a zip application, as base64.
    type: str
    required: true
  workloads:
    description: The workloads, a zip archive on PYTHONPATH, as base64.
    type: str
    required: true
  force:
    description:
      - Start even if another run is at work on the node, or somebody else uses its accelerators.
      - Otherwise the launch is refused, and names the processes and containers, before anything starts.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Start the plan
  ansible.builtin.import_role:
    name: gpuval.fleet.run
    tasks_from: launch
"""

RETURN = r"""
directory:
  description: Folder of the run on the node.
  returned: success
  type: str
  sample: /var/lib/gpuval/20261120-201500-3f2a/node-001
launch:
  description: What became of the start.
  returned: success
  type: dict
  contains:
    state:
      description: V(started), V(finished) when the plan was done already, or V(refused).
      type: str
    class:
      description: Why it was refused, in one word, where that is known here.
      type: str
    twin:
      description: The other name of the run under which this machine is in it.
      type: str
    message:
      description: Why.
      type: str
    pid:
      description: Process id of the runner.
      type: int
    store_reachable:
      description: Whether a first upload arrived; V(false) makes the controller fetch the records instead.
      type: bool
"""

import base64
import json
import sys
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tools import toolbox
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tree import Tree
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.users import accelerator_users, foreign_runs
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import (
    NodeError,
    base_directory,
    call_runner,
    make_private,
    names_in_run,
    one_launch_at_once,
    runs_at_work,
    within,
    write_private,
)

OLDEST_PYTHON = (3, 9)
#: The whole launch on the node; the runner itself answers within seconds. Shorter than the controller's
#: run_launch_seconds, which counts the connection too: otherwise the node's own word of what hangs would be lost.
LAUNCH_SECONDS = 140
MOST_NAMED = 8
IN_THE_WAY = (
    "others use this node's accelerators or run here: {named}. Measuring beside them would mean nothing: stop them "
    "(the clean playbook for runs of gpuval), or run all the same with -e gpuval_force=true"
)
BUSY = (
    "run {run} is at work on this node, and two at once would measure each other: wait for it, or end it with the "
    "clean playbook and -e gpuval_run_id={run}; -e gpuval_force=true runs all the same"
)
TWICE = (
    "this machine is in this run already, as {name}: one machine is listed twice. Take one of the two names out of the "
    "inventory, or correct its address"
)


def place(parameters):
    """Write the run's files. Returns the run's folder on the node."""
    plan = parameters["plan"]
    base = base_directory(parameters["directory"])
    make_private(base)
    directory = base / plan["run_id"] / plan["node"]
    make_private(directory.parent)
    make_private(directory)
    files = {
        "runner.pyz": base64.b64decode(parameters["runner"]),
        "workloads.zip": base64.b64decode(parameters["workloads"]),
        "store.json": json.dumps(parameters["store"]).encode(),
    }
    if parameters["ca"]:
        files["ca.pem"] = parameters["ca"].encode()
    if parameters["rclone_config"]:
        files["rclone.conf"] = parameters["rclone_config"].encode()
    if is_newer(plan, directory / "plan.json"):
        files["plan.json"] = json.dumps(plan, indent=1).encode()
    for name, data in files.items():
        write_private(directory / name, data)
    return directory


def launch(parameters):
    """Start the plan unless somebody is in its way. Returns the folder, why not, and what the runner answered."""
    with one_launch_at_once(base_directory(parameters["directory"])):
        refusal = {} if parameters["force"] else in_the_way(parameters)
        if refusal:
            return "", refusal, {}
        directory = place(parameters)
        return str(directory), {}, call_runner(directory, "start", "--dir", str(directory))


def in_the_way(parameters):
    """Who is at work on this node, as part of the launch's outcome; empty when nobody."""
    run_id = parameters["plan"]["run_id"]
    others = runs_at_work_here(parameters)
    if others:
        return {"message": BUSY.format(run=others[0])}
    base = base_directory(parameters["directory"])
    names = names_in_run(base, run_id, parameters["plan"]["node"])
    if names:
        return {"class": "same_machine_twice", "twin": names[0], "message": TWICE.format(name=names[0])}
    run = toolbox()
    users = [] if parameters["plan"]["accelerator"]["vendor"] == "cpu" else accelerator_users(Tree(), run, run_id)
    found = [str(user) for user in users] + foreign_runs(run, run_id)
    if not found:
        return {}
    named = ", ".join(found[:MOST_NAMED]) + (f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else "")
    return {"message": IN_THE_WAY.format(named=named)}


def runs_at_work_here(parameters):
    base = base_directory(parameters["directory"])
    return runs_at_work(base, parameters["plan"]["run_id"]) if base.is_dir() else []


def is_newer(plan, path):
    """Whether the node does not have this attempt yet: a plan under way is never replaced by itself."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))["attempt"] < plan["attempt"]
    except (FileNotFoundError, ValueError, KeyError):
        return True


def main():
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "str", "default": ""},
            "plan": {"type": "dict", "required": True},
            "store": {"type": "dict", "required": True, "no_log": True},
            "ca": {"type": "str", "default": ""},
            "rclone_config": {"type": "str", "default": "", "no_log": True},
            "runner": {"type": "str", "required": True, "no_log": True},
            "workloads": {"type": "str", "required": True, "no_log": True},
            "force": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    if sys.version_info < OLDEST_PYTHON:
        module.fail_json(
            msg=f"Python {sys.version.split()[0]} is too old for the runner, which needs 3.9: "
            "install a newer one and set ansible_python_interpreter"
        )
    if not sys.platform.startswith("linux"):
        module.fail_json(msg=f"a node must run Linux, this is {sys.platform}: a Mac can be the controller, not a node")
    if module.check_mode:
        module.exit_json(changed=True)
    try:
        directory, refusal, answer = within(LAUNCH_SECONDS, launch, module.params)
    except NodeError as error:
        module.fail_json(msg=str(error))
    if refusal:
        module.exit_json(changed=False, directory="", launch={"state": "refused", **refusal})
    if answer["finished"] and not answer["started"]:
        state = "finished"
    elif answer["started"] or answer["already_running"]:
        state = "started"
    else:
        state = "refused"
    outcome = {
        "state": state,
        "message": answer.get("message", ""),
        "pid": answer.get("pid"),
        "store_reachable": answer.get("store_reachable"),
    }
    module.exit_json(changed=bool(answer["started"]), directory=directory, launch=outcome)


if __name__ == "__main__":
    main()
