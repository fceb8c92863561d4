"""The target of a probe from a host's variables, and pinning the host keys that it found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible import constants
from ansible.plugins.loader import connection_loader

from ..core.paths import project_path
from . import findings as ssh_findings
from . import prober
from .known_hosts import HostKeyError, Pins, pin_file
from .login_secrets import LoginSecrets
from .openssh import ssh_options

SSH = ("ssh", "ansible.builtin.ssh", "smart")


def from_variables(name: str, variables: Mapping[str, Any], default_connection: str | None) -> prober.SshTarget:
    """The target of a host with these variables; the default is that of play, command line and configuration."""
    connection = str(variables.get("ansible_connection") or default_connection or "ssh")
    if connection not in SSH:
        return prober.SshTarget(node=name, ssh=False, connection=connection)
    connection_loader.get("ssh", class_only=True)  # makes its options known
    known = constants.config.get_plugin_vars("connection", "ssh")
    given = {key: variables[key] for key in known if "[" not in key and key in variables}
    chosen = constants.config.get_plugin_options("connection", "ssh", variables=given)
    declared = variables.get("gpuval_host_keys") or []
    try:
        checked = ssh_findings.check_declared([declared] if isinstance(declared, str) else declared)
    except HostKeyError as error:
        raise HostKeyError(f"gpuval_host_keys of {name}: {error}") from None
    return prober.SshTarget(
        node=name,
        host=str(chosen.get("host") or name),
        executable=str(chosen.get("ssh_executable") or "ssh"),
        options=ssh_options(chosen.get),
        secrets=LoginSecrets(
            password=str(chosen.get("password") or ""),
            private_key=str(chosen.get("private_key") or ""),
            passphrase=str(chosen.get("private_key_passphrase") or ""),
        ),
        declared=checked,
    )


def pin(pins: Pins, findings: Mapping[str, ssh_findings.ProbeFinding]) -> bool:
    """Keep the host keys that a probe accepted. Returns whether any is new."""
    pins.make()
    new = [key for finding in findings.values() for key in finding.pins]
    replaced = [name for finding in findings.values() for name in finding.replaced]
    return bool(pins.add(new, replaced)) if new else False


def probe_again(
    target: prober.SshTarget, state_dir: str, sources: Iterable[str], *, timeout: float, accept_new: bool
) -> ssh_findings.ProbeFinding:
    """Probe a node that was unreachable once more; its host key may be unknown yet. Raises ``HostKeyError``."""
    pins = Pins(pin_file(project_path(state_dir), sources))
    finding = prober.Prober(pins, timeout, accept_new).probe(target)
    if target.ssh:
        pin(pins, {target.node: finding})
    return finding
