"""Argument specs of steps, from the signatures of their functions, and of modules, from their documentation.

Each parameter of a step after the first is an option of the same name; a dataclass stands for an option per field.
A relative ``Path`` starts at the folder of the project; an empty one is None where the parameter allows it.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, dataclass_transform, get_args, get_origin, get_type_hints

from . import yaml_file
from .errors import GpuvalError
from .paths import COLLECTION, PLUGINS, project_path
from .text import meant


@dataclass_transform(frozen_default=True, kw_only_default=True)
class StepOptions:
    """Base class of groups of options: a subclass becomes a frozen dataclass with keyword arguments only."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class StoreSettings(StepOptions):
    """Options below the option `store`, which the role gpuval builds from its variables."""

    bucket: str
    create_bucket: bool = False
    #: URL of the S3 service; empty is the embedded store.
    endpoint: str = ""
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""
    #: The read-only key with which nodes load models.
    read_access_key: str = ""
    read_secret_key: str = ""
    #: {variable: value} of job secrets, and the path of a JSON file with more: KEY in object NAME is variable NAME_KEY.
    secrets: Mapping[str, Any] = field(default_factory=dict)
    secrets_file: str = ""
    ca_file: str = ""
    state_dir: str = ".gpuval"
    #: While runs in this folder are at work, the embedded store keeps its address and port.
    results_dir: str = ""
    #: Address and port of the embedded store; empty is loopback, port 0 chooses one.
    address: str = ""
    port: int = 0


#: Options of ``StoreSettings`` that no log or delivery may show.
STORE_KEYS = ("access_key", "secret_key", "session_token", "read_access_key", "read_secret_key")
StoreOptions = Annotated[dict[str, Any], StoreSettings]
#: A path as text, with ``~`` and variables of the environment expanded; a relative one stays relative.
PathText = Annotated[str, "path"]
Step = Callable[..., dict[str, Any]]
UTILS = COLLECTION / "plugins/plugin_utils"
#: Keys of an option's documentation that become part of its argument spec.
SPEC_KEYS = ("type", "elements", "required", "default", "choices", "aliases")
TYPES: dict[Any, str] = {kind: kind.__name__ for kind in (str, int, float, bool)}
TYPES |= {Path: "str", PathText: "path", Mapping: "dict", Sequence: "list", Any: "raw"}


@cache
def load_step(name: str, folder: str = "steps") -> Step:
    """The function of the step ``name``, from its file in ``plugin_utils/<folder>/``. Raises GpuvalError."""
    steps = sorted(path.stem for path in (UTILS / folder).glob("[a-z]*.py"))
    if name not in steps:
        raise GpuvalError(f"step {name!r} is unknown{meant(name, steps)}; plugin_utils/{folder} has a file for each")
    step: Step = getattr(import_module(f"{PLUGINS}.plugin_utils.{folder}.{name}"), name)
    return step


@cache
def argument_spec(module: str) -> dict[str, Any]:
    """The argument spec of a module or action, from the DOCUMENTATION in its Python or YAML file."""
    data = COLLECTION / f"plugins/modules/{module}.yml"
    if data.exists():
        document = yaml_file.load(data.read_text())["DOCUMENTATION"]
    else:
        document = yaml_file.load(import_module(f"{PLUGINS}.modules.{module}").DOCUMENTATION)
    return _documented(document.get("options", {}))


def _documented(options: Mapping[str, Any]) -> dict[str, Any]:
    spec = {}
    for name, description in options.items():
        spec[name] = {key: description[key] for key in SPEC_KEYS if key in description}
        if "suboptions" in description:
            spec[name]["options"] = _documented(description["suboptions"])
    return spec


@cache
def step_spec(step: Step) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    for name, hint, default in _parameters(step):
        spec |= group_spec(hint) if _is_group(hint) else {name: _option_spec(hint, default)}
    return spec


@cache
def group_spec(group: Any) -> dict[str, Any]:
    """The argument spec of a dataclass, with an option for each field."""
    hints = get_type_hints(group, include_extras=True)
    spec = {}
    for option in fields(group):
        default = option.default if option.default_factory is MISSING else option.default_factory()
        spec[option.name] = _option_spec(hints[option.name], default)
    return spec


def step_arguments(step: Step, options: Mapping[str, Any]) -> dict[str, Any]:
    """{parameter: argument} to call a step with, from options that passed its argument spec."""
    return {
        name: group_of(hint, options) if _is_group(hint) else _value(hint, options[name])
        for name, hint, _default in _parameters(step)
    }


def group_of(group: Any, options: Mapping[str, Any]) -> Any:
    """An instance of the dataclass `group`, filled from options that passed its argument spec."""
    hints = get_type_hints(group, include_extras=True)
    return group(**{each.name: _value(hints[each.name], options[each.name]) for each in fields(group)})


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and is_dataclass(hint)


def _parameters(step: Step) -> list[tuple[str, Any, Any]]:
    """(name, type, default) of each parameter of a step but the first, which is the action."""
    hints = get_type_hints(step, include_extras=True)
    parameters = list(inspect.signature(step).parameters.values())[1:]
    return [(parameter.name, hints[parameter.name], parameter.default) for parameter in parameters]


def _option_spec(hint: Any, default: Any) -> dict[str, Any]:
    """The argument spec of one option, from its type and default; required without a default."""
    spec = _type_of(_without_none(hint))
    if default in (inspect.Parameter.empty, MISSING):
        return {**spec, "required": True}
    if isinstance(default, Path):
        default = str(default)
    return {**spec, "default": list(default) if isinstance(default, tuple) else default}


def _type_of(hint: Any) -> dict[str, Any]:
    if get_origin(hint) is Literal:
        return {"type": "str", "choices": list(get_args(hint))}
    group = get_args(hint)[1] if get_origin(hint) is Annotated else None
    if _is_group(group):
        return {"type": "dict", "options": group_spec(group)}
    name = TYPES[hint if hint in TYPES else get_origin(hint)]
    if name != "list":
        return {"type": name}
    element = _type_of(get_args(hint)[0])
    return {**element, "type": "list", "elements": element["type"]}


def _without_none(hint: Any) -> Any:
    members = [member for member in get_args(hint) if member is not NoneType]
    return members[0] if NoneType in get_args(hint) else hint


def _value(hint: Any, value: Any) -> Any:
    if _without_none(hint) is Path and value is not None:
        return None if hint is not Path and not value else project_path(value)
    return value
