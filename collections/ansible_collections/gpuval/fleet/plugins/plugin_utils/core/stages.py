"""What stages and profiles declare in their files, as variables below all that Ansible has: inventory, play and -e."""

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
#: What `Profile.depth` may be: criteria of a depth apply to it and to those after it.
DEPTHS = ("quick", "standard", "burnin", "soak")


@dataclass(frozen=True)
class Profile:
    """``profiles/<name>.yml``; ``settings`` replace the defaults of stages, without GPUs ``cpu_settings``, too."""

    stages: Sequence[str]
    gang_stages: Sequence[str] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)
    cpu_settings: Mapping[str, Any] = field(default_factory=dict)
    depth: str = DEPTHS[0]

    @property
    def effort(self) -> tuple[float, int]:
        """Sort key: the profile's deadline in seconds, 0 for the usual one, and its number of stages."""
        return self.settings.get("gpuval_deadline_seconds", 0), len(self.stages) + len(self.gang_stages)


def profiles() -> dict[str, Profile]:
    """By name those that ship and of extensions, shortest first. Raises SettingError for a file against its schema."""
    by_name = {name: _profile(path) for name, path in extensions.found("profiles").items()}
    return dict(sorted(by_name.items(), key=lambda named: named[1].effort))


def depth_of(name: str) -> str:
    """The depth of a profile; the least for a list in ``gpuval_profiles``. Raises SettingError."""
    profile = profiles().get(name)
    return profile.depth if profile else DEPTHS[0]


def variables(profile: str, *, is_cpu_node: bool = False) -> dict[str, Any]:
    """The defaults of all stages, untemplated, with the settings of a profile in place of theirs."""
    declared: dict[str, Any] = {}
    for name, folder in extensions.found("stages").items():
        defaults = defaults_of(name, folder)
        if clashes := defaults.keys() & declared.keys():
            raise SettingError(f"{folder}: {min(clashes)}: another stage has this setting, too: rename the stage")
        declared |= defaults
    chosen = profiles().get(profile, Profile(stages=[]))
    return {**declared, **chosen.settings, **(chosen.cpu_settings if is_cpu_node else {})}


def with_variables(templar: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of a host, with the stages' defaults for those that the host does not set."""
    profile = str(templar.template(values.get("gpuval_profile")))
    return {**variables(profile, is_cpu_node=_is_cpu_node(templar, values)), **values}


def _is_cpu_node(templar: Any, values: Mapping[str, Any]) -> bool:
    """True where no GPU is tested: by the SKU, or because this machine, whose GPUs are not declared, has none."""
    names = ("gpuval_sku", "gpuval_gpu_count", "ansible_connection", "gpuval_placement")
    try:
        sku, count, connection, placement = (str(templar.template(values.get(name)) or "") for name in names)
    except AnsibleError:  # it is reported where settings are checked
        return False
    is_this_machine = connection == "local" and placement in ("", "ssh")
    return sku == "cpu" or (is_this_machine and sku in ("", "auto") and not count and not _this_machine_has_gpus())


@cache
def _this_machine_has_gpus() -> bool:
    """As the stage facts sees them, with or without a driver; what only a vendor's tool can tell counts as a GPU."""
    tree = Tree()
    return bool(pci.accelerators(tree)) or pci.has_nvidia_outside_pci(tree) or tree.exists("/dev/kfd")


@cache
def defaults_of(name: str, folder: Path) -> Mapping[str, Any]:
    """``defaults/main.yml`` of a stage, trusted like a role's. Raises SettingError for foreign settings, YamlError."""
    path = folder / "defaults" / "main.yml"
    if not path.is_file():
        raise SettingError(f"{path}: there is no such file: declare {name}{WORKLOAD} in it")
    yaml_file.parse(path, yaml_file.read(path))  # it names file and line, which Ansible does not
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
