"""Runs gpuval's steps on Slurm: watch, probe, reach, marks, clean."""

import functools
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ..core.escape import one_line
from ..core.text import some_of
from ..judge import repairs
from ..runs import folder as run_folder
from ..runs.folder import RunFolder
from ..ssh.findings import summary_of_cluster
from ..watch import launch_inputs, reach
from ..watch.scheduler import JobScheduler, NodeProbes, NodeVerdicts, plan_of, values_for
from . import drains, nodes, script
from .commands import Slurm, SlurmError
from .jobs import SlurmJob, members_of, of_run
from .placement import VARIABLES, JobOrder, SlurmPlacement, directory_of

COMMANDS = ("scontrol", "squeue", "sbatch", "scancel", "srun")
CLEAN_POLL_SECONDS = 1.0


class SlurmScheduler(JobScheduler):
    """Runs gpuval's steps on a Slurm cluster, by Slurm's commands on the controller; keeps no connection open."""

    name = "slurm"
    title = row_name = "Slurm"
    runs_batch_files = True
    has_drains = True
    still_words = ("still drained", "resumes them")

    @functools.cached_property
    def _slurm(self) -> Slurm:
        return Slurm()

    def order(self, run: Mapping[str, Any], name: str) -> JobOrder:
        chosen, declared = self._declared(run, name, VARIABLES)
        settings = script.JobSettings.of(chosen)
        plan = plan_of(run, name, chosen, chosen[self._workloads])
        requirements = launch_inputs.requirements(run["nodes"][name], declared, "host")
        force = boolean(chosen["gpuval_force"], strict=False)
        return JobOrder(plan, settings, directory_of(chosen["gpuval_node_dir"]), force, requirements)

    def placement(self, *common: Any) -> SlurmPlacement:
        return SlurmPlacement(self._slurm, *common)

    def address(self, _run_id: str, member: Mapping[str, Any]) -> str:
        return one_line(member["address"], 200)

    @property
    def requests(self) -> int:
        return self._slurm.asked

    def probe(self) -> NodeProbes:
        began = time.monotonic()
        known = {node["name"]: node for node in self._slurm.nodes()}
        findings = {}
        for name in self._hosts():
            (reservation,) = values_for(self._action, name, self._task_vars, ("gpuval_slurm_reservation",)).values()
            findings[name] = nodes.finding(name, known.get(name), reservation=reservation)
        seconds = time.monotonic() - began
        return NodeProbes(findings, seconds, summary_of_cluster(findings, seconds))

    def reach(self, folder: RunFolder, node: str, stages: Sequence[str]) -> list[str]:
        """Open a shell, or show logs, by a step in the node's job, which needs no login on the node."""
        run = folder.read_run()
        run_id, attempt = run["run_id"], folder.read_launch(node).get("attempt", 1)
        job = of_run(self._slurm.jobs(), run_id).get((members_of(run, node)[0], attempt))
        if job is None or job.state != "RUNNING":
            state = f"job {job.id} is {job.state}" if job else "it has no job of this run"
            raise reach.ReachError(f"{state}: `srun --nodelist={node} --pty bash` makes a job for a shell")
        (base,) = values_for(self._action, node, self._task_vars, ("gpuval_node_dir",)).values()
        directory = f"{directory_of(base)}/{run_id}/{node}"
        followed = self._followed(folder, node, stages)
        step = ["srun", f"--jobid={job.id}", "--overlap", f"--nodelist={node}"]
        if self._options.what == reach.SHELL:
            return [*step, "--pty", *reach.on_host(reach.SHELL, directory, followed, [])]
        return reach.on_host(reach.FOLLOW, directory, followed, step, as_words=True)

    def answers(self, values: Mapping[str, Any]) -> str:
        lacking = [name for name in COMMANDS if shutil.which(name) is None]
        if lacking:
            text = f"no {', '.join(lacking)} on PATH: run gpuval on a login node, or add their folder to PATH"
            raise SlurmError(text)
        try:
            return f"slurmctld answers, {len(self._slurm.nodes())} node(s)"
        except (SlurmError, ValueError) as error:
            raise SlurmError(f"{error}: check that slurmctld runs and that this user may ask it") from None

    def place(self, settings: str) -> str:
        try:
            return f"Slurm cluster {self._slurm.cluster_name()}"
        except SlurmError as error:
            self._action.display.warning(f"the run belongs to no Slurm cluster, since its name cannot be read: {error}")
            return settings

    def mark(self) -> NodeVerdicts:
        """Drain and resume nodes by a run's verdicts."""
        options, trial = self._options, self._action.check_mode
        if options.state == "absent":
            return drains.release(options.marked_by, options.nodes, trial=trial)
        folder = self._action.folder(options)
        report, incomplete = run_folder.read_report(folder), options.taint_incomplete
        repairs.withhold_acceptance(report, folder, options.repairs, self._action.display.warning)
        return drains.mark(folder.results, report, options.nodes, incomplete=incomplete, trial=trial)

    def clean(self) -> dict[str, Any]:
        """Cancel the jobs that runs have left, and wait until they have ended."""
        options, trial = self._options, self._action.check_mode
        self._name_killed(options.run_ids)
        jobs = remaining = self._open_jobs(options.run_ids)
        if trial:
            remaining = {}
        else:
            self._slurm.cancel(sorted(jobs))
        until = time.monotonic() + options.deadline_seconds
        while remaining and time.monotonic() < until:
            remaining = self._open_jobs(options.run_ids)
            if remaining:
                time.sleep(CLEAN_POLL_SECONDS)
        self._mark_cleaned(remaining)
        shown = some_of(f"{job.id} ({job.node})" for job in (remaining or jobs).values())
        message = f"Slurm: {'would cancel' if trial else 'cancelled'} {len(jobs)} job(s){f': {shown}' if jobs else ''}"
        if remaining:
            message = (
                f"Slurm: {len(remaining)} job(s) have not ended: {shown}: scancel them, and see slurmd on their nodes"
            )
        self._action.display.display(message)
        return {
            "changed": bool(jobs),
            "failed": bool(remaining),
            "cancelled": sorted(jobs),
            "left": sorted(remaining),
            "diff": {"before": "".join(f"{job.id} {job.node}\n" for job in jobs.values()), "after": ""},
            "msg": message,
        }

    def _name_killed(self, run_ids: Sequence[str]) -> None:
        """Warn of folders that killed jobs may have left on nodes: a clean of Slurm cannot look at nodes."""
        results = self._options.results_dir
        if results is None:
            return
        for folder in [run_folder.find(results, run_id) for run_id in run_ids] or run_folder.known_runs(results):
            if (run_folder.read_object(folder.run_file).get("state") or {}).get("cleaned_at"):
                continue
            if names := [name for name, launch in folder.read_launches().items() if launch.get("contact")]:
                path = f"{directory_of(self._options.node_dir)}/{folder.path.name}"
                self._action.display.warning(
                    f"jobs that were killed may have left {path}: remove it on {some_of(names)}"
                )

    def _open_jobs(self, run_ids: Sequence[str]) -> dict[int, SlurmJob]:
        """The jobs of these runs, by default of all, that have not ended; by id."""
        jobs = self._slurm.jobs().values()
        return {job.id: job for job in jobs if not job.ended and (not run_ids or job.run_id in run_ids)}
