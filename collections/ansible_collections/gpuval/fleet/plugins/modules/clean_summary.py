#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: clean_summary
short_description: Say what a clean removed and what it left behind
version_added: 0.1.0
description:
  - Prints how many nodes are clean, and each node that is not, with the reason and a remedy.
  - Fails when something is left, or when a node of the runs could not be reached or is in the inventory no more.
author:
  - gpuval contributors (@gpuval)
attributes:
  check_mode:
    support: full
    description: Says what would be removed.
  diff_mode:
    support: none
    description: There is nothing to compare.
options:
  run_ids:
    description: The runs that were cleaned; empty means all.
    type: list
    elements: str
    default: []
  nodes:
    description: Nodes on which these runs may have left something, whether the play has them or not.
    type: list
    elements: str
    default: []
  results_dir:
    description: Where results are kept on the controller; which nodes are clean is remembered there.
    type: str
    default: results
  variable:
    description: The variable of each host that holds what M(gpuval.fleet.clean_host) returned.
    type: str
    default: cleanup_node
"""

EXAMPLES = r"""
- name: Say what is left
  gpuval.fleet.clean_summary:
    run_ids: [20261120-201500-3f2a]
    nodes: [node-001, node-002]
  run_once: true
"""

RETURN = r"""
counts:
  description: Nodes by state, V(clean), V(left), V(not reached), V(not in the inventory) or V(left out by --limit).
  returned: always
  type: dict
not_clean:
  description: Nodes that are not clean.
  returned: always
  type: list
  elements: str
"""
