"""Settings that make stages of a run shorter than its profile does: its PASS says less than one of the profile."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..core import yaml_file
from ..core.paths import ROLES

#: By stage the settings that end it early where they are not 0.
LIMITS = {"training": ("training_steps", "training_epochs"), "inference": ("inference_requests",)}


def of_stages(stages: Iterable[str], known: Mapping[str, Any], template: Callable[[str], Any]) -> list[str]:
    """``training_seconds 20 of 300``, ``training_steps 10``: by stage what is less than its profile's.

    ``known`` are the variables of the play, ``template`` gives the value of an expression of Jinja.
    """
    found = []
    for stage in stages:
        name = f"{stage}_seconds"
        default = _defaults(stage).get(name)
        if default is not None and name in known:
            seconds, usual = _number(template(f"{{{{ {name} }}}}")), _number(template(str(default)))
            if 0 < seconds < usual:
                found.append(f"{name} {seconds:g} of {usual:g}")
        for limit in LIMITS.get(stage, ()):
            count = _number(template(f"{{{{ {limit} }}}}")) if limit in known else 0
            if count > 0:
                found.append(f"{limit} {count:g}")
    return found


def _number(value: Any) -> float:
    """0 for what is no number: settings are checked elsewhere."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


@functools.cache
def _defaults(stage: str) -> Mapping[str, Any]:
    """The defaults of the stage's role, as they are written; none for a stage without a role."""
    path = ROLES / stage / "defaults" / "main.yml"
    return yaml_file.load(path.read_text(encoding="utf-8")) or {} if path.is_file() else {}
