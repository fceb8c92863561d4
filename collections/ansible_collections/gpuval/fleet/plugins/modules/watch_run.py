#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: watch_run
short_description: Launch the nodes' plans and watch the run until every node is done
version_added: 1.0.0
description:
  - Launches each node's plan when its turn comes, over SSH or as a Job of a cluster, without waiting for others.
  - Prints a line for each change, with counts by stage and state, elapsed and expected time.
  - Judges a node when its plan is complete, and launches the stages again that may be retried.
  - Fetches records over the connection of nodes that cannot reach the store, or that are silent.
  - Retries unreachable nodes with a growing interval while the run is on.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
  - gpuval.fleet.store
  - gpuval.fleet.criteria
  - gpuval.fleet.watch
  - gpuval.fleet.placement
  - gpuval.fleet.cluster
requirements:
  - kubernetes (Python library, on the controller, for O(placement=kubernetes))
attributes:
  check_mode:
    description: Makes the plans and starts nothing.
  diff_mode:
    support: full
    description: Shows the stages of the plans in check mode.
options:
  accept_new_nodes:
    description:
      - Add nodes to the run that appear in the cluster while it is watched.
      - A node joins when O(selector) chooses it, pods can be placed on it, and a node of the run has its SKU, whose
        variables it gets.
    type: bool
    default: false
  selector:
    description: Label selector of nodes that may join; empty chooses all.
    type: str
    default: ''
  skus:
    description: Labels or resource that identify the SKU of a joining node, as in the inventory.
    type: dict
    default: {}
  ids:
    description: Your ids of nodes by name, or the path of a file with them.
    type: raw
    default: {}
  label_groups:
    description:
      - Cluster labels that become labels of a joining node, and their names, as in the inventory.
      - Empty is the default of the inventory.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Watch the run
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
  description: Number of requests to the cluster's API.
  returned: success
  type: int
"""
