"""Check controller and inventory before a run. Names missing packages before it imports modules that need them."""

import shutil
from importlib import import_module
from typing import Any

from ansible import constants
from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.release import __version__ as core_version

from ..core import extensions
from ..core.errors import GpuvalError
from ..core.host_values import templar_of, values_of
from ..core.paths import project_path
from ..core.step_options import load_step, step_spec
from ..core.text import first_lines
from ..doctor import controller
from ..doctor.controller import FAILED, OK, SKIPPED, WARNING, DoctorRow
from ..runs.action import RunAction

MOST_LINES = 20
STORE_OPTIONS = ("store", "deadline_seconds")


def doctor(action: RunAction) -> dict[str, Any]:
    hosts = [values_of(action, name, action.task_vars) for name in action.task_vars["ansible_play_hosts_all"]]
    placements = {_setting(action, values, "gpuval_placement") for values in hosts}
    rows = [controller.python(), controller.ansible(core_version)]
    rows += controller.packages(placements)
    rows += [controller.configuration(constants.config.get_config_value, constants.CONFIG_FILE)]
    rows += [controller.ssh(shutil.which, sum(_is_over_ssh(action, values) for values in hosts))]
    if any(row.state == FAILED and row.name in ("Python", "packages") for row in rows):
        rows += [DoctorRow(name, SKIPPED, "install the packages first") for name in ("settings", "rclone", "store")]
    else:
        rows += _services(action, placements, hosts)
    failed = sum(row.state == FAILED for row in rows)
    action.display.display(*controller.table(rows))
    warned = sum(row.state == WARNING for row in rows)
    text = f"{len(rows)} checks, {failed} failed, {warned} warning(s)"
    checks = [{"name": row.name, "state": row.state, "text": row.text} for row in rows]
    if failed:
        return {"failed": True, "checks": checks, "msg": f"{text}: fix what is FAILED above, then run it again"}
    action.display.display(f"doctor: {text}")
    return {"changed": False, "checks": checks, "msg": text}


def _services(action, placements, hosts):
    values = hosts[0]
    services = import_module("ansible_collections.gpuval.fleet.plugins.plugin_utils.doctor.services")
    of_settings = import_module("ansible_collections.gpuval.fleet.plugins.plugin_utils.steps.check_settings")
    settings_check = of_settings.SettingsCheck(action, files=True)
    problems, remarks = settings_check.examine()
    problems = first_lines(problems, MOST_LINES)
    rows = [DoctorRow("settings", FAILED, problem) for problem in problems]
    rows += [DoctorRow("settings", WARNING, remark) for remark in remarks]
    if not rows:
        rows = [DoctorRow("settings", OK, f"those of {len(action.task_vars['ansible_play_hosts'])} node(s)")]
    if settings_check.env_places:
        rows.append(DoctorRow(".env", OK, settings_check.env_line()))
    extension_names = {kind: extensions.own(kind) for kind in extensions.KINDS}
    if text := "; ".join(f"{kind} {', '.join(names)}" for kind, names in extension_names.items() if names):
        rows.append(DoctorRow("extensions", OK, text))
    for name in ("results_dir", "state_dir"):
        folder = _setting(action, values, f"gpuval_{name}")
        rows.append(services.disk(f"gpuval_{name}", project_path(str(folder))))
    rows.append(services.rclone())
    names = ("gpuval_kubeconfig", "gpuval_kube_context", "gpuval_namespace")
    rows += services.schedulers(action, placements, {name: _setting(action, values, name) for name in names})
    local = next((one for one in hosts if not _is_over_ssh(action, one)), None)
    try:
        if local and placements == {"ssh"}:
            names = ("gpuval_workload_python", "gpuval_node_dir", "gpuval_stages", "run_workloads", "gpuval_runtime")
            rows.append(services.workloads(*(_setting(action, local, name) for name in names)))
        over_ssh = [one for one in hosts if _is_over_ssh(action, one)]
        spec = {name: option for name, option in step_spec(load_step("serve_store")).items() if name in STORE_OPTIONS}
        store_settings = {name: _setting(action, values, f"gpuval_{name}") for name in spec}
        checked = ArgumentSpecValidator(spec).validate(store_settings)
        stored = [DoctorRow("store", FAILED, f"{problem}: correct it") for problem in checked.error_messages]
        stored = stored or services.store(
            *(checked.validated_parameters[name] for name in STORE_OPTIONS), check_mode=action.check_mode
        )
        rows += stored
        if over_ssh and all(row.state != FAILED for row in stored):  # the stages of a run are the same for all
            loading = [_setting(action, over_ssh[0], name) for name in ("run_stages", "run_workloads")]
            rows += services.models(_setting(action, values, "gpuval_store"), *loading, len(over_ssh), len(hosts))
    except (AnsibleError, GpuvalError) as error:
        rows.append(controller.unknown_store(rows, str(error)))
    return rows


def _setting(action, values, name):
    return templar_of(action, values).template(values.get(name))


def _is_over_ssh(action, values):
    connection = str(_setting(action, values, "ansible_connection") or action.connection)
    return _setting(action, values, "gpuval_placement") == "ssh" and connection.rpartition(".")[2] != "local"
