# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""See on which nodes of a cluster work can be placed: one LIST for all of them."""

from __future__ import annotations

import time

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import probing
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import Access, Cluster, ClusterError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.host_values import templar_of, values_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.probe_action import ProbeAction


class ActionModule(ProbeAction):
    def work(self, options, task_vars):
        targets = [self._target(name, task_vars) for name in task_vars["ansible_play_hosts_all"]]
        targets = [target for target in targets if target is not None]
        folder = self.folder(options) if options["record"] else None
        began = time.monotonic()
        try:
            findings = _probe(targets)
        except ClusterError as error:
            raise AnsibleActionFail(str(error)) from None
        seconds = time.monotonic() - began
        wrong = "cannot be worked on" if options["required"] else None
        told = self.conclude(folder, findings, seconds, probing.summary(findings, seconds), wrong)
        return {**told, "changed": False, "short": probing.short(findings)}

    def _target(self, name, task_vars):
        values = values_of(self, name, task_vars)
        templar = templar_of(self, values)
        try:
            chosen = {key: templar.template(values[key]) for key in probing.VARIABLES if key in values}
        except AnsibleError as error:
            raise AnsibleActionFail(f"{name}: {error.message}") from None
        return probing.target(name, chosen)


def _probe(targets):
    findings = {}
    for kubeconfig, context in dict.fromkeys(target.cluster for target in targets):
        with Cluster(Access(kubeconfig, context)) as cluster:
            nodes, _version = cluster.list("Node")
        own = [target for target in targets if target.cluster == (kubeconfig, context)]
        findings.update(probing.judge(own, nodes))
    return {target.node: findings[target.node] for target in targets}
