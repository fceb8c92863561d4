#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: probe_nodes
short_description: Find the nodes that can run work
version_added: 1.0.0
description:
  - Probes all nodes of the play at once, before anything else connects to them.
  - Each node is V(reachable), or a state says why not, with a message and a remedy.
  - Over SSH a dead node costs the connect timeout, once. Nodes with another connection than SSH count as reachable.
  - Checks SSH host keys. A known key is pinned for the inventory, and a new one at first contact if that is allowed. A
    key that changed is never accepted.
  - Connects with the settings of Ansible's own connection and of C(ssh_config). OpenSSH probes a node behind a proxy.
  - On a cluster the API server is asked once for its nodes. The states are V(node_missing), V(node_not_ready),
    V(cordoned), V(node_pressure), V(tainted), V(not_selected), V(wrong_hostname), V(no_gpu_resource),
    V(gpus_partitioned) and V(not_linux). Hosts whose C(gpuval_placement) is not V(kubernetes) are ignored.
  - A cluster node that offers fewer GPUs than C(gpuval_sku) and C(gpuval_gpu_count) declare is V(reachable) and listed
    in RV(short). It works with the GPUs it has, and its verdict is FAIL.
  - Cluster and pods are those that C(gpuval_kubeconfig), C(gpuval_kube_context) and C(gpuval_pods) of each host name.
requirements:
  - kubernetes (Python library, on a cluster)
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
attributes:
  check_mode:
    description: Probes, but pins and records nothing.
options:
  placement:
    description: How the run's plans get to the nodes.
    type: str
    choices: [ssh, kubernetes, slurm]
    default: ssh
  state_dir:
    description: Folder of the controller's state; C(known_hosts/) in it has a file of pinned keys for each inventory.
    type: str
    default: .gpuval
  timeout_seconds:
    description:
      - Time limit for an answer to a connection over SSH.
      - The greeting and the key exchange have three times as long, a command has 30 seconds.
    type: float
    default: 4.0
  accept_new_host_keys:
    description: Pin the key of a node at first contact. Otherwise its state is V(unknown_host_key).
    type: bool
    default: true
  fast_kex:
    description: Let Ansible's connections prefer curve25519, unless C(ssh_config) says otherwise.
    type: bool
    default: true
  record:
    description: Write the findings into the run's results as C(.state/probe.json).
    type: bool
    default: false
  required:
    description: Fail if a node is not reachable.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Probe the nodes
  gpuval.fleet.probe_nodes:
    required: true
  run_once: true
"""

RETURN = r"""
nodes:
  description: Findings by node.
  returned: success
  type: dict
  sample:
    node-007:
      state: refused
      message: 192.0.2.17 port 22 refused the connection
      remedy: start sshd on the node, or set ansible_port to its port
      seconds: 0.021
      fingerprint: ""
away:
  description: Names of the nodes that are not reachable.
  returned: success
  type: list
  elements: str
short:
  description: Names of the nodes that offer fewer GPUs than expected.
  returned: on a cluster
  type: list
  elements: str
seconds:
  description: Duration of the probe.
  returned: success
  type: float
known_hosts:
  description: File of the pinned host keys.
  returned: over SSH
  type: str
"""
