#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: show_status
short_description: Show where a run stands
version_added: 0.1.0
description:
  - Reads the store alone.
author:
  - gpuval contributors (@gpuval)
extends_documentation_fragment:
  - gpuval.fleet.run
  - gpuval.fleet.store
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: none
    description: There is nothing to compare.
"""

EXAMPLES = r"""
- name: Show the status
  ansible.builtin.import_role:
    name: gpuval.fleet.run
    tasks_from: status
"""

RETURN = r"""
status:
  description: What was printed.
  returned: success
  type: list
  elements: str
"""
