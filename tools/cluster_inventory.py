"""The inventory of a cluster that answers for its nodes: `make inventory` with KUBECONFIG= or SLURM=1."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import nodes as cluster_nodes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import pod_settings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import Cluster, ClusterAccess, Forbidden
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.kinds import KINDS
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_settings import RESOURCES, PodSettings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.stages import profiles
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.text import natural_order, some_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm import nodes as slurm_nodes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.findings import REACHABLE
from kubernetes.config import ConfigException, list_kube_config_contexts

ROOT = Path(__file__).resolve().parents[1]
#: An operator waits for both: the first answer of a cluster, and all of its nodes.
ANSWER_SECONDS, LISTING_SECONDS = 20.0, 180
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
#: Labels of nodes with GPUs, as feature discovery and managed services set them; without a value any counts.
GPU_LABELS = (
    ("nvidia.com/gpu.present", "true"),
    ("feature.node.kubernetes.io/amd-gpu", "true"),
    ("doks.digitalocean.com/gpu-brand", "nvidia"),
    ("doks.digitalocean.com/gpu-brand", "amd"),
    ("cloud.google.com/gke-accelerator", ""),
)
#: Stages that need a store of models or, on a cluster, do not run.
STORE_STAGES = ("image", "loading", "inference")
#: Groups of nodes that are alike, the most specific first.
KINDS_OF_GROUPS = ("sku_", "gres_", "type_", "gpu_")
LIST_COMMENT = "# The nodes that the cluster had: the report has each of them, whatever the cluster lists later.\n"
STORE = """
# The store, which nodes must reach: docs/install.md#the-store. Keys of an S3 service belong into .env in this folder.
{chosen}"""
NO_STORE = """\
# There is none: records are read from the pods' output, and no model can be loaded. So loading and inference are not
# tested, and the report says so. To test them, remove gpuval_profiles, and choose an S3 service or gpuval's own store:
# gpuval_s3_endpoint: https://s3.example.org
# gpuval_store_address: {address} # an address of this machine that pods reach
# gpuval_store_port: 9000 # and 9001
gpuval_profiles:
{profiles}"""
EMBEDDED_STORE = """\
# gpuval's own store on this machine, at an address that nodes reach. Or an S3 service: gpuval_s3_endpoint.
gpuval_store_address: {address}
{port}gpuval_store_port: 9000 # and 9001
"""
KUBERNETES = """\
---
# docs/kubernetes.md describes the settings, docs/reference/variables.md lists all of them.
gpuval_profile: standard
ansible_python_interpreter: "{{{{ ansible_playbook_python }}}}" # Ansible itself runs only on the controller

# Of Jobs, Secrets and ConfigMaps. `make prepare` and `make validate` create it where they may.
gpuval_namespace: gpuval
{declared}
# What a pod requests in addition to all GPUs of its node: docs/kubernetes.md#what-a-pod-requests
gpuval_pods:
  tolerations: {tolerations}
  # Login of the registry: kubectl -n gpuval create secret docker-registry gpuval-registry --docker-server=HOST ...
  # image_pull_secrets: [gpuval-registry]
  # model_cache: {{host_path: /mnt/models}}
"""
IMAGES = """
# Images that the kubelets pull: `make build REGISTRY=HOST/PATH INVENTORY={folder}` writes them below, by digest.
"""
SLURM = """\
---
# docs/slurm.md describes the settings, docs/reference/variables.md lists all of them.
gpuval_profile: standard
{declared}
# As for sbatch
gpuval_slurm_partition: {partition}
# gpuval_slurm_account: acceptance
# gpuval_slurm_qos: high

# Python with the packages of the workloads, on every node: docs/install.md#what-the-nodes-need
# gpuval_workload_python: /shared/gpuval/venv/bin/python
"""
COUNT = """\
---
# {offered} offer this number of GPUs, and every node of this kind must have it: correct it to what was ordered.
gpuval_gpu_count: {count}
"""


@dataclass(frozen=True)
class ClusterNode:
    """A node as the inventory plugin has it. `kind`: its group of alike nodes; `has_gpus` is also true where labels
    promise GPUs that it does not offer."""

    name: str
    description: Mapping[str, Any]
    kind: str
    gpus: int
    has_gpus: bool
    problem: str = ""


@dataclass(frozen=True)
class ClusterInventory:
    """The files of an inventory by name, and lines for the operator."""

    files: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    commands: Sequence[str] = ()


def of_kubernetes(
    folder: Path, kubeconfig: str, context: str, selector: str, gpus: str, store: str
) -> ClusterInventory:
    """The inventory of a Kubernetes cluster; an empty `kubeconfig` is the client's own. Raises GpuvalError."""
    kubeconfig, context = _checked_context(kubeconfig, context)
    access = ClusterAccess(kubeconfig, context)
    with Cluster(access, deadline_seconds=ANSWER_SECONDS) as cluster:
        server = cluster.url
        with contextlib.suppress(Forbidden):  # the plugin names the Role that is missing, and writes it
            cluster.check([KINDS["Node"].asked("list")])
    options = {"plugin": "gpuval.fleet.kubernetes_nodes", "kubeconfig": kubeconfig, "context": context}
    options = {key: value for key, value in options.items() if value}
    answered = _nodes({**options, "selector": selector}, _kubernetes_node)
    lacking = f"{' or '.join(RESOURCES.values())}: install driver and device plugin"
    chosen = _choose(answered, gpus, lacking, is_narrowed=bool(selector))
    options |= {"selector": found} if (found := selector or _selector_of(chosen, answered)) else {}
    tolerations, remark = _tolerations(chosen)
    declared = _declared(gpus) + IMAGES.format(folder=folder)
    variables = KUBERNETES.format(
        declared=declared, tolerations=yaml.safe_dump(tolerations, default_flow_style=True, width=1000).strip()
    )
    address = _own_address(chosen[0].description["addresses"].get("InternalIP", ""))
    variables += STORE.format(
        chosen=_store(store) or NO_STORE.format(address=address or "192.0.2.1", profiles=_profiles())
    )
    lines = [
        f"{server}{f', context {context}' if context else ''}: {len(answered)} node(s), {len(chosen)} chosen",
        *remark,
    ]
    if not store:
        lines.append("no store: loading and inference are not tested; group_vars/all.yml says how to choose one")
    inventory = _inventory(options, chosen, variables, gpus, lines)
    return ClusterInventory(inventory.files, inventory.lines, ("build REGISTRY=HOST/PATH", "validate", "clean"))


def of_slurm(partitions: str, gpus: str, store: str) -> ClusterInventory:
    """The inventory of the Slurm cluster of this login node; `partitions` with commas between. Raises GpuvalError."""
    options: dict[str, Any] = {"plugin": "gpuval.fleet.slurm_nodes"}
    names = [name for name in re.split(r"[,\s]+", partitions) if name]
    answered = _nodes({**options, "partitions": names}, _slurm_node)
    lacking = "a gres gpu: declare it in slurm.conf"
    chosen = _choose(answered, gpus, lacking, is_narrowed=bool(names and gpus == "0"))
    names = names or _partitions_of(chosen, answered)
    options["partitions"] = names
    address = _own_address(chosen[0].description["address"]) or socket.gethostname()
    variables = SLURM.format(declared=_declared(gpus), partition=",".join(names))
    embedded = EMBEDDED_STORE.format(address=address, port="# ")
    variables += STORE.format(chosen=_store(store) or embedded)
    lines = [f"Slurm: {len(answered)} node(s), {len(chosen)} chosen, partition {', '.join(names)}"]
    if not store:
        lines.append(f"store: gpuval's own at {address}, an address of this machine; nodes must reach it")
    inventory = _inventory(options, chosen, variables, gpus, lines)
    return ClusterInventory(inventory.files, inventory.lines, ("validate", "clean"))


def _inventory(
    options: Mapping[str, Any], chosen: Sequence[ClusterNode], variables: str, gpus: str, lines: list[str]
) -> ClusterInventory:
    source = yaml.safe_dump(dict(options), sort_keys=False, width=1000)
    files = {
        "hosts.yml": f"---\n{source}{LIST_COMMENT}expected: nodes.csv\n",
        "nodes.csv": "name\n" + "".join(f"{node.name}\n" for node in chosen),
        "group_vars/all.yml": variables,
    }
    kinds = {} if gpus else _counts(chosen)
    for kind, (count, offers) in kinds.items():
        total, offering = offers.total(), offers[count]
        offered = f"{offering} of {total} node(s)"
        files[f"group_vars/{kind}.yml"] = COUNT.format(offered=offered, count=count)
        others = "" if offering == total else f", {total - offering} offer another number"
        correct = f"correct it in group_vars/{kind}.yml to what was ordered"
        lines.append(f"{kind}: {count} GPUs expected, as {offered} offer{others}: {correct}")
    unusable = [f"{node.name} ({node.problem})" for node in chosen if node.problem]
    if unusable:
        lines.append(f"not usable now: {some_of(unusable, 5)}")
    return ClusterInventory(files, lines)


def _nodes(
    options: Mapping[str, Any], describe: Callable[[str, Mapping[str, Any], list[str]], ClusterNode]
) -> list[ClusterNode]:
    """The nodes that the collection's inventory plugin lists, each by `describe` of name, variables and groups. Raises
    SettingError."""
    with tempfile.TemporaryDirectory(prefix="gpuval-inventory-") as folder:
        path = Path(folder) / "hosts.yml"
        path.write_text(yaml.safe_dump(dict(options)), encoding="utf-8")
        command = [str(Path(sys.executable).with_name("ansible-inventory")), "-i", str(path), "--list"]
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LISTING_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    if done.returncode != 0:
        raise SettingError(done.stderr.replace("[ERROR]: ", "").replace(f"{path}: ", "").strip())
    listed = json.loads(
        done.stdout, object_hook=lambda value: value.get("__ansible_unsafe", value)
    )  # text of the cluster
    groups: dict[str, list[str]] = {}
    for group, content in listed.items():
        for name in content.get("hosts", ()):
            groups.setdefault(name, []).append(group)
    hosts = sorted(listed["_meta"]["hostvars"].items(), key=lambda host: natural_order(host[0]))
    return [describe(name, variables, groups[name]) for name, variables in hosts]


def _kind(groups: Sequence[str]) -> str:
    return next((name for prefix in KINDS_OF_GROUPS for name in groups if name.startswith(prefix)), "")


def _kubernetes_node(name: str, variables: Mapping[str, Any], groups: list[str]) -> ClusterNode:
    description, sku = variables[cluster_nodes.VARIABLE], str(variables.get("gpuval_sku") or "auto")
    offered = cluster_nodes.gpus(description, PodSettings(), sku)
    finding = cluster_nodes.finding(name, description, sku=sku)
    has_gpus = offered.offered or bool(
        offered.capacity or offered.partitions or cluster_nodes.vendor_by_labels(description["labels"])
    )
    problem = "" if finding.state in (REACHABLE, "tainted") else finding.state
    return ClusterNode(name, description, _kind(groups), offered.capacity // offered.replicas, has_gpus, problem)


def _slurm_node(name: str, variables: Mapping[str, Any], groups: list[str]) -> ClusterNode:
    description = variables[slurm_nodes.SlurmHosts.VARIABLE]
    _model, count = slurm_nodes.gpus(description)
    finding = slurm_nodes.finding(name, description)
    problem = "" if finding.state == REACHABLE else finding.state
    return ClusterNode(name, description, _kind(groups), count, bool(count), problem)


def _choose(answered: Sequence[ClusterNode], gpus: str, lacking: str, *, is_narrowed: bool) -> Sequence[ClusterNode]:
    """The nodes to validate: those with GPUs, with GPUS=0 those without; all of them where the operator named labels or
    partitions. Raises SettingError."""
    if gpus != "0" and not any(node.has_gpus for node in answered):
        raise SettingError(
            f"none of {len(answered)} node(s) offers {lacking}, or validate them as CPU nodes with GPUS=0"
        )
    if is_narrowed:
        return answered
    if gpus != "0":
        return [node for node in answered if node.has_gpus]
    workers = [node for node in answered if CONTROL_PLANE not in node.description.get("labels", ())] or answered
    return [node for node in workers if not node.has_gpus] or workers


def _selector_of(chosen: Sequence[ClusterNode], answered: Sequence[ClusterNode]) -> str:
    """The label selector that matches exactly the chosen nodes; empty without one."""
    labels = {node.name: node.description["labels"] for node in answered}
    names = {node.name for node in chosen}
    for key, value in GPU_LABELS:
        labelled = {name for name, of_node in labels.items() if key in of_node and value in ("", of_node[key])}
        if labelled == names:
            return f"{key}={value}" if value else key
    pools = [key for key, prefix in cluster_nodes.LABEL_GROUPS.items() if prefix == "pool"]
    for key in (*pools, cluster_nodes.INSTANCE_TYPE):
        values = {labels[name].get(key, "") for name in names}
        if "" not in values and names == {name for name, of_node in labels.items() if of_node.get(key) in values}:
            return f"{key} in ({','.join(sorted(values))})"
    return ""


def _partitions_of(chosen: Sequence[ClusterNode], answered: Sequence[ClusterNode]) -> list[str]:
    """The smallest partition with all chosen nodes; without one, each that has some of them."""
    sizes = Counter(name for node in answered for name in node.description["partitions"])
    shares = Counter(name for node in chosen for name in node.description["partitions"])
    complete = [name for name, number in shares.items() if number == len(chosen)]
    return sorted(complete, key=lambda name: (sizes[name], name))[:1] or sorted(shares)


def _counts(chosen: Sequence[ClusterNode]) -> dict[str, tuple[int, Counter[int]]]:
    """By group of alike nodes the number of GPUs that most of them offer, the larger one of two, and all numbers."""
    offers: dict[str, Counter[int]] = {}
    for node in chosen:
        if node.kind and node.has_gpus:
            offers.setdefault(node.kind, Counter())[node.gpus] += 1
    usual = {kind: max(numbers, key=lambda count: (numbers[count], count)) for kind, numbers in offers.items()}
    return {kind: (count, offers[kind]) for kind, count in usual.items() if count}


def _tolerations(chosen: Sequence[ClusterNode]) -> tuple[list[dict[str, str]], list[str]]:
    """Tolerations of the taints that all chosen nodes have, and a line on them."""
    known = [toleration for name in RESOURCES.values() for toleration in pod_settings.tolerations(PodSettings(), name)]
    taints = [
        [
            taint
            for taint in cluster_nodes.untolerated(node.description["taints"], known)
            if "node.kubernetes.io/" not in taint["key"]
        ]
        for node in chosen
    ]
    shared = [taint for taint in taints[0] if all(taint in others for others in taints)]
    tolerations = [
        {
            "key": taint["key"],
            "effect": taint["effect"],
            **({"operator": "Equal", "value": taint["value"]} if taint["value"] else {"operator": "Exists"}),
        }
        for taint in shared
    ]
    names = cluster_nodes.taint_texts(shared)
    return tolerations, [f"all of them have the taint {names}, which gpuval_pods.tolerations covers"] if shared else []


def _declared(gpus: str) -> str:
    """The lines of GPUS=: the ordered number on every node, 0 for CPU nodes."""
    if not gpus:
        return ""
    return "gpuval_sku: cpu\n" if gpus == "0" else f"\n# GPUs ordered per node\ngpuval_gpu_count: {gpus}\n"


def _store(store: str) -> str:
    """The lines of STORE=, a URL of an S3 service or an address of this machine; empty without it."""
    if "://" in store:
        return f"gpuval_s3_endpoint: {store}\n# gpuval_bucket: gpuval\n"
    return EMBEDDED_STORE.format(address=store, port="") if store else ""


def _profiles() -> str:
    """The lines of gpuval_profiles without the stages that need a model or bring images."""
    stages = {
        name: [stage for stage in profile.stages if stage not in STORE_STAGES] for name, profile in profiles().items()
    }
    return "".join(f"  {name}: [{', '.join(names)}]\n" for name, names in stages.items())


def _own_address(peer: str) -> str:
    """The address of this machine on the way to another; empty if it has none but the loopback's."""
    try:
        family, _, _, _, target = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing
            address = str(probe.getsockname()[0])
    except OSError:
        return ""
    return "" if address in ("127.0.0.1", "::1") else address


def _checked_context(kubeconfig: str, context: str) -> tuple[str, str]:
    """The path of the kubeconfig, and the context in use: both empty inside a cluster. Raises SettingError."""
    if os.pathsep in kubeconfig:
        raise SettingError("KUBECONFIG names several files: merge them with kubectl config view --flatten > FILE")
    path = Path(kubeconfig or "~/.kube/config").expanduser().absolute()
    if not path.is_file():
        if not kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ:
            return "", ""
        raise SettingError(f"no kubeconfig {path}: give its path, KUBECONFIG=PATH")
    try:
        contexts, current = list_kube_config_contexts(str(path))
    except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())
        raise SettingError(f"{path} is not a valid kubeconfig ({problem}): get a new one, or name another") from None
    names = [str(entry["name"]) for entry in contexts]
    if context and context not in names:
        raise SettingError(f"{path} has no context {context}; it has {some_of(names) or 'none'}: correct CONTEXT=")
    return str(path), context or str(current["name"])
