#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: check_settings
short_description: Check the settings of all nodes
version_added: 1.0.0
description:
  - Checks the variables of every node of the play against what the roles declare, before anything starts. Types,
    choices, ranges and forms of values, files that they name, and criteria.
  - A variable that begins with C(gpuval_) or the name of a role, or that is close to a setting, and is none is a
    problem, unless C(gpuval_own_variables) lists it.
  - Reports all problems together, with file and line where they come from a file.
  - Every playbook begins with it.
extends_documentation_fragment: [gpuval.fleet.common]
options:
  fatal:
    description: Fail if a setting is wrong; otherwise only warn.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Check the settings of all nodes
  gpuval.fleet.check_settings:
  run_once: true
"""

RETURN = r"""
msg:
  description: How many nodes' settings were checked.
  returned: success
  type: str
"""
