#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: judge_run
short_description: Judge the evidence of a run by the criteria
version_added: 1.0.0
description:
  - Writes C(report.json) (gpuval.report/1).
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
  - gpuval.fleet.criteria
options:
  baseline:
    description: Baseline file for checks of kind V(baseline); empty is none.
    type: path
    default: ""
  finish:
    description: Whether this verdict ends the run. It always ends one whose deadline has passed without a controller.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Judge the run
  ansible.builtin.import_role:
    name: gpuval.fleet.verdict
"""

RETURN = r"""
verdict:
  description: V(PASS), V(PARTIAL), V(FAIL) or V(INCOMPLETE).
  returned: success
  type: str
counts:
  description: Nodes by verdict.
  returned: success
  type: dict
"""
