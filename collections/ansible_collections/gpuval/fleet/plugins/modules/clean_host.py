#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: clean_host
short_description: Clean one node, whatever comes of it
version_added: 0.1.0
description:
  - Runs M(gpuval.fleet.clean_node) on the node and returns what came of it as an outcome, also when the node cannot be
    reached or something on it cannot be removed.
  - M(gpuval.fleet.clean_summary) says so for all nodes together, and fails.
author:
  - gpuval contributors (@gpuval)
attributes:
  check_mode:
    support: full
    description: Says what would be removed.
  diff_mode:
    support: none
    description: The result lists what was removed.
options:
  directory:
    description: Base folder of gpuval on the node, as for M(gpuval.fleet.launch_plan).
    type: str
    default: ''
  run_ids:
    description: The runs to remove. Empty removes all runs of this node, whoever started them.
    type: list
    elements: str
    default: []
  keep_models:
    description: Keep the node's model cache.
    type: bool
    default: false
  remove_images:
    description: Remove the container images that runs brought to the node as well.
    type: bool
    default: false
  probe:
    description:
      - What a probe found, by node, each with C(state), C(message) and C(remedy).
      - A node that is not V(reachable) is not waited for.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Clean the node
  gpuval.fleet.clean_host:
    run_ids: [20261120-201500-3f2a]
  register: cleanup_node
"""

RETURN = r"""
outcome:
  description: What came of it.
  returned: success
  type: dict
  contains:
    state:
      description: V(clean), V(left) when something could not be removed, or V(not reached).
      type: str
    class:
      description: Why, in one word, as in the report of a run.
      type: str
    message:
      description: Why, for people.
      type: str
    removed:
      description: Folders that were removed.
      type: list
      elements: str
    killed:
      description: Processes and containers that were ended.
      type: list
      elements: str
"""
