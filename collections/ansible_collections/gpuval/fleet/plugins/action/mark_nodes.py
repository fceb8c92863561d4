# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write a run's verdicts on the nodes of its cluster, or take them off."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail
from ansible_collections.gpuval.fleet.plugins.plugin_utils import runs
from ansible_collections.gpuval.fleet.plugins.plugin_utils.actions import RUN_OPTIONS, ControllerAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import marks
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import Cluster, ClusterError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.options import CLUSTER_OPTIONS, access_of


class ActionModule(ControllerAction):
    OPTIONS = {
        **RUN_OPTIONS,
        **CLUSTER_OPTIONS,
        "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
        "nodes": {"type": "list", "elements": "str", "default": []},
        "taint": {"type": "bool", "default": False},
    }

    def work(self, options, task_vars):
        try:
            with Cluster(access_of(options)) as cluster:
                if options["state"] == "absent":
                    done = marks.remove_marks(cluster, options["nodes"], options["run_id"], trial=self.check_mode)
                else:
                    done = marks.set_marks(
                        cluster, self._wanted(options), taint=options["taint"], trial=self.check_mode
                    )
        except ClusterError as error:
            raise AnsibleActionFail(str(error)) from None
        told = f"{len(done.changes)} node(s) {'would be ' if self.check_mode else ''}changed"
        if done.missing:
            told += f"; not in the cluster: {', '.join(done.missing)}"
        if done.busy:
            told += f"; others keep changing {', '.join(done.busy)}: run it again"
        return {
            "changed": bool(done.changes),
            "failed": bool(done.busy),
            "nodes": sorted(done.changes),
            "missing": done.missing,
            "busy": done.busy,
            "diff": [
                {"before_header": name, "after_header": name, "before": one.before, "after": one.after}
                for name, one in sorted(done.changes.items())
            ],
            "msg": told,
        }

    def _wanted(self, options):
        report = runs.read_report(self.folder(options))
        run = report["run"]
        chosen = set(options["nodes"])
        return {
            node["name"]: marks.Mark(node["verdict"], run["run_id"], run["judged_at"])
            for node in report["nodes"]
            if not chosen or node["name"] in chosen
        }
