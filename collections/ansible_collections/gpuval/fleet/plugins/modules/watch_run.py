#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: watch_run
short_description: Start the nodes' plans and watch them until every node is done
version_added: 0.1.0
description:
  - Starts each node's plan when its turn comes, without waiting for other nodes.
  - Prints a line for each change, with counts by stage and state, elapsed and expected time.
  - Judges a node when its plan is done, and launches again the stages that are to be measured once more.
  - Fetches records over the connection of nodes that cannot reach the store, or that are silent.
  - Nodes that are not reached are tried again, less and less often, while the run is on.
author:
  - gpuval contributors (@gpuval)
extends_documentation_fragment:
  - gpuval.fleet.run
  - gpuval.fleet.store
  - gpuval.fleet.criteria
  - gpuval.fleet.watch
attributes:
  check_mode:
    support: full
    description: Makes the plans and starts nothing.
  diff_mode:
    support: full
    description: Shows the stages of the plans in check mode.
options:
  launch_tasks:
    description: Task file whose only task launches the plan of a host.
    type: path
    required: true
  launch_seconds:
    description: How long one launch may take.
    type: float
    default: 180.0
  fetch_tasks:
    description: Task file whose only task fetches the evidence of a host.
    type: path
    required: true
  fetch_seconds:
    description: How long one fetch may take.
    type: float
    default: 300.0
  send_tasks:
    description: Task file whose only task sends images to a host, before the launch, if the store does not.
    type: path
    required: true
  send_seconds:
    description: How long sending images to one node may take.
    type: float
    default: 3600.0
"""

EXAMPLES = r"""
- name: Watch the run
  ansible.builtin.import_role:
    name: gpuval.fleet.run
    tasks_from: watch
"""

RETURN = r"""
started:
  description: Nodes on which a plan was started.
  returned: success
  type: list
  elements: str
"""
