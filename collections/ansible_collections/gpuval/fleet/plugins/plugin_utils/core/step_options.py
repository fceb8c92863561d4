"""Options of a step of the controller, declared by the signature of its function.

Each parameter after the first is an option of its name; one that is a dataclass stands for an option per field.
A relative ``Path`` starts at the folder of the project; an empty one is None where the parameter allows it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from .argument_specs import PLUGINS, fragment_options, spec_of
from .errors import GpuvalError
from .paths import COLLECTION, project_path
from .text import meant

#: The option `store` of the documentation fragment of that name.
StoreOptions = Annotated[dict[str, Any], "store"]
#: A path as text, with ``~`` and variables of the environment expanded; a relative one stays relative.
PathText = Annotated[str, "path"]
#: The default of a mapping.
EMPTY: Mapping[str, Any] = MappingProxyType({})
Step = Callable[..., dict[str, Any]]
STEPS = COLLECTION / "plugins/plugin_utils/steps"
TYPES = {
    str: "str",
    int: "int",
    float: "float",
    bool: "bool",
    Path: "str",
    PathText: "path",
    Mapping: "dict",
    Sequence: "list",
    Any: "raw",
}


@cache
def load_step(name: str) -> Step:
    """The function of that name in the file of that name in ``steps/``. Raises GpuvalError."""
    known = sorted(path.stem for path in STEPS.glob("[a-z]*.py"))
    if name not in known:
        raise GpuvalError(f"step {name!r} is unknown{meant(name, known)}; plugin_utils/steps has a file for each")
    step: Step = getattr(import_module(f"{PLUGINS}.plugin_utils.steps.{name}"), name)
    return step


@cache
def step_spec(step: Step) -> dict[str, Any]:
    """The argument spec of a step."""
    spec: dict[str, Any] = {}
    for name, hint, default in _parameters(step):
        spec |= _group_spec(hint) if is_dataclass(hint) else {name: _option_spec(hint, default)}
    return spec


def step_arguments(step: Step, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the step is called with: options that its spec accepted, as its parameters."""
    arguments = {}
    for name, hint, _default in _parameters(step):
        if is_dataclass(hint) and isinstance(hint, type):
            hints = get_type_hints(hint, include_extras=True)
            values = {field.name: _value(hints[field.name], options[field.name]) for field in fields(hint)}
            arguments[name] = hint(**values)
        else:
            arguments[name] = _value(hint, options[name])
    return arguments


def _parameters(step: Step) -> list[tuple[str, Any, Any]]:
    """Name, type and default of each parameter but the first, which is the action."""
    hints = get_type_hints(step, include_extras=True)
    parameters = list(inspect.signature(step).parameters.values())[1:]
    return [(parameter.name, hints[parameter.name], parameter.default) for parameter in parameters]


def _group_spec(group: Any) -> dict[str, Any]:
    hints = get_type_hints(group, include_extras=True)
    spec = {}
    for field in fields(group):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        spec[field.name] = _option_spec(hints[field.name], default)
    return spec


def _option_spec(hint: Any, default: Any) -> dict[str, Any]:
    """The spec of one option; without a default it is required."""
    hint = _without_none(hint)
    is_required = default in (inspect.Parameter.empty, MISSING)
    wanted = {"required": True} if is_required else {"default": _plain(default)}
    if hint is StoreOptions:
        return {**spec_of(fragment_options("store"))["store"], "required": is_required}
    return {**_type_of(hint), **wanted}


def _type_of(hint: Any) -> dict[str, Any]:
    if get_origin(hint) is Literal:
        return {"type": "str", "choices": list(get_args(hint))}
    name = TYPES[hint if hint in TYPES else get_origin(hint)]
    if name != "list":
        return {"type": name}
    element = _type_of(get_args(hint)[0])
    return {**element, "type": "list", "elements": element["type"]}


def _plain(default: Any) -> Any:
    if isinstance(default, Mapping):
        return dict(default)
    if isinstance(default, Path):
        return str(default)
    return list(default) if isinstance(default, tuple) else default


def _without_none(hint: Any) -> Any:
    members = [member for member in get_args(hint) if member is not NoneType]
    return members[0] if NoneType in get_args(hint) else hint


def _value(hint: Any, value: Any) -> Any:
    if _without_none(hint) is Path and value is not None:
        return None if hint is not Path and not value else project_path(value)
    return value
