#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: clean_run
short_description: Close a run, and report what cleaning its nodes removed and left
version_added: 1.0.0
description:
  - O(state=closed) marks an unfinished run as finished, so that no controller resumes it, and removes its SSH keys.
    It names the run that it ends, the number of nodes at work and the controller; check mode names them and ends none.
    With O(clean_store) its objects are removed from the store.
  - Only runs of the play's inventory are closed; those of other inventories and namespaces that may have left something
    are named.
  - O(state=reported) prints how many nodes are clean, and each node that is not, with the reason and a remedy.
    It reads the variable C(cleanup_node) of each host, the registered result of M(gpuval.fleet.clean_node).
  - O(state=reported) fails when something is left, or when a node of the runs was not reached or is no longer in the
    inventory.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
  - gpuval.fleet.store
options:
  state:
    description: V(closed) before the nodes are cleaned, V(reported) after it.
    type: str
    choices: [closed, reported]
    default: closed
  namespace:
    description: Namespace of the cluster, as the run remembers it; empty over SSH.
    type: str
    default: ''
  clean_store:
    description: Remove the run's objects from the store.
    type: bool
    default: false
  run_ids:
    description: The runs that were cleaned; empty is all.
    type: list
    elements: str
    default: []
  nodes:
    description: Nodes on which these runs may have left something, also those outside the play.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Close the latest run
  gpuval.fleet.clean_run:
    store: "{{ gpuval_store }}"
  run_once: true
  register: closed

- name: Clean the node
  gpuval.fleet.clean_node:
    run_ids: "{{ closed.run_ids + closed.round_ids }}"
  register: cleanup_node

- name: Report what is left
  gpuval.fleet.clean_run:
    state: reported
    store: "{{ gpuval_store }}"
    run_ids: "{{ closed.run_ids }}"
    nodes: "{{ closed.nodes }}"
  run_once: true
"""

RETURN = r"""
run_ids:
  description:
    - Runs to remove from the nodes. The run that was closed; without O(run_id) also earlier ones of the inventory and
      namespace that may have left something.
  returned: O(state=closed)
  type: list
  elements: str
marked_by:
  description: Runs whose marks may be on nodes of a cluster, those that were cleaned before among them.
  returned: O(state=closed)
  type: list
  elements: str
round_ids:
  description: Rounds of gangs of those runs, which have folders of their own on the nodes.
  returned: O(state=closed)
  type: list
  elements: str
active:
  description: Other unfinished runs, of any inventory, which still need the embedded store.
  returned: O(state=closed)
  type: list
  elements: str
nodes:
  description: Nodes on which these runs may have left something, whether the inventory still has them or not.
  returned: O(state=closed)
  type: list
  elements: str
deleted_objects:
  description: Number of objects that were removed from the store.
  returned: O(state=closed), when there is a run
  type: int
counts:
  description: Nodes by state, V(clean), V(left), V(not reached), V(not in the inventory) or V(left out by --limit).
  returned: O(state=reported)
  type: dict
not_clean:
  description: Nodes that are not clean.
  returned: O(state=reported)
  type: list
  elements: str
"""
