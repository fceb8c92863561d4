#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: mark_nodes
short_description: Write verdicts on the nodes of a Kubernetes cluster or of Slurm
version_added: 1.0.0
description:
  - Labels each node of a run with its verdict (C(gpuval.io/verdict)) and the run (C(gpuval.io/run)), and notes when
    that was (annotation C(gpuval.io/validated-at)).
  - A node that failed also bears what it failed or lacked (annotation C(gpuval.io/failed-checks)). C(FAIL) and the
    taint stay until it has passed all of that, in whichever run, also one of C(--limit) or of rounds of pairs alone; a
    run without these stages leaves them.
  - With O(taint), nodes that failed are tainted C(gpuval.io/failed) with V(NoSchedule); pods of later runs tolerate it.
  - With O(scheduler=slurm), nodes that failed are drained with the reason C(gpuval:RUN:CLASS), by C(scontrol) on the
    controller. A run in which such a node passes what it failed or lacked resumes it. Nodes that are drained or down
    for another reason are left as they are.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
  - gpuval.fleet.cluster
attributes:
  diff_mode:
    support: full
    description: Shows labels, annotations and taint of each node that is changed, or Slurm's state and reason.
options:
  scheduler:
    description: Scheduler of the nodes.
    type: str
    default: kubernetes
    choices: [kubernetes, slurm]
  taint_incomplete:
    description: With O(scheduler=slurm), also drain nodes that are C(INCOMPLETE).
    type: bool
    default: false
  state:
    description:
      - V(present) writes the verdicts of the report.
      - V(absent) takes labels, annotations and the taint off; with O(run_id) or O(run_ids) only those of these runs.
        Not for O(scheduler=slurm).
    type: str
    default: present
    choices: [present, absent]
  run_ids:
    description: For O(state=absent), several runs at once, in as many requests as for one.
    type: list
    elements: str
    default: []
  nodes:
    description: Only these nodes. Empty is all of the run, or with O(state=absent) all of the cluster.
    type: list
    elements: str
    default: []
  taint:
    description:
      - Taint nodes that failed, and take the taint off nodes that passed.
      - When V(false), taints are left as they are, but for O(state=absent).
    type: bool
    default: false
requirements:
  - kubernetes (Python library, on the controller)
"""

EXAMPLES = r"""
- name: Keep other work off nodes that failed
  gpuval.fleet.mark_nodes:
    taint: true

- name: Drain nodes of Slurm that failed, and resume those that pass now
  gpuval.fleet.mark_nodes:
    scheduler: slurm

- name: Take all marks off
  gpuval.fleet.mark_nodes:
    state: absent
"""

RETURN = r"""
nodes:
  description: Names of the nodes that were changed.
  returned: success
  type: list
  elements: str
missing:
  description: Nodes that the cluster does not have.
  returned: success
  type: list
  elements: str
kept:
  description: Nodes that stay FAIL, since they did not pass in this run what they had failed.
  returned: success
  type: list
  elements: str
open:
  description: What each of these must still pass, as C(stage/check); C(stage/) where evidence of the stage was missing.
  returned: success
  type: dict
foreign:
  description: Nodes to drain that are already drained or down for another reason, which is given.
  returned: with O(scheduler=slurm)
  type: list
  elements: str
busy:
  description: Nodes that were changed by others each time; the task fails.
  returned: success
  type: list
  elements: str
"""
