#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: cluster_evidence
short_description: Gather what a Kubernetes cluster knows of each node of a run
version_added: 0.1.0
description:
  - Writes an archive for each node into C(logs/) of the results, which M(gpuval.fleet.bundle_logs) puts together.
  - In it are Node, Jobs, pods and their events, and the output of every stage whose pod is still there.
  - Secrets are never read, and what looks like one is taken out.
  - Nothing is run on any node, and a node of which nothing is known is named, not failed.
author:
  - gpuval contributors (@gpuval)
extends_documentation_fragment:
  - gpuval.fleet.run
  - gpuval.fleet.store
  - gpuval.fleet.cluster
requirements:
  - kubernetes (Python library, on the controller)
attributes:
  check_mode:
    support: full
    description: Gathers nothing.
  diff_mode:
    support: none
    description: There is nothing to compare.
options:
  nodes:
    description: Nodes to look for, beside those that the run expects.
    type: list
    elements: str
    required: true
  seconds:
    description: How long all of it may take; the output of further stages is left out then.
    type: float
    default: 120.0
  limit_bytes:
    description: How large the archive of one node may be; what is less telling is cut first.
    type: int
    default: 8000000
"""

EXAMPLES = r"""
- name: Gather the evidence of all nodes
  ansible.builtin.import_role:
    name: gpuval.fleet.logs
"""

RETURN = r"""
gathered:
  description: Nodes of which there is an archive now.
  returned: success
  type: list
  elements: str
"""
