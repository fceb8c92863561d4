"""Print the command for a shell on a node of a run, or for its log; or write it to a file for the caller to run."""

import shlex
from pathlib import Path
from typing import Any, Literal

from ..cluster.login import ClusterAccess
from ..core.errors import GpuvalError
from ..core.step_options import PathText
from ..gang import document
from ..runs.command import RunCommand, RunOptions
from ..runs.folder import RunError
from ..watch.reach import followed_stages, over_ssh


def in_round(folder, node, stage=""):
    """The newest multi-node round with `node`, and `stage` if given; None without one, or for a single-node stage."""
    if stage in folder.read_run()["nodes"][node]["stages"]:
        return None
    for below in reversed(document.round_folders(folder, document.read(folder))):
        expected = below.read_run()["nodes"].get(node)
        if expected and (not stage or stage in expected["stages"]):
            return below
    return None


class ReachNodeOptions(RunOptions, ClusterAccess):
    what: Literal["shell", "follow"]
    node: str = ""
    stage: str = ""
    file: PathText = ""
    placement: str = "ssh"
    state_dir: Path = Path(".gpuval")


def reach_node(action: RunCommand, options: ReachNodeOptions) -> dict[str, Any]:
    folder = action.folder(options)
    run, node = folder.read_run(), options.node
    if node not in run["nodes"]:
        node_names = ", ".join(list(run["nodes"])[:10]) + (" ..." if len(run["nodes"]) > 10 else "")
        raise RunError(
            f"{node!r} is no node of run {run['run_id']}: set run_reach_node (make: NODE=) to one of {node_names}"
        )
    of_run = run["nodes"][node]["stages"]
    folder = in_round(folder, node, options.stage) or folder
    run = folder.read_run()  # run.json of the round, if there is one
    stages = run["nodes"][node]["stages"]
    if options.stage and options.stage not in stages:
        stage_names = ", ".join(dict.fromkeys([*of_run, *stages]))
        raise RunError(f"{options.stage!r} is no stage of this run on {node}: {stage_names}")
    try:
        if way := action.ways.get(node):
            followed = followed_stages(folder, node, stages, options.stage)
            words = over_ssh(options.what, folder, node, followed, *way)
        else:
            from ..watch.scheduler import scheduler_of  # noqa: PLC0415 - it needs Ansible

            words = scheduler_of(options.placement)(action, options).reach(folder, node, stages)
    except GpuvalError as error:
        raise RunError(f"{node}: {error}") from None
    command = shlex.join(words)
    if words and options.file and not action.check_mode:
        Path(options.file).write_text(f"exec {command}\n")
    elif words:
        action.display.display(command)
    return {"changed": False, "command": words, "msg": command or f"followed the log of {node} to its end"}
