#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: doctor
short_description: Check controller and inventory before anything starts
version_added: 1.0.0
description:
  - Checks Python, ansible-core, the packages of the shipped C(requirements.txt), C(ansible.cfg), ssh, the settings of
    all nodes, the disks of results and state, rclone and the store. Where the inventory needs them, also Slurm's
    commands or the cluster's API server.
  - Prints one table. A line of what is wrong says what to do. Fails if a check does.
  - The store is written by signed URL and read with the nodes' key, as by every run. An embedded store that does not
    run is started and stopped again; not in check mode.
  - No node is asked. The playbook C(gpuval.fleet.doctor) also probes them with C(--tags nodes).
extends_documentation_fragment: [gpuval.fleet.common]
options: {}
"""

EXAMPLES = r"""
- name: Check controller and inventory
  gpuval.fleet.doctor:
  run_once: true
"""

RETURN = r"""
checks:
  description: Each check with name, state (C(ok), C(warning), C(FAILED), C(not checked)) and what was found.
  returned: always
  type: list
  elements: dict
"""
