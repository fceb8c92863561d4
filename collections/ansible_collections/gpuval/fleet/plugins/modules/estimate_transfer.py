#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: estimate_transfer
short_description: Estimate before the start whether the store can deliver models and images in time
version_added: 1.0.0
description:
  - Compares bytes times nodes, divided by the store's bandwidth, with the deadline, and warns. Never fails for it.
  - The sizes are those in the store. What nodes have already is not known here, so the figure is an upper bound.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.store
options:
  model:
    description: The model as O(gpuval.fleet.preload_model#module:model) takes it; empty is none.
    type: str
    default: ''
  datasets:
    description: Datasets as O(gpuval.fleet.preload_model#module:datasets) takes them.
    type: list
    elements: dict
    default: []
  images:
    description: References of the images that nodes get from the store.
    type: list
    elements: str
    default: []
  nodes:
    description: Number of nodes that load.
    type: int
    required: true
  deadline_seconds:
    description: Time available for all transfers.
    type: float
    required: true
  bits_per_second:
    description: Bandwidth of the store to all nodes together; V(0) measures it.
    type: float
    default: 0
"""

EXAMPLES = r"""
- name: See whether the store can bring all in time
  ansible.builtin.import_role:
    name: gpuval.fleet.store
    tasks_from: estimate
"""

RETURN = r"""
bytes_per_node:
  description: What a node loads that has nothing.
  returned: when the store could be read
  type: int
total_bytes:
  description: The same of all nodes.
  returned: when the store could be read
  type: int
bits_per_second:
  description: Bandwidth of the store; null where it does not matter or is not known.
  returned: when the store could be read
  type: float
seconds:
  description: How long it takes.
  returned: when the store could be read
  type: float
warning:
  description: What was warned of; empty where the deadline can be kept.
  returned: when the store could be read
  type: str
"""
