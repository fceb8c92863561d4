#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: watch_run
short_description: Watch a run until every node is done
version_added: 0.1.0
description:
  - Prints a line for each change, with counts by stage and state, elapsed and expected time.
  - Judges a node when its plan is done, and names the stages that are to be measured again.
  - Returns early when nodes need something done over their own connection.
  - The role P(gpuval.fleet.run#role) does it and goes on watching.
author:
  - gpuval contributors (@gpuval)
extends_documentation_fragment:
  - gpuval.fleet.run
  - gpuval.fleet.store
  - gpuval.fleet.criteria
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: none
    description: There is nothing to compare.
options:
  poll_seconds:
    description: How often the store is asked what changed.
    type: float
    default: 2.0
  pull_seconds:
    description: How often a node that cannot reach the store is asked.
    type: float
    default: 15.0
  silence_seconds:
    description: How long a node may be silent.
    type: float
    default: 90.0
  retries:
    description: How often a stage is relaunched.
    type: int
    default: 1
"""

EXAMPLES = r"""
- name: Watch the run
  ansible.builtin.import_role:
    name: gpuval.fleet.run
    tasks_from: watch
"""

RETURN = r"""
finished:
  description: Whether there is nothing more to wait for.
  returned: success
  type: bool
pull:
  description: Nodes whose records are to be fetched.
  returned: success
  type: list
  elements: str
relaunch:
  description: Attempt and stages to launch, by node.
  returned: success
  type: dict
"""
