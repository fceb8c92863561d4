"""Removes all that runs put on a node, and verifies that nothing is left. Only private folders of this user whose plan
proves that they are a run's are removed."""

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
    #: Folders of runs that were removed.
    removed: list[str]
    #: Processes and containers that were ended, by name and id.
    killed: list[str]
    #: Changes of the network that were restored, and those that were left alone, and why.
    restored: list[str]
    kept: list[str]
    #: What could not be removed, ended or restored, and why.
    left: list[str]


def clean_node(
    module: Any, directory: str, run_ids: list[str], keep_models: bool = False, remove_images: bool = False
) -> CleanAnswer:
    """Stop the runs `run_ids` and all that they started, and remove their folders; without ids, all runs. With the
    last run, the model cache is removed, unless it had models before gpuval, and the network is restored.
    `remove_images` removes the images that the runs brought, unless another run of this node uses them."""
    for run_id in run_ids:
        if not run_id or os.sep in run_id or run_id in (".", ".."):
            raise NodeError(f"{run_id!r} is not a run id")
    base = base_directory(directory)
    options = [*(["--keep-models"] if keep_models else []), *(["--remove-images"] if remove_images else [])]
    with contextlib.ExitStack() as stack:
        try:
            if base.is_dir():
                check_private(base)
            stack.enter_context(one_at_once(base))
        except (NodeError, OSError) as error:
            if isinstance(error, FileNotFoundError) or not base.exists():
                return {}  # never created, or removed by a clean under this machine's other name
            raise NodeError(str(error)) from error
        answer = remove_runs(base, run_ids, options, module.check_mode)
    if answer["left"]:
        message = f"could not be removed: {', '.join(map(str, answer['left']))}. "
        return {"failed": True, "msg": f"{message}Look for processes or mounts that hold them.", **answer}
    return {"changed": bool(answer["removed"] or answer["killed"] or answer["restored"]), **answer}


def remove_runs(base, run_ids, options, check_mode):
    """Remove the runs with these ids, or all, from `base`, and restore the network; check mode only lists both."""
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
    """Return the processes and containers of a run that a clean would end; empty if the runner does not answer."""
    with contextlib.suppress(NodeError):
        return call_runner(folder, "clean", "--dir", str(folder), "--dry-run")["killed"]
    return []


def remove_launch(folder):
    """Remove files and keys of a launch that died before it started anything, and empty folders above `folder`."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    with contextlib.suppress(OSError):  # not empty
        for path in (folder, folder.parent, folder.parents[1]):
            path.rmdir()


def restore_network(base, cleaned, dry=False):
    """Restore the node's network once no run is left that may need the changes."""
    if not network.is_touched(base):
        return {"restored": [], "kept": [], "left": []}
    if set(run_folders(base)) - set(cleaned):
        return {"restored": [], "kept": ["network changes: other runs of this node are left"], "left": []}
    result = network.restore_network(base, dry=dry)
    if not dry:
        with contextlib.suppress(OSError):
            base.rmdir()
    return result
