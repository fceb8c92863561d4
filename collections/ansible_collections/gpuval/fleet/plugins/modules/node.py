#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node
short_description: Run a step of the playbooks that works on a node
version_added: 2.0.0
description:
  - Calls the function O(step) of C(plugin_utils/node_steps/) on the controller, which asks the one of the same name in
    C(module_utils/node_steps/) on the node. Each parameter of the former is an option beside O(step), of its type and
    with its default; an unknown or missing one, or one of another type, fails the task.
  - Playbooks and roles of this collection use it.
extends_documentation_fragment: [gpuval.fleet.common]
attributes:
  diff_mode:
    support: full
    description: Shows the stages of a plan, and each change of a network with what was there before.
options:
  step:
    description: Name of the step.
    type: str
    required: true
  arguments:
    description: Arguments of the function on the node as JSON, from the one on the controller.
    type: str
    default: '{}'
"""

EXAMPLES = r"""
- name: Show the network of the node and whether it is as declared
  gpuval.fleet.node:
    step: host_network
    interfaces:
      - name: ib0
        mtu: 4092
  check_mode: true
"""

RETURN = r"""
msg:
  description: What the step did.
  returned: most steps
  type: str
"""

import importlib
import json
from typing import TYPE_CHECKING

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuval.fleet.plugins.module_utils import node_steps
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import NodeError

if TYPE_CHECKING:  # a node loads only the step that it runs
    from ansible_collections.gpuval.fleet.plugins.module_utils.node_steps import (  # noqa: F401 - for Ansible to send
        build_image,
        clean_node,
        fetch_evidence,
        host_evidence,
        host_network,
        launch_plan,
        node_environment,
        peer_probe,
        run_ssh_keys,
        send_image,
    )


def main():
    module = AnsibleModule(
        argument_spec={
            "step": {"type": "str", "required": True},
            "arguments": {"type": "str", "default": "{}", "no_log": True},
        },
        supports_check_mode=True,
    )
    name = module.params["step"]
    step = getattr(importlib.import_module(f"{node_steps.__name__}.{name}"), name)
    try:
        result = step(module, **json.loads(module.params["arguments"]))
    except NodeError as error:
        result = {"failed": True, "msg": str(error)}
    module.exit_json(**{"changed": False, **result})


if __name__ == "__main__":
    main()
