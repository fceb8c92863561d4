#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: probe_cluster
short_description: See on which nodes of a Kubernetes cluster work can be placed
version_added: 0.1.0
description:
  - Asks the API server for its nodes, once, and finds those of the play among them. Hosts whose C(gpuval_placement) is
    not V(kubernetes) are left alone.
  - Each node is V(reachable), or a class says why nothing can run there, with a message and a remedy; V(node_missing),
    V(node_not_ready), V(cordoned), V(node_pressure), V(tainted), V(not_selected), V(wrong_hostname),
    V(no_gpu_resource), V(gpus_partitioned), V(not_linux).
  - Expects the GPUs that C(gpuval_sku) and C(gpuval_gpu_count) of a host declare. A node that offers fewer of them is
    named and V(reachable); it works with those it has, and its verdict is FAIL.
  - Cluster and pods are those that C(gpuval_kubeconfig), C(gpuval_kube_context) and C(gpuval_pods) of each host name.
author:
  - gpuval contributors (@gpuval)
requirements:
  - kubernetes (Python library)
extends_documentation_fragment:
  - gpuval.fleet.run
attributes:
  check_mode:
    support: full
    description: Probes, but records nothing.
  diff_mode:
    support: none
    description: There is nothing to compare.
options:
  record:
    description: Write the findings into the run's results as C(.state/probe.json).
    type: bool
    default: false
  required:
    description: Fail if a node is not usable.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: See which nodes of the cluster can be worked on
  gpuval.fleet.probe_cluster:
    required: true
  run_once: true
"""

RETURN = r"""
nodes:
  description: Findings by node.
  returned: success
  type: dict
  sample:
    gpu-007:
      state: cordoned
      message: "it is cordoned: nothing new is scheduled on it"
      remedy: kubectl uncordon gpu-007, or let gpuval work on cordoned nodes
      seconds: 0.0
      fingerprint: ""
short:
  description: Names of the nodes that offer fewer GPUs than expected.
  returned: success
  type: list
  elements: str
away:
  description: Names of the nodes that cannot be worked on.
  returned: success
  type: list
  elements: str
seconds:
  description: What the probe took.
  returned: success
  type: float
"""
