#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: baseline
short_description: Make a baseline from the accepted nodes of a run, or compare two baselines
version_added: 1.0.0
description:
  - Writes C(<name>-v<version>.json) (gpuval.baseline/1) with the next version of that name.
  - Only nodes that passed count, and of their parts only those that are close to the others.
  - O(state=compared) compares two files instead. It lists figures that only one of them has, and figures whose median
    moved by 0.5 % or more.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
attributes:
  check_mode:
    description: Writes nothing, and shows the same lines.
options:
  state:
    description: V(present) makes a baseline, V(compared) compares O(before) with O(after).
    type: str
    choices: [present, compared]
    default: present
  name:
    description: Name of the baseline; letters, digits, C(.), C(_) and C(-), at most 63.
    type: str
    default: site
  directory:
    description: Where baselines are kept. A relative path is resolved beside C(ansible.cfg).
    type: str
    default: baselines
  before:
    description: The earlier of two baseline files to compare.
    type: path
    default: ''
  after:
    description: The later of two baseline files to compare.
    type: path
    default: ''
"""

EXAMPLES = r"""
- name: Make the next version of a baseline from the latest run
  gpuval.fleet.baseline:
    name: site
  run_once: true

- name: Compare two versions
  gpuval.fleet.baseline:
    state: compared
    before: baselines/site-v1.json
    after: baselines/site-v2.json
  run_once: true
"""

RETURN = r"""
path:
  description: Path of the new baseline.
  returned: when one was made
  type: str
version:
  description: Version of the new baseline.
  returned: when one was made
  type: int
lines:
  description: What the baseline is made from, how repeatable each figure is, and what changed since the version before.
  returned: success
  type: list
  elements: str
clear:
  description: Number of changes beyond the noise of both baselines.
  returned: when two were compared
  type: int
"""
