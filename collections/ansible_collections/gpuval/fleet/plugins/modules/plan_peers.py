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
  - Up to O(mesh) nodes everyone asks everyone. Above that each asks O(degree) others and is asked by them, and each
    pair of zones (C(network_zone) of the hosts) has a link of its own.
  - No node is contacted.
extends_documentation_fragment: [gpuval.fleet.common]
options:
  mesh:
    description: Up to how many nodes everyone asks everyone.
    type: int
    default: 32
  degree:
    description: How many others a node asks above that.
    type: int
    default: 8
  resolve:
    description: Whether to look up the addresses of all nodes.
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
