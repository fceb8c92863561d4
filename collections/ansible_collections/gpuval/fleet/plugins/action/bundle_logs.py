# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Put together what nodes gave and what the controller has: one archive, with the nodes that gave nothing by name."""

from __future__ import annotations

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.action import ControllerAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import project_path
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.schemas import Invalid
from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery import log_bundle
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunError, RunFolder

NAMED_NODES = 20


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        folder = log_bundle.run_folder_of(project_path(options["results_dir"]), options["run_id"])
        if self.check_mode:
            return {"changed": False, "msg": "check mode: nothing is written"}
        try:
            expected = list(RunFolder(folder).read_run()["nodes"])
        except (RunError, Invalid):  # there is none, or it is damaged
            expected = []
        store = project_path(options["state_dir"]) / "store"
        nodes = sorted({*expected, *options["nodes"]})
        made = log_bundle.bundle(folder, folder.name, nodes, store, log_bundle.secrets_of_store(store))
        lines = [f"logs of {made['nodes'] - len(made['without'])} of {made['nodes']} nodes: {made['path']}"]
        lines += [f"- without: {node}: {message}" for node, message in list(made["without"].items())[:NAMED_NODES]]
        if len(made["without"]) > NAMED_NODES:
            lines.append(f"- and {len(made['without']) - NAMED_NODES} more, see nodes.json")
        self._display.display("\n".join(lines))
        return {"changed": True, **made, "msg": lines[0]}
