"""What the owner declares of a node beside its versions: services that run, file systems that are mounted, how hot GPUs
may get. Services and mounts are held against the facts, the temperature is the limit of a criterion."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import SettingError
from ..core.text import some_of
from ..records import environment
from ..records.documents import Record
from .entries import Entry, own_entry

SERVICES, MOUNTS, TEMPERATURE = "gpuval_services", "gpuval_mounts", "gpuval_gpu_temperature_max_celsius"
MAX_NAMES, MAX_TEXT = 64, 200
#: By list: its key in run.json, where the facts tell what is there, what a name is, and the remedy.
LISTS = {
    SERVICES: ("services", "active", "service", "find out why it does not run (systemctl status NAME), then start it"),
    MOUNTS: ("mounts", "mounts", "mount", "mount it, then find out why boot did not (/etc/fstab, journalctl -b)"),
}
UNKNOWN = {
    SERVICES: "services unknown: systemd does not answer on the node, as in a pod",
    MOUNTS: "mounts unknown: the facts have none",
}


def names(variable: str, value: Any) -> list[str]:
    """A list of services or mounts as run.json keeps it. Raises SettingError."""
    if not value:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str) and one.strip() for one in value):
        raise SettingError(f"{variable} is a list of names, such as [chronyd]")
    if len(value) > MAX_NAMES or any(len(one) > MAX_TEXT for one in value):
        raise SettingError(f"{variable} has at most {MAX_NAMES} names of {MAX_TEXT} characters")
    if variable == MOUNTS and not all(one.startswith("/") for one in value):
        raise SettingError(f"{variable}: a mount is an absolute path, such as /data")
    tidy = (one.strip().removesuffix(".service") if variable == SERVICES else one.rstrip("/") or "/" for one in value)
    return list(dict.fromkeys(tidy))


def temperature(value: Any) -> float | None:
    """The limit in degrees Celsius, None without one. Raises SettingError."""
    if value in (None, "") or (value in (0, "0") and value is not False):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not 30 <= number <= 120:
        raise SettingError(f"{TEMPERATURE} is a number of degrees from 30 to 120, not {str(value)[:40]!r}")
    return number


def of_host(hostvars: Mapping[str, Any]) -> dict[str, Any]:
    """What the variables of a host declare, as run.json keeps it; what is empty is left out. Raises SettingError."""
    names_declared = {key: names(variable, hostvars.get(variable)) for variable, (key, *_) in LISTS.items()}
    limit = temperature(hostvars.get(TEMPERATURE))
    return {key: value for key, value in {**names_declared, "gpu_temperature_max_celsius": limit}.items() if value}


def checks(declared: Mapping[str, Any], facts: Record | None, stage: str) -> list[Entry]:
    """The entries of the declared services and mounts."""
    return [_check(variable, declared[key], facts, stage) for variable, (key, *_) in LISTS.items() if declared.get(key)]


def _check(variable: str, declared: Sequence[str], facts: Record | None, stage: str) -> Entry:
    key, list_key, noun, remedy = LISTS[variable]
    entry = functools.partial(
        own_entry, f"{key}_declared", stage, "equal", expected=some_of(declared), remedy=remedy,
        source=f"{variable} of the inventory",
    )  # fmt: skip
    if facts is None:
        return entry("missing", "no facts say what the node has")
    services = facts["environment"].get("services")
    services = services if isinstance(services, dict) else {}
    reported = services.get(list_key)
    if not isinstance(reported, list):
        return entry("missing", UNKNOWN[variable])
    absent = [name for name in declared if name not in reported]
    waiting = services.get("automounts")
    if absent and key == "mounts" and isinstance(waiting, list) and set(absent) <= set(waiting):
        return entry("missing", f"automounts that were not read yet: {some_of(absent)}; read them, then validate again")
    if absent and key == "mounts" and environment.texts(facts["environment"], "os.container"):
        return entry("missing", f"the facts are those of a container, which has not mounted: {some_of(absent)}")
    if absent:
        return entry("fail", f"{noun} not there: {some_of(absent)}", value=some_of(absent))
    return entry("pass", f"{len(declared)} {noun}{'s' if len(declared) > 1 else ''} there")
