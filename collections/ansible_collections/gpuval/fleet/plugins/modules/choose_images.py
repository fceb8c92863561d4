#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: choose_images
short_description: See which container images the controller has to make
version_added: 0.1.0
description:
  - Checks what the hosts of a play declare as C(gpuval_images), and puts together what is built or copied, each image
    after those that it is built on.
extends_documentation_fragment: [gpuval.fleet.common]
options:
  images:
    description: C(gpuval_images) of each host.
    type: list
    elements: dict
    required: true
  folder:
    description: Folder with the Dockerfiles and C(bases.yml).
    type: str
    default: docker
  vendor:
    description: Whose accelerators images are for that do not say it themselves.
    type: str
    choices: ['', nvidia, amd, gaudi, cpu]
    default: ''
"""

EXAMPLES = r"""
- name: See which images are to be made
  gpuval.fleet.choose_images:
    images: ["{{ gpuval_images }}"]
    vendor: nvidia
"""

RETURN = r"""
make:
  description: Images to build, copy or import, in order.
  returned: success
  type: list
  elements: dict
pulled:
  description: References that each node pulls for itself.
  returned: success
  type: list
  elements: str
"""
