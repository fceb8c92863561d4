#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gangs_broke_off
short_description: Record that the gangs of a run ended by an error
version_added: 0.1.0
description:
  - Keeps the error with the run, as the reason of every stage of gangs that has no record. So its nodes are INCOMPLETE.
  - Runs that are taken up again forget it.
author:
  - gpuval contributors (@gpuval)
attributes:
  check_mode:
    support: full
    description: Nothing is recorded.
  diff_mode:
    support: none
    description: There is nothing to compare.
options:
  run_id:
    description: The run. Empty or V(latest) means the latest one.
    type: str
    default: ""
  results_dir:
    description: Where results are kept on the controller.
    type: str
    default: results
  message:
    description: What went wrong.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Record why the gangs ended
  gpuval.fleet.gangs_broke_off:
    run_id: 20261120-201500-3f2a
    message: "{{ ansible_failed_result.msg }}"
  run_once: true
"""

RETURN = r"""
reason:
  description: What was recorded.
  returned: always
  type: str
"""
