#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: bundle_logs
short_description: Put the evidence of all nodes and the results of a run into one archive
version_added: 1.0.0
description:
  - Writes C(logs/logs-RUN.tar.gz) into the results, with C(MANIFEST) (SHA-256 of each file) and C(nodes.json).
  - Over SSH, M(gpuval.fleet.host_evidence) gathers the evidence of each node before.
  - On a cluster it gathers the evidence itself; Node, Jobs, pods and their events, and the output of every stage whose
    pod still exists. Secrets are never read, and what looks like one is redacted. Nothing runs on any node.
  - A node without evidence is named, not failed.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
  - gpuval.fleet.store
  - gpuval.fleet.cluster
requirements:
  - kubernetes (Python library, on a cluster)
options:
  placement:
    description: How the run's plans get to the nodes.
    type: str
    choices: [ssh, kubernetes, slurm]
    default: ssh
  seconds:
    description: On a cluster, time limit of the collection; the output of remaining stages is then left out.
    type: float
    default: 120.0
  limit_bytes:
    description: On a cluster, the size limit of the archive of one node; the least important parts are cut first.
    type: int
    default: 8000000
"""

EXAMPLES = r"""
- name: Bundle the logs of the latest run
  gpuval.fleet.bundle_logs:
    store: "{{ gpuval_store }}"
  run_once: true
"""

RETURN = r"""
path:
  description: Path of the archive.
  returned: success
  type: str
bytes:
  description: Size of the archive.
  returned: success
  type: int
nodes:
  description: Number of nodes that were expected.
  returned: success
  type: int
without:
  description: Why a node has no evidence, by its name.
  returned: success
  type: dict
"""
