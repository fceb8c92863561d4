"""Remove what runs put on a node, and verify that nothing is left.

Only folders whose plan names them as those of a run, and that belong to this user alone, are touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Any, TypedDict

from ..network import ledger as network
from ..node_directory import (
    NodeError,
    base_directory,
    call_runner,
    check_private,
    holds_only_launch,
    one_at_once,
    run_folders,
)


class CleanAnswer(TypedDict, total=False):
    #: Folders that were removed.
    removed: list[str]
    #: Processes and containers that were ended, by name and id.
    killed: list[str]
    #: Changes of the network that were put back, and that were left alone, and why.
    restored: list[str]
    kept: list[str]
    #: What could not be removed, ended or put back, and why.
    left: list[str]


def clean_node(
    module: Any, directory: str, run_ids: list[str], keep_models: bool = False, remove_images: bool = False
) -> CleanAnswer:
    """Stop these runs and all that they started, and remove their folders; without ids all runs of this node. The model
    cache goes with the last run, unless models lay there before gpuval came; then the network is put back.
    `remove_images` removes those that the runs brought, unless another run of this node uses them."""
    for run_id in run_ids:
        if not run_id or os.sep in run_id or run_id in (".", ".."):
            raise NodeError(f"{run_id!r} is not a run id")
    base = base_directory(directory)
    nothing = {name: [] for name in CleanAnswer.__annotations__}
    options = [*(["--keep-models"] if keep_models else []), *(["--remove-images"] if remove_images else [])]
    with contextlib.ExitStack() as stack:
        try:
            if base.is_dir():
                check_private(base)
            stack.enter_context(one_at_once(base))
        except FileNotFoundError:  # nothing was ever there, or a clean of this machine's other name has removed it
            return nothing
        except (NodeError, OSError) as error:
            return {"failed": True, "msg": str(error), **nothing} if base.exists() else nothing
        try:
            answer = remove_runs(base, run_ids, options, module.check_mode)
        except NodeError as error:
            return {"failed": True, "msg": str(error), **nothing}
    if answer["left"]:
        message = f"could not be removed: {', '.join(map(str, answer['left']))}. "
        return {"failed": True, "msg": f"{message}Look for processes or mounts that hold them.", **answer}
    return {"changed": bool(answer["removed"] or answer["killed"] or answer["restored"]), **answer}


def remove_runs(base, run_ids, options, check_mode):
    """Remove these runs or all, and put the network back; check mode only looks."""
    folders = [folder for run_id in run_ids or [""] for folder in run_folders(base, run_id)]
    if check_mode:
        put_back = restore_network(base, folders, dry=True)
        at_work = [name for folder in folders if not holds_only_launch(folder) for name in would_end(folder)]
        return {**put_back, "left": [], "removed": [str(folder) for folder in folders], "killed": at_work}
    removed, killed, left = [], [], []
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


def would_end(folder):
    """Processes and containers of a run that a clean would end; none are known where its runner does not answer."""
    with contextlib.suppress(NodeError):
        return call_runner(folder, "clean", "--dir", str(folder), "--dry-run")["killed"]
    return []


def remove_launch(folder):
    """Remove the files of a launch that died before it started anything, keys too, and folders around them if empty."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    with contextlib.suppress(OSError):  # not empty
        for path in (folder, folder.parent, folder.parents[1]):
            path.rmdir()


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
