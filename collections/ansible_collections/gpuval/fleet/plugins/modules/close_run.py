#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: close_run
short_description: End a run on the controller
version_added: 0.1.0
description:
  - An unfinished run is marked as finished, so that nothing takes it up again; its objects leave the store if asked.
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
options:
  clean_store:
    description: Remove the run's objects from the store.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Clean
  ansible.builtin.import_role:
    name: gpuval.fleet.cleanup
"""

RETURN = r"""
run_ids:
  description: Runs whose traces on the nodes may go. The one that was closed; without O(run_id) all earlier ones too.
  returned: success
  type: list
  elements: str
round_ids:
  description: Rounds of gangs of those runs, which have traces of their own on the nodes.
  returned: success
  type: list
  elements: str
active:
  description: Other runs that are not finished, for which the embedded store goes on.
  returned: success
  type: list
  elements: str
nodes:
  description: Nodes on which these runs may have left something, whether the inventory still has them or not.
  returned: success
  type: list
  elements: str
deleted_objects:
  description: How many objects were removed.
  returned: when there is a run
  type: int
"""
