#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: watch_jobs
short_description: Make a Job for each node of a cluster and watch them until every node is done
version_added: 0.1.0
description:
  - Makes each node's Job when its turn comes, so that neither registry nor store is overrun.
  - Follows Jobs, Pods, Nodes and Events by the watch API, and reads records in the store.
  - Judges a node when its plan is done, and launches again the stages that are to be measured once more.
  - Takes records and logs from the output of pods that cannot reach the store.
  - Started again after the controller was killed, it takes the run up where it stands.
author:
  - gpuval contributors (@gpuval)
extends_documentation_fragment:
  - gpuval.fleet.run
  - gpuval.fleet.store
  - gpuval.fleet.criteria
  - gpuval.fleet.watch
  - gpuval.fleet.cluster
requirements:
  - kubernetes (Python library, on the controller)
attributes:
  check_mode:
    support: full
    description: Makes the plans and starts nothing.
  diff_mode:
    support: full
    description: Shows the stages of the plans in check mode.
options:
  patience_seconds:
    description:
      - How long a node's pod may be without an image, a place, its volumes or its node before the node is given up.
      - What a cluster mends soon or never (a quota, a container that cannot be created) has two fifths of that.
      - V(0) waits until the run's deadline.
    type: float
    default: 300.0
  start_seconds:
    description:
      - How long a pod that has its place may be without a running container while nothing says why, which is how
        a large image looks.
      - V(0) waits until the run's deadline.
    type: float
    default: 1800.0
  accept_new_nodes:
    description:
      - Take nodes into the run that come up in the cluster while it is watched.
      - One joins when O(selector) chooses it, work can be placed on it, and a node of the run has its SKU, whose
        variables it gets.
    type: bool
    default: false
  selector:
    description: Label selector of nodes that may join; empty chooses all.
    type: str
    default: ''
  skus:
    description: By which labels or resource the SKU of a node that joins is known, as in the inventory.
    type: dict
    default: {}
  ids:
    description: The customer's ids of nodes, by name, or the path of a file with them.
    type: raw
    default: {}
  label_groups:
    description:
      - Labels of the cluster that become labels of a node that joins, and the names that they get, as in the inventory.
      - Empty is the default of the inventory.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Watch the run on the cluster
  ansible.builtin.import_role:
    name: gpuval.fleet.run
    tasks_from: watch
"""

RETURN = r"""
started:
  description: Nodes on which a plan was started.
  returned: success
  type: list
  elements: str
requests:
  description: How many requests the API server had to answer.
  returned: success
  type: int
"""
