"""Check the settings of all nodes in one task: Ansible's own check of a role takes a process per node."""

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError, AnsibleUndefinedVariable, AnsibleValueOmittedError
from ansible.module_utils.parsing.convert_bool import boolean

from ...module_utils.engines._engine import ContainerEngine
from ..artifacts import dataset_source, images, model_source
from ..cluster import pod_settings
from ..core import extensions, stage_traits, stages
from ..core.action import injected_settings
from ..core.errors import GpuvalError
from ..core.host_values import place_of, set_by_operator, templar_of, values_of
from ..core.paths import project_path
from ..core.text import first_lines, listed, meant, some_of
from ..gang.document import SEARCH_STAGES
from ..inventory import env_file
from ..jobs import stages as job_stages
from ..judge import actions, baseline, coherence, criteria, declared, repairs, sku_catalogue
from ..records import failure_classes
from ..report import webhook
from ..runs import cabling_plan, datasets, endpoints, folder, job_secrets, labels, node_ids, plans, settings
from ..runs.action import RunAction
from ..ssh.findings import key_file_problem
from ..ssh.prober import SSH
from ..store import access
from ..watch.scheduler import scheduler_of

# Read at import: the workers that Ansible forks for tasks inherit the cached files.
stages.variables("")

MOST_NAMED = 5
MOST_LINES = 40
#: Settings that choose the cluster, and the namespace in it.
CLUSTER = ("gpuval_kubeconfig", "gpuval_kube_context", "gpuval_namespace")
TWO_STORES = "only the embedded store uses it, and gpuval_s3_endpoint names an S3 service: set one, the other empty"
KEY_FILE = "ansible_ssh_private_key_file"
#: Variable of the role model_preload: only plays that upload models have it.
LOADS_MODEL = "model_preload_transfers"
#: {setting: check beyond its type}. A check gets a value that is not empty, and raises GpuvalError for a wrong one.
CHECKS = {
    "gpuval_bucket": partial(settings.check_form, "gpuval_bucket", settings.BUCKET),
    "gpuval_container": partial(plans.checked_container, "gpuval"),
    "gpuval_datasets": datasets.parse,
    "gpuval_endpoints": endpoints.parse,
    "gpuval_folder": folder.check_folder,
    "gpuval_gpu_temperature_max_celsius": declared.temperature,
    "gpuval_images": images.parse,
    "gpuval_labels": labels.declared,
    "gpuval_mounts": partial(declared.names, declared.MOUNTS),
    "gpuval_namespace": partial(settings.check_form, "gpuval_namespace", settings.NAMESPACE),
    "gpuval_nic_rate": declared.port_rate,
    "gpuval_pods": pod_settings.parse,
    "gpuval_rack": declared.rack,
    "gpuval_runs_folder": partial(folder.check_folder, setting="gpuval_runs_folder"),
    "gpuval_repairs": repairs.parse_repairs,
    "gpuval_s3_endpoint": access.check_endpoint,
    "gpuval_services": partial(declared.names, declared.SERVICES),
    "gpuval_versions": declared.parse_versions,
    "gpuval_webhook_key": webhook.check_key,
    "gpuval_webhook_url": webhook.check_url,
    "run_recurring_settings": settings.check_names,
    "storage_floors": partial(settings.check_floors, "storage_floors"),
    "storage_shared_floors": partial(settings.check_floors, "storage_shared_floors"),
}
#: {setting that names a file or folder: check}, for playbooks that use those.
FILES = {
    "gpuval_baseline": lambda path: baseline.read(Path(path)),
    "gpuval_node_ids": node_ids.NodeIdReader(project_path),
    "gpuval_secrets_file": lambda path: job_secrets.read(project_path(path)),
    "gpuval_s3_ca_file": partial(settings.check_file, "gpuval_s3_ca_file"),
    "gpuval_results_dir": lambda path: settings.check_folder("gpuval_results_dir", project_path(path)),
    "gpuval_state_dir": lambda path: settings.check_folder("gpuval_state_dir", project_path(path)),
}


def check_settings(action: RunAction, *, fatal: bool = True) -> dict[str, Any]:
    check = SettingsCheck(action, files=fatal)
    lines, remarks = check.examine()
    env_line = f"settings from .env: {check.env_line()}" if check.env_settings else ""
    action.remember(has_warnings=bool(lines or remarks), env_line=env_line)
    if lines and fatal:
        if len(lines) == 1:
            return {"failed": True, "msg": f"nothing was started: {lines[0]}"}
        action.display.display("settings:", *(f"  {line}" for line in first_lines(lines, MOST_LINES)))
        return {"failed": True, "msg": f"nothing was started: correct the {len(lines)} settings above"}
    for line in [*lines[:MOST_LINES], *remarks[:MOST_LINES]]:
        action.display.warning(line)
    if env_line:
        action.display.display(env_line)
    return {"changed": False, "msg": f"settings of {len(action.task_vars['ansible_play_hosts'])} node(s) checked"}


class SettingsCheck:
    """Checks the settings of all nodes of a play. ``files``: whether files named in settings are read, too."""

    def __init__(self, action: RunAction, *, files: bool) -> None:
        task_vars = action.task_vars
        self.action, self._files = action, files
        self._tags = {name: list(task_vars.get(name) or ()) for name in ("ansible_run_tags", "ansible_skip_tags")}
        self._remarks: set[str] = set()
        self._looked_at: dict[tuple[str, str], tuple[list[str], Any]] = {}
        #: {setting: file and line that set it in `.env` files}, and the names of those that nothing overrides.
        self.env_places: dict[str, str] = {}
        self.env_settings: set[str] = set()

    def examine(self) -> tuple[list[str], list[str]]:
        """Check all settings. Returns the problems, a line each, and remarks."""
        try:
            extensions.check()
            stages.variables("")
            stage_traits.traits_of_stages()
            env = env_file.read(self.action.task_vars.get("ansible_inventory_sources") or ())
        except GpuvalError as error:
            extensions.use(())  # some playbooks continue despite wrong settings: without extensions
            return [str(error)], []
        task_vars = self.action.task_vars
        hosts = task_vars["ansible_play_hosts"]
        wrong: dict[str, list[str]] = dict.fromkeys([*env.problems, *_problems_of_extensions()], hosts)
        self._remarks.update(env.remarks)
        self.env_places = env.places_of(settings.declared().defaults)
        if len(task_vars.get("groups", {}).get("all", ())) > 1 and (
            origin := self.env_places.pop("gpuval_node_ids", "")
        ):
            self._remarks.add(
                f"{origin}: NODE_NAME is not used: the inventory has several nodes, with names of their own"
            )
        sets: list[set[str]] = [set() for _ in range(4)]
        placed, clusters, site_patterns, keys = sets
        names: dict[str, tuple[str, Mapping]] = {}
        setting_problems: dict[str, list[str]] = {}
        for node in hosts:
            values = values_of(self.action, node, task_vars)
            names.update((name, (node, values)) for name in values if name not in names)
            if values.get(settings.OWN):
                site_names = _templated(templar_of(self.action, values), values, settings.OWN)
                # the check of that setting reports a value that is no list
                site_patterns.update(map(str, site_names if isinstance(site_names, (list, tuple)) else ()))
            for name in injected_settings(values):
                problem = f"{name} comes from the node's own facts: set inject_facts_as_vars = false"
                wrong.setdefault(problem, []).append(node)
            chosen = settings.changed(values)
            self.env_settings |= self.env_places.keys() - chosen
            from_env = {name: values[name] for name in self.env_settings if name in values and name not in chosen}
            placed.add(str(values.get("gpuval_placement")))
            clusters.add(repr([values.get(name) for name in CLUSTER]))
            key = repr([*sorted(chosen.items()), *from_env])
            plain = "{{" not in key and "{%" not in key
            if not (plain and key in setting_problems):
                messages = self._problems(values, chosen | from_env)
                setting_problems[key] = [self._placed(message, values) for message in messages]
            for problem in setting_problems[key]:
                wrong.setdefault(problem, []).append(node)
            self._look_at_key_file(values, keys)
        for name, problem in settings.unknown(names, site_patterns).items():
            node, values = names[name]
            if set_by_operator(node, values, name):
                wrong[self._placed(problem, values)] = hosts
        if "_raw_params" in values:
            wrong[f"-e {values['_raw_params']}: write NAME=VALUE"] = hosts
        for variable, option in (("ansible_run_tags", "--tags"), ("ansible_skip_tags", "--skip-tags")):
            for problem in settings.unknown_tags(map(str, task_vars.get(variable) or ()), option):
                wrong[problem] = hosts
        known_placements = placed & extensions.found("schedulers").keys()
        if len(placed) == 1 and len(clusters) > 1 and any(scheduler_of(name).in_pods for name in known_placements):
            wrong[f"{', '.join(CLUSTER)} are not the same for all: validate one cluster after the other"] = hosts
        if len(placed) > 1:
            remedy = "validate SSH hosts and clusters one after the other, with gpuval_hosts or --limit"
            wrong[f"gpuval_placement is not the same for all: {remedy}"] = hosts
        problems = [
            problem if len(nodes) == len(hosts) else f"{problem} ({some_of(nodes, MOST_NAMED)})"
            for problem, nodes in wrong.items()
        ]
        return problems, sorted(self._remarks)

    def env_line(self) -> str:
        """Text on all settings in `.env` files: file and line of each, and whether another source overrides it."""
        remarks = {name: "" if name in self.env_settings else ", overridden" for name in self.env_places}
        return ", ".join(f"{name} ({self.env_places[name]}{remark})" for name, remark in remarks.items())

    def _placed(self, problem, values):
        """A message that begins with a setting, preceded by file and line of that setting if those are known."""
        name = re.match(r"[\w-]*", problem)[0]
        origin = place_of(values, name) or self.env_places.get(name)
        return f"{origin}: {problem}" if origin else problem

    def _look_at_key_file(self, values, key_files):
        """Add a remark if a node's SSH key file is unusable. It is no mistake if an agent, another key or a password
        logs in, which only a login shows. `key_files`: paths that were checked for other nodes."""
        raw = values.get(KEY_FILE)
        if not raw or not self._files or os.environ.get("SSH_AUTH_SOCK"):
            return
        if values.get("gpuval_placement") not in (None, "ssh") or values.get("ansible_connection", "ssh") not in SSH:
            return
        name = str(_templated(templar_of(self.action, values), values, KEY_FILE) or "")
        if name and name not in key_files:
            key_files.add(name)
            if problem := key_file_problem(name):
                self._remarks.add(self._placed(f"{KEY_FILE}: {problem}, unless ssh logs in by other means", values))

    def _problems(self, values, chosen):
        """Messages on wrong settings of a host with the variables `values`. `chosen`: {setting: untemplated value}."""
        templar = templar_of(self.action, values)
        messages, templated, right = [], {}, {}
        for name, raw in chosen.items():
            try:
                value = templar.template(raw)
            except AnsibleError as error:
                # the template may need facts, or variables of roles that this playbook lacks
                elsewhere = isinstance(error, AnsibleUndefinedVariable) and name not in settings.declared().shared
                if not (elsewhere or isinstance(error, AnsibleValueOmittedError)):
                    messages.append(f"{name}: its template fails, {error.message}")
                continue
            if value is None:
                continue
            templated[name] = value
            wrong, converted = self._look_at(name, value, values)
            messages += wrong
            right |= {} if wrong else {name: converted}
        seconds = _search_round_seconds(templar, values) if "gpuval_gang_search_seconds" in right else 0.0
        messages += settings.gang_problems(right, seconds)
        files = self._jobs(values)
        profiles = _templated(templar, values, "gpuval_profiles")
        messages += settings.unknown_stages(right, profiles, values, job_stages.names(files))
        messages += _job_problems(templar, values, right, files)
        has_own_stages = {"gpuval_stages", "gpuval_jobs", "gpuval_profiles"} & right.keys()
        if not messages and (has_own_stages or right.get("gpuval_profile") in extensions.own("profiles")):
            messages += self._unmet_needs(templar, values)
        messages += job_stages.lacking(files, _templated(templar, values, "gpuval_store") or {})
        if right.get("gpuval_store_address") and right.get("gpuval_s3_endpoint"):
            messages.append(f"gpuval_store_address: {TWO_STORES}")
        raw, confirmed = (right.get(f"storage_raw_devices{end}") or [] for end in ("", "_confirmed"))
        if sorted(raw) != sorted(confirmed):
            remedy = "name the same in storage_raw_devices_confirmed"
            messages.append(f"storage_raw_devices: their content is destroyed: {remedy}")
        if right.get("gpuval_webhook_url") and not templated.get("gpuval_webhook_key"):
            messages.append("gpuval_webhook_key is empty: set the key that signs what gpuval_webhook_url gets")
        return messages

    def _jobs(self, values):
        """Paths of a host's job files; empty if gpuval_jobs is no list, which its own check reports."""
        files = listed(_templated(templar_of(self.action, values), values, "gpuval_jobs"))
        return [project_path(one) for one in files] if self._files else []

    def _unmet_needs(self, templar, values):
        """Messages on needs of stages that no other stage meets. Empty if the playbook opens no run, or with tags: then
        opening the run checks the needs."""
        if settings.OPENS_RUN not in values or self._tags["ansible_run_tags"] not in ([], ["all"]):
            return []
        names = ("run_stages", "run_workloads", "run_gang_stages", "run_gang_workloads")
        node_stages, declared_own, of_gangs, declared_of_gangs = (_templated(templar, values, name) for name in names)
        declarations = {**(declared_own or {}), **(declared_of_gangs or {})}
        try:
            node_stages = plans.with_datasets(node_stages or [], of_gangs or [], declarations)
        except plans.PlanError:  # the check of datasets reports it
            return []
        return plans.unmet_needs(node_stages, of_gangs or [], declarations, self._tags["ansible_skip_tags"])

    def _look_at(self, name, value, values):
        """Check a setting's value, once for all nodes with it. Returns messages, and the value as its declared type."""
        key = (name, repr(value))
        if key not in self._looked_at:
            wrong, converted = settings.problems({name: value}), None
            if not wrong:
                converted = settings.converted(name, value)
                wrong = self._meaning(name, converted, values) if converted else []
            self._looked_at[key] = wrong, converted
        return self._looked_at[key]

    def _meaning(self, name, value, values):
        """Messages on a setting's value that is not empty and has the right type. `values`: variables of the host."""
        if name == "gpuval_criteria":
            stages = settings.stages(values, job_stages.names(self._jobs(values)))
            wrong = [problem for path in value for problem in criteria.problems_of(Path(path), stages) if self._files]
            if self._files and not wrong:
                self._remarks.update(remark for path in value for remark in criteria.doubtful_metrics(Path(path)))
            return [f"{name}: {problem}" for problem in wrong]
        if name == "gpuval_sku" and (remark := sku_catalogue.remark(value)):
            # only a typed SKU can be misspelled: one that is set in no file, nor by -e, is the cluster's name for GPUs
            is_typed = values.get("gpuval_placement") == "ssh" or place_of(values, name)
            if is_typed and (near := sku_catalogue.misspelled(value)):
                return [f"{name} {value}: not in the catalogue; is it {near}? A model of your own needs another name"]
            self._remarks.add(self._placed(f"{name} {value}: {remark}", values))
        checks = {**CHECKS, **(FILES if self._files else {})}
        if self._files and name == cabling_plan.SETTING:
            checks[name] = lambda path: cabling_plan.read(project_path(path), self.action.task_vars["hostvars"])
        if LOADS_MODEL in values:
            checks |= {"gpuval_model": model_source.check, "gpuval_datasets": dataset_source.check}
        try:
            checks.get(name, bool)(value)
        except GpuvalError as error:
            text = str(error)
            return [text if text.startswith(name) else f"{name}: {text}"]
        return []


def _job_problems(templar, values, right, files):
    """Messages on job files, and on settings that name jobs. `right`: valid settings; `files`: paths of job files."""
    chosen = [right.get(name) or [] for name in ("gpuval_job_skip", "gpuval_job_force")]
    templated = [_templated(templar, values, name) for name in ("gpuval_images", "gpuval_environment")]
    problems = job_stages.problems(files, *chosen, *(one if isinstance(one, Mapping) else {} for one in templated))
    jobs, several = job_stages.names(files), job_stages.names(files, together=True)
    stage_names = settings.stages(values, jobs)
    problems += [
        f"gpuval_jobs: {path}: needs: no stage {name}{meant(name, stage_names)}"
        for path, name in job_stages.needs(files)
        if name not in stage_names and not name.startswith(datasets.STAGE)
    ]
    problems += [
        f"gpuval_stages: {name} is a job of several nodes, which runs after the stages of each node: remove it here"
        for name in several
        if name in (right.get("gpuval_stages") or [])
    ]
    twice = [name for name in jobs if f"{name}_workload" in values]
    return problems + [f"gpuval_jobs: {name} is declared by {name}_workload, too: rename one" for name in twice]


def _problems_of_extensions():
    """Messages on mistakes in the folders of gpuval_extensions."""
    usable = {"gpuval_deadline_seconds", *stages.variables("")}
    messages = criteria.problems_of_extensions()
    data = [actions.check_ladders, failure_classes.check_names, coherence.rules]
    uses = [
        *(data if extensions.own("stages") or extensions.own("schedulers") else ()),
        *(partial(extensions.load_class, "engines", name, ContainerEngine) for name in extensions.own("engines")),
        *(partial(scheduler_of, name) for name in extensions.own("schedulers")),
    ]
    for use in uses:
        try:
            use()
        except GpuvalError as error:
            messages.append(str(error))
    for name, path in extensions.own("profiles").items():
        profile = stages.profiles()[name]
        for chosen in (profile.settings, profile.cpu_settings):
            unusable = [setting for setting in chosen if setting not in usable]
            messages += [f"{path}: {setting}: no setting of a stage{meant(setting, usable)}" for setting in unusable]
            right = {setting: value for setting, value in chosen.items() if setting in settings.declared().options}
            messages += [f"{path}: {problem}" for problem in settings.problems(right)]
    return messages


def _templated(templar, values, name):
    try:
        return templar.template(values.get(name))
    except AnsibleError:  # the check of that setting reports it
        return None


def _search_round_seconds(templar, values):
    """Max seconds of a round in the search for the bad node of a multi-node test; 0 if the play has no such search."""
    if settings.OPENS_RUN not in values:
        return 0.0
    try:
        searches = boolean(templar.template(values["gpuval_gang_search"]), strict=False)
        if not searches and not set(SEARCH_STAGES) & set(templar.template(values["run_gang_stages"])):
            return 0.0
        if templar.template(values["run_gang_workloads"]).get("fabric"):
            return float(templar.template(values["run_gang_search_round_seconds"]))
    except (AttributeError, KeyError, TypeError, ValueError, AnsibleError):  # the start of multi-node tests reports it
        pass
    return 0.0
