#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: doks_cluster
short_description: Plan, complete or delete a DigitalOcean Kubernetes cluster for a run
version_added: 1.0.0
description:
  - Everything is tagged C(gpuval:NAME). Only what carries this tag is deleted.
  - Call it by the role P(gpuval.fleet.provision#role).
extends_documentation_fragment:
  - gpuval.fleet.common
options:
  state:
    description:
      - V(planned) shows what is to be created and its cost, and fails unless it is confirmed.
      - V(present) creates missing node pools of the cluster, waits for all nodes, and writes kubeconfig and inventory.
      - V(absent) deletes what carries the tag, waits for its end, and removes kubeconfig and inventory.
    type: str
    choices: [planned, present, absent]
    required: true
  token:
    description: Token of the DigitalOcean API.
    type: str
    required: true
  name:
    description: Name of the cluster and of the tag.
    type: str
    required: true
  cluster:
    description: Existing cluster that gets the node pools; empty creates one named O(name).
    type: str
    default: ''
  region:
    description: Region of the cluster.
    type: str
    default: ''
  node_pools:
    description: Name, size and count of each node pool; optionally tags, labels and taints.
    type: list
    elements: dict
    default: []
  confirm:
    description: Must equal O(name) to create or delete; not needed in check mode.
    type: str
    default: ''
  create_error:
    description: Reason of a failed creation, for the message where the cluster does not exist.
    type: raw
    default: ''
  timeout_seconds:
    description: Time limit until all nodes run, or are gone.
    type: float
    default: 1800
  poll_seconds:
    description: Time between two requests while waiting.
    type: float
    default: 10
  inventory:
    description: Folder of kubeconfig and inventory; empty is C(inventories/NAME).
    type: str
    default: ''
"""

EXAMPLES = r"""
- name: Provision a cluster
  ansible.builtin.import_role:
    name: gpuval.fleet.provision
"""

RETURN = r"""
create:
  description: Whether the cluster is to be created.
  returned: planned
  type: bool
cluster:
  description: Name of the cluster.
  returned: planned
  type: str
tag:
  description: Tag of everything that is created.
  returned: planned
  type: str
node_pools:
  description: The node pools with the tag.
  returned: planned
  type: list
  elements: dict
lines:
  description: The plan as printed.
  returned: planned, absent
  type: list
  elements: str
files:
  description: Files that were written or removed.
  returned: present, absent
  type: list
  elements: str
"""
