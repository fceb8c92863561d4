"""Probe the nodes of the play, all at once, before anything else touches them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ansible.errors import AnsibleActionFail, AnsibleError

from ..cluster import probing
from ..cluster.api import Cluster, ClusterAccess
from ..core.host_values import templar_of, values_of
from ..core.text import some_of
from ..runs import folder as run_folder
from ..runs import state as run_state
from ..runs.action import RunAction, RunOptions
from ..runs.plans import PlanError
from ..slurm import nodes as slurm_nodes
from ..slurm.commands import Slurm
from ..ssh import findings as ssh_findings
from ..ssh import prober as ssh_prober
from ..ssh import target as probe_target
from ..ssh.known_hosts import Pins
from ..ssh.openssh import kex_options
from ..ssh.trust import kex_file, pin_file
from ..watch.launching import PROBE_FILE
from ..watch.orders import values_for


@dataclass(frozen=True, kw_only=True)
class ProbeNodesOptions(RunOptions):
    placement: Literal["ssh", "kubernetes", "slurm"] = "ssh"
    state_dir: Path = Path(".gpuval")
    timeout_seconds: float = 4.0
    accept_new_host_keys: bool = True
    fast_kex: bool = True
    record: bool = False
    required: bool = False


def probe_nodes(action: RunAction, options: ProbeNodesOptions) -> dict[str, Any]:
    folder = action.folder(options) if options.record else None
    if folder and not action.check_mode:
        folder.advance(run_state.PREPARING)
    if options.placement == "kubernetes":
        findings, seconds, lines, result = _probe_cluster(action)
        failure = "cannot run work"
    elif options.placement == "slurm":
        findings, seconds, lines, result = _probe_slurm(action)
        failure = "cannot run work"
    else:
        findings, seconds, lines, result = _probe_ssh(action, options)
        failure = "not reachable"
    nodes = {name: finding.document() for name, finding in findings.items()}
    seconds = round(seconds, 3)
    if folder and not action.check_mode:
        document = {"schema": "gpuval.probe/1", "at": run_folder.now(), "seconds": seconds, "nodes": nodes}
        run_folder.write_json(folder.state / PROBE_FILE, document)
    action.display.display(*lines)
    away = [name for name, finding in findings.items() if finding.state != ssh_findings.REACHABLE]
    if away and options.required:
        shown = some_of(away, ssh_findings.SHOWN)
        raise AnsibleActionFail(f"{len(away)} of {len(nodes)} node(s) {failure}: {shown}")
    return {"nodes": nodes, "away": away, "seconds": seconds, "msg": lines[0], **result}


def _probe_ssh(action, options):
    if options.timeout_seconds <= 0:
        raise AnsibleActionFail("gpuval_probe_timeout_seconds must be greater than 0")
    began = time.monotonic()
    pins = Pins(pin_file(options.state_dir, action.task_vars.get("ansible_inventory_sources") or []))
    names, hostvars = action.task_vars["ansible_play_hosts_all"], action.task_vars["hostvars"]
    targets = [probe_target.from_variables(name, hostvars[name], action.connection) for name in names]
    prober = ssh_prober.Prober(pins, options.timeout_seconds, options.accept_new_host_keys)
    findings = prober.probe_all(targets)
    changed = False
    if not action.check_mode and any(target.ssh for target in targets):
        changed = probe_target.pin(pins, findings)
        _keep_kex(action, pins, prober, options.fast_kex)
    seconds = time.monotonic() - began
    lines = ssh_findings.summary(findings, seconds, pins.path)
    return findings, seconds, lines, {"changed": changed, "known_hosts": str(pins.path)}


def _keep_kex(action, pins, prober, wanted):
    """The key exchange that makes Ansible's own connections cheap is chosen once, here, not per connection."""
    words = kex_options(prober.settings) if wanted else []
    path = kex_file(pins.path)
    text = " ".join(words) + "\n"
    if not path.exists() or path.read_text() != text:
        run_folder.write_bytes(path, text.encode())


def _probe_cluster(action):
    targets = [_target(action, name) for name in action.task_vars["ansible_play_hosts_all"]]
    targets = [target for target in targets if target is not None]
    began = time.monotonic()
    findings = _judge_nodes(targets)
    seconds = time.monotonic() - began
    result = {"changed": False, "short": probing.short(findings)}
    return findings, seconds, probing.summary(findings, seconds), result


def _probe_slurm(action):
    began = time.monotonic()
    known = {one["name"]: one for one in Slurm().nodes()}
    findings = {}
    for name in action.task_vars["ansible_play_hosts_all"]:
        try:
            (reservation,) = values_for(action, name, action.task_vars, ("gpuval_slurm_reservation",)).values()
        except PlanError as error:
            raise AnsibleActionFail(str(error)) from None
        findings[name] = slurm_nodes.finding(name, known.get(name), reservation=reservation)
    seconds = time.monotonic() - began
    return findings, seconds, probing.summary(findings, seconds), {"changed": False}


def _target(action, name):
    values = values_of(action, name, action.task_vars)
    templar = templar_of(action, values)
    try:
        chosen = {key: templar.template(values[key]) for key in probing.VARIABLES if key in values}
    except AnsibleError as error:
        raise AnsibleActionFail(f"{name}: {error.message}") from None
    return probing.target(name, chosen)


def _judge_nodes(targets):
    """Findings by node, from one LIST of nodes per cluster."""
    findings = {}
    for kubeconfig, context in dict.fromkeys(target.cluster for target in targets):
        with Cluster(ClusterAccess(kubeconfig, context)) as cluster:
            nodes, _version = cluster.list("Node")
        own = [target for target in targets if target.cluster == (kubeconfig, context)]
        findings.update(probing.judge(own, nodes))
    return {target.node: findings[target.node] for target in targets}
