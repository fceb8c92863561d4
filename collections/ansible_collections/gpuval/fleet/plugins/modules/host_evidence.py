#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: host_evidence
short_description: Gather logs and the state of a node into one archive
version_added: 1.0.0
description:
  - Kernel log, PCI and network devices, vendor tools of the accelerators, container engines, memory and disks.
  - Of one run its records, logs, plan, unit and containers, where the node has them.
  - Works without a run too. Each command has a limit of its own, all together have O(seconds).
  - Signed URLs, keys and what looks like a password are redacted. Environment variables are never read.
  - The action plugin of the same name puts the archive into the results.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.run
  - gpuval.fleet.node_directory
options:
  node:
    description: Name of the node's folder inside that of the run.
    type: str
    default: ''
  seconds:
    description: Time limit of all commands together.
    type: float
    default: 120
  limit_bytes:
    description: Size limit of the archive; the least important parts are cut first.
    type: int
    default: 8000000
  bug_report:
    description: Also run C(nvidia-bug-report.sh), which takes minutes.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Gather the evidence of the node
  gpuval.fleet.host_evidence:
    seconds: 60
"""

RETURN = r"""
archive:
  description: The archive (tar.gz) as base64; the action plugin leaves it out.
  returned: success
  type: str
notes:
  description: What is missing in it or cut, and why.
  returned: success
  type: dict
has_run:
  description: Whether the node has anything of the run.
  returned: success
  type: bool
evidence:
  description: What became of it on the controller, from the action plugin.
  returned: always
  type: dict
"""

import base64

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuval.fleet.plugins.module_utils.host_evidence import gather
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import (
    NodeError,
    base_directory,
    check_private,
)


def run_directory(parameters):
    """The run's folder on this node, None where there is none that is ours."""
    if not parameters["run_id"] or not parameters["node"]:
        return None
    directory = base_directory(parameters["directory"]) / parameters["run_id"] / parameters["node"]
    try:
        check_private(directory)
    except NodeError:
        return None
    return directory


def main():
    module = AnsibleModule(
        argument_spec={
            "run_id": {"type": "str", "default": ""},
            "results_dir": {"type": "str", "default": "results"},
            "directory": {"type": "str", "default": ""},
            "node": {"type": "str", "default": ""},
            "seconds": {"type": "float", "default": 120.0},
            "limit_bytes": {"type": "int", "default": 8_000_000},
            "bug_report": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    directory = run_directory(parameters)
    if module.check_mode:
        module.exit_json(changed=False, archive="", notes={}, has_run=directory is not None)
    archive, notes = gather(
        directory,
        unit=f"gpuval-{parameters['run_id']}-{parameters['node']}"[:240] if directory else "",
        seconds=parameters["seconds"],
        limit_bytes=parameters["limit_bytes"],
        bug_report=parameters["bug_report"],
    )
    encoded = base64.b64encode(archive).decode()
    module.exit_json(changed=False, archive=encoded, notes=notes, has_run=directory is not None)


if __name__ == "__main__":
    main()
