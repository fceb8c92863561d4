#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: find_run
short_description: Find an earlier run
version_added: 1.0.0
description:
  - Reads C(run.json) of a run.
  - With O(store), a run that results_dir does not have is looked for in the bucket. Expected nodes, launch
    results, criteria and baseline are fetched from there into a folder of results_dir, or renewed.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
  - gpuval.fleet.store
options:
  folder:
    description: Folder of the run in the bucket; empty is that of the run that is found by O(run_id).
    type: str
    default: ''
  store:
    description:
      - The store as the role P(gpuval.fleet.gpuval#role) describes it; without it only results_dir is looked at.
    required: false
"""

EXAMPLES = r"""
- name: Find the run
  ansible.builtin.import_role:
    name: gpuval.fleet.run
    tasks_from: reopen
"""

RETURN = r"""
run:
  description: The run (gpuval.run/1).
  returned: success
  type: dict
results:
  description: Folder of the run's results.
  returned: success
  type: str
"""
