#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plan_peers
short_description: Choose the peers that each node probes
version_added: 1.0.0
description:
  - Up to O(mesh) nodes, each probes all others. Above that each has O(degree) peers, which also probe it, and each
    pair of zones (C(network_zone) of the hosts) has a measured link.
  - No node is contacted.
extends_documentation_fragment: [gpuval.fleet.common]
options:
  mesh:
    description: Max number of nodes up to which each probes all others.
    type: int
    default: 32
  degree:
    description: Number of peers per node in larger fleets.
    type: int
    default: 8
  resolve:
    description: Look up the addresses of all nodes.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Choose each node's peers
  gpuval.fleet.plan_peers:
  run_once: true
  register: network_planned
"""

RETURN = r"""
peers:
  description: Name, address and SSH port of the peers that each node probes, by node.
  returned: success
  type: dict
askers:
  description: The nodes that probe each node.
  returned: success
  type: dict
zones:
  description: Zone of each node.
  returned: success
  type: dict
hosts:
  description: IP address of each node that has one, with O(resolve).
  returned: success
  type: dict
declared:
  description: Whether the inventory declares anything about the network of any of the nodes.
  returned: success
  type: bool
uncovered:
  description: Pairs of zones that no link could be found for within the bounds.
  returned: success
  type: list
  elements: list
"""
