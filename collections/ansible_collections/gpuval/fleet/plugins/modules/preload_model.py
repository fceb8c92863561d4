#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: preload_model
short_description: Ensure that the store has model and datasets, complete
version_added: 1.0.0
description:
  - Makes the tiny model, downloads a hub repository or takes a folder.
  - Resolves links, writes C(SHA256SUMS) and uploads with rclone.
  - Skips a model that is complete there.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.store
options:
  model:
    description: V(tiny), a hub repository C(org/name), or a folder on the controller; empty is none.
    type: str
    default: tiny
  datasets:
    description:
      - Datasets to upload as well, each with C(name), C(source) and C(sha256).
      - A source is a folder or an archive (tar, zip) on the controller, or C(store:FOLDER) of the bucket.
    type: list
    elements: dict
    default: []
  stages:
    description: Stages of the run; only what those that load need is uploaded. Empty uploads all.
    type: list
    elements: str
    default: []
  revision:
    description: Revision of the repository.
    type: str
    default: ''
  token:
    description: Token of the hub.
    type: str
    default: ''
  silence_seconds:
    description: How long a hub may send nothing while a model is downloaded.
    type: float
    default: 120
  transfers:
    description: Files uploaded in parallel.
    type: int
    default: 8
  force:
    description: Upload even if the store has the model complete.
    type: bool
    default: false
  round_trip:
    description: Serve and query the model, upload it, delete it, load it back, serve and query it again.
    type: bool
    default: false
  list:
    description: List the bucket's models and datasets with size and digest of C(SHA256SUMS), and upload nothing.
    type: bool
    default: false
  python:
    description: Python on the controller that has a serving framework, for the round trip.
    type: str
    default: python3
"""

EXAMPLES = r"""
- name: See that the model is in the store
  ansible.builtin.import_role:
    name: gpuval.fleet.model_preload
"""

RETURN = r"""
models:
  description: The models of the bucket by folder, each with C(files), C(bytes), C(sha256), C(missing) and C(source).
  returned: with O(list)
  type: dict
folder:
  description: Folder of the model below C(models/).
  returned: success
  type: str
files:
  description: How many files it has.
  returned: success
  type: int
bytes:
  description: Its size.
  returned: success
  type: int
"""
