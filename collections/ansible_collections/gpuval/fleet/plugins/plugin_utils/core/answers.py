"""Checks the answers of modules and node steps, which come from untrusted nodes: only declared fields pass.

A node with an invalid answer fails its own task and cannot affect other nodes: above all it sets no variables.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

from . import yaml_file
from .errors import GpuvalError
from .escape import clean_text, one_line
from .paths import COLLECTION, PLUGINS, ROLES

#: Keys that every answer may have besides the documented ones.
STATES = ("changed", "failed", "unreachable")
MESSAGES = ("msg", "module_stdout", "module_stderr")
MAX_MESSAGE = 4000
MAX_WARNINGS = 5
TYPES: dict[str, Any] = {kind.__name__: kind for kind in (str, int, bool, list, dict)}
TYPES |= {"path": str, "float": (int, float), "complex": dict}
#: Facts that tasks may set: those of the collection's modules, and the path of Python that Ansible discovered.
FACTS = frozenset({"gpuval", "gpuval_hardware", "discovered_interpreter_python"})


class InvalidAnswerError(GpuvalError):
    """A node's answer that breaks the declaration of its module or step, so that another program must have given it."""


@cache
def is_node_step(name: str) -> bool:
    return (COLLECTION / f"plugins/module_utils/node_steps/{name}.py").is_file()


@cache
def declared(name: str) -> dict[str, Any]:
    """{field: declaration} of the answer of a node step (from its signature) or a module (from its RETURN)."""
    if is_node_step(name):
        step = getattr(import_module(f"{PLUGINS}.module_utils.node_steps.{name}"), name)
        contents: dict[str, Any] = _declared_field(get_type_hints(step)["return"])["contains"]
        return contents
    fields: dict[str, Any] = yaml_file.load(import_module(f"{PLUGINS}.modules.{name}").RETURN)
    return fields


def _declared_field(hint: Any) -> dict[str, Any]:
    if is_typeddict(hint):
        return {"type": "dict", "contains": {name: _declared_field(of) for name, of in get_type_hints(hint).items()}}
    if get_origin(hint) is list:
        return {"type": "list", "elements": get_args(hint)[0].__name__}
    return {"type": (get_origin(hint) or hint).__name__}


def accept(name: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The declared fields of the answer of node step or module ``name``. Raises InvalidAnswerError for a wrong type."""
    accepted: dict[str, Any] = {key: bool(answer[key]) for key in STATES if key in answer}
    accepted |= {key: clean_text(str(answer[key]))[:MAX_MESSAGE] for key in MESSAGES if answer.get(key)}
    warnings = answer.get("warnings")
    if isinstance(warnings, list) and warnings:
        accepted["warnings"] = [one_line(str(text)) for text in warnings[:MAX_WARNINGS]]
    try:
        return {**accepted, **_fields(answer, declared(name), "")}
    except InvalidAnswerError as error:
        raise InvalidAnswerError(
            f"the node's answer to {name} is invalid: {error}. Check which programs answer for Python on the node"
        ) from None


def _fields(answer: Mapping[str, Any], declared_fields: Mapping[str, Any], key_path: str) -> dict[str, Any]:
    fields = ((name, field) for name, field in declared_fields.items() if name in answer)
    return {name: _value(answer[name], field, f"{key_path}{name}") for name, field in fields}


def _value(value: Any, declaration: Mapping[str, Any], key_path: str) -> Any:
    kind = declaration["type"]
    if value is None:
        return None
    if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
        raise InvalidAnswerError(f"{key_path} is not of type {kind}")
    contains = {"contains": declaration["contains"]} if "contains" in declaration else {}
    if kind in ("dict", "complex") and contains:
        return _fields(value, contains["contains"], f"{key_path}.")
    if kind == "list" and "elements" in declaration:
        element = {"type": declaration["elements"], **contains}
        return [_value(item, element, f"{key_path}[]") for item in value]
    return value


@cache
def _prefixes() -> tuple[str, ...]:
    """Prefixes of the names of settings: gpuval_, and the name of each role."""
    return ("gpuval_", *(f"{role.name}_" for role in ROLES.iterdir()))


def settings_among(facts: Iterable[str]) -> list[str]:
    """The names in ``facts`` that are also settings: Ansible may turn facts into variables, which override these."""
    return sorted(str(name) for name in facts if str(name).startswith(_prefixes()) and name not in FACTS)
