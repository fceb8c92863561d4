#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: prepare_cluster
short_description: Check that gpuval has the permissions that it needs on a cluster
version_added: 1.0.0
description:
  - Writes the least Role that gpuval needs, for an administrator of the cluster to apply, and shows it when something
    is missing.
  - Asks the cluster whether all of it is allowed and names the rules that are missing. This is one request, and one
    more for each rule that the cluster does not list (webhook authorizers).
  - Checks that the namespace exists and admits a pod of O(pods), with server-side dry runs that make nothing.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.cluster
attributes:
  check_mode:
    description: Asks the cluster, writes and makes nothing.
  diff_mode:
    support: full
    description: Shows the Role.
options:
  make_namespace:
    description: Make the namespace when it is missing.
    type: bool
    default: false
  marks:
    description: Also ask for the rights to write verdicts on nodes.
    type: bool
    default: false
  volumes:
    description: Also ask for the rights to create a volume and a claim, as for an NFS model cache with mount options.
    type: bool
    default: false
  pods:
    description:
      - How pods look, C(gpuval_pods).
      - What Pod Security refuses fails; what a quota or a policy refuses is a warning.
    type: dict
    default: {}
  images:
    description: The images of the run, C(gpuval_images). A trial pod has them, since policies may refuse a registry.
    type: dict
    default: {}
  role_file:
    description: Path to write the Role to.
    type: path
    required: true
requirements:
  - kubernetes (Python library, on the controller)
"""

EXAMPLES = r"""
- name: Prepare the cluster
  gpuval.fleet.prepare_cluster:
    role_file: .gpuval/role.yml
  run_once: true
"""

RETURN = r"""
role_file:
  description: Where the Role lies.
  returned: success
  type: str
"""
