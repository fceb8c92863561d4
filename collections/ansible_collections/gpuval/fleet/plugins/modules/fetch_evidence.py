#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: fetch_evidence
short_description: Fetch a node's records and logs over the management connection
version_added: 1.0.0
description:
  - For nodes that cannot reach the store, and for what they could not upload.
  - The action plugin of the same name puts what comes back into the store in the node's place.
extends_documentation_fragment: [gpuval.fleet.common]
options:
  directory:
    description: Folder of the run on the node.
    type: str
    required: true
  since:
    description: Digest of what the controller holds already, by key.
    type: dict
    default: {}
  not_uploaded:
    description: Fetch only what never reached the store.
    type: bool
    default: false
  limit_bytes:
    description: Size limit of one answer.
    type: int
    default: 4000000
"""

EXAMPLES = r"""
- name: Fetch what the store does not have
  ansible.builtin.import_role:
    name: gpuval.fleet.run
    tasks_from: collect
"""

RETURN = r"""
files:
  description: Changed files by key, with digest and content as base64.
  returned: success
  type: dict
more:
  description: Whether the limit left something out; ask again.
  returned: success
  type: bool
running:
  description: Whether the node's runner is alive.
  returned: success
  type: bool
ended:
  description: Why no runner is alive although its plan is unfinished.
  returned: success
  type: str
"""

import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import NodeError, call_runner, check_private


def main():
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "str", "required": True},
            "since": {"type": "dict", "default": {}},
            "not_uploaded": {"type": "bool", "default": False},
            "limit_bytes": {"type": "int", "default": 4_000_000},
        },
        supports_check_mode=True,
    )
    directory = Path(module.params["directory"])
    arguments = ["--limit-bytes", str(module.params["limit_bytes"])]
    if module.params["not_uploaded"]:
        arguments.append("--not-uploaded")
    try:
        check_private(directory)
        arguments = ["fetch", "--dir", str(directory), "--since", "-", *arguments]
        answer = call_runner(directory, *arguments, text=json.dumps(module.params["since"]))
    except NodeError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **{key: answer[key] for key in ("files", "more", "running", "ended")})


if __name__ == "__main__":
    main()
