#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: set_window
short_description: Change how many nodes of a run work at once while it is watched
version_added: 0.1.0
description:
  - Writes the window into the run's folder, where the watch reads it in each of its rounds, over SSH and on a cluster.
  - A smaller window ends nothing that is at work; a larger one starts the next nodes at once.
  - It stays when a controller is started again, until that is given another O(max_nodes_at_once) than before.
author:
  - gpuval contributors (@gpuval)
extends_documentation_fragment:
  - gpuval.fleet.run
attributes:
  check_mode:
    support: full
    description: Writes nothing.
  diff_mode:
    support: none
    description: There is nothing to compare.
options:
  max_nodes_at_once:
    description: How many nodes work at once; V(0) is all of them. Without it that stays as it is.
    type: int
  max_transfers:
    description: How many nodes bring images at once; V(0) is all of them. Without it that stays as it is.
    type: int
"""

EXAMPLES = r"""
- name: Let twenty nodes work at once
  gpuval.fleet.set_window:
    max_nodes_at_once: 20
  run_once: true
"""

RETURN = r"""
msg:
  description: What holds from now on.
  returned: success
  type: str
"""
