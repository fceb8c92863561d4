#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: clean_jobs
short_description: Cancel the jobs that runs have left on a Slurm cluster
version_added: 1.0.0
description:
  - Cancels the jobs of runs by their comment, waits until they have ended, and names those that have not.
  - A job removes its folder on the node when it ends. Jobs of other users are left alone.
extends_documentation_fragment: [gpuval.fleet.common]
attributes:
  diff_mode:
    support: full
    description: Lists the jobs that are cancelled.
options:
  run_ids:
    description: The runs. Empty is all gpuval jobs of this user.
    type: list
    elements: str
    default: []
  results_dir:
    description: Results folder in which the runs of O(run_ids) are recorded as cleaned; empty records nothing.
    type: str
    default: ''
  deadline_seconds:
    description: Time limit until the jobs have ended.
    type: int
    default: 180
"""

EXAMPLES = r"""
- name: Cancel the jobs of one run
  gpuval.fleet.clean_jobs:
    run_ids: [20261120-201500-3f2a]
"""

RETURN = r"""
cancelled:
  description: Ids of the jobs that were cancelled.
  returned: success
  type: list
  elements: int
left:
  description: Ids of the jobs that have not ended in time.
  returned: success
  type: list
  elements: int
"""
