#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: launch_plan
short_description: Place a node's plan and start its runner
version_added: 1.0.0
description:
  - Writes the plan, the signed URLs, the runner and the workloads into the run's folder on the node.
  - Starts the runner, which continues by itself when the connection ends.
  - Started again, the plan resumes where it stopped. A completed plan stays as it is.
  - The role P(gpuval.fleet.run#role) calls it through the action plugin of the same name, which builds the plan.
extends_documentation_fragment: [gpuval.fleet.common, gpuval.fleet.node_directory]
attributes:
  check_mode:
    description: Starts nothing; the action plugin shows the plan.
  diff_mode:
    support: full
    description: Shows the stages of the plan.
options:
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
    description: Configuration with which rclone reads the model store; empty when the plan loads no model.
    type: str
    default: ''
  keys:
    description: Files that gang members need of each other, by name, for the folder C(ssh/) of the run.
    type: dict
    default: {}
  secrets:
    description: Values of job secrets by stage and variable; each stage's file is removed when it ends.
    type: dict
    default: {}
  requirements:
    description:
      - What stages on the host import and start (C(needs)), in their C(environment).
      - The launch is refused without it.
    type: list
    elements: dict
    default: []
  folders:
    description:
      - Bytes of the models and datasets that the plan loads, by folder.
      - The launch is refused without space for them.
    type: dict
    default: {}
  runner:
    description: The runner, a zip application, as base64.
    type: str
    required: true
  workloads:
    description: The workloads, a zip archive on PYTHONPATH, as base64.
    type: str
    required: true
  controller:
    description: User and host of the controller, shown when the launch of another run is refused.
    type: str
    default: ""
  force:
    description:
      - Start even if another run is active on the node, or other processes use its accelerators.
      - Otherwise the launch is refused before anything starts, and names the processes and containers.
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
  description: Result of the start.
  returned: success
  type: dict
  contains:
    state:
      description: V(started), V(finished) when the plan was complete already, or V(refused).
      type: str
    class:
      description: Why it was refused, in one word, where that is known here.
      type: str
    twin:
      description: The other name of the run under which this machine is in it.
      type: str
    lacking_stages:
      description: The stages for which the node lacks what they need.
      type: list
      elements: str
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

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuval.fleet.plugins.module_utils import placement
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import NodeError


def main():
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "str", "default": ""},
            "plan": {"type": "dict", "required": True},
            "store": {"type": "dict", "required": True, "no_log": True},
            "controller": {"type": "str", "default": ""},
            "ca": {"type": "str", "default": ""},
            "rclone_config": {"type": "str", "default": "", "no_log": True},
            "keys": {"type": "dict", "default": {}, "no_log": True},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "requirements": {"type": "list", "elements": "dict", "default": []},
            "folders": {"type": "dict", "default": {}},
            "runner": {"type": "str", "required": True, "no_log": True},
            "workloads": {"type": "str", "required": True, "no_log": True},
            "force": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        placement.check_python()
        if module.check_mode:
            module.exit_json(changed=True)
        runner, workloads = (base64.b64decode(module.params[name]) for name in ("runner", "workloads"))
        module.exit_json(**placement.answer(module.params, runner, workloads))
    except NodeError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
