#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: mad_jobs
short_description: Make jobs and images of the models of a MAD repository
version_added: 1.0.0
description:
  - Reads a model repository (C(models.json), C(docker/), C(scripts/), C(data.json)), selects models by tags, and
    writes a job (C(gpuval.job/1)) and a build context for each of them and each of its Dockerfiles that fits.
  - Nothing of the repository is executed on the controller.
extends_documentation_fragment: [gpuval.fleet.common]
options:
  repository:
    description: Folder or git address of the repository.
    type: str
    required: true
  revision:
    description: Branch, tag or full commit of an address; empty is its default branch.
    type: str
    default: ''
  tags:
    description: Tags or names of models; V(all), V(SCOPE/TAG), V(TAG:OPTION=VALUE).
    type: list
    elements: str
    default: [all]
  timeout:
    description: Time limit per model in seconds; V(0) is none, V(-1) the model's own.
    type: int
    default: -1
  context:
    description: Additional context, as a mapping or JSON.
    type: raw
  disable_skip_gpu_arch:
    description: Ignore C(skip_gpu_arch) of models.
    type: bool
    default: false
  sku:
    description: C(gpuval_sku); its vendor chooses between Dockerfiles.
    type: str
    default: auto
  datasets:
    description: C(gpuval_datasets).
    type: list
    elements: dict
    default: []
  secrets:
    description:
      - Names in C(gpuval_secrets).
      - All models get those that begin with C(MAD_SECRETS), and environment variables of the controller of that name.
    type: list
    elements: str
    default: []
  secrets_file:
    description: File with credentials of models; empty is C(credential.json) of the repository.
    type: path
    default: ''
  images:
    description: Existing images by model. The files of these models travel in the plan.
    type: dict
    default: {}
  registry:
    description: Registry to push pod images to, C(HOST[:PORT]/PATH).
    type: str
    default: ''
  keep_alive_seconds:
    description: How long the last model stays up for a shell after its work; V(0) is not at all.
    type: int
    default: 0
  keep_folder:
    description: Folder on the nodes that keeps the folders of models; empty keeps none.
    type: str
    default: ''
  skip_run:
    description: Return no jobs, only images.
    type: bool
    default: false
  output:
    description: The C(perf.csv) of all runs; its folder must exist.
    type: str
    default: ''
  pipeline:
    description: Value of the column C(pipeline) in C(perf.csv).
    type: str
    default: ''
  placement:
    description: C(gpuval_placement).
    type: str
    default: ssh
  runtime:
    description: C(gpuval_runtime).
    type: str
    default: auto
  state_dir:
    description: Folder of the controller for jobs and build contexts.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Jobs of the models that have the tag pyt
  gpuval.fleet.mad_jobs:
    repository: https://git.example.com/team/models.git
    tags: [pyt]
    state_dir: .gpuval
  run_once: true
"""

RETURN = r"""
jobs:
  description: Files for C(gpuval_jobs).
  returned: success
  type: list
  elements: str
images:
  description: Entries for C(gpuval_images) by name.
  returned: success
  type: dict
secrets_file:
  description: The file with credentials; empty for none.
  returned: success
  type: str
deadline_seconds:
  description: The time that all models may take one after the other, their images included.
  returned: success
  type: float
"""
