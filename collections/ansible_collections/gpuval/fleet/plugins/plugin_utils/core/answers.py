"""What a module or step answers from a node, which is untrusted: what it declares passes, of the declared types.

A node that answers otherwise fails its own task, and changes nothing of another node's: above all it sets no variables.
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
#: Facts that modules of the collection give, none of which is the name of a setting; and the Python that Ansible found.
FACTS = frozenset({"gpuval", "gpuval_hardware", "discovered_interpreter_python"})


class InvalidAnswerError(GpuvalError):
    """An invalid answer, which the module or step itself never gives."""


@cache
def is_node_step(name: str) -> bool:
    return (COLLECTION / f"plugins/module_utils/node_steps/{name}.py").is_file()


@cache
def declared(name: str) -> dict[str, Any]:
    """Fields that an answer may have: of a node step by its signature, of a module by its RETURN documentation."""
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
    """The valid, documented part of the answer of a step or module. Raises InvalidAnswerError."""
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


def _fields(answer: Mapping[str, Any], fields: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {name: _value(answer[name], field, f"{path}{name}") for name, field in fields.items() if name in answer}


def _value(value: Any, field: Mapping[str, Any], path: str) -> Any:
    kind = field["type"]
    if value is None:
        return None
    if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
        raise InvalidAnswerError(f"{path} is not of type {kind}")
    if kind in ("dict", "complex") and "contains" in field:
        return _fields(value, field["contains"], f"{path}.")
    if kind == "list" and "elements" in field:
        element = {"type": field["elements"], **({"contains": field["contains"]} if "contains" in field else {})}
        return [_value(item, element, f"{path}[]") for item in value]
    return value


@cache
def _prefixes() -> tuple[str, ...]:
    """Prefixes of the names of settings: of all roles, and of the collection."""
    return ("gpuval_", *(f"{role.name}_" for role in ROLES.iterdir()))


def settings_among(facts: Iterable[str]) -> list[str]:
    """Facts with the name of a setting: Ansible makes variables of facts, which override the inventory."""
    return sorted(str(name) for name in facts if str(name).startswith(_prefixes()) and name not in FACTS)
