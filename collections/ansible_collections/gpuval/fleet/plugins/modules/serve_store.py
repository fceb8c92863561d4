#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: serve_store
short_description: Make the object store usable, or stop the embedded one
version_added: 1.0.0
description:
  - Starts the embedded store on the controller when no S3 endpoint is given, and ensures that the bucket exists.
  - Ports, keys and folder are remembered, so that a store started again is the same store.
extends_documentation_fragment:
  - gpuval.fleet.common
  - gpuval.fleet.store
options:
  state:
    description: V(started) makes the store usable, V(stopped) stops the embedded one.
    type: str
    choices: [started, stopped]
    default: started
  run_id:
    description:
      - Run that will use the store. One of whose nodes none could load what its stages need ends here, unless it has
        started.
    type: str
    default: ''
  rotate_keys:
    description: Forget keys and ports after stopping.
    type: bool
    default: false
  unless_needed_in:
    description: Folder of the runs' results. A store that one of them needs is not stopped.
    type: str
  deadline_seconds:
    description: Required validity of signed URLs; warns if the credentials expire earlier.
    type: float
    default: 7200
"""

EXAMPLES = r"""
- name: Make the store usable
  ansible.builtin.import_role:
    name: gpuval.fleet.store
"""

RETURN = r"""
endpoint:
  description: URL of the store.
  returned: when started
  type: str
"""
