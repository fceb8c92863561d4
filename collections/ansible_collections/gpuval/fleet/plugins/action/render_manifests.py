# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write everything that a run would make in a cluster into one file, made by what makes it there."""

from __future__ import annotations

from ..plugin_utils.cluster import manifests, rendering
from ..plugin_utils.cluster.inventory import VARIABLE
from ..plugin_utils.cluster.orders import NodeOrders
from ..plugin_utils.core import files
from ..plugin_utils.core.paths import project_path
from ..plugin_utils.runs import folder
from ..plugin_utils.runs.action import RunAction
from ..plugin_utils.watch import launching


class ActionModule(RunAction):
    def work(self, options, task_vars):
        run = options["run"] if self.check_mode else self.folder(options).read_run()
        nodes = {name: task_vars["hostvars"][name].get(VARIABLE) or {} for name in task_vars["ansible_play_hosts"]}
        missing = [name for name, known in nodes.items() if known.get("exists") is False]
        if missing:
            self._display.warning(f"left out, since the cluster does not have them: {', '.join(missing)}")
        store = None if self.check_mode else launching.NodeStore.of(options["store"], run, "kubernetes")
        placements = [
            self._placement(name, known, run, options, task_vars, store)
            for name, known in nodes.items()
            if name not in missing
        ]
        objects = manifests.everything(
            run["run_id"], options["namespace"], launching.pod_archives(), placements, options["make_namespace"]
        )
        result = {
            "nodes": [item.plan["node"] for item in placements],
            "missing": missing,
            "diff": {"before": "", "after": rendering.summary(objects), "after_header": "manifests"},
        }
        if self.check_mode:
            return {**result, "changed": True, "path": "", "msg": f"{len(objects)} objects"}
        path = project_path(options["path"]) if options["path"] else self.folder(options).path / "manifests.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        folder.remember(project_path(options["results_dir"]), run["run_id"])  # from here on it may be applied
        files.replace(path, rendering.to_yaml(objects).encode(), files.PRIVATE)
        message = (
            f"{len(objects)} objects for {len(placements)} node(s) in {path}: it has signed URLs and secrets of jobs. "
            f"Apply it with kubectl apply --server-side -f {path}, then validate with -e gpuval_run_id={run['run_id']}"
        )
        return {**result, "changed": True, "path": str(path), "msg": message}

    def _placement(self, name, known, run, options, task_vars, store):
        order = NodeOrders(self, task_vars, run).order(name)
        path = None if self.check_mode else self.folder(options).plan_file(name)
        if path and path.exists():
            plan = self.folder(options).read_plan(name)
        else:
            plan = manifests.pod_plan(order.plan, order.settings)
            if path:  # the run continues with it, also when another user applies the file
                folder.write_json(path, plan)
        target = manifests.Target(
            known.get("name") or name,
            known.get("hostname", ""),
            known.get("machine_id", ""),
            manifests.whole_numbers(known["allocatable"]) if "allocatable" in known else None,
        )
        names = [stage["name"] for stage in plan["stages"]]
        given = store.given(name, names, run["deadline_seconds"]) | {"secrets": store.secrets(plan)} if store else {}
        return manifests.Placement(target, order.settings, plan, order.sku, **given)
