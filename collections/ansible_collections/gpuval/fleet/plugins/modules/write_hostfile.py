#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: write_hostfile
short_description: Write the hostfile of the nodes of a run that may work together
version_added: 1.0.0
description:
  - A line C(ADDRESS slots=N) for each node that passed, gangs included, as DeepSpeed's launcher, MPI and pdsh take it.
  - The first healthy node leads. Nodes of other firmware, or that did not pass, are named in warnings.
  - Another warning says that the run was narrowed, has stages of its own, had no gangs, or is not finished.
  - Where nodes are not all alike there is a file for each group, with its name at the end.
  - Hostfiles that were written at the same place for other gangs are removed, unless they were changed.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
  - gpuval.fleet.criteria
  - gpuval.fleet.gang_members
options:
  baseline:
    description: Baseline that nodes are compared with, if any.
    type: path
    default: ''
  path:
    description: The file; empty is C(hostfile) in the folder of the run.
    type: path
    default: ''
"""

EXAMPLES = r"""
- name: Hostfile
  ansible.builtin.import_role:
    name: gpuval.fleet.run
    tasks_from: hostfile
"""

RETURN = r"""
paths:
  description: The files.
  returned: success
  type: list
  elements: str
removed:
  description: Files of earlier gangs that were removed.
  returned: success
  type: list
  elements: str
left_out:
  description: Why a node is in none of them, by its name.
  returned: success
  type: dict
"""
