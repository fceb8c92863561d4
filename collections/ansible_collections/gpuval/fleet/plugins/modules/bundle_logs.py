#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: bundle_logs
short_description: Put the evidence of all nodes and the results of a run into one archive
version_added: 0.1.0
description:
  - Writes C(logs/logs-RUN.tar.gz) into the results, with C(MANIFEST) (SHA-256 of each file) and C(nodes.json).
  - Names the nodes that gave no evidence.
author:
  - gpuval contributors (@gpuval)
extends_documentation_fragment:
  - gpuval.fleet.run
attributes:
  check_mode:
    support: full
    description: Writes nothing.
  diff_mode:
    support: none
    description: There is nothing to compare.
options:
  nodes:
    description: The nodes that were asked, beside those that the run expects.
    type: list
    elements: str
    required: true
  state_dir:
    description: Where the embedded store lies, whose logs are taken too.
    type: str
    default: .gpuval
"""

EXAMPLES = r"""
- name: Gather the evidence of all nodes
  ansible.builtin.import_role:
    name: gpuval.fleet.logs
"""

RETURN = r"""
path:
  description: The archive.
  returned: success
  type: str
bytes:
  description: Its size.
  returned: success
  type: int
nodes:
  description: How many nodes were expected.
  returned: success
  type: int
without:
  description: Why a node gave nothing, by its name.
  returned: success
  type: dict
"""
