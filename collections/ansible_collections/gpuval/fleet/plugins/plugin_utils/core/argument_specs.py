"""Argument specs from DOCUMENTATION, so that each option of an action is declared once."""

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
def argument_spec(action: str) -> dict[str, Any]:
    """The spec of an action plugin: from its own DOCUMENTATION, else from that of the module of its name.

    A file of data documents an action without a half on the node. An action documents its options itself where the
    module of its name is that half, with other options; `module_options` are those that both have.
    """
    data = MODULES / f"{action}.yml"
    if data.exists():
        of_module = yaml_file.load(data.read_text())["DOCUMENTATION"]
    else:
        of_module = yaml_file.load(import_module(f"{PLUGINS}.modules.{action}").DOCUMENTATION)
    text = getattr(import_module(f"{PLUGINS}.action.{action}"), "DOCUMENTATION", None)
    document = of_module if text is None else yaml_file.load(text)
    options = {name: of_module["options"][name] for name in document.get("module_options", [])}
    options |= document.get("options", {})
    for name in document.get("extends_documentation_fragment", []):
        for option, description in fragment_options(name.rpartition(".")[2]).items():
            options[option] = {**description, **options.get(option, {})}
    return spec_of(options)


@cache
def fragment_options(name: str) -> dict[str, Any]:
    """The options of a documentation fragment of the collection, as documented."""
    document = yaml_file.load(import_module(f"{PLUGINS}.doc_fragments.{name}").ModuleDocFragment.DOCUMENTATION)
    options: dict[str, Any] = document.get("options", {})
    return options


def spec_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The argument spec of documented options."""
    spec = {}
    for name, description in options.items():
        spec[name] = {key: description[key] for key in SPEC_KEYS if key in description}
        if "suboptions" in description:
            spec[name]["options"] = spec_of(description["suboptions"])
    return spec
