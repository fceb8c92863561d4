#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: compare_baselines
short_description: Say what changed from one baseline to another
version_added: 0.1.0
description:
  - Figures that only one of them has, and those whose median moved by 0.5 % or more.
author:
  - gpuval contributors (@gpuval)
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: none
    description: The difference is the result.
options:
  before:
    description: The earlier baseline file.
    type: path
    required: true
  after:
    description: The later one.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Compare two versions
  gpuval.fleet.compare_baselines:
    before: baselines/site-v1.json
    after: baselines/site-v2.json
"""

RETURN = r"""
told:
  description: A line for each change.
  returned: success
  type: list
  elements: str
clear:
  description: How many changes are more than the noise of both.
  returned: success
  type: int
"""
