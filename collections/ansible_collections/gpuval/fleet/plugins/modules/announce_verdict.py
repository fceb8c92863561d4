#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: announce_verdict
short_description: Print the FINAL ACCEPTANCE block and fail unless the run passed
version_added: 0.1.0
description:
  - Succeeds for V(PASS), and for V(PARTIAL) when the run was narrowed by C(--limit), C(--tags) or stages.
author:
  - gpuval contributors (@gpuval)
extends_documentation_fragment:
  - gpuval.fleet.run
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: none
    description: There is nothing to compare.
"""

EXAMPLES = r"""
- name: Announce
  ansible.builtin.import_role:
    name: gpuval.fleet.report
    tasks_from: announce
"""

RETURN = r"""
verdict:
  description: V(PASS), V(PARTIAL), V(FAIL) or V(INCOMPLETE).
  returned: always
  type: str
acceptance_report:
  description: Path of the report that the block is made of.
  returned: always
  type: str
"""
