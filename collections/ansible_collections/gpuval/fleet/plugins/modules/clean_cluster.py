#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: clean_cluster
short_description: Remove what runs made in a Kubernetes cluster
version_added: 1.0.0
description:
  - Deletes the JobSets, Jobs, Pods, Services, Secrets and ConfigMaps of runs and of their rounds of gangs by their
    labels, waits until they are gone and fails when something is left, which it names.
  - Other runs, the namespace and labels of nodes are left alone.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.cluster
attributes:
  diff_mode:
    support: full
    description: Lists what is removed.
options:
  run_ids:
    description: The runs to remove. Empty removes all runs of the namespace, those of other users too.
    type: list
    elements: str
    default: []
  results_dir:
    description: Results folder in which the runs of O(run_ids) are recorded as cleaned; empty records nothing.
    type: str
    default: ''
  volumes:
    description: Also remove the volumes and claims that the runs created for their models.
    type: bool
    default: false
  deadline_seconds:
    description: Time limit until everything is gone.
    type: int
    default: 180
requirements:
  - kubernetes (Python library, on the controller)
"""

EXAMPLES = r"""
- name: Clean the cluster of one run
  gpuval.fleet.clean_cluster:
    run_ids: [20261120-201500-3f2a]
"""

RETURN = r"""
removed:
  description: Names of what was removed, by kind.
  returned: success
  type: dict
left:
  description: What is left, each with C(kind), C(name), C(why) and C(remedy).
  returned: success
  type: list
  elements: dict
"""
