# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Cancel the jobs that runs have left on a Slurm cluster, and see that they have ended."""

from __future__ import annotations

import time

from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.paths import project_path
from ..plugin_utils.core.text import some_of
from ..plugin_utils.runs import folder as run_folder
from ..plugin_utils.slurm.commands import Slurm
from ..plugin_utils.slurm.placement import directory_of

POLL_SECONDS = 1.0


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        slurm, run_ids = Slurm(), options["run_ids"]
        self._name_killed(options, run_ids)
        found = self._open(slurm, run_ids)
        left = {}
        if not self.check_mode:
            slurm.cancel(sorted(found))
            until = time.monotonic() + options["deadline_seconds"]
            left = found
            while left and time.monotonic() < until:
                left = self._open(slurm, run_ids)
                if left:
                    time.sleep(POLL_SECONDS)
        if options["results_dir"] and not self.check_mode and not left:
            run_folder.mark_cleaned(project_path(options["results_dir"]), run_ids)
        shown = some_of(f"{job.id} ({job.node})" for job in (left or found).values())
        verb = "would cancel" if self.check_mode else "cancelled"
        message = f"Slurm: {verb} {len(found)} job(s)" + (f": {shown}" if found else "")
        if left:
            message = f"Slurm: {len(left)} job(s) have not ended: {shown}: scancel them, and see slurmd on their nodes"
        self._display.display(message)
        return {
            "changed": bool(found),
            "failed": bool(left),
            "cancelled": sorted(found),
            "left": sorted(left),
            "diff": {"before": "".join(f"{job.id} {job.node}\n" for job in found.values()), "after": ""},
            "msg": message,
        }

    def _name_killed(self, options, run_ids):
        """Name the folders that jobs without their last records may have left: a clean of Slurm sees no node."""
        results = project_path(options["results_dir"])
        for run_id in (run_ids or run_folder.known_run_ids(results)) if options["results_dir"] else ():
            if (run_folder.read_object(results / run_id / "run.json").get("state") or {}).get("cleaned_at"):
                continue
            launches = run_folder.RunFolder(results / run_id).read_launches()
            if names := [name for name, launch in launches.items() if launch.get("contact")]:
                left = f"{directory_of(options['node_dir'])}/{run_id}"
                self._display.warning(f"jobs that were killed may have left {left}: remove it on {some_of(names)}")

    @staticmethod
    def _open(slurm, run_ids):
        """By id, the jobs of the runs that have not ended."""
        return {
            job.id: job for job in slurm.jobs().values() if not job.ended and (not run_ids or job.run_id in run_ids)
        }
