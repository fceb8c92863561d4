#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: on_nodes
short_description: Have a task done on every node
version_added: 1.0.0
description:
  - Nodes work side by side. It is one task of the play.
  - A loop or a condition of Ansible costs the controller a process per node even where there is nothing to do.
extends_documentation_fragment: [gpuval.fleet.common]
attributes:
  check_mode:
    description: The task is done in check mode.
options:
  tasks:
    description: Task file with one task.
    type: path
    required: true
  seconds:
    description: How long it may take on one node.
    type: float
    required: true
  required:
    description: Fail if it failed on any node. Otherwise it is a warning, unless it failed on all of them.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Build on every node
  gpuval.fleet.on_nodes:
    tasks: "{{ role_path }}/tasks/on_node.yml"
    seconds: 7200
  run_once: true
"""

RETURN = r"""
failed_nodes:
  description: What went wrong, by node.
  returned: always
  type: dict
"""
