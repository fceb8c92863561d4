#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: upload_bundle
short_description: Put what a bundle brought into the S3 service
version_added: 0.1.0
description:
  - C(make setup BUNDLE=) puts models and images into the folder of the embedded store. This copies them into the S3
    service of the inventory, where one is configured.
  - What the service has already, with the same checksum, is not sent again.
author:
  - gpuval contributors (@gpuval)
extends_documentation_fragment:
  - gpuval.fleet.store
attributes:
  check_mode:
    support: full
    description: Sends nothing.
  diff_mode:
    support: none
    description: There is nothing to compare.
options: {}
"""

EXAMPLES = r"""
- name: Put what the bundle brought into the store
  ansible.builtin.import_role:
    name: gpuval.fleet.bundle
    tasks_from: upload
"""

RETURN = r"""
objects:
  description: How many objects the bundle brought.
  returned: with an S3 service
  type: int
"""
