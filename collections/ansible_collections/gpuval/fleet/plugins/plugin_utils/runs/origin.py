"""Describes inventory and store of a run for run.json, and compares inventories of runs."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.paths import project_path
from ..core.text import some_of

#: Generic names of inventory files; the name of their folder is used instead.
USUAL_NAMES = ("hosts", "inventory", "nodes")
SUFFIX = re.compile(r"\.(ya?ml|ini|json|toml|cfg|py|sh)$")
UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
MAX_NAME = 60
#: Name of the results folder for runs whose inventory has no usable name.
UNKNOWN = "unknown"


def store_of(options: Mapping[str, Any]) -> str:
    """Description of the store in the `store` option, in one line without secrets."""
    return f"bucket {options['bucket']}, {options['endpoint'] or embedded_in(project_path(options['state_dir']))}"


def embedded_in(state_dir: Path) -> str:
    """End of the description that `store_of` makes of the embedded store in a folder, for any bucket."""
    return f"embedded in {state_dir.resolve()}"


def kept(inventory: Sequence[str], results: Path) -> list[str]:
    """Sources of an inventory for run.json: paths relative to the results folder, so that a checkout can be moved."""
    return [os.path.relpath(source, results) if Path(source).is_absolute() else source for source in inventory]


def restored(kept_inventory: Sequence[str], results: Path) -> list[str]:
    """Absolute sources of an inventory, from those that `kept` made relative to the results folder."""
    paths = (os.path.normpath(results / source) for source in kept_inventory)
    return [path if Path(path).exists() else source for path, source in zip(paths, kept_inventory, strict=True)]


def folder_name(inventory: Sequence[str]) -> str:
    """Name of the folder for an inventory's runs: ``baremetal`` for inventories/baremetal/hosts.yml."""
    paths = [Path(source) for source in inventory]
    stems = [SUFFIX.sub("", path.name) for path in paths]
    names = [path.parent.name or stem if stem in USUAL_NAMES else stem for path, stem in zip(paths, stems, strict=True)]
    return UNSAFE.sub("-", "+".join(names)).strip("-.")[:MAX_NAME] or UNKNOWN


def is_same(inventory: Sequence[str], other_inventory: Sequence[str]) -> bool:
    """Whether two inventories are the same: one has all sources of the other. An empty inventory matches any."""
    if not inventory or not other_inventory:
        return True
    fewer, more = sorted((inventory, other_inventory), key=len)
    return all(any(_within(source, known) or _within(known, source) for known in more) for source in fewer)


def _within(source: str, folder: str) -> bool:
    return source == folder or (Path(source).is_absolute() and source.startswith(folder.rstrip("/") + "/"))


def shown(inventory: Sequence[str]) -> str:
    """An inventory's sources as the value of INVENTORY=: relative to the current folder, separated by commas."""
    cwd = str(Path.cwd())
    return ",".join(os.path.relpath(source, cwd) if source.startswith(cwd + "/") else source for source in inventory)


def others_line(runs_by_inventory: Mapping[str, Sequence[str]], target: str = "runs", most: int = 3) -> str:
    """Runs of other inventories as text, each with its `make {target}` command. `most`: max runs of an inventory."""
    inventory_runs = (
        f"{some_of(run_ids, most)} (`make {target} INVENTORY={shlex.quote(inventory)}`)"
        for inventory, run_ids in sorted(runs_by_inventory.items())
    )
    return some_of(inventory_runs, 5, "; ")
