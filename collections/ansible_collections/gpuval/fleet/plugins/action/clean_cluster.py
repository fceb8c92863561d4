# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Remove what runs made in a cluster, and see that it is gone."""

from __future__ import annotations

from dataclasses import asdict

from ..plugin_utils.cluster import cleaning
from ..plugin_utils.cluster.api import Access, Cluster
from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.paths import project_path
from ..plugin_utils.runs import folder as run_folder


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        run_ids, trial = options["run_ids"], self.check_mode
        with Cluster(Access.of(options)) as cluster:
            cleaned = cleaning.clean(
                cluster, run_ids, options["deadline_seconds"], trial=trial, volumes=options["volumes"]
            )
        if options["results_dir"] and not trial and not cleaned.left:
            run_folder.mark_cleaned(project_path(options["results_dir"]), run_ids)
        lines = cleaning.lines(run_ids, cleaned, options["namespace"], trial=trial)
        self._display.display(*lines)
        before = "".join(f"{kind} {name}\n" for kind, found in cleaned.removed.items() for name in found)
        return {
            "changed": bool(cleaned.count),
            "failed": bool(cleaned.left),
            "removed": cleaned.removed,
            "left": [asdict(left) for left in cleaned.left],
            "diff": {"before": before, "after": ""},
            "msg": "; ".join(lines),
        }
