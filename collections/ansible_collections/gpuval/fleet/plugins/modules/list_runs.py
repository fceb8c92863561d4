#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: list_runs
short_description: List the runs of an inventory, or write the input to validate again what did not pass
version_added: 1.0.0
description:
  - Lists the runs of the play's inventory on this controller with state, counts of verdicts and age. Runs of other
    inventories are named.
  - With O(rerun) it writes the nodes of a run that did not pass, and the run's profile, for another validation.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
attributes:
  check_mode:
    description: Writes nothing to O(rerun).
options:
  jobs:
    description: Files of the jobs that a validation of these nodes has, for O(rerun).
    type: list
    elements: path
    default: []
  rerun:
    description:
      - Folder that gets C(nodes), a file for C(--limit), and C(settings.json), extra variables. Empty lists runs.
      - C(nodes) is empty where all passed. A run without a verdict fails, as does one with stages that the inventory
        does not declare, or of jobs or multi-node stages alone.
    type: path
    default: ""
"""

EXAMPLES = r"""
- name: List the runs
  gpuval.fleet.list_runs:
  run_once: true
"""

RETURN = r"""
runs:
  description: The runs, the newest first.
  returned: without O(rerun)
  type: list
  elements: dict
  contains:
    run_id:
      description: Identity of the run.
      type: str
    state:
      description: One of C(opened), C(preparing), C(working), C(collecting), C(judged), C(failed).
      type: str
    reason:
      description: Why it failed.
      type: str
    verdict:
      description: Verdict of the run; null before its end.
      type: str
    counts:
      description: Nodes by verdict; empty before it was judged.
      type: dict
    nodes:
      description: Number of nodes.
      type: int
    profile:
      description: Name of the profile.
      type: str
    opened_at:
      description: When a controller opened or resumed it last.
      type: str
    age_seconds:
      description: Seconds since then.
      type: int
nodes:
  description: Names of the nodes that did not pass.
  returned: with O(rerun)
  type: list
  elements: str
"""
