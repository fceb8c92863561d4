# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a person gets to a node of a run: prints the command, and writes it for the shell that comes after Ansible."""

from __future__ import annotations

import shlex
import shutil
import time
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean

from ..plugin_utils.cluster import names
from ..plugin_utils.cluster.api import Access, Cluster, ClusterError
from ..plugin_utils.core.paths import project_path
from ..plugin_utils.gang import document
from ..plugin_utils.runs import folder as run_folder
from ..plugin_utils.runs.action import RunAction
from ..plugin_utils.slurm.commands import Slurm, SlurmError
from ..plugin_utils.slurm.jobs import members_of, of_run
from ..plugin_utils.slurm.placement import directory_of
from ..plugin_utils.ssh import target as probe_target
from ..plugin_utils.ssh.trust import pin_file, ssh_arguments
from ..plugin_utils.watch import reach
from ..plugin_utils.watch.orders import values_for

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


class ActionModule(RunAction):
    def work(self, options, task_vars):
        folder = self.folder(options)
        run, node = folder.read_run(), options["node"]
        if node not in run["nodes"]:
            known = ", ".join(list(run["nodes"])[:10]) + (" ..." if len(run["nodes"]) > 10 else "")
            raise AnsibleActionFail(
                f"{node!r} is no node of run {run['run_id']}: set run_reach_node (make: NODE=) to one of {known}"
            )
        of_run = run["nodes"][node]["stages"]
        folder = in_round(folder, node, options["stage"]) or folder
        run = folder.read_run()  # that of a round, where nodes are at work together
        stages = run["nodes"][node]["stages"]
        if options["stage"] and options["stage"] not in stages:
            known = ", ".join(dict.fromkeys([*of_run, *stages]))
            raise AnsibleActionFail(f"{options['stage']!r} is no stage of this run on {node}: {known}")
        try:
            if options["placement"] == "kubernetes":
                words = self._in_cluster(run["run_id"], node, options)
            elif options["placement"] == "slurm":
                words = self._in_job(folder, node, stages, options, task_vars)
            else:
                words = self._on_host(folder, node, stages, options, task_vars)
        except (ClusterError, SlurmError, reach.ReachError) as error:
            raise AnsibleActionFail(f"{node}: {error}") from None
        command = shlex.join(words)
        if words and options["file"] and not self.check_mode:
            Path(options["file"]).write_text(f"exec {command}\n")
        elif words:
            self._display.display(command)
        return {"changed": False, "command": words, "msg": command or f"followed the log of {node} to its end"}

    def _on_host(self, folder, node, stages, options, task_vars):
        if node not in task_vars["hostvars"]:
            raise reach.ReachError("it is no host of this inventory")
        values = task_vars["hostvars"][node]
        target = probe_target.from_variables(node, values, self._task.connection)
        stage = options["stage"] or self._stage_at_work(folder, node, stages)
        directory = folder.read_launch(node).get("directory")
        connection = []
        if target.ssh:
            sources = task_vars.get("ansible_inventory_sources") or []
            pinned = ssh_arguments(pin_file(project_path(options["state_dir"]), sources), "")
            connection = [target.executable, *shlex.split(pinned), *target.options, target.host]
        elif target.connection not in ("local", "ansible.builtin.local"):
            raise reach.ReachError(f"its connection is {target.connection}, neither SSH nor local")
        become = boolean(values.get("ansible_become", False), strict=False)
        user = str(values.get("ansible_become_user") or "root") if become else ""
        followed = [stage] if options["stage"] else reach.from_stage(stages, stage)
        ended = folder.read_run()["finished_at"] is not None
        if options["what"] == reach.FOLLOW and ended and node in folder.read_cleaned():
            kept = folder.evidence_file(node, stage).parent
            raise reach.ReachError(f"`make clean` removed its folder of this run. Its records and logs are in {kept}")
        return reach.on_host(options["what"], directory, followed, connection, user, ended=ended)

    @staticmethod
    def _stage_at_work(folder, node, stages):
        states = {}
        for stage in stages:
            path = folder.evidence_file(node, stage)
            states[stage] = run_folder.read_object(path).get("state", "pending")
        return reach.stage_at_work(stages, states)

    def _in_job(self, folder, node, stages, options, task_vars):
        """A step in the node's job, which needs no login on the node."""
        run = folder.read_run()
        run_id, attempt = run["run_id"], folder.read_launch(node).get("attempt", 1)
        job = of_run(Slurm().jobs(), run_id).get((members_of(run, node)[0], attempt))
        if job is None or job.state != "RUNNING":
            state = f"job {job.id} is {job.state}" if job else "it has no job of this run"
            raise reach.ReachError(f"{state}: `srun --nodelist={node} --pty bash` makes a job for a shell")
        (base,) = values_for(self, node, task_vars, ("gpuval_node_dir",)).values()
        directory = f"{directory_of(base)}/{run_id}/{node}"
        stage = options["stage"] or self._stage_at_work(folder, node, stages)
        followed = [stage] if options["stage"] else reach.from_stage(stages, stage)
        step = ["srun", f"--jobid={job.id}", "--overlap", f"--nodelist={node}"]
        if options["what"] == reach.SHELL:
            return [*step, "--pty", *reach.on_host(reach.SHELL, directory, followed, [])]
        return reach.on_host(reach.FOLLOW, directory, followed, step, as_words=True)

    def _in_cluster(self, run_id, node, options):
        selector = f"{names.run_selector(run_id)},{names.NODE_LABEL}={names.label_value(node)}"
        with Cluster(Access.of(options)) as cluster:
            pod = reach.newest(cluster.list("Pod", selector)[0])
            if pod is None:
                raise reach.ReachError(
                    "the cluster has no pod of this run on it: its turn has not come, or it was cleaned"
                )
            wanted = names.container_name(options["stage"]) if options["stage"] else ""
            container = reach.container_of(options["what"], pod, wanted)
            access = {name: options[name] for name in ("kubeconfig", "context", "namespace")}
            words = reach.in_pod(options["what"], access, pod["metadata"]["name"], container)
            one = options["what"] == reach.SHELL or bool(wanted)  # kubectl ends with the container
            if (one and shutil.which("kubectl")) or self.check_mode:
                return words
            if options["what"] == reach.SHELL:
                raise reach.ReachError(f"a shell needs kubectl, which is not installed here: {shlex.join(words)}")
            while container:
                self._display.display(f"{container}:")
                self._follow(cluster, pod["metadata"]["name"], container)
                container = "" if wanted else self._container_after(cluster, pod["metadata"]["name"], container)
            return []

    @staticmethod
    def _container_after(cluster, pod, container):
        """The container that follows, when it has begun; empty if none does."""
        after = None
        while after is None:
            there, _version = cluster.list("Pod", fields=f"metadata.name={pod}")
            after = reach.container_after(there[0], container) if there else ""
            if after is None:
                time.sleep(FOLLOW_SECONDS)
        return after

    def _follow(self, cluster, pod, container):
        """The log of a container as it grows, until the container has ended."""
        before, ended = [], False
        while True:
            lines = cluster.log(pod, container, tail_lines=FOLLOW_LINES if before else reach.LINES).splitlines()
            self._display.display(*reach.beyond(before, lines))
            before = lines or before
            if ended:
                return
            there, _version = cluster.list("Pod", fields=f"metadata.name={pod}")
            ended = not there or reach.containers(there[0]).get(container) != "running"
            if not ended:
                time.sleep(FOLLOW_SECONDS)
            elif not there:
                return
