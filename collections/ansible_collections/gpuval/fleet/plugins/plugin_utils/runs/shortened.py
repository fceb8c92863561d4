"""Settings that make stages of a run shorter than its profile does: its PASS says less than one of the profile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..core import stages

#: By stage the settings that end it early where they are not 0.
LIMITS = {"training": ("training_steps", "training_epochs"), "inference": ("inference_requests",)}


def of_stages(names: Iterable[str], known: Mapping[str, Any], template: Callable[[str], Any]) -> list[str]:
    """``training_seconds 20 of 300``, ``training_steps 10``: by stage what is less than its profile's.

    ``known`` are the variables of the play, ``template`` gives the value of an expression of Jinja.
    """
    found = []
    usual = stages.variables(str(template("{{ gpuval_profile | default('') }}")))
    for stage in names:
        name = f"{stage}_seconds"
        default = usual.get(name)
        if default is not None and name in known:
            seconds, of_profile = _number(template(f"{{{{ {name} }}}}")), _number(template(str(default)))
            if 0 < seconds < of_profile:
                found.append(f"{name} {seconds:g} of {of_profile:g}")
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
