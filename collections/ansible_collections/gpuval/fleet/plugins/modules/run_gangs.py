#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: run_gangs
short_description: Have nodes work together, and find the node or link for which that fails
version_added: 0.1.0
description:
  - Forms gangs of the nodes whose own stages passed and that are alike; the others are left out with a reason.
  - Has each gang do its stages in a round of its own, over SSH, and watches it as a run is watched.
  - Where a gang is slow, wrong or hangs, rounds of disjoint pairs find the node, link or boundary that is to blame.
  - A gang runs again without the nodes that were found bad.
  - Started again, it goes on where it stood.
author:
  - gpuval contributors (@gpuval)
extends_documentation_fragment:
  - gpuval.fleet.run
  - gpuval.fleet.store
  - gpuval.fleet.criteria
  - gpuval.fleet.watch
  - gpuval.fleet.gang_members
  - gpuval.fleet.gangs
attributes:
  check_mode:
    support: full
    description: Does nothing.
  diff_mode:
    support: none
    description: There is nothing to compare.
options:
  baseline:
    description: Baseline that nodes are held against, if any.
    type: path
    default: ''
  launch_tasks:
    description: Task file whose only task launches the plan of a host.
    type: path
    required: true
  launch_seconds:
    description: How long one launch may take.
    type: float
    default: 180.0
  fetch_tasks:
    description: Task file whose only task fetches the evidence of a host.
    type: path
    required: true
  fetch_seconds:
    description: How long one fetch may take.
    type: float
    default: 300.0
  send_tasks:
    description: Task file whose only task sends images to a host, before the launch, if the store does not.
    type: path
    required: true
  send_seconds:
    description: How long sending images to one node may take.
    type: float
    default: 3600.0
"""

EXAMPLES = r"""
- name: Gangs
  ansible.builtin.import_role:
    name: gpuval.fleet.run
    tasks_from: gangs
"""

RETURN = r"""
gangs:
  description: The members of each gang, by its name.
  returned: success
  type: dict
left_out:
  description: Why a node is in no gang, by its name.
  returned: success
  type: dict
rounds:
  description: Names of the rounds, in their order.
  returned: success
  type: list
  elements: str
"""
