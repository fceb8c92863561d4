#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: open_run
short_description: Open a run, or resume an unfinished one
version_added: 1.0.0
description:
  - Freezes the expected nodes and their stages in C(run.json).
  - Nodes that are new to a known run join it by name.
  - Without a run id, an unfinished run of the same nodes and inventory is resumed, so a controller that died is just
    started again. A run that another controller works on is attached to, and this is displayed.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.criteria
attributes:
  check_mode:
    description: Opens nothing; returns the run as it would be.
options:
  baseline:
    description: Baseline file to compare the run with; an unusable one stops it now. Empty is none.
    type: path
    default: ""
  run_id:
    description: Identity of the run. Empty resumes an unfinished one, else starts one; V(new) always starts one.
    type: str
    default: ''
  results_dir:
    description: Where results are kept. A relative path starts at the folder of C(ansible.cfg).
    type: str
    default: results
  bucket:
    description: Bucket of the store.
    type: str
    required: true
  folder:
    description: Folder of the run in the bucket; empty is the run id.
    type: str
    default: ''
  endpoint:
    description: URL of the S3 service, which the run remembers; empty is the embedded store.
    type: str
    default: ''
  state_dir:
    description: Folder of the embedded store, which the run remembers.
    type: str
    default: .gpuval
  namespace:
    description: Namespace of a cluster, with context and kubeconfig, which the run remembers. Empty over SSH.
    type: str
    default: ''
  placement:
    description: How the run's plans get to the nodes.
    type: str
    choices: [ssh, kubernetes, slurm]
    default: ssh
  profile:
    description: Name of the profile.
    type: str
    required: true
  gang_stages:
    description: Stages that nodes run together once their own have passed; for a run of several nodes.
    type: list
    elements: str
    default: []
  gangs_alone:
    description: The run is for its gangs only. It fails with fewer than two hosts, and is PARTIAL at best.
    type: bool
    default: false
  only_idle:
    description: Leave nodes with other work out of the verdict, and stop for other work that arrives.
    type: bool
    default: false
  accepts:
    description: Whether this run can accept nodes; otherwise it is PARTIAL at best.
    type: bool
    default: true
  profile_stages:
    description: Stages of the profile, in order.
    type: list
    elements: str
    required: true
  workloads:
    description: Declaration of each stage.
    type: dict
    required: true
  deadline_seconds:
    description: Time limit of the whole run.
    type: float
    required: true
  limit:
    description: Value of C(--limit); any makes the run partial.
    type: str
    default: ''
  run_tags:
    description: Tags that choose stages.
    type: list
    elements: str
    default: []
  skip_tags:
    description: Tags that leave stages out.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Open the run
  ansible.builtin.import_role:
    name: gpuval.fleet.run
    tasks_from: open
"""

RETURN = r"""
run:
  description: The run (gpuval.run/1).
  returned: success
  type: dict
resumed:
  description: Whether the run was known already.
  returned: success
  type: bool
joined:
  description: Nodes that joined a known run.
  returned: success
  type: list
  elements: str
opened:
  description: The same folder, empty in check mode; P(gpuval.fleet.acceptance#callback) records there why a run failed.
  returned: success
  type: str
results:
  description: Folder of the run's results.
  returned: success
  type: str
"""
