# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Probe the nodes of the play, all at once, before anything else touches them."""

from __future__ import annotations

import time

from ansible.errors import AnsibleActionFail
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import project_path
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh import findings as ssh_findings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh import prober as ssh_prober
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh import target as probe_target
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.known_hosts import HostKeyError, Pins
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.trust import kex_file, pin_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.probe_action import ProbeAction


class ActionModule(ProbeAction):
    def work(self, options, task_vars):
        if options["timeout_seconds"] <= 0:
            raise AnsibleActionFail("gpuval_probe_timeout_seconds must be greater than 0")
        folder = self.folder(options) if options["record"] else None
        began = time.monotonic()
        pins = Pins(pin_file(project_path(options["state_dir"]), task_vars.get("ansible_inventory_sources") or []))
        try:
            names, hostvars = task_vars["ansible_play_hosts_all"], task_vars["hostvars"]
            targets = [probe_target.of(name, hostvars[name], self._task.connection) for name in names]
            prober = ssh_prober.Prober(pins, options["timeout_seconds"], options["accept_new_host_keys"])
            findings = prober.probe_all(targets)
            changed = False
            if not self.check_mode and any(target.ssh for target in targets):
                changed = probe_target.pin(pins, findings)
                self._keep_kex(pins, prober, options["fast_kex"])
        except HostKeyError as error:
            raise AnsibleActionFail(str(error)) from None
        seconds = time.monotonic() - began
        lines = ssh_findings.summary(findings, seconds, pins.path)
        told = self.conclude(folder, findings, seconds, lines, "not reachable" if options["required"] else None)
        return {**told, "changed": changed, "known_hosts": str(pins.path)}

    def _keep_kex(self, pins, prober, wanted):
        """What makes Ansible's own connections cheap is worked out once, here, not for each of them."""
        words = ssh_prober.kex_options("ssh", prober.settings) if wanted else []
        path = kex_file(pins.path)
        text = " ".join(words) + "\n"
        if not path.exists() or path.read_text() != text:
            run_folder.write_bytes(path, text.encode())
