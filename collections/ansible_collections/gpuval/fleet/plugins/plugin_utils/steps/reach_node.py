"""How a person gets to a node of a run: prints the command, and writes it for the shell that comes after Ansible."""

from __future__ import annotations

import shlex
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean

from ..cluster import names
from ..cluster.api import Cluster, ClusterAccess, ClusterError
from ..core.step_options import PathText
from ..gang import document
from ..runs import folder as run_folder
from ..runs.action import RunAction, RunOptions
from ..slurm.commands import Slurm, SlurmError
from ..slurm.jobs import members_of, of_run
from ..slurm.placement import directory_of
from ..ssh import target as probe_target
from ..ssh.trust import pin_file, ssh_arguments
from ..watch import reach
from ..watch.orders import values_for

FOLLOW_SECONDS = 2.0
FOLLOW_LINES = 5000


def in_round(folder, node, stage=""):
    """The newest round of gangs that the node is in, or was in with this stage; None where it is its own stages that
    are asked for, or there is no round."""
    if stage in folder.read_run()["nodes"][node]["stages"]:
        return None
    for below in reversed(document.round_folders(folder, document.read(folder))):
        expected = below.read_run()["nodes"].get(node)
        if expected and (not stage or stage in expected["stages"]):
            return below
    return None


@dataclass(frozen=True, kw_only=True)
class ReachNodeOptions(RunOptions, ClusterAccess):
    what: Literal["shell", "follow"]
    node: str = ""
    stage: str = ""
    file: PathText = ""
    placement: Literal["ssh", "kubernetes", "slurm"] = "ssh"
    state_dir: Path = Path(".gpuval")


def reach_node(action: RunAction, options: ReachNodeOptions) -> dict[str, Any]:
    folder = action.folder(options)
    run, node = folder.read_run(), options.node
    if node not in run["nodes"]:
        known = ", ".join(list(run["nodes"])[:10]) + (" ..." if len(run["nodes"]) > 10 else "")
        raise AnsibleActionFail(
            f"{node!r} is no node of run {run['run_id']}: set run_reach_node (make: NODE=) to one of {known}"
        )
    of_run = run["nodes"][node]["stages"]
    folder = in_round(folder, node, options.stage) or folder
    run = folder.read_run()  # that of a round, where nodes are at work together
    stages = run["nodes"][node]["stages"]
    if options.stage and options.stage not in stages:
        known = ", ".join(dict.fromkeys([*of_run, *stages]))
        raise AnsibleActionFail(f"{options.stage!r} is no stage of this run on {node}: {known}")
    try:
        if options.placement == "kubernetes":
            words = _in_cluster(action, run["run_id"], node, options)
        elif options.placement == "slurm":
            words = _in_job(action, folder, node, stages, options)
        else:
            words = _on_host(action, folder, node, stages, options)
    except (ClusterError, SlurmError, reach.ReachError) as error:
        raise AnsibleActionFail(f"{node}: {error}") from None
    command = shlex.join(words)
    if words and options.file and not action.check_mode:
        Path(options.file).write_text(f"exec {command}\n")
    elif words:
        action.display.display(command)
    return {"changed": False, "command": words, "msg": command or f"followed the log of {node} to its end"}


def _on_host(action, folder, node, stages, options):
    if node not in action.task_vars["hostvars"]:
        raise reach.ReachError("it is no host of this inventory")
    values = action.task_vars["hostvars"][node]
    target = probe_target.from_variables(node, values, action.connection)
    stage = options.stage or _stage_at_work(folder, node, stages)
    directory = folder.read_launch(node).get("directory")
    connection = []
    if target.ssh:
        sources = action.task_vars.get("ansible_inventory_sources") or []
        pinned = ssh_arguments(pin_file(options.state_dir, sources), "")
        connection = [target.executable, *shlex.split(pinned), *target.options, target.host]
    elif target.connection not in ("local", "ansible.builtin.local"):
        raise reach.ReachError(f"its connection is {target.connection}, neither SSH nor local")
    become = boolean(values.get("ansible_become", False), strict=False)
    user = str(values.get("ansible_become_user") or "root") if become else ""
    followed = [stage] if options.stage else reach.from_stage(stages, stage)
    ended = folder.read_run()["finished_at"] is not None
    if options.what == reach.FOLLOW and ended and node in folder.read_cleaned():
        kept = folder.evidence_file(node, stage).parent
        raise reach.ReachError(f"`make clean` removed its folder of this run. Its records and logs are in {kept}")
    return reach.on_host(options.what, directory, followed, connection, user, ended=ended)


def _stage_at_work(folder, node, stages):
    states = {}
    for stage in stages:
        path = folder.evidence_file(node, stage)
        states[stage] = run_folder.read_object(path).get("state", "pending")
    return reach.stage_at_work(stages, states)


def _in_job(action, folder, node, stages, options):
    """A step in the node's job, which needs no login on the node."""
    run = folder.read_run()
    run_id, attempt = run["run_id"], folder.read_launch(node).get("attempt", 1)
    job = of_run(Slurm().jobs(), run_id).get((members_of(run, node)[0], attempt))
    if job is None or job.state != "RUNNING":
        state = f"job {job.id} is {job.state}" if job else "it has no job of this run"
        raise reach.ReachError(f"{state}: `srun --nodelist={node} --pty bash` makes a job for a shell")
    (base,) = values_for(action, node, action.task_vars, ("gpuval_node_dir",)).values()
    directory = f"{directory_of(base)}/{run_id}/{node}"
    stage = options.stage or _stage_at_work(folder, node, stages)
    followed = [stage] if options.stage else reach.from_stage(stages, stage)
    step = ["srun", f"--jobid={job.id}", "--overlap", f"--nodelist={node}"]
    if options.what == reach.SHELL:
        return [*step, "--pty", *reach.on_host(reach.SHELL, directory, followed, [])]
    return reach.on_host(reach.FOLLOW, directory, followed, step, as_words=True)


def _in_cluster(action, run_id, node, options):
    selector = f"{names.run_selector(run_id)},{names.NODE_LABEL}={names.label_value(node)}"
    with Cluster(options) as cluster:
        pod = reach.newest(cluster.list("Pod", selector)[0])
        if pod is None:
            raise reach.ReachError("the cluster has no pod of this run on it: its turn has not come, or it was cleaned")
        wanted = names.container_name(options.stage) if options.stage else ""
        container = reach.container_of(options.what, pod, wanted)
        access = {"kubeconfig": options.kubeconfig, "context": options.context, "namespace": options.namespace}
        words = reach.in_pod(options.what, access, pod["metadata"]["name"], container)
        one = options.what == reach.SHELL or bool(wanted)  # kubectl ends with the container
        if (one and shutil.which("kubectl")) or action.check_mode:
            return words
        if options.what == reach.SHELL:
            raise reach.ReachError(f"a shell needs kubectl, which is not installed here: {shlex.join(words)}")
        while container:
            action.display.display(f"{container}:")
            _follow(action, cluster, pod["metadata"]["name"], container)
            container = "" if wanted else _container_after(cluster, pod["metadata"]["name"], container)
        return []


def _container_after(cluster, pod, container):
    """The container that follows, when it has begun; empty if none does."""
    after = None
    while after is None:
        there, _version = cluster.list("Pod", fields=f"metadata.name={pod}")
        after = reach.container_after(there[0], container) if there else ""
        if after is None:
            time.sleep(FOLLOW_SECONDS)
    return after


def _follow(action, cluster, pod, container):
    """The log of a container as it grows, until the container has ended."""
    before, ended = [], False
    while True:
        lines = cluster.log(pod, container, tail_lines=FOLLOW_LINES if before else reach.LINES).splitlines()
        action.display.display(*reach.beyond(before, lines))
        before = lines or before
        if ended:
            return
        there, _version = cluster.list("Pod", fields=f"metadata.name={pod}")
        ended = not there or reach.containers(there[0]).get(container) != "running"
        if not ended:
            time.sleep(FOLLOW_SECONDS)
        elif not there:
            return
