#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: make_baseline
short_description: Make a baseline from the accepted nodes of a run
version_added: 0.1.0
description:
  - Writes C(<name>-v<version>.json) (gpuval.baseline/1) with the next version of that name.
  - Only nodes that passed go in, and of their parts not those that are far from the others.
author:
  - gpuval contributors (@gpuval)
extends_documentation_fragment:
  - gpuval.fleet.run
attributes:
  check_mode:
    support: full
    description: Writes nothing, and tells what would stand in it.
  diff_mode:
    support: none
    description: What changed since the version before stands in V(told).
options:
  name:
    description: Name of the baseline.
    type: str
    required: true
  directory:
    description: Where baselines are kept. A relative path stands beside C(ansible.cfg).
    type: str
    default: baselines
"""

EXAMPLES = r"""
- name: Make the baseline
  ansible.builtin.import_role:
    name: gpuval.fleet.baseline
"""

RETURN = r"""
path:
  description: The file.
  returned: success
  type: str
version:
  description: Its version.
  returned: success
  type: int
told:
  description: What went in, how well each figure can be repeated, and what changed since the version before.
  returned: success
  type: list
  elements: str
"""
