#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
---
module: probe_nodes
short_description: See which nodes can be reached over SSH
version_added: 0.1.0
description:
  - Probes all nodes of the play at once, before anything else touches them.
  - A dead node costs the connect timeout, once.
  - Each node is V(reachable), or a state says why not, with a message and a remedy.
  - Checks host keys. A key that is known is pinned for the inventory; so is a new one at first contact, if that is
    allowed. A key that changed is never accepted.
  - Connects with the settings of Ansible's own connection and of C(ssh_config). OpenSSH probes a node behind a proxy.
  - Nodes with another connection than SSH count as reachable.
author:
  - gpuval contributors (@gpuval)
extends_documentation_fragment:
  - gpuval.fleet.run
attributes:
  check_mode:
    support: full
    description: Probes, but pins and records nothing.
  diff_mode:
    support: none
    description: There is nothing to compare.
options:
  state_dir:
    description: The controller's state; pins lie in C(known_hosts/) in it, in a file for each inventory.
    type: str
    default: .gpuval
  timeout_seconds:
    description:
      - How long a node may take to answer a connection.
      - A node that did has three times as long for its greeting and the key exchange, and 30 seconds for a command.
    type: float
    default: 4.0
  accept_new_host_keys:
    description: Pin the key of a node that was never seen before. Otherwise it is V(unknown_host_key).
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
  ansible.builtin.import_role:
    name: gpuval.fleet.probe
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
seconds:
  description: What the probe took.
  returned: success
  type: float
known_hosts:
  description: The file of pins.
  returned: success
  type: str
"""
