#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: publish_image
short_description: Put an image's archive into the store
version_added: 0.1.0
description:
  - Uploads the archive below C(images/), with what is to be known of it beside it, and remembers it in C(images.json).
  - An archive that the store has, whole, is left alone.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.store
attributes:
  check_mode:
    support: partial
    description: Does not ask the store, and says that the image would be put there.
options:
  name:
    description: Name of the image in C(gpuval_images).
    type: str
    required: true
  reference:
    description: What the image is called.
    type: str
    required: true
  image:
    description: What M(gpuval.fleet.build_image) says of it.
    type: dict
    default: {}
  archive:
    description: An archive on the controller, of C(docker save) or C(podman save --format docker-archive), instead.
    type: str
    default: ''
  on_nodes:
    description: Each node built the image for itself; there is nothing to upload.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Take in an archive
  gpuval.fleet.publish_image:
    store: "{{ gpuval_store }}"
    name: training
    reference: registry.example/training:1
    archive: /srv/images/training.tar
"""

RETURN = r"""
image:
  description: The entry of the catalogue.
  returned: success
  type: dict
uploaded:
  description: Whether it was sent to the store.
  returned: success
  type: bool
upload_duration_seconds:
  description: How long that took.
  returned: when it was sent
  type: float
"""
