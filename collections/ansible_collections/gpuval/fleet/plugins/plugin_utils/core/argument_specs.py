"""Argument specs of modules, from their DOCUMENTATION."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from . import yaml_file
from .paths import COLLECTION

MODULES = COLLECTION / "plugins/modules"
PLUGINS = "ansible_collections.gpuval.fleet.plugins"
#: What of an option's documentation the spec has.
SPEC_KEYS = ("type", "elements", "required", "default", "choices", "aliases")


@cache
def argument_spec(module: str) -> dict[str, Any]:
    """The spec of a module, or of an action that a file of data documents."""
    data = MODULES / f"{module}.yml"
    if data.exists():
        document = yaml_file.load(data.read_text())["DOCUMENTATION"]
    else:
        document = yaml_file.load(import_module(f"{PLUGINS}.modules.{module}").DOCUMENTATION)
    return _spec(document.get("options", {}))


def _spec(options: Mapping[str, Any]) -> dict[str, Any]:
    spec = {}
    for name, description in options.items():
        spec[name] = {key: description[key] for key in SPEC_KEYS if key in description}
        if "suboptions" in description:
            spec[name]["options"] = _spec(description["suboptions"])
    return spec
