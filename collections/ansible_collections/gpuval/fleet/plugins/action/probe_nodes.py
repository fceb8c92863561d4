# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Probe the nodes of the play, all at once, before anything else touches them."""

from __future__ import annotations

import time

from ansible.errors import AnsibleActionFail, AnsibleError

from ..plugin_utils.cluster import probing
from ..plugin_utils.cluster.api import Access, Cluster
from ..plugin_utils.core.host_values import templar_of, values_of
from ..plugin_utils.core.paths import project_path
from ..plugin_utils.core.text import some_of
from ..plugin_utils.runs import folder as run_folder
from ..plugin_utils.runs import state as run_state
from ..plugin_utils.runs.action import RunAction
from ..plugin_utils.runs.plans import PlanError
from ..plugin_utils.slurm import nodes as slurm_nodes
from ..plugin_utils.slurm.commands import Slurm
from ..plugin_utils.ssh import findings as ssh_findings
from ..plugin_utils.ssh import prober as ssh_prober
from ..plugin_utils.ssh import target as probe_target
from ..plugin_utils.ssh.known_hosts import Pins
from ..plugin_utils.ssh.openssh import kex_options
from ..plugin_utils.ssh.trust import kex_file, pin_file
from ..plugin_utils.watch.launching import PROBE_FILE
from ..plugin_utils.watch.orders import values_for


class ActionModule(RunAction):
    def work(self, options, task_vars):
        folder = self.folder(options) if options["record"] else None
        if folder and not self.check_mode:
            folder.advance(run_state.PREPARING)
        if options["placement"] == "kubernetes":
            findings, seconds, lines, result = self._probe_cluster(task_vars)
            failure = "cannot run work"
        elif options["placement"] == "slurm":
            findings, seconds, lines, result = self._probe_slurm(task_vars)
            failure = "cannot run work"
        else:
            findings, seconds, lines, result = self._probe_ssh(options, task_vars)
            failure = "not reachable"
        nodes = {name: finding.document() for name, finding in findings.items()}
        seconds = round(seconds, 3)
        if folder and not self.check_mode:
            document = {"schema": "gpuval.probe/1", "at": run_folder.now(), "seconds": seconds, "nodes": nodes}
            run_folder.write_json(folder.state / PROBE_FILE, document)
        self._display.display(*lines)
        away = [name for name, finding in findings.items() if finding.state != ssh_findings.REACHABLE]
        if away and options["required"]:
            shown = some_of(away, ssh_findings.SHOWN)
            raise AnsibleActionFail(f"{len(away)} of {len(nodes)} node(s) {failure}: {shown}")
        return {"nodes": nodes, "away": away, "seconds": seconds, "msg": lines[0], **result}

    def _probe_ssh(self, options, task_vars):
        if options["timeout_seconds"] <= 0:
            raise AnsibleActionFail("gpuval_probe_timeout_seconds must be greater than 0")
        began = time.monotonic()
        pins = Pins(pin_file(project_path(options["state_dir"]), task_vars.get("ansible_inventory_sources") or []))
        names, hostvars = task_vars["ansible_play_hosts_all"], task_vars["hostvars"]
        targets = [probe_target.from_variables(name, hostvars[name], self._task.connection) for name in names]
        prober = ssh_prober.Prober(pins, options["timeout_seconds"], options["accept_new_host_keys"])
        findings = prober.probe_all(targets)
        changed = False
        if not self.check_mode and any(target.ssh for target in targets):
            changed = probe_target.pin(pins, findings)
            self._keep_kex(pins, prober, options["fast_kex"])
        seconds = time.monotonic() - began
        lines = ssh_findings.summary(findings, seconds, pins.path)
        return findings, seconds, lines, {"changed": changed, "known_hosts": str(pins.path)}

    def _keep_kex(self, pins, prober, wanted):
        """The key exchange that makes Ansible's own connections cheap is chosen once, here, not per connection."""
        words = kex_options(prober.settings) if wanted else []
        path = kex_file(pins.path)
        text = " ".join(words) + "\n"
        if not path.exists() or path.read_text() != text:
            run_folder.write_bytes(path, text.encode())

    def _probe_cluster(self, task_vars):
        targets = [self._target(name, task_vars) for name in task_vars["ansible_play_hosts_all"]]
        targets = [target for target in targets if target is not None]
        began = time.monotonic()
        findings = _judge_nodes(targets)
        seconds = time.monotonic() - began
        result = {"changed": False, "short": probing.short(findings)}
        return findings, seconds, probing.summary(findings, seconds), result

    def _probe_slurm(self, task_vars):
        began = time.monotonic()
        known = {one["name"]: one for one in Slurm().nodes()}
        findings = {}
        for name in task_vars["ansible_play_hosts_all"]:
            try:
                (reservation,) = values_for(self, name, task_vars, ("gpuval_slurm_reservation",)).values()
            except PlanError as error:
                raise AnsibleActionFail(str(error)) from None
            findings[name] = slurm_nodes.finding(name, known.get(name), reservation=reservation)
        seconds = time.monotonic() - began
        return findings, seconds, probing.summary(findings, seconds), {"changed": False}

    def _target(self, name, task_vars):
        values = values_of(self, name, task_vars)
        templar = templar_of(self, values)
        try:
            chosen = {key: templar.template(values[key]) for key in probing.VARIABLES if key in values}
        except AnsibleError as error:
            raise AnsibleActionFail(f"{name}: {error.message}") from None
        return probing.target(name, chosen)


def _judge_nodes(targets):
    """Findings by node, from one LIST of nodes per cluster."""
    findings = {}
    for kubeconfig, context in dict.fromkeys(target.cluster for target in targets):
        with Cluster(Access(kubeconfig, context)) as cluster:
            nodes, _version = cluster.list("Node")
        own = [target for target in targets if target.cluster == (kubeconfig, context)]
        findings.update(probing.judge(own, nodes))
    return {target.node: findings[target.node] for target in targets}
