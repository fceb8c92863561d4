#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: run_gang_jobs
short_description: Have nodes of a cluster work together, and find the node or link for which that fails
version_added: 0.1.0
description:
  - Forms gangs of the nodes whose own stages passed and that are alike; the others are left out with a reason.
  - Has each gang do its stages in a round of its own, a pod for each member, and watches it as a run is watched.
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
  - gpuval.fleet.cluster
  - gpuval.fleet.gang_members
  - gpuval.fleet.gangs
requirements:
  - kubernetes (Python library, on the controller)
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
  patience_seconds:
    description: How long a pod may be without an image, a place, its volumes or its node before the node is given up.
    type: float
    default: 300.0
  start_seconds:
    description: How long a pod that has its place may be without a running container while nothing says why.
    type: float
    default: 1800.0
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
