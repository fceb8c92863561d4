#!/usr/bin/python
# Copyright: (c) 2026, gpuval contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: clean_node
short_description: Remove what runs put on a node
version_added: 1.0.0
description:
  - Stops the runner and everything it started and removes the run's folder.
  - Removes the model cache as well when no other run is left, unless models lay there before gpuval came.
  - Touches only folders whose plan names them as those of a run, and that belong to this user alone.
  - Puts the network back as it was found once no run of this node is left.
  - Verifies that nothing is left, and lists what is.
  - The action plugin of the same name returns a failure as an outcome, which the step C(clean_run) reports.
extends_documentation_fragment: [gpuval.fleet.common, gpuval.fleet.node_directory]
options:
  run_ids:
    description: The runs to remove. Empty removes all runs of this node, those of other users too.
    type: list
    elements: str
    default: []
  keep_models:
    description: Keep the node's model cache.
    type: bool
    default: false
  remove_images:
    description:
      - Remove the container images that the runs brought, unless another run of this node uses them.
      - Images that were there before stay.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Clean the node
  gpuval.fleet.clean_node:
    run_ids: [20261120-201500-3f2a]
"""

RETURN = r"""
outcome:
  description: Result for the summary of all nodes, from the action plugin.
  returned: always
  type: dict
  contains:
    state:
      description: V(clean), V(left) when something could not be removed, or V(not reached).
      type: str
    class:
      description: Class of the failure, as in the report of a run.
      type: str
    message:
      description: The failure in words.
      type: str
removed:
  description: Folders that were removed.
  returned: success
  type: list
  elements: str
killed:
  description: Processes and containers that were ended, by name and id.
  returned: success
  type: list
  elements: str
restored:
  description: Changes of the network that were put back.
  returned: success
  type: list
  elements: str
kept:
  description: Changes of the network that were left alone, and why.
  returned: success
  type: list
  elements: str
left:
  description: What could not be removed, ended or put back, and why.
  returned: always
  type: list
  elements: str
"""

import contextlib
import os
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuval.fleet.plugins.module_utils.network import ledger as network
from ansible_collections.gpuval.fleet.plugins.module_utils.node_directory import (
    NodeError,
    base_directory,
    call_runner,
    check_private,
    holds_only_launch,
    one_at_once,
    run_folders,
)


def remove_launch(folder):
    """Remove the files of a launch that died before it started anything, keys too, and folders around them if empty."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    for path in (folder, *folder.parents[:2]):
        try:
            path.rmdir()
        except OSError:
            return


def restore_network(base, cleaned, dry=False):
    """Put the node's network back once no run is left that may need it as it is."""
    if not base.is_dir() or not network.is_touched(base):
        return {"restored": [], "kept": [], "left": []}
    if set(run_folders(base)) - set(cleaned):
        return {"restored": [], "kept": ["network changes: other runs of this node are left"], "left": []}
    result = network.restore_network(base, dry=dry)
    if not dry:
        with contextlib.suppress(OSError):
            base.rmdir()
    return result


def main():
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "str", "default": ""},
            "run_ids": {"type": "list", "elements": "str", "default": []},
            "keep_models": {"type": "bool", "default": False},
            "remove_images": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    base = base_directory(module.params["directory"])
    run_ids = module.params["run_ids"]
    for run_id in run_ids:
        if not run_id or os.sep in run_id or run_id in (".", ".."):
            module.fail_json(msg=f"{run_id!r} is not a run id")
    nothing = {"removed": [], "killed": [], "restored": [], "kept": [], "left": []}
    with contextlib.ExitStack() as stack:
        try:
            if base.is_dir():
                check_private(base)
            stack.enter_context(one_at_once(base))
        except FileNotFoundError:  # nothing was ever there, or a clean of this machine's other name has removed it
            module.exit_json(changed=False, **nothing)
        except (NodeError, OSError) as error:
            if not base.exists():
                module.exit_json(changed=False, **nothing)
            module.fail_json(msg=str(error), **nothing)
        try:
            outcome = clean(module, base, run_ids)
        except NodeError as error:
            module.fail_json(msg=str(error), **nothing)
    left = outcome["left"]
    if left:
        message = f"could not be removed: {', '.join(map(str, left))}. Look for processes or mounts that hold them."
        module.fail_json(msg=message, **outcome)
    changed = bool(outcome["removed"] or outcome["killed"] or outcome["restored"])
    module.exit_json(changed=changed, **outcome)


def would_end(folder):
    """Processes and containers of a run that a clean would end; none are known where its runner does not answer."""
    try:
        return call_runner(folder, "clean", "--dir", str(folder), "--dry-run")["killed"]
    except NodeError:
        return []


def clean(module, base, run_ids):
    """Remove these runs or all, and put the network back; check mode only looks."""
    folders = [folder for run_id in run_ids or [""] for folder in run_folders(base, run_id)]
    if module.check_mode:
        put_back = restore_network(base, folders, dry=True)
        at_work = [name for folder in folders if not holds_only_launch(folder) for name in would_end(folder)]
        return {**put_back, "left": [], "removed": [str(folder) for folder in folders], "killed": at_work}
    removed, killed, left = [], [], []
    options = ["--keep-models"] if module.params["keep_models"] else []
    options += ["--remove-images"] if module.params["remove_images"] else []
    for folder in folders:
        if holds_only_launch(folder):
            remove_launch(folder)
            removed.append(str(folder))
            continue
        try:
            answer = call_runner(folder, "clean", "--dir", str(folder), *options)
        except NodeError as error:
            left.append(f"{folder}: {error}")
            continue
        removed += answer["removed"]
        killed += answer["killed"]
        left += answer["left"]
    put_back = restore_network(base, folders)
    return {**put_back, "left": [*left, *put_back["left"]], "removed": removed, "killed": killed}


if __name__ == "__main__":
    main()
