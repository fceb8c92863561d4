"""Programs whose logs the runner can read, as data: ``outputs/programs.yml``."""

from __future__ import annotations

import functools
from typing import Any

from ..core import yaml_file
from ..core.errors import SettingError
from ..core.paths import COLLECTION
from ..core.text import meant

FILE = COLLECTION / "outputs/programs.yml"
#: What a plan takes along; the rest is for people.
IN_PLAN = ("name", "step", "x_unit", "values")
MAX_PROGRAMS = 8


@functools.cache
def shipped() -> dict[str, dict[str, Any]]:
    """The readers by name, as a plan holds them. Raises schemas.Invalid where the file breaks its schema."""
    document = yaml_file.shipped(FILE, "outputs")
    return {one["name"]: {key: one[key] for key in IN_PLAN if key in one} for one in document["programs"]}


def readers(declaration: Any) -> list[dict[str, Any]]:
    """The readers that a declaration asks for: a name, a list of names, or nothing. Raises SettingError."""
    names = declaration if isinstance(declaration, list | tuple) else [declaration] if declaration else []
    if len(names) > MAX_PROGRAMS:
        raise SettingError(f"{len(names)} programs, at most {MAX_PROGRAMS} are read")
    listed = shipped() if names else {}
    for name in names:
        if not isinstance(name, str) or name not in listed:
            raise SettingError(f"no reader is called {name!r}{meant(name, listed)}; there are {', '.join(listed)}")
    return [listed[name] for name in dict.fromkeys(names)]
