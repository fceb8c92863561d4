"""What an operator set, held against what the roles declare in `meta/argument_specs.yml`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ..core.argument_specs import load_yaml
from . import folder

ROLES = Path(__file__).resolve().parents[3] / "roles"
#: The entry point of the shared settings. It is not `main`, which Ansible would check in a process per node.
SHARED_ENTRY = "settings"
PREFIX = "gpuval_"
MAX_PORT = 65535


@dataclass(frozen=True)
class Declared:
    """``options`` as an argument spec, ``defaults`` as the roles' files have them, templates and all."""

    options: Mapping[str, Mapping[str, Any]]
    defaults: Mapping[str, Any]
    #: Those of them that every playbook uses.
    shared: frozenset[str] = frozenset()


@cache
def declared(roles: Path = ROLES) -> Declared:
    """What all roles declare together."""
    options: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    shared: frozenset[str] = frozenset()
    for role in sorted(roles.iterdir()):
        specs = _read(role / "meta" / "argument_specs.yml").get("argument_specs", {})
        for entry, spec in specs.items():
            found = (spec or {}).get("options") or {}
            options.update(found)
            if found and entry == SHARED_ENTRY:
                shared = frozenset(found)
        defaults.update(_read(role / "defaults" / "main.yml"))
    return Declared(options, defaults, shared)


def changed(values: Mapping[str, Any], known: Declared) -> dict[str, Any]:
    """The declared variables that differ from their default, as they are before templating."""
    return {
        name: values[name]
        for name in known.options
        if name in values and (name not in known.defaults or values[name] != known.defaults[name])
    }


def problems(values: Mapping[str, Any], known: Declared) -> list[str]:
    """What is wrong with the templated values of some of the declared variables; secrets are not shown."""
    validator = ArgumentSpecValidator({name: known.options[name] for name in values})
    messages = validator.validate(dict(values), validate_role_argument_spec=True).error_messages
    secret = [str(value) for name, value in values.items() if known.options[name].get("no_log") and value]
    return [_without(message, secret) for message in messages]


def gang_problems(values: Mapping[str, Any], known: Declared, search_round_seconds: float = 0.0) -> list[str]:
    """What is wrong with settings of gangs, found before the hours of the nodes' own stages; those not in ``values``
    have their default. ``search_round_seconds``: what a round of the search may take, 0 where there is none."""

    def whole(name: str) -> int | None:
        try:
            return int(values.get(name, known.defaults[name]))
        except (TypeError, ValueError):
            return None  # the declared type says so

    problems = []
    size, slots = whole("gpuval_gang_size"), whole("gpuval_gang_slots")
    if size is not None and (size < 0 or size == 1):
        problems.append(f"gpuval_gang_size {size}: a gang has two nodes or more; 0 takes all that are alike")
    if slots is not None and slots < 1:
        problems.append(f"gpuval_gang_slots {slots}: a node has one process or more")
    port, ssh_port = whole("gpuval_gang_port"), whole("gpuval_gang_ssh_port")
    if port is not None and not 1 <= port < MAX_PORT:  # the next one is used as well
        problems.append(f"gpuval_gang_port {port}: from 1 to {MAX_PORT - 1}; the next port is used, too")
    if ssh_port is not None and not 1 <= ssh_port <= MAX_PORT:
        problems.append(f"gpuval_gang_ssh_port {ssh_port}: from 1 to {MAX_PORT}")
    if port is not None and ssh_port in (port, port + 1):
        problems.append(f"gpuval_gang_ssh_port {ssh_port} collides: the gang uses gpuval_gang_port and the next one")
    given = values.get("gpuval_gang_search_seconds")
    seconds = _number(given) if isinstance(given, int | float | str) else None
    if seconds is not None and not seconds > 0:
        problems.append(f"gpuval_gang_search_seconds {given}: more than 0; gpuval_gang_search: false turns it off")
    elif seconds is not None and (short := folder.search_too_short(seconds, search_round_seconds)):
        problems.append(short)
    expected = values.get("gpuval_gang_expected_bytes_per_second", 0)
    speed = _number(expected) if isinstance(expected, int | float | str) else None
    if speed is not None and speed < 0:
        problems.append(f"gpuval_gang_expected_bytes_per_second {expected}: a speed in bytes/s; 0 is not known")
    return problems


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def unknown(names: Iterable[str], known: Declared) -> list[str]:
    """Variables that look like a setting of gpuval and are none, with what may have been meant."""
    problems = []
    for name in sorted(names):
        if not name.startswith(PREFIX) or name in known.options or name in known.defaults:
            continue
        near = difflib.get_close_matches(name, known.options, n=1, cutoff=0.8)
        problems.append(f"{name} (is it {near[0]}?)" if near else name)
    return problems


def _without(message: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        message = message.replace(secret, "********")
    return message


def _read(path: Path) -> dict[str, Any]:
    return (load_yaml(path.read_text(encoding="utf-8")) or {}) if path.exists() else {}
