"""Defaults and settings from the files of stages and profiles, as variables that inventory, play and -e override."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader

from ...module_utils.hardware import pci
from ...module_utils.hardware.tree import Tree
from . import extensions, schemas, yaml_file
from .errors import SettingError

WORKLOAD = "_workload"
#: Values of `Profile.depth`. Criteria for one depth also apply to the depths after it.
DEPTHS = ("quick", "standard", "burnin", "soak")


@dataclass(frozen=True)
class Profile:
    """``profiles/<name>.yml``. ``settings`` replace defaults of stages, without GPUs ``cpu_settings`` both."""

    stages: Sequence[str]
    gang_stages: Sequence[str] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)
    cpu_settings: Mapping[str, Any] = field(default_factory=dict)
    depth: str = DEPTHS[0]

    @property
    def effort(self) -> tuple[float, int]:
        """Sort key of a profile: its deadline in seconds (0 for the default), and its number of stages."""
        return self.settings.get("gpuval_deadline_seconds", 0), len(self.stages) + len(self.gang_stages)


def profiles() -> dict[str, Profile]:
    """{name: profile} of all profiles, extensions included, shortest first. Raises SettingError for an invalid file."""
    by_name = {name: _profile(path) for name, path in extensions.found("profiles").items()}
    return dict(sorted(by_name.items(), key=lambda named: named[1].effort))


def depth_of(name: str) -> str:
    """The depth of the profile ``name``; quick for any other list of stages. Raises SettingError."""
    profile = profiles().get(name)
    return profile.depth if profile else DEPTHS[0]


def variables(profile: str, *, is_cpu_node: bool = False) -> dict[str, Any]:
    """{variable: untemplated value}: the defaults of all stages, overridden by the settings of a profile."""
    declared: dict[str, Any] = {}
    for name, folder in extensions.found("stages").items():
        defaults = defaults_of(name, folder)
        if clashes := defaults.keys() & declared.keys():
            raise SettingError(f"{folder}: {min(clashes)}: another stage has this setting, too: rename the stage")
        declared |= defaults
    chosen = profiles().get(profile, Profile(stages=[]))
    return {**declared, **chosen.settings, **(chosen.cpu_settings if is_cpu_node else {})}


def with_variables(templar: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The variables ``values`` of a host, with defaults of stages and its profile for those that are not set."""
    profile = str(templar.template(values.get("gpuval_profile")))
    return {**variables(profile, is_cpu_node=_is_cpu_node(templar, values)), **values}


def _is_cpu_node(templar: Any, values: Mapping[str, Any]) -> bool:
    """Whether no GPU of a host is tested: its SKU is cpu, or it is this machine, which has none and declares none."""
    names = ("gpuval_sku", "gpuval_gpu_count", "ansible_connection", "gpuval_placement")
    try:
        sku, count, connection, placement = (str(templar.template(values.get(name)) or "") for name in names)
    except AnsibleError:  # the check of settings reports it
        return False
    is_this_machine = connection == "local" and placement in ("", "ssh")
    return sku == "cpu" or (is_this_machine and sku in ("", "auto") and not count and not _this_machine_has_gpus())


@cache
def _this_machine_has_gpus() -> bool:
    """Whether this machine has GPUs, with or without a driver, as the stage facts finds them. Hardware that only a
    vendor's tool could identify counts as a GPU."""
    tree = Tree()
    return bool(pci.accelerators(tree)) or pci.has_nvidia_outside_pci(tree) or tree.exists("/dev/kfd")


@cache
def defaults_of(name: str, folder: Path) -> Mapping[str, Any]:
    """{variable: untemplated value} in ``defaults/main.yml`` of a stage's ``folder``, trusted like a role's. Raises
    SettingError, also for a setting without the stage's prefix, and YamlError."""
    path = folder / "defaults" / "main.yml"
    if not path.is_file():
        raise SettingError(f"{path}: there is no such file: declare {name}{WORKLOAD} in it")
    yaml_file.parse(path, yaml_file.read(path))  # unlike Ansible, its errors name file and line
    declared = DataLoader().load_from_file(str(path), trusted_as_template=True)
    foreign = [key for key in declared or () if not str(key).startswith(f"{name}_")]
    if foreign:
        raise SettingError(f"{path}: {foreign[0]}: settings of the stage begin with {name}_: rename it")
    if not declared or f"{name}{WORKLOAD}" not in declared:
        raise SettingError(f"{path}: no {name}{WORKLOAD}: declare what the stage runs")
    return dict(declared)


@cache
def _profile(path: Path) -> Profile:
    document = yaml_file.parse(path, yaml_file.read(path))
    try:
        schemas.validate("profile", document, what=str(path))
    except schemas.Invalid as error:
        raise SettingError(str(error)) from error
    return Profile(**{key: value for key, value in document.items() if key != "schema"})
