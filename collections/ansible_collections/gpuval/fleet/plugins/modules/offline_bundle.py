#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: offline_bundle
short_description: Make a bundle for a site without internet, or upload what one brought
version_added: 1.0.0
description:
  - Packs the source tree, the Python packages as wheels, the collection, the model and the container images into one
    tar with the SHA-256 of each file. C(make setup BUNDLE=) sets up another checkout from it, without any network.
  - Works in a checkout of gpuval, with its C(tools/bundle.py).
  - C(make setup BUNDLE=) puts models and images into the folder of the embedded store. O(state=uploaded) copies them
    into the S3 service of the inventory, where one is configured. Objects with the same checksum are not sent again.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.store
options:
  state:
    description: V(present) makes the bundle, V(uploaded) uploads what one brought.
    type: str
    choices: [present, uploaded]
    default: present
  output:
    description: Path of the bundle. A relative path is resolved beside C(ansible.cfg).
    type: str
    default: dist/gpuval-bundle.tar
  without:
    description: Parts to leave out.
    type: list
    elements: str
    choices: [source, wheels, models, images]
    default: []
  model:
    description: The model to include, as for M(gpuval.fleet.preload_model). It must be in the store.
    type: str
    default: tiny
"""

EXAMPLES = r"""
- name: Make the bundle
  gpuval.fleet.offline_bundle:
    store: "{{ gpuval_store }}"
    without: [models]
  run_once: true
"""

RETURN = r"""
bundle:
  description: Path of the bundle.
  returned: O(state=present)
  type: str
bytes:
  description: Size of the bundle.
  returned: when it was made
  type: int
objects:
  description: Number of objects that the bundle brought.
  returned: O(state=uploaded) with an S3 service
  type: int
"""
