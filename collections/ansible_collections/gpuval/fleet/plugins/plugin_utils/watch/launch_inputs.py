"""Makes what the launches of a run need: archives of programs, access to the store, results of the probe, plans."""

import base64
import getpass
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.result import NEEDED_VARIABLE

from ...module_utils.store import Connection, Store
from ..artifacts import payload
from ..core import extensions, schemas
from ..core.step_options import StoreOptions
from ..jobs import stages as job_stages
from ..records.evidence import object_key
from ..runs import datasets, job_secrets, plans
from ..runs import folder as run_folder
from ..runs.folder import RunFolder
from ..ssh import findings, prober
from ..ssh.known_hosts import HostKeyError
from ..store.access import open_store, signed_urls
from ..store.backend import StoreBackend
from ..store.rclone import rclone_config

#: The file with the probe's result, which has the reasons why nodes are not launched.
PROBE_FILE = "probe.json"
#: Signed URLs stay valid this long after the run's deadline: records of cancelled stages are evidence too.
SIGNED_SLACK_SECONDS = 3600
#: Maximum number of signed URLs by which the first node of a gang reads the others' records: a Secret holds 1 MiB.
MAX_MEMBER_URLS = 256
#: The program that loads models and datasets.
LOADING = "gpuval_workloads.loading"
#: The requirement of a stage that runs in the Python of workloads: that it can import sys, so that this Python exists.
PYTHON = {"import": "sys"}
#: Message for nodes that cannot load a model because the store is unreachable for them.
NO_MODEL = (
    "the embedded store listens on the controller's loopback only, so {nodes} cannot load the model or a dataset: "
    "set gpuval_store_address to the address by which the nodes reach this controller, or gpuval_s3_endpoint to an S3 "
    'service that both reach, or leave the stages out: ARGS="--skip-tags loading,inference"'
)


def controller_name() -> str:
    """USER@HOST of this controller, by which operators recognise its runs on nodes."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user id has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


@extensions.cached
def archives(*, bytecode: bool = True) -> dict[str, bytes]:
    """The archives of the two programs for nodes: {"runner": bytes, "workloads": bytes}. For pods without bytecode,
    which is most of the runner's size: a ConfigMap holds 1 MiB."""
    programs = extensions.files("stages", payload.PROGRAM)
    return {"runner": payload.runner_pyz(bytecode), "workloads": payload.workloads_zip(programs)}


def encoded_archives() -> dict[str, str]:
    """The archives of runner and workloads in base64, by name, as a module takes them."""
    return {name: base64.b64encode(data).decode() for name, data in archives().items()}


@cache
def client(connection: Connection) -> Store:
    """Make a store client for forked workers, which has sent no request: processes must not share one connection."""
    return Store(connection)


@dataclass(frozen=True)
class NodeStore:
    """The store of a run as its nodes use it. `reachable`: whether nodes reach it; one on the controller's loopback is
    out of reach for other hosts. `options`: option `store` of an action."""

    access: StoreBackend
    client: Store
    run: Mapping[str, Any]
    reachable: bool
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, options: Mapping[str, Any], run: Mapping[str, Any], transport: str) -> "NodeStore":
        """Open the store by the option `store` of an action; `transport`: name of the scheduler. Raises StoreError."""
        access = open_store(options)
        return cls(access, client(access.connection()), run, access.reachable_from_nodes(transport), options)

    def given(self, node: str, stages: Sequence[str], seconds: float) -> dict[str, Any]:
        """What a node gets to use the store: signed URLs for its `stages`, the read key for models if it loads one, and
        the CA certificate. `seconds`: time left of the run. Raises StoreError, or PlanError if it cannot load it."""
        loads = plans.loads(stages)
        if loads and not self.reachable:
            raise plans.PlanError(NO_MODEL.format(nodes="this node"))
        writable = list(stages) if self.reachable else []
        store = signed_urls(self.client, self.run["folder"], node, writable, seconds + SIGNED_SLACK_SECONDS)
        # The first node of a gang reads the records of the others while it waits for them.
        gang = plans.gang_of(self.run, node)
        members = [member["node"] for member in gang["members"][1:]] if gang and gang["index"] == 0 else []
        if self.reachable and 0 < len(members) * len(stages) <= MAX_MEMBER_URLS:
            store["members"] = {
                f"{stage}/{member}": self.client.sign_get(
                    object_key(self.run["folder"], "records", stage, member), int(seconds)
                )
                for stage in stages
                for member in members
            }
        return {
            "store": store,
            "rclone_config": rclone_config(self.access.reader()) if loads else "",
            "ca": self.access.ca(),
        }

    def secrets(self, plan: Mapping[str, Any]) -> dict[str, dict[str, str]]:
        """{stage: {variable: value}} of the secrets that a plan names. Raises PlanError for a secret without one."""
        found = {stage["name"]: job_secrets.values(stage.get("secrets", ()), self.options) for stage in plan["stages"]}
        return {name: values for name, values in found.items() if values}

    def sizes(self, folders: Sequence[str]) -> dict[str, int]:
        """{folder: bytes} of these models and datasets below models/ in the store. Raises StoreError."""
        return {name: sum(entry.size for entry in self.client.list(f"models/{name}/")) for name in folders}


def warm(connection: Connection) -> None:
    """Fill the caches of archives, store client and schemas before workers are forked, which would each repeat it."""
    archives()
    client(connection).sign_put("warm", 60)  # sends nothing; the first signature takes as long as ten others
    warm_schemas()


def warm_schemas() -> None:
    """Compile the schemas of plans and launch answers: the first use takes longer than to validate any document."""
    for name in ("plan", "launch_answer"):
        schemas.validator(name)


def unreachable(probed: Mapping[str, Any], node: str) -> dict[str, Any] | None:
    """The failed launch (state, class, message, remedy) of a node that a probe (gpuval.probe/1) found unreachable; None
    if the node answered or was not probed."""
    finding = probed.get("nodes", {}).get(node)
    if not finding or finding.get("state") == findings.REACHABLE:
        return None
    launch = {"state": "unreachable", "class": str(finding["state"]), "message": str(finding.get("message") or "")}
    return {**launch, "remedy": str(finding["remedy"])} if finding.get("remedy") else launch


def host_key(folder: RunFolder, node: str) -> str:
    """Fingerprint of the SSH host key that the run's probe saw on the node; empty without one."""
    probed = run_folder.read_json_or({}, folder.state / PROBE_FILE)
    return str(probed.get("nodes", {}).get(node, {}).get("fingerprint", ""))


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """Options of actions that probe a node again if the run's probe found it unreachable."""

    store: StoreOptions
    #: Time limit of each step of a probe.
    probe_timeout_seconds: float = 4.0
    #: Whether to pin the host key of a node that has no pinned key yet.
    accept_new_host_keys: bool = True


def still_unreachable(
    folder: RunFolder, node: str, options: ProbeOptions, task_vars: Mapping[str, Any], connection: str
) -> dict[str, Any] | None:
    """Probe a node again that the run's probe did not reach, since Ansible's own connection accepts no new host key.
    Returns the failed launch (state, class, message, remedy); None if the node answers. `connection`: the play's."""
    if unreachable(run_folder.read_json_or({}, folder.state / PROBE_FILE), node) is None:
        return None
    try:
        finding = prober.probe_again(
            prober.from_variables(node, task_vars["hostvars"][node], connection),
            options.store["state_dir"],
            task_vars.get("ansible_inventory_sources") or [],
            timeout=options.probe_timeout_seconds,
            accept_new=options.accept_new_host_keys,
        )
    except HostKeyError as error:
        return {"state": "failed", "message": str(error)}
    return unreachable({"nodes": {node: finding.document()}}, node)


def requirements(expected: Mapping[str, Any], workloads: Mapping[str, Any], runtime: str) -> list[dict[str, Any]]:
    """Tests of what a node's stages need on the host: one for each combination of environment variables and Python.
    `expected`: the node's entry in run.json; `workloads`: {stage: declaration}."""
    trials: dict[str, dict[str, Any]] = {}
    for stage in [*expected["stages"], *expected.get("gang_stages", ())]:
        declaration = workloads.get(stage, {})
        is_python = "{python}" in map(str, declaration.get("command", ()))
        environment = {str(name): str(value) for name, value in (declaration.get("environment") or {}).items()}
        environment.pop(job_stages.VARIABLE, None)
        conditions = {"in_python": is_python, "environment": environment}
        # the test imports modules in the Python of workloads only, so other stages keep only needs with "start"
        needs = [need for need in declaration.get("requires") or () if is_python or "start" in need]
        if any("_dir}" in value for value in environment.values()):  # the run's folders do not exist before the launch
            needs = []
        for need in [] if declaration.get("image") and runtime != "host" else [PYTHON] * is_python + needs:
            trial = trials.setdefault(json.dumps(conditions, sort_keys=True), {**conditions, "needs": {}})
            trial["needs"].setdefault(json.dumps(need, sort_keys=True), {**need, "stages": []})["stages"].append(stage)
    return [{**trial, "needs": list(trial["needs"].values())} for trial in trials.values()]


def with_needed_packages(
    expected: Mapping[str, Any], workloads: Mapping[str, Any], *, in_pods: bool = False
) -> dict[str, Any]:
    """The declarations in `workloads` ({stage: declaration}) for a node's plan. The node's first stage in the image of
    a multi-node stage also checks that the image has the latter's packages. `in_pods`: all stages have an image."""
    packages_by_stage: dict[str, set[str]] = {}
    for gang_stage in expected.get("gang_stages", ()):
        declaration = workloads.get(gang_stage, {})
        modules = {str(need.get("import", "")) for need in declaration.get("requires") or ()}
        packages = {module for module in modules if module.isidentifier()}
        stages = (stage for stage in expected["stages"] if _sees_packages(workloads.get(stage, {}), declaration))
        first = next(stages, None)
        if packages and first and (declaration.get("image") or in_pods):
            packages_by_stage.setdefault(first, set()).update(packages)
    declarations = dict(workloads)
    for stage, packages in packages_by_stage.items():
        environment = {**(workloads[stage].get("environment") or {}), NEEDED_VARIABLE: " ".join(sorted(packages))}
        declarations[stage] = {**workloads[stage], "environment": environment}
    return declarations


def _sees_packages(own: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether stage ``own`` finds the packages of stage ``other``: it runs gpuval's programs in the same image."""
    words = [str(word) for word in own.get("command", ())]
    if plans.JOB in words or not any(word.startswith("gpuval_workloads.") for word in words):
        return False
    paths = [(one.get("environment") or {}).get("PYTHONPATH") for one in (own, other)]
    alike = all((own.get(key) or None) == (other.get(key) or None) for key in ("image", "container"))
    return alike and paths[0] == paths[1]


def folders(plan: Mapping[str, Any]) -> list[str]:
    """Folders below models/ in the store of the models and datasets that a plan loads."""
    found = []
    for stage in plan["stages"]:
        command = [str(word) for word in stage["command"]]
        if LOADING in command:
            following = dict(zip(command, command[1:]))
            dataset = following.get("--dataset")
            found.append(f"{datasets.FOLDER}{dataset}" if dataset else following.get("--model-folder", ""))
    return [name for name in found if name]


def shown(plan: Mapping[str, Any]) -> str:
    """A plan as text: a line for each stage, with its command and time limit."""
    return "".join(
        f"{stage['name']}: {' '.join(stage['command'])} (at most {stage['timeout_seconds']} s)\n"
        for stage in plan["stages"]
    )
