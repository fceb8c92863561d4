"""Run the controller in the cluster: apply its rights, files and Job or CronJob, write them to a file, or remove it."""

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from ansible.errors import AnsibleActionFail
from ansible.utils.vars import load_extra_vars

from ...module_utils.store import session
from ..cluster import controller, manifests, names
from ..cluster.api import Cluster, ClusterAccess, Forbidden, ObjectRefused
from ..cluster.config_maps import compact_json
from ..cluster.controller import ControllerOrder, ControllerPodOptions
from ..cluster.controller_files import FILE_SETTINGS, ControllerFiles
from ..cluster.kinds import KINDS, Manifest
from ..cluster.nodes import VARIABLE
from ..core import files, step_options
from ..core.ansible_internal import file_loader
from ..core.errors import GpuvalError
from ..core.escape import one_line
from ..core.host_values import templar_of, values_of
from ..core.paths import project_path
from ..core.step_options import PathText, StoreOptions
from ..core.text import some_of
from ..jobs import stages as job_stages
from ..runs import folder as run_folder
from ..runs import job_secrets, opening, origin, settings
from ..runs.action import RunAction, RunOptions
from .prepare_cluster import missing_namespace
from .render_manifests import to_yaml

#: Settings that are derived from others.
DERIVED = {"gpuval_env", "gpuval_store"}
#: Settings of this command, not of the run.
OWN = {"gpuval_run_id", "kubernetes_controller", "kubernetes_controller_rights", "kubernetes_controller_state"}
#: Fixed settings of the controller in the cluster, which uses the account and the folders of its pod.
FIXED = {
    "gpuval_kubeconfig": "",
    "gpuval_kube_context": "",
    "gpuval_results_dir": f"{controller.WORK}/results",
    "gpuval_state_dir": f"{controller.WORK}/.gpuval",
    "gpuval_secrets_file": "",
    "gpuval_health_file": "",
}
#: Matches, in the default of a setting, the variable of the environment or of `.env` that sets it.
ENV_KEY = re.compile(r"gpuval_env\.(\w+)")
#: API groups of objects that an administrator may have to apply: Roles, bindings, PriorityClasses.
GROUPS_OF_RIGHTS = {"rbac.authorization.k8s.io", "scheduling.k8s.io"}
#: Text in the refusal of a Role or binding that has more rights than the user.
BEYOND_USER = "RBAC permissions not currently held"
#: {condition of a Kubernetes Job: words for its state}.
ENDS = {"Complete": "has ended with PASS", "Failed": "has ended without PASS"}
AT_WORK = "is at work"
#: Fields by which a dry run detects a change: it does not raise an object's version.
COMPARED = ("spec", "rules", "roleRef", "subjects", "automountServiceAccountToken", "value", "preemptionPolicy")
SHOWN_METADATA = ("name", "namespace", "labels", "annotations")


class RunInClusterOptions(RunOptions, ClusterAccess):
    state: Literal["present", "absent"] = "present"
    controller: Annotated[dict[str, Any], ControllerPodOptions]
    store: StoreOptions
    #: Time limit of a run.
    seconds: float
    make_namespace: bool = False
    #: Whether the controller's rights are applied, and the optional ones for marks and volumes.
    rights: bool = True
    marks: bool = False
    volumes: bool = False
    #: Schedule of a CronJob, in cron syntax; empty: a Job is made.
    schedule: str = ""
    #: PriorityClass to create for the pods of the run; empty: none.
    priority_class: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    jobs: Sequence[PathText] = ()
    #: File to write the manifests to; empty: they are applied.
    path: PathText = ""


def run_in_cluster(action: RunAction, options: RunInClusterOptions) -> dict[str, Any]:
    """Start a controller in the cluster as a Job or CronJob; with `options.path` write its manifests instead; with the
    state `absent` remove it."""
    if options.state == "absent":
        return _remove(action, options)
    if options.path:
        try:
            return _write(action, options)
        except GpuvalError as error:
            if not options.schedule:
                raise
            action.display.warning(f"no CronJob is written: {error}")  # the playbook writes other schedules
            return {"changed": False, "msg": "no CronJob is written"}
    _check_store(options.store)
    try:
        with Cluster(options) as cluster:
            return _start(action, cluster, options)
    except (Forbidden, ObjectRefused) as error:
        if reason := _lacking_rights(error):
            raise AnsibleActionFail(f"{reason}: {_how_to_grant(options)}") from None
        raise


def _lacking_rights(error: Forbidden | ObjectRefused) -> str:
    """Why this user may not apply the controller's rights; empty if the error is another one."""
    if BEYOND_USER in str(error):
        return one_line(str(error))
    requests = error.asked if isinstance(error, Forbidden) else []
    denied = [f"{request.verb} {request.resource}" for request in requests if request.group in GROUPS_OF_RIGHTS]
    return f"this user may not {', '.join(denied)}" if denied else ""


def _how_to_grant(options: RunInClusterOptions) -> str:
    """Text with the commands by which an administrator applies the controller's rights, which this user may not."""
    commands = ["kubectl apply -f .gpuval/role.yml (`make prepare` writes it)"]
    if options.marks:
        commands.append(
            f"kubectl create clusterrolebinding gpuval-marks-{options.namespace} --clusterrole=gpuval-marks "
            f"--serviceaccount={options.namespace}:{controller.ACCOUNT}"
        )
    if options.priority_class:
        commands.append(
            f"kubectl create priorityclass {options.priority_class} --value={controller.PRIORITY} "
            "--preemption-policy=Never"
        )
    return (
        f"an administrator of the cluster applies the controller's rights: {'; '.join(commands)}. Then set "
        "kubernetes_controller_rights: false"
    )


def _start(action: RunAction, cluster: Cluster, options: RunInClusterOptions) -> dict[str, Any]:
    """Apply the controller's objects, unless the run or the inventory has a controller. Returns the step's result."""
    run_id = _chosen_id(options)
    if not options.schedule and (job := _present_job(action, cluster, options, run_id)):
        name = job["metadata"]["name"]
        return _result(action, name, [], [f"run {name}: its controller {_state(job)}: nothing to do"])
    order = _order(action, options, run_id)
    choice = controller.hosts(cluster.list("Node")[0], {*action.task_vars["ansible_play_hosts_all"]}, order.pod)
    order = replace(order, avoided=choice.avoided)
    shared = "prefers others than" if order.pod.share_nodes else "keeps off"
    lines = [f"the controller {shared} the {len(choice.avoided)} nodes under test: {some_of(choice.free, 3)}"]
    changed, before, after = [], "", ""
    missing = missing_namespace(cluster)
    if missing and not options.make_namespace:
        raise missing
    if missing:
        cluster.create(manifests.namespace(options.namespace), dry_run=action.check_mode)
        lines.append(f"  Namespace {options.namespace}: {'would be ' if action.check_mode else ''}created")
    for manifest in _manifests(options, order):
        label = f"{manifest['kind']} {manifest['metadata']['name']}"
        is_trial = action.check_mode  # a trial creates no namespace to look into
        outcome, earlier = ("created", "") if missing and is_trial else _apply(cluster, manifest, trial=is_trial)
        lines.append(f"  {label}: {'would be ' if outcome and action.check_mode else ''}{outcome or 'unchanged'}")
        if outcome:
            changed.append(label)
            before, after = before + earlier, after + to_yaml([_shown(manifest)])
    diff = {"before": before, "after": after, "before_header": "cluster", "after_header": "cluster"}
    return {**_result(action, order.name, changed, lines, is_run=not options.schedule), "diff": diff}


def _result(
    action: RunAction, name: str, changed: Sequence[str], lines: Sequence[str], *, is_run: bool = True
) -> dict[str, Any]:
    """Print lines, and how to follow the run `name` from here. Returns the step's result. `changed`: objects."""
    action.display.display(*lines)
    if is_run and not action.check_mode:
        commands = ", ".join(f"`make {target} RUN={name}`" for target in ("status", "report", "clean"))
        action.display.display(f"run {name} works in the cluster: {commands} work here, by the store")
    return {"changed": bool(changed), "run_id": name, "objects": list(changed), "msg": f"controller {name}"}


def _write(action: RunAction, options: RunInClusterOptions) -> dict[str, Any]:
    """Write the manifests into a file, which has secrets."""
    _check_store(options.store)
    path = project_path(options.path)
    order = _order(action, options, _chosen_id(options))
    text = to_yaml(_manifests(options, order)).encode()
    is_same = path.exists() and path.read_bytes() == text
    if not (is_same or action.check_mode):
        files.replace(path, text, files.PRIVATE)
    return {"changed": not is_same, "run_id": order.name, "msg": f"the controller's manifests are in {path}"}


def _remove(action: RunAction, options: RunInClusterOptions) -> dict[str, Any]:
    """Remove all controllers of the namespace with their files and pods. Their rights and PriorityClass stay."""
    removed, lines = [], []
    verb = "would be removed" if action.check_mode else "removed"
    with Cluster(options) as cluster:
        kinds = ("CronJob", "Job", "ConfigMap", "Secret")
        # Every kind is listed before the first is deleted: the cluster removes a CronJob's Jobs with it.
        objects_by_kind = {kind: cluster.list(kind, controller.SELECTOR)[0] for kind in kinds}
        for kind, objects in objects_by_kind.items():
            if objects and not action.check_mode:
                cluster.delete_all(kind, controller.SELECTOR)
    for kind, objects in objects_by_kind.items():
        for item in objects:
            name = item["metadata"]["name"]
            is_at_work = kind == "Job" and _state(item) == AT_WORK
            again = f" at work: `make clean RUN={name}` removes what its run has made on the cluster"
            removed.append(f"{kind} {name}")
            lines.append(f"  {kind} {name}: {verb}{again if is_at_work else ''}")
    action.display.display(*lines)
    return {"changed": bool(removed), "objects": removed, "msg": f"{len(removed)} object(s) of controllers"}


def _check_store(store: Mapping[str, Any]) -> None:
    """Raise RunError for a store that the controller's pod does not reach."""
    host = urlsplit(store["endpoint"]).hostname or ""
    is_local = host in ("", "localhost")
    with suppress(ValueError):  # a host name, no IP address
        is_local = ipaddress.ip_address(host).is_loopback
    if is_local:
        endpoint = store["endpoint"] or "the embedded store"
        raise run_folder.RunError(
            f"the controller in the cluster keeps its results in the store, and its pod does not reach {endpoint}: set "
            "gpuval_s3_endpoint to an S3 service that pods and you reach"
        )


def _present_job(action: RunAction, cluster: Cluster, options: RunInClusterOptions, run_id: str) -> Manifest | None:
    """The Job of the run's controller; without a run id one of this inventory that is at work."""
    if run_id:
        return next(iter(cluster.list("Job", fields=f"metadata.name={run_id}")[0]), None)
    inventory = origin.folder_name(action.inventory)
    selector = f"{controller.SELECTOR},{names.PARENT_LABEL}"
    for job in cluster.list("Job", selector)[0] if options.run_id != run_folder.NEW else ():
        is_of_inventory = job["metadata"]["annotations"].get(controller.INVENTORY_ANNOTATION) == inventory
        if is_of_inventory and _state(job) == AT_WORK:
            return job
    return None


def _state(job: Manifest) -> str:
    ended = {item["type"] for item in (job.get("status") or {}).get("conditions") or () if item["status"] == "True"}
    return next((words for kind, words in ENDS.items() if kind in ended), AT_WORK)


def _chosen_id(options: RunInClusterOptions) -> str:
    """The id that the command chose for the run; empty for none."""
    return options.run_id if options.run_id not in ("", run_folder.LATEST, run_folder.NEW) else ""


def _order(action: RunAction, options: RunInClusterOptions, run_id: str) -> ControllerOrder:
    """The controller to apply to the cluster, with files, settings and arguments. Raises PodSettingsError."""
    inventory = origin.folder_name(action.inventory)
    # The Jobs of a CronJob, whose names are up to eleven characters longer, name its runs.
    name = f"recurring-{names.host_name(inventory)}" if options.schedule else run_id or opening.new_run_id()
    hosts = action.task_vars["ansible_play_hosts_all"]
    pod = step_options.group_of(ControllerPodOptions, options.controller)
    public, secret, hidden, named = _settings(action, options, pod)
    collected = ControllerFiles(hidden, file_loader(action).get_text_file_contents)
    sources = collected.add_inventory(action.task_vars["ansible_inventory_sources"])
    arguments = [word for source in sources for word in ("-i", source)]
    for file, values in (("settings.json", public | collected.add_settings(named)), ("secrets.json", secret)):
        if values:
            collected.add(file, compact_json(values).encode(), is_secret=values is secret)
            arguments += ["-e", f"@{controller.PROJECT}/{file}"]
    described = (action.task_vars["hostvars"][node].get(VARIABLE) or {} for node in hosts)
    avoided = sorted(node.get("hostname") or name for name, node in zip(hosts, described, strict=True))
    order = ControllerOrder(
        name=name,
        namespace=options.namespace,
        pod=pod,
        files={kind: files for kind, files in collected.by_kind.items() if files},
        arguments=[*arguments, *_choices(action.task_vars)],
        avoided=avoided,
        inventory=inventory,
        seconds=options.seconds,
        schedule=options.schedule,
    )
    for remark in controller.check_order(order):
        action.display.warning(remark)
    return order


def _settings(
    action: RunAction, options: RunInClusterOptions, pod: ControllerPodOptions
) -> tuple[dict[str, Any], dict[str, Any], set[str], dict[str, Any]]:
    """Return what the controller's pod needs beside the inventory's files: settings for the ConfigMap, settings for the
    Secret, secret texts that the ConfigMap must not have, and settings whose values name files. Values that come from
    this controller's environment are resolved here."""
    values = values_of(action, action.task_vars["ansible_play_hosts_all"][0], action.task_vars)
    specs, templar = settings.declared(), templar_of(action, values)
    protected = {name for name, option in specs.options.items() if option.get("no_log")}
    by_env = {name: match[1] for name, default in specs.defaults.items() if (match := ENV_KEY.search(str(default)))}
    extra = {name: value for name, value in load_extra_vars(file_loader(action)).items() if name not in OWN | protected}
    resolved = {
        name: templar.template(values[name])
        for name in specs.options
        if name in values and (name in protected or _is_of_this_place(values[name], specs.defaults.get(name)))
    }
    resolved |= {"gpuval_secrets": _job_secrets(options)}
    if not (options.store["access_key"] or pod.secret):
        resolved |= _own_keys()
    resolved = {name: value for name, value in resolved.items() if value} | extra | {**options.settings}
    hidden = {text for name in (protected & resolved.keys()) - DERIVED for text in _texts(resolved[name])}
    secret = {name: resolved.pop(name) for name in protected & resolved.keys()}
    secret = {name: secret[name] for name in secret if name.startswith(settings.PREFIX) and name not in DERIVED}
    if pod.secret:  # variables of the Secret replace those of this controller
        variables = {name: by_env[name] for name in protected & by_env.keys()}
        resolved |= {name: f"{{{{ lookup('ansible.builtin.env', '{key}') }}}}" for name, key in variables.items()}
        secret = {name: value for name, value in secret.items() if name not in by_env}
    public = resolved | FIXED
    named = {name: templar.template(values[name]) for name in FILE_SETTINGS if name in values}
    return public, secret, hidden, named


def _own_keys() -> dict[str, str]:
    """Settings with the S3 keys in this controller's environment or AWS profile; empty if those have none."""
    credentials = session().get_credentials()
    keys = credentials.get_frozen_credentials() if credentials else ("", "", "")
    named = zip(("access_key", "secret_key", "session_token"), keys, strict=False)
    return {f"gpuval_s3_{name}": value for name, value in named if value}


def _is_of_this_place(value: Any, default: Any) -> bool:
    """Whether an untemplated setting reads this controller's environment or files, which the controller's pod lacks."""
    return isinstance(value, str) and ("gpuval_env." if value == default else "lookup(") in value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _choices(task_vars: Mapping[str, Any]) -> list[str]:
    """The nodes and stages that the command chose, as arguments."""
    limit = str(task_vars.get("ansible_limit") or "")
    if limit.startswith("@"):  # --limit @FILE
        limit = ",".join(task_vars["ansible_play_hosts_all"])
    chosen = [("--limit", limit)]
    for option, variable in (("--tags", "ansible_run_tags"), ("--skip-tags", "ansible_skip_tags")):
        chosen.append((option, ",".join(tag for tag in task_vars.get(variable) or () if tag != "all")))
    return [word for option, value in chosen if value for word in (option, value)]


def _manifests(options: RunInClusterOptions, order: ControllerOrder) -> list[Manifest]:
    """What is applied: rights and PriorityClass where they are asked for, then the controller's files and its Job."""
    made = controller.rights(options.namespace, marks=options.marks, volumes=options.volumes) if options.rights else []
    made += [controller.priority_class(options.priority_class)] if made and options.priority_class else []
    return [*made, *controller.objects(order)]


def _apply(cluster: Cluster, manifest: Manifest, *, trial: bool) -> tuple[str, str]:
    """Create an object, or change it where it differs. Returns what was done, empty for nothing, and as YAML the object
    before. In a trial the API server checks the object and keeps nothing."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    listed, _version = cluster.list(kind, fields=f"metadata.name={name}", untrimmed=True)
    if not listed:
        cluster.create(manifest, dry_run=trial)
        return "created", ""
    before, after = listed[0], cluster.patch(kind, name, manifest, dry_run=trial)
    if trial and KINDS[kind].metadata_only:
        return "changed where its content differs", ""
    is_same = after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    is_same &= not trial or all(after.get(key) == before.get(key) for key in COMPARED)
    return ("" if is_same else "changed"), to_yaml([_shown({"kind": kind, **before})])


def _shown(manifest: Manifest) -> Manifest:
    """An object for people: without a Secret's content and what the server adds."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key in SHOWN_METADATA}
    hidden = {"data": dict.fromkeys(manifest.get("data") or (), "(hidden)")} if manifest["kind"] == "Secret" else {}
    return {**{key: value for key, value in manifest.items() if key != "status"}, "metadata": metadata, **hidden}


def _job_secrets(options: RunInClusterOptions) -> dict[str, str]:
    """{variable: secret of jobs}: all of gpuval_secrets and its file; from the environment those that jobs name."""
    path, given = options.store["secrets_file"], job_secrets.flat(options.store["secrets"])
    in_file = job_secrets.flat(job_secrets.read(project_path(path))) if path else {}
    required = job_secrets.values(job_stages.secret_names(map(project_path, options.jobs)), options.store)
    return {name: value for name, value in {**in_file, **given, **required}.items() if value}
