#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: update_run
short_description: Change the window of a run that is watched, or record that its gangs failed
version_added: 1.0.0
description:
  - Writes the window into the run's folder. The watch reads it in each of its rounds, over SSH and on a cluster.
  - A smaller window stops no node that is working; a larger one starts the next nodes at once.
  - It persists when a controller is started again, until that is given another O(max_nodes_at_once) than before.
  - With O(gang_error) it records why the gangs of the run failed. Their nodes are judged and reported with that reason.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
options:
  max_nodes_at_once:
    description: Max nodes that work at once; V(0) is all. Without it the number stays.
    type: int
  max_transfers:
    description: Max nodes that load images at once; V(0) is all. Without it the number stays.
    type: int
  gang_error:
    description: The error that ended the gangs.
    type: str
"""

EXAMPLES = r"""
- name: Let twenty nodes work at once
  gpuval.fleet.update_run:
    max_nodes_at_once: 20
  run_once: true
"""

RETURN = r"""
msg:
  description: The window from now on, or the reason.
  returned: success
  type: str
reason:
  description: Why the gangs failed, for the report.
  returned: with O(gang_error)
  type: str
"""
