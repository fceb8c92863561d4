#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: run_ssh_keys
short_description: Place a run's SSH keys on a node
version_added: 1.0.0
description:
  - Writes the keys for the multi-node work of a run into C(ssh/) in the run's folder on the node, mode 0700.
  - A stage's container has the folder mounted read-only at C(/opt/gpuval/ssh) and starts a sshd of its own from it.
  - No account of the node learns of the keys. They go with the run's folder when the run is cleaned.
  - The role P(gpuval.fleet.ssh_keys#role) calls it through the action plugin of the same name, which makes the keys.
extends_documentation_fragment: [gpuval.fleet.common, gpuval.fleet.node_directory]
attributes:
  diff_mode:
    description: The files are secrets.
options:
  run_id:
    description: The run.
    type: str
    required: true
  node:
    description: The node's name in the inventory.
    type: str
    required: true
  files:
    description: Contents of the files by name.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Place the keys of the run
  ansible.builtin.import_role:
    name: gpuval.fleet.ssh_keys
"""

RETURN = r"""
directory:
  description: Folder with the keys.
  returned: success
  type: str
  sample: /var/lib/gpuval/20261120-201500-3f2a/node-001/ssh
files:
  description: Names of the files that were written, and of others that were removed.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import (
    NodeError,
    base_directory,
    check_private,
    make_private,
    write_private,
)


def changes(folder, files):
    """Names of files that are not as they should be, or that are too many."""
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    wrong = [name for name, text in files.items() if name not in there or not same(folder / name, text)]
    return wrong, sorted(there - set(files))


def same(path, text):
    try:
        return path.stat().st_mode & 0o777 == 0o600 and path.read_bytes() == text.encode()
    except OSError:
        return False


def place(base, folder, files):
    make_private(base)
    for path in (folder.parents[1], folder.parent, folder):
        make_private(path)
    wrong, odd = changes(folder, files)
    for name in odd:
        (folder / name).unlink()
    for name in wrong:
        (folder / name).unlink(missing_ok=True)  # a wrong mode goes with the file
        write_private(folder / name, files[name].encode())


def main():
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "str", "default": ""},
            "run_id": {"type": "str", "required": True},
            "node": {"type": "str", "required": True},
            "files": {"type": "dict", "default": {}, "no_log": True},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    for name in (wanted["run_id"], wanted["node"], *wanted["files"]):
        if not name or name.startswith(".") or "/" in name:
            module.fail_json(msg=f"{name!r} is not a name")
    base = base_directory(wanted["directory"])
    folder = base / wanted["run_id"] / wanted["node"] / "ssh"
    try:
        for path in (base, *reversed(folder.parents[:2]), folder):
            if path.exists() or path.is_symlink():
                check_private(path)
        wrong, odd = changes(folder, wanted["files"])
        touched = sorted([*wrong, *odd])
        if touched and not module.check_mode:
            place(base, folder, wanted["files"])
    except NodeError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{folder}: {error.strerror}. Free space there, or set gpuval_node_dir.")
    module.exit_json(changed=bool(touched), directory=str(folder), files=touched)


if __name__ == "__main__":
    main()
