#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: make_bundle
short_description: Make a bundle for a site without internet
version_added: 0.1.0
description:
  - Packs the source tree, the Python packages as wheels, the collection, the model and the container images into one
    tar with the SHA-256 of each file.
  - C(make setup BUNDLE=) sets another checkout up from it, without any network.
  - Works in a checkout of gpuval, with its C(tools/bundle.py).
author:
  - gpuval contributors (@gpuval)
extends_documentation_fragment:
  - gpuval.fleet.store
attributes:
  check_mode:
    support: full
    description: Makes nothing.
  diff_mode:
    support: none
    description: There is nothing to compare.
options:
  output:
    description: Path of the bundle. A relative one stands beside C(ansible.cfg).
    type: str
    default: dist/gpuval-bundle.tar
  without:
    description: Parts to leave out.
    type: list
    elements: str
    choices: [source, wheels, collections, models, images]
    default: []
  model:
    description: The model to carry, as for M(gpuval.fleet.preload_model). It must be in the store.
    type: str
    default: tiny
"""

EXAMPLES = r"""
- name: Make the bundle
  ansible.builtin.import_role:
    name: gpuval.fleet.bundle
"""

RETURN = r"""
bundle:
  description: Path of the bundle.
  returned: success
  type: str
bytes:
  description: Its size.
  returned: when it was made
  type: int
"""
