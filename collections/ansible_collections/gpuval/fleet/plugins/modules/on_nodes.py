#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: on_nodes
short_description: Run a task on every node
version_added: 1.0.0
description:
  - All nodes run it in parallel, as one task of the play.
  - A loop or a condition of Ansible costs the controller a process per node even where there is nothing to do.
extends_documentation_fragment: [gpuval.fleet.common]
attributes:
  check_mode:
    description: The task runs in check mode.
options:
  tasks:
    description: Task file with one task.
    type: path
    required: true
  seconds:
    description: Time limit per node.
    type: float
    required: true
  at_once:
    description: How many nodes work at once; 0 is C(forks).
    type: int
    default: 0
  probe:
    description: Findings of a probe by node. A node that is not reachable counts as failed, with the reason.
    type: dict
    default: {}
  required:
    description: Fail if the task failed on any node. Otherwise only warn, unless it failed on all.
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
  description: What went wrong, by node; with its failure class and remedy, if they are known.
  returned: always
  type: dict
"""
