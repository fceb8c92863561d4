"""Checks the settings of an operator against what the roles declare in `meta/argument_specs.yml`."""

import json
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.plugins.loader import become_loader, connection_loader
from ansible_collections.gpuval.fleet.node.gpuval_workloads.storage import table

from ..core import extensions, yaml_file
from ..core.errors import SettingError
from ..core.paths import ROLES
from ..core.stage_traits import traits_of_stages
from ..core.stages import profiles as profile_files
from ..core.text import meant, nearest_spelling
from . import datasets, folder

#: Entry point of the shared settings in argument specs. Ansible would check `main` in a process for each node.
SHARED_ENTRY = "settings"
PREFIX = "gpuval_"
STAGES = "gpuval_stages"
#: Setting that lists a site's own variables whose names look like settings.
OWN = "gpuval_own_variables"
#: Variable that marks plays which open a run.
OPENS_RUN = "run_opens"
#: Variables of hosts that the collection's inventories and playbooks set, and that no role declares.
OF_HOSTS = frozenset(
    {
        *("kubernetes_selector", "kubernetes_skus", "kubernetes_label_groups", "kubernetes_labels", "kubernetes_node"),
        OPENS_RUN,
    }
)
#: Ansible variables of other become plugins, whose names resemble those of SSH.
_OF_OTHER_PLUGINS = re.compile("ansible_(ksu|oc|sesu|su)_")
#: Similarity from which a variable's name counts as a mistyped setting, whatever its prefix.
VERY_CLOSE = 0.9
#: (pattern, its description) of bucket names that S3 accepts, and of namespaces that Kubernetes accepts.
BUCKET = (re.compile(r"(?=.{3,63}$)[a-z0-9]+([.-][a-z0-9]+)*"), "3 to 63 small letters, digits, '-' and '.'")
NAMESPACE = (re.compile(r"(?=.{1,63}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?"), "up to 63 small letters, digits and '-'")
MAX_PORT = 65535
TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list, such as [one, two]",
    "dict": "a mapping, such as {name: value}",
    "str": "text",
    "path": "text",
}
MAX_SHOWN = 60
_WORKLOAD = "_workload"
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: Comparison for each kind of bound that a stage declares in its ``files/stage.yml``.
BOUNDS = {"more_than": operator.gt, "at_least": operator.ge, "less_than": operator.lt, "at_most": operator.le}
#: {setting: (test of a right number, message for a wrong one)}, without settings of stages, for which see `_rule_of`.
RULES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "gpuval_deadline_seconds": (lambda n: n > 0, "must be more than 0"),
    "gpuval_gang_expected_bytes_per_second": (lambda n: n >= 0, "a speed in bytes/s; 0 is not known"),
    "gpuval_gang_nvlink_expected_bytes_per_second": (lambda n: n >= 0, "a speed in bytes/s; 0 is not known"),
    "gpuval_gang_port": (lambda n: 1 <= n < MAX_PORT, f"from 1 to {MAX_PORT - 1}; the next port is used, too"),
    "gpuval_gang_search_seconds": (lambda n: n > 0, "more than 0; gpuval_gang_search: false turns it off"),
    "gpuval_gang_size": (lambda n: n >= 0 and n != 1, "a gang has two nodes or more; 0 takes all that are alike"),
    "gpuval_gang_slots": (lambda n: n >= 1, "a node has one process or more"),
    "gpuval_gang_ssh_port": (lambda n: 1 <= n <= MAX_PORT, f"from 1 to {MAX_PORT}"),
    "gpuval_heartbeat_seconds": (lambda n: n > 0, "must be more than 0"),
    "gpuval_telemetry_seconds": (lambda n: n >= 0.1, "must be 0.1 or more; gpuval_telemetry: false turns it off"),
    "gpuval_probe_timeout_seconds": (lambda n: n > 0, "must be more than 0"),
    "gpuval_store_port": (lambda n: 0 <= n < MAX_PORT, f"must be from 1 to {MAX_PORT - 1}, or 0 to choose one"),
    "network_probe_port": (lambda n: 1 <= n <= MAX_PORT, f"must be from 1 to {MAX_PORT}"),
    "ssh_keys_port": (lambda n: 1 <= n <= MAX_PORT, f"must be from 1 to {MAX_PORT}"),
    "status_interval_seconds": (lambda n: n > 0, "must be more than 0"),
}


@dataclass(frozen=True)
class Declared:
    """All declared settings. ``options``: {setting: argument spec}; ``defaults``: of the roles, untemplated."""

    options: Mapping[str, Mapping[str, Any]]
    defaults: Mapping[str, Any]
    #: Settings that every playbook uses.
    shared: frozenset[str] = frozenset()
    #: Prefixes of variables that must be declared settings.
    prefixes: tuple[str, ...] = (PREFIX,)


@extensions.cached
def declared() -> Declared:
    """The settings that all roles, and stages of extensions, declare."""
    options: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    shared: frozenset[str] = frozenset()
    prefixes = set()
    for role in dict.fromkeys([*sorted(ROLES.iterdir()), *extensions.found("stages").values()]):
        prefixes.add(f"{role.name}_")
        specs = _read(role / "meta" / "argument_specs.yml").get("argument_specs", {})
        for entry, spec in specs.items():
            role_options = (spec or {}).get("options") or {}
            options.update(role_options)
            if any(name.startswith(f"{entry}_") for name in role_options):
                prefixes.add(f"{entry}_")
            if role_options and entry == SHARED_ENTRY:
                shared = frozenset(role_options)
        defaults.update(_read(role / "defaults" / "main.yml"))
    return Declared(options, defaults, shared, tuple(sorted(prefixes)))


def is_shipped(stage: str) -> bool:
    """Whether gpuval ships the program of the stage."""
    folder = extensions.found("stages").get(stage)
    return stage.startswith(datasets.STAGE) or (folder is not None and extensions.is_shipped(folder))


def changed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in a host's variables that differ from their default, with values before templating."""
    defaults = declared().defaults
    names = (name for name in declared().options if name in values)
    return {name: values[name] for name in names if name not in defaults or values[name] != defaults[name]}


def problems(values: Mapping[str, Any]) -> list[str]:
    """Messages on wrong values of settings. Each begins with the setting and hides secrets. ``values``: templated."""
    messages = []
    for name, value in values.items():
        option = declared().options[name]
        if problem := _problem(name, value, option):
            value_text = "" if option.get("no_log") else f" {_shown(value)}"
            messages.append(f"{name}{value_text}: {problem}")
    return messages


#: {setting that names an extension or a shipped part: (kind of extension, further values)}.
NAMED = {"gpuval_runtime": ("engines", ("host", "auto")), "gpuval_placement": ("schedulers", ())}


def converted(name: str, value: Any) -> Any:
    """Convert a valid value of a setting to the setting's declared type."""
    spec = {name: declared().options[name]}
    checked = ArgumentSpecValidator(spec).validate({name: value}, validate_role_argument_spec=True)
    return checked.validated_parameters[name]


def _problem(name: str, value: Any, option: Mapping[str, Any]) -> str:
    """Message on a wrong value of the setting `name`; empty if the value is right. `option`: its argument spec."""
    if name in NAMED:
        of_kind, other_choices = NAMED[name]
        option = {**option, "choices": [*extensions.found(of_kind), *other_choices]}
    choices, kind = option.get("choices"), option.get("type", "str")
    type_message = f"must be {TYPES.get(kind, 'another value')}"
    if isinstance(value, (list, Mapping)) and kind in ("str", "path", "int", "float", "bool"):
        return type_message
    if isinstance(value, bool) and kind in ("int", "float"):
        return type_message
    if kind == "dict" and not isinstance(value, (Mapping, str)):
        return type_message
    if kind == "dict" and option.get("options") and isinstance(value, Mapping):
        for key in (key for key in value if key not in option["options"]):
            return f"it has no {_shown(key)}{meant(key, option['options'])}"
    if name == STAGES and isinstance(value, str):  # templates use it as a list before conversion
        meant_list = json.dumps({STAGES: re.split(r"[\s,]+", value.strip("[] "))})
        return f"must be a list: -e '{meant_list}'"
    try:
        checked = ArgumentSpecValidator({name: option}).validate({name: value}, validate_role_argument_spec=True)
    except OverflowError:  # an infinite number, where a whole one is needed
        return type_message
    if checked.error_messages:
        if choices and kind != "list":
            return f"must be one of {', '.join(map(str, choices))}{meant(value, map(str, choices))}"
        if choices and isinstance(value, (list, str)):
            elements = value.split(",") if isinstance(value, str) else value
            wrong = [one for one in elements if one not in choices]
            return f"{_shown(wrong[0])} is none of {', '.join(map(str, choices))}{meant(wrong[0], map(str, choices))}"
        if isinstance(value, list) and option.get("options"):
            return f"each entry has {', '.join(option['options'])}"
        length = _DURATION.fullmatch(str(value).strip().lower()) if name.endswith("_seconds") else None
        if length:
            return f"{type_message} of seconds: write {float(length[1]) * _UNITS[length[2][0]]:g}"
        return type_message
    number = checked.validated_parameters.get(name)
    if kind not in ("int", "float") or number is None:
        return ""
    if not abs(number) <= sys.float_info.max:  # false for NaN, too
        return type_message
    fits, rule = RULES.get(name) or _rule_of(name)
    return "" if fits(number) else rule


def _rule_of(name: str) -> tuple[Callable[[float], bool], str]:
    """(test, message for wrong numbers) of a numeric setting by its stage's bounds; without bounds 0 or more."""
    declared_bounds = (traits.bounds for traits in traits_of_stages().values())
    bounds = next((bounds[name] for bounds in declared_bounds if name in bounds), {"at_least": 0})
    rule = ", ".join(f"{key.replace('_', ' ')} {limit:g}" for key, limit in bounds.items())
    return lambda number: all(BOUNDS[key](number, limit) for key, limit in bounds.items()), f"must be {rule}"


def _shown(value: Any) -> str:
    text = " ".join(str(value).split())
    return f"{text[:MAX_SHOWN]}..." if len(text) > MAX_SHOWN else text or '""'


def gang_problems(right: Mapping[str, Any], search_round_seconds: float = 0.0) -> list[str]:
    """Messages on multi-node settings that contradict each other, before the other stages take hours. ``right``: valid
    values; ``search_round_seconds``: max time of a round in the search for a bad node, 0 without search."""
    problems = []
    values = {**declared().defaults, **right}
    port, ssh_port = values["gpuval_gang_port"], values["gpuval_gang_ssh_port"]
    if ssh_port in (port, port + 1):
        problems.append(f"gpuval_gang_ssh_port {ssh_port} collides: the gang uses gpuval_gang_port and the next one")
    seconds = right.get("gpuval_gang_search_seconds")
    short = folder.search_too_short(seconds, search_round_seconds) if seconds is not None else ""
    return [*problems, short] if short else problems


def unknown(names: Iterable[str], own_names: Iterable[str] = ()) -> dict[str, str]:
    """{variable: message}, of variables that look like settings but are none. ``own_names``: patterns to ignore."""
    messages, patterns, specs = {}, list(own_names), declared()
    for name in sorted(names):
        if name in specs.options or name in specs.defaults or name in OF_HOSTS or name in connection_variables():
            continue
        if any(fnmatchcase(name, pattern) for pattern in patterns) or _OF_OTHER_PLUGINS.match(name):
            continue
        if ansible_name := nearest_spelling(name, connection_variables()):
            messages[name] = (
                f"{name}: Ansible reads no such variable; is it {ansible_name}? One of your own goes into {OWN}"
            )
            continue
        if name.startswith("ansible_"):
            continue
        prefixed = name.startswith(specs.prefixes) and not name.endswith(_WORKLOAD)
        near = _nearest(name, 0.8 if prefixed else VERY_CLOSE)
        if prefixed or near:
            messages[name] = f"{name}: no such setting{near or '.'} A variable of your own goes into {OWN}"
    return messages


@cache
def connection_variables() -> frozenset[str]:
    """Ansible's documented variables for connecting to a host over SSH and becoming another user."""
    options = list(constants.config.get_configuration_definitions().values())
    for loader, kind, plugin in ((connection_loader, "connection", "ssh"), (become_loader, "become", "sudo")):
        loader.get(plugin, class_only=True)  # loads the plugin's documentation
        options += constants.config.get_configuration_definitions(kind, plugin).values()
    names = {variable["name"] for option in options for variable in option.get("vars") or ()}
    names |= {"ansible_become", "ansible_become_method", "ansible_remote_tmp", *constants.COMMON_CONNECTION_VARS}
    return frozenset(name for name in names if name.startswith("ansible_") and not name.startswith("ansible_sudo_"))


def stages(values: Iterable[str], jobs: Iterable[str] = ()) -> list[str]:
    """Names of all declared stages: of gpuval, extensions, `*_workload` variables in ``values``, and ``jobs``."""
    workload_stages = (name.removesuffix(_WORKLOAD) for name in values if name.endswith(_WORKLOAD))
    return sorted({*extensions.found("stages"), *jobs, *workload_stages})


def unknown_stages(
    right: Mapping[str, Any], profiles: Any, values: Iterable[str], jobs: Iterable[str] = ()
) -> list[str]:
    """Messages on unknown profiles, and on unknown stages in gpuval_stages and own profiles. ``right``: {setting: valid
    value}; ``profiles``: gpuval_profiles; ``values``, ``jobs``: names of a host's variables and of its jobs."""
    messages, choices = [], stages(values, jobs)
    profile = right.get("gpuval_profile")
    if profile is not None and isinstance(profiles, Mapping) and profile not in profiles:
        names = [str(name) for name in profiles]
        messages.append(f"gpuval_profile {profile}: must be one of {', '.join(names)}{meant(profile, names)}")
    for name in right.get("gpuval_gang_stages", {}):
        if isinstance(profiles, Mapping) and name not in profiles:
            messages.append(f"gpuval_gang_stages: no profile {_shown(name)}{meant(name, map(str, profiles))}")
    lists = [(STAGES, right.get(STAGES, []))]
    for name in ("gpuval_profiles", "gpuval_gang_stages"):
        lists += [(name, given) for given in right.get(name, {}).values()]
    if profile in extensions.own("profiles"):
        chosen = profile_files()[profile]
        lists.append((f"gpuval_profile {profile}", [*chosen.stages, *chosen.gang_stages]))
    for name, stage_names in lists:
        if not isinstance(stage_names, list):
            messages.append(f"{name}: {_shown(stage_names)} must be {TYPES['list']}")
            continue
        for stage in map(str, stage_names):
            if stage not in choices:
                remedy = f"; stages are {', '.join(choices)}; declare another one by {stage}{_WORKLOAD}"
                messages.append(f"{name}: no stage {_shown(stage)}{meant(stage, choices) or remedy}")
    return list(dict.fromkeys(messages))


def unknown_tags(tags: Iterable[str], option: str = "--tags") -> list[str]:
    """Messages on tags that look like mistyped stages. Other tags may belong to a site's own tasks."""
    stage_names = extensions.found("stages")
    near = ((tag, meant(tag, stage_names, 0.8)) for tag in tags if tag not in stage_names)
    return [f"{option} {tag}: no such stage{remark}" for tag, remark in near if remark]


def check_form(name: str, form: tuple[re.Pattern[str], str], value: str) -> None:
    """Raise SettingError if a value breaks the form (pattern, description of it). ``name``: of the setting."""
    pattern, words = form
    if not pattern.fullmatch(value):
        raise SettingError(f"{name} {_shown(value)}: must be {words}")


def check_names(values: Mapping[str, Any]) -> None:
    """Raise SettingError if a key of ``values``, settings for recurring runs, is no setting."""
    for name in values:
        if name not in declared().options:
            raise SettingError(f"no setting {name}{_nearest(str(name), 0.6)}")


def check_floors(variable: str, floors: Mapping[str, Any]) -> None:
    """Raise SettingError for a wrong {figure: minimum} of storage tests: an unknown figure, or no number above 0."""
    for name, limit in floors.items():
        if name not in table.FIGURES:
            tests = ", ".join(test.name for test in table.TESTS)
            near = meant(name, table.FIGURES) or f"; they are TEST_FIGURE of {tests} and {', '.join(table.MEASURES)}"
            raise SettingError(f"{variable}: no figure {name}{near}")
        try:
            number = math.nan if isinstance(limit, bool) else float(limit)
        except (TypeError, ValueError):
            number = math.nan
        if not 0 < number < math.inf:
            raise SettingError(f"{variable}: {name} {limit}: must be a number above 0 in base units")


def check_file(name: str, path: str) -> None:
    """Raise SettingError if the file that the setting ``name`` names is missing on the controller."""
    if not Path(path).expanduser().is_file():
        raise SettingError(f"{name} {path}: there is no such file on the controller")


def check_folder(name: str, path: Path) -> None:
    """Raise SettingError if the folder that the setting ``name`` names cannot be written. Creates nothing."""
    existing = next(one for one in (path, *path.parents) if one.exists())
    if not existing.is_dir():
        raise SettingError(f"{name} {path}: {existing} is a file: set it to a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise SettingError(f"{name} {path}: {existing} cannot be written: set it to a folder that you can write")


@extensions.cached
def _nearest(name: str, cutoff: float) -> str:
    return meant(name, declared().options, cutoff)


def _read(path: Path) -> dict[str, Any]:
    return (yaml_file.parse(path, yaml_file.read(path)) or {}) if path.exists() else {}
