# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check controller and inventory before anything starts. What is missing is named; nothing else is imported before."""

from __future__ import annotations

import shutil
from importlib import import_module

from ansible import constants
from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.release import __version__ as core_version

from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.argument_specs import argument_spec
from ..plugin_utils.core.errors import GpuvalError
from ..plugin_utils.core.host_values import templar_of, values_of
from ..plugin_utils.core.paths import project_path
from ..plugin_utils.doctor import controller
from ..plugin_utils.doctor.controller import FAILED, OK, SKIPPED, WARNING, Row

MOST_LINES = 20


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        hosts = [values_of(self, name, task_vars) for name in task_vars["ansible_play_hosts_all"]]
        placements = {self._one(values, "gpuval_placement") for values in hosts}
        rows = [controller.python(), controller.ansible(core_version)]
        rows += controller.packages({"kubernetes"} & placements)
        rows += [controller.configuration(constants.config.get_config_value, constants.CONFIG_FILE)]
        rows += [controller.ssh(shutil.which, sum(self._is_over_ssh(values) for values in hosts))]
        if any(row.state == FAILED and row.name in ("Python", "packages") for row in rows):
            rows += [Row(name, SKIPPED, "install the packages first") for name in ("settings", "rclone", "store")]
        else:
            rows += self._services(placements, hosts, task_vars)
        failed = sum(row.state == FAILED for row in rows)
        self._display.display(*controller.table(rows))
        warned = sum(row.state == WARNING for row in rows)
        text = f"{len(rows)} checks, {failed} failed, {warned} warning(s)"
        checks = [{"name": row.name, "state": row.state, "text": row.text} for row in rows]
        if failed:
            return {"failed": True, "checks": checks, "msg": f"{text}: fix what is FAILED above, then run it again"}
        self._display.display(f"doctor: {text}")
        return {"changed": False, "checks": checks, "msg": text}

    def _services(self, placements, hosts, task_vars):
        values = hosts[0]
        services = import_module("ansible_collections.gpuval.fleet.plugins.plugin_utils.doctor.services")
        rows = self._settings(task_vars)
        for name in ("results_dir", "state_dir"):
            folder = self._one(values, f"gpuval_{name}")
            rows.append(services.disk(f"gpuval_{name}", project_path(str(folder))))
        rows.append(services.rclone())
        if "slurm" in placements:
            rows.append(services.slurm())
        if "kubernetes" in placements:
            names = ("gpuval_kubeconfig", "gpuval_kube_context", "gpuval_namespace")
            rows.append(services.kubernetes(services.Access(*(self._one(values, name) for name in names))))
        local = next((one for one in hosts if not self._is_over_ssh(one)), None)
        try:
            if local and placements == {"ssh"}:
                names = ("gpuval_workload_python", "gpuval_stages", "run_workloads", "gpuval_runtime")
                rows.append(services.workloads(*(self._one(local, name) for name in names)))
            over_ssh = [one for one in hosts if self._is_over_ssh(one)]
            stored = self._store(services, values)
            rows += stored
            if over_ssh and all(row.state != FAILED for row in stored):  # the stages of a run are the same for all
                loading = [self._one(over_ssh[0], name) for name in ("run_stages", "run_workloads")]
                rows += services.models(self._one(values, "gpuval_store"), *loading, len(over_ssh), len(hosts))
        except (AnsibleError, GpuvalError) as error:
            rows.append(controller.unknown_store(rows, str(error)))
        return rows

    def _store(self, services, values):
        spec = {name: argument_spec("serve_store")[name] for name in ("store", "deadline_seconds")}
        given = {name: self._one(values, f"gpuval_{name}") for name in spec}
        checked = ArgumentSpecValidator(spec).validate(given)
        if checked.error_messages:
            return [Row("store", FAILED, f"{problem}: correct it") for problem in checked.error_messages]
        chosen = checked.validated_parameters
        return services.store(chosen["store"], chosen["deadline_seconds"], check_mode=self.check_mode)

    def _settings(self, task_vars):
        """What every playbook checks first."""
        of_settings = import_module("ansible_collections.gpuval.fleet.plugins.action.check_settings").ActionModule
        checker = of_settings(
            task=self._task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        problems, remarks = checker.examine(task_vars, files=True)
        rows = [Row("settings", FAILED, problem) for problem in problems[:MOST_LINES]]
        if len(problems) > MOST_LINES:
            rows.append(Row("settings", FAILED, f"and {len(problems) - MOST_LINES} more"))
        rows += [Row("settings", WARNING, remark) for remark in remarks]
        return rows or [Row("settings", OK, f"those of {len(task_vars['ansible_play_hosts'])} node(s)")]

    def _one(self, values, name):
        return templar_of(self, values).template(values.get(name))

    def _is_over_ssh(self, values):
        connection = str(self._one(values, "ansible_connection") or self._task.connection)
        return self._one(values, "gpuval_placement") == "ssh" and connection.rpartition(".")[2] != "local"
