#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: show_status
short_description: Show where a run stands
version_added: 1.0.0
description:
  - Reads the store alone, from any machine that may read it.
  - A run that results_dir does not have is looked for in the bucket.
  - Fails when the run is over and was not passed. While it goes on it does not fail.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
  - gpuval.fleet.store
options:
  folder:
    description: Folder of the run in the bucket; empty is that of the run that is found by O(run_id).
    type: str
    default: ''
  nodes:
    description: Names of the nodes to show, with V(*) and V(?) as wildcards; empty is all.
    type: list
    elements: str
    default: []
  whole:
    description: List all nodes in the table of a run of more than 40; otherwise only those that matter.
    type: bool
    default: false
  lines:
    description: Print a line with its figures for each stage that a node has done.
    type: bool
    default: false
  watch:
    description: Watch until the run is over.
    type: bool
    default: false
  interval_seconds:
    description: Interval between two reads of the store.
    type: float
    default: 10.0
  watch_seconds:
    description: Max time to watch; V(0) is the run's remaining time plus 1800.
    type: float
    default: 0.0
"""

EXAMPLES = r"""
- name: Show the state of a run and of two of its nodes
  gpuval.fleet.show_status:
    store: "{{ gpuval_store }}"
    run_id: acceptance-7
    nodes: [node-001, node-002]
"""

RETURN = r"""
status:
  description: What was printed.
  returned: success
  type: list
  elements: str
run_id:
  description: The run that was shown.
  returned: always
  type: str
verdict:
  description: Verdict of a run that has ended; null for one that goes on, or was not judged.
  returned: always
  type: str
nodes:
  description: State of each node by its name.
  returned: success
  type: dict
"""
