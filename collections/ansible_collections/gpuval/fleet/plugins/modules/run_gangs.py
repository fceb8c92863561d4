#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: run_gangs
short_description: Run multi-node stages, and find the node or link that makes them fail
version_added: 1.0.0
description:
  - Forms gangs of alike nodes whose own stages passed; the others are left out with a reason.
  - Runs the stages of each gang in a round of its own, over SSH or in pods, and watches it like a run.
  - Where a gang is slow, wrong or hangs, rounds of disjoint pairs find the node, link or boundary at fault.
  - A gang runs again without the nodes that were found bad.
  - Started again, it resumes where it stopped.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
  - gpuval.fleet.store
  - gpuval.fleet.criteria
  - gpuval.fleet.watch
  - gpuval.fleet.placement
  - gpuval.fleet.cluster
  - gpuval.fleet.gang_members
  - gpuval.fleet.gangs
requirements:
  - kubernetes (Python library, on the controller, for O(placement=kubernetes))
options:
  baseline:
    description: Baseline that nodes are compared with, if any.
    type: path
    default: ''
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
