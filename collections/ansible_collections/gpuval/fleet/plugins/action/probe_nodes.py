# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Probe the nodes of the play, all at once, before anything else touches them."""

from __future__ import annotations

import time

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.plugins.loader import connection_loader
from ansible_collections.gpuval.fleet.plugins.plugin_utils import probe, runs, ssh_probe
from ansible_collections.gpuval.fleet.plugins.plugin_utils.actions import RUN_OPTIONS, ControllerAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.known_hosts import HostKeyError, Pins
from ansible_collections.gpuval.fleet.plugins.plugin_utils.paths import project_path
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh_trust import kex_file, pin_file

SSH = ("ssh", "ansible.builtin.ssh", "smart")


class ActionModule(ControllerAction):
    OPTIONS = {
        **RUN_OPTIONS,
        "state_dir": {"type": "str", "default": ".gpuval"},
        "timeout_seconds": {"type": "float", "default": 4.0},
        "accept_new_host_keys": {"type": "bool", "default": True},
        "fast_kex": {"type": "bool", "default": True},
        "record": {"type": "bool", "default": False},
        "required": {"type": "bool", "default": False},
    }

    def work(self, options, task_vars):
        if options["timeout_seconds"] <= 0:
            raise AnsibleActionFail("gpuval_probe_timeout_seconds must be greater than 0")
        folder = self.folder(options) if options["record"] else None
        began = time.monotonic()
        pins = Pins(pin_file(project_path(options["state_dir"]), task_vars.get("ansible_inventory_sources") or []))
        try:
            targets = [self._target(name, task_vars) for name in task_vars["ansible_play_hosts_all"]]
            prober = ssh_probe.Prober(pins, options["timeout_seconds"], options["accept_new_host_keys"])
            findings = prober.probe_all(targets)
            changed = False
            if not self.check_mode and any(target.ssh for target in targets):
                changed = self._pin(pins, findings)
                self._keep_kex(pins, prober, options["fast_kex"])
        except HostKeyError as error:
            raise AnsibleActionFail(str(error)) from None
        seconds = time.monotonic() - began
        nodes = {name: finding.document() for name, finding in findings.items()}
        if folder and not self.check_mode:
            document = {"schema": "gpuval.probe/1", "at": runs.now(), "seconds": round(seconds, 3), "nodes": nodes}
            runs.write_json(folder.state / "probe.json", document)
        lines = probe.summary(findings, seconds, pins.path)
        for line in lines:
            self._display.display(line)
        away = [name for name, finding in findings.items() if finding.state != probe.REACHABLE]
        if away and options["required"]:
            raise AnsibleActionFail(f"{len(away)} of {len(nodes)} node(s) not reachable: {probe.named(away)}")
        return {
            "changed": changed,
            "nodes": nodes,
            "away": away,
            "seconds": round(seconds, 3),
            "known_hosts": str(pins.path),
            "msg": lines[0],
        }

    @staticmethod
    def _target(name, task_vars):
        hostvars = task_vars["hostvars"][name]
        connection = str(hostvars.get("ansible_connection") or task_vars.get("ansible_connection") or "ssh")
        if connection not in SSH:
            return ssh_probe.Target(node=name, ssh=False, connection=connection)
        connection_loader.get("ssh", class_only=True)  # makes its options known
        known = constants.config.get_plugin_vars("connection", "ssh")
        variables = {key: hostvars[key] for key in known if "[" not in key and key in hostvars}
        chosen = constants.config.get_plugin_options("connection", "ssh", variables=variables)
        declared = hostvars.get("gpuval_host_keys") or []
        try:
            checked = probe.check_declared([declared] if isinstance(declared, str) else declared)
        except HostKeyError as error:
            raise HostKeyError(f"gpuval_host_keys of {name}: {error}") from None
        return ssh_probe.Target(
            node=name,
            host=str(chosen.get("host") or name),
            executable=str(chosen.get("ssh_executable") or "ssh"),
            options=ssh_probe.ssh_options(chosen.get),
            password=str(chosen.get("password") or ""),
            key_in_variable=bool(chosen.get("private_key")),
            declared=checked,
        )

    @staticmethod
    def _pin(pins, findings):
        pins.make()
        new = [pin for finding in findings.values() for pin in finding.pins]
        replaced = [name for finding in findings.values() for name in finding.replaced]
        return bool(pins.add(new, replaced)) if new else False

    def _keep_kex(self, pins, prober, wanted):
        """What makes Ansible's own connections cheap is worked out once, here, not for each of them."""
        words = ssh_probe.kex_options("ssh", prober.settings) if wanted else []
        path = kex_file(pins.path)
        text = " ".join(words) + "\n"
        if not path.exists() or path.read_text() != text:
            runs.write_bytes(path, text.encode())
