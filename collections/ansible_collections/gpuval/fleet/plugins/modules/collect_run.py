#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: collect_run
short_description: Bring a run's evidence from the store into the results
version_added: 1.0.0
description:
  - Reads records, logs and series, and checks each before it is kept.
  - Asks nodes over their own connection for what is missing then, side by side.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
  - gpuval.fleet.store
options:
  fetch_tasks:
    description: Task file whose only task fetches the evidence of a host. Without it no node is contacted.
    type: path
  fetch_seconds:
    description: Time limit of one fetch.
    type: float
    default: 300.0
"""

EXAMPLES = r"""
- name: Collect
  ansible.builtin.import_role:
    name: gpuval.fleet.run
    tasks_from: collect
"""

RETURN = r"""
fetched:
  description: Nodes that were asked for what the store does not have.
  returned: success
  type: list
  elements: str
collected:
  description: How many objects were new.
  returned: success
  type: int
problems:
  description: Objects that were refused, and why.
  returned: success
  type: list
  elements: dict
"""
