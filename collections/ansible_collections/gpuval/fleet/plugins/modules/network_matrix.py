#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: network_matrix
short_description: Write the matrix of links between nodes, and list bad nodes and links
version_added: 1.0.0
description:
  - Takes what M(gpuval.fleet.peer_probe) found on each node and writes C(network/matrix.json) and
    C(network/matrix.csv) into the results, and into the folder of the run.
  - Reads C(network_applied), C(network_listened) and C(network_probed) of each host, in which the role
    P(gpuval.fleet.network#role) registers its tasks.
  - Tells a bad node from a bad link, and prints a line for each finding.
  - No node is contacted.
extends_documentation_fragment: [gpuval.fleet.common]
options:
  run_id:
    description: The run whose folder gets a copy; empty is none.
    type: str
    default: ''
  results_dir:
    description: Where results are kept. A relative path starts at the folder of C(ansible.cfg).
    type: str
    default: results
  plan:
    description: What M(gpuval.fleet.plan_peers) returned.
    type: dict
    required: true
  ports:
    description: Ports that must be open between nodes.
    type: list
    elements: int
    default: []
  endpoints:
    description: Names of the services to measure.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Write the matrix
  gpuval.fleet.network_matrix:
    plan: "{{ network_planned }}"
  run_once: true
  register: network_judged
"""

RETURN = r"""
findings:
  description: What is wrong, with level (V(fail) or V(warn)), kind, nodes, message and remedy.
  returned: success
  type: list
  elements: dict
wrong:
  description:
    - Messages of the findings of level V(fail), by node.
    - What one node alone says of another fails the one that says it.
  returned: success
  type: dict
files:
  description: What was written.
  returned: success
  type: list
  elements: str
summary:
  description: Lines for people.
  returned: success
  type: list
  elements: str
"""
