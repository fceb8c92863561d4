#!/usr/bin/python
"""Machines with sshd to try a fleet on, as containers."""

from __future__ import annotations

DOCUMENTATION = r"""
module: testbed_nodes
short_description: Make or remove machines with sshd to try a fleet on
description:
  - Each machine is a container of Docker on a network of its own. See the README of the role C(testbed).
author: gpuval
options:
  state:
    description: Whether the machines are there.
    choices: [present, absent]
    default: present
    type: str
  folder:
    description: Where their keys and their inventory lie.
    type: path
    required: true
  name:
    description: What their containers are named after.
    type: str
    default: nodes
  nodes:
    description: The machines; see the README of the role for what one can be.
    type: list
    elements: dict
    default: []
  variables:
    description: Variables for all of them in the inventory.
    type: dict
    default: {}
  files:
    description: The role's folder C(files), from which the machines' images are made.
    type: path
    required: true
  inventory:
    description: Where the inventory is written. Empty means C(hosts.json) in the folder.
    type: path
"""

EXAMPLES = r"""
- name: Two machines, one with a Docker of its own
  testbed_nodes:
    folder: /var/tmp/nodes
    nodes:
      - {name: node-1, engine: docker}
      - {name: node-2, gpus: {vendor: nvidia, count: 8}}
"""

RETURN = r"""
inventory:
  description: Path of the inventory.
  returned: when present
  type: str
gateway:
  description: This machine's address, as the nodes reach it.
  returned: when present
  type: str
made:
  description: Names of the machines that were not there before.
  returned: when present
  type: list
"""

import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testbed import Node, Testbed, TestbedError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"choices": ["present", "absent"], "default": "present"},
            "folder": {"type": "path", "required": True},
            "name": {"default": "nodes"},
            "nodes": {"type": "list", "elements": "dict", "default": []},
            "variables": {"type": "dict", "default": {}},
            "inventory": {"type": "path"},
            "files": {"type": "path", "required": True},
        }
    )
    asked = module.params
    bed = Testbed(Path(asked["folder"]), asked["name"], files=Path(asked["files"]))
    inventory = Path(asked["inventory"] or bed.folder / "hosts.json")
    try:
        if asked["state"] == "absent":
            changed = bed.destroy()
            inventory.unlink(missing_ok=True)
            module.exit_json(changed=changed)
        made = bed.create(Node.of(node) for node in asked["nodes"])
        written = write(inventory, json.dumps(bed.inventory(asked["variables"]), indent=2, sort_keys=True) + "\n")
    except TestbedError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(made) or written, inventory=str(inventory), gateway=bed.gateway, made=made)


def write(path: Path, text: str) -> bool:
    """Whether the file had to be written."""
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)  # the password for sudo may be in it
    return True


if __name__ == "__main__":
    main()
