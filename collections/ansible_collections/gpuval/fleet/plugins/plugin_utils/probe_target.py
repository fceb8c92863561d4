"""From a host's variables to what is probed, and what a probe found to the pins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible import constants
from ansible.plugins.loader import connection_loader
from ansible_collections.gpuval.fleet.plugins.plugin_utils import probe, ssh_probe
from ansible_collections.gpuval.fleet.plugins.plugin_utils.known_hosts import HostKeyError, Pins
from ansible_collections.gpuval.fleet.plugins.plugin_utils.paths import project_path
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh_trust import pin_file

SSH = ("ssh", "ansible.builtin.ssh", "smart")


def of(name: str, variables: Mapping[str, Any], default_connection: str | None) -> ssh_probe.Target:
    """The target of a host with these variables; the default is that of play, command line and configuration."""
    connection = str(variables.get("ansible_connection") or default_connection or "ssh")
    if connection not in SSH:
        return ssh_probe.Target(node=name, ssh=False, connection=connection)
    connection_loader.get("ssh", class_only=True)  # makes its options known
    known = constants.config.get_plugin_vars("connection", "ssh")
    given = {key: variables[key] for key in known if "[" not in key and key in variables}
    chosen = constants.config.get_plugin_options("connection", "ssh", variables=given)
    declared = variables.get("gpuval_host_keys") or []
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


def pin(pins: Pins, findings: Mapping[str, probe.Finding]) -> bool:
    """Keep the host keys that a probe accepted. Returns whether any is new."""
    pins.make()
    new = [key for finding in findings.values() for key in finding.pins]
    replaced = [name for finding in findings.values() for name in finding.replaced]
    return bool(pins.add(new, replaced)) if new else False


def again(
    target: ssh_probe.Target, state_dir: str, sources: Iterable[str], *, timeout: float, accept_new: bool
) -> probe.Finding:
    """Probe one node that was away: it may have come up, and its host key is not known yet. Raises ``HostKeyError``."""
    pins = Pins(pin_file(project_path(state_dir), sources))
    finding = ssh_probe.Prober(pins, timeout, accept_new).probe(target)
    if target.ssh:
        pin(pins, {target.node: finding})
    return finding
