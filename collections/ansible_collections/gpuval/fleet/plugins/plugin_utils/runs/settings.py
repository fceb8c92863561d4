"""What an operator set, held against what the roles declare in `meta/argument_specs.yml`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
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
#: Name, type, what fits, and the rule for a message.
GANG_RULES: Sequence[tuple[str, Callable[[Any], float], Callable[[float], bool], str]] = (
    ("gpuval_gang_size", int, lambda n: n >= 0 and n != 1, "a gang has two nodes or more; 0 takes all that are alike"),
    ("gpuval_gang_slots", int, lambda n: n >= 1, "a node has one process or more"),
    ("gpuval_gang_port", int, lambda n: 1 <= n < MAX_PORT, f"from 1 to {MAX_PORT - 1}; the next port is used, too"),
    ("gpuval_gang_ssh_port", int, lambda n: 1 <= n <= MAX_PORT, f"from 1 to {MAX_PORT}"),
    ("gpuval_gang_search_seconds", float, lambda n: n > 0, "more than 0; gpuval_gang_search: false turns it off"),
    ("gpuval_gang_expected_bytes_per_second", float, lambda n: n >= 0, "a speed in bytes/s; 0 is not known"),
)


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

    def number(name: str, kind: Callable[[Any], float]) -> float | None:
        try:
            return kind(values.get(name, known.defaults.get(name)))
        except (TypeError, ValueError):
            return None  # a template, or not of the declared type

    problems = []
    for name, kind, fits, rule in GANG_RULES:
        value = number(name, kind)
        if value is not None and not fits(value):
            problems.append(f"{name} {values.get(name, value)}: {rule}")
    port, ssh_port = number("gpuval_gang_port", int), number("gpuval_gang_ssh_port", int)
    if port is not None and ssh_port in (port, port + 1):
        problems.append(f"gpuval_gang_ssh_port {ssh_port} collides: the gang uses gpuval_gang_port and the next one")
    seconds = number("gpuval_gang_search_seconds", float)
    short = folder.search_too_short(seconds, search_round_seconds) if seconds is not None and seconds > 0 else ""
    return [*problems, short] if short else problems


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
