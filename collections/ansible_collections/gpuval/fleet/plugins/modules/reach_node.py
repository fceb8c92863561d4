#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: reach_node
short_description: Get the command for a shell on a node of a run, or for the log of a stage
version_added: 1.0.0
description:
  - Prints the command, and writes it into O(file) for the shell that comes after Ansible.
  - On a cluster it is C(kubectl exec) into the container of the stage, or C(kubectl logs).
  - Over SSH it is C(ssh) with the pinned host keys, or C(tail) of the stage's log over it.
  - A log is piped through a filter that removes escape sequences, which a node may write.
  - Without C(kubectl) the log is followed here, by the API, until the stage has ended.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
  - gpuval.fleet.cluster
requirements:
  - kubernetes (Python library, on the controller), for nodes of a cluster
attributes:
  check_mode:
    description: Prints the command and writes nothing.
options:
  what:
    description: A shell, or the log of a stage while it is written.
    type: str
    choices: [shell, follow]
    required: true
  node:
    description: A node of the run.
    type: str
    default: ''
  stage:
    description: A stage of its plan; empty is the running one.
    type: str
    default: ''
  file:
    description: File for C(sh) to which the command is written; empty is none.
    type: path
    default: ''
  placement:
    description: C(gpuval_placement) of the node.
    type: str
    choices: [ssh, kubernetes, slurm]
    default: ssh
  state_dir:
    description: Folder with the pinned host keys.
    type: str
    default: .gpuval
"""

EXAMPLES = r"""
- name: Print the command for a shell in what runs on a node
  gpuval.fleet.reach_node:
    what: shell
    node: gpu-17
    placement: "{{ gpuval_placement }}"
  run_once: true
"""

RETURN = r"""
command:
  description: The words of the command; none where the log was followed here.
  returned: success
  type: list
  elements: str
"""
