"""What an operator set, held against what the roles declare in `meta/argument_specs.yml`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

ROLES = Path(__file__).resolve().parents[2] / "roles"
#: The entry points of a role's specification that declare its variables; the shared settings' are not `main`, since
#: Ansible would check those in a process per node.
SHARED_ENTRY = "settings"
ENTRIES = ("main", SHARED_ENTRY)
PREFIX = "gpuval_"


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
        for entry in ENTRIES:
            found = (specs.get(entry) or {}).get("options") or {}
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


def unknown(names: Iterable[str], known: Declared) -> list[str]:
    """Variables that look like a setting of gpuval and are none, with what may have been meant."""
    told = []
    for name in sorted(names):
        if not name.startswith(PREFIX) or name in known.options or name in known.defaults:
            continue
        near = difflib.get_close_matches(name, known.options, n=1, cutoff=0.8)
        told.append(f"{name} (is it {near[0]}?)" if near else name)
    return told


def _without(message: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        message = message.replace(secret, "********")
    return message


def _read(path: Path) -> dict[str, Any]:
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.exists() else {}
