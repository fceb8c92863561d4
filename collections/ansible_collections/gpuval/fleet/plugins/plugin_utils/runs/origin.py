"""Where a run belongs: its inventory, store and namespace, as run.json of its controller keeps them."""

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
#: The folder of runs whose inventory is not known.
UNKNOWN = "unknown"


def store_of(options: Mapping[str, Any]) -> str:
    """Description of the store in the `store` option, in one line without secrets."""
    return f"bucket {options['bucket']}, {options['endpoint'] or embedded_in(project_path(options['state_dir']))}"


def embedded_in(state_dir: Path) -> str:
    """The end of an embedded store's description, the same for every bucket."""
    return f"embedded in {state_dir.resolve()}"


def kept(inventory: Sequence[str], results: Path) -> list[str]:
    """Sources of an inventory for run.json: relative to the results, so that a checkout can be moved."""
    return [os.path.relpath(source, results) if Path(source).is_absolute() else source for source in inventory]


def restored(kept_inventory: Sequence[str], results: Path) -> list[str]:
    """The absolute sources of an inventory that `kept` made relative to the results."""
    paths = (os.path.normpath(results / source) for source in kept_inventory)
    return [path if Path(path).exists() else source for path, source in zip(paths, kept_inventory, strict=True)]


def folder_name(inventory: Sequence[str]) -> str:
    """A name for a folder that a reader knows the inventory by: ``baremetal`` for inventories/baremetal/hosts.yml."""
    paths = [Path(source) for source in inventory]
    stems = [SUFFIX.sub("", path.name) for path in paths]
    names = [path.parent.name or stem if stem in USUAL_NAMES else stem for path, stem in zip(paths, stems, strict=True)]
    return UNSAFE.sub("-", "+".join(names)).strip("-.")[:MAX_NAME] or UNKNOWN


def is_same(inventory: Sequence[str], other_inventory: Sequence[str]) -> bool:
    """Whether two inventories are the same: one has all sources of the other. An unknown inventory matches any."""
    if not inventory or not other_inventory:
        return True
    fewer, more = sorted((inventory, other_inventory), key=len)
    return all(any(_within(source, known) or _within(known, source) for known in more) for source in fewer)


def _within(source: str, folder: str) -> bool:
    return source == folder or (Path(source).is_absolute() and source.startswith(folder.rstrip("/") + "/"))


def shown(inventory: Sequence[str]) -> str:
    """An inventory as the value of a command's option, sources separated by commas."""
    cwd = str(Path.cwd())
    return ",".join(os.path.relpath(source, cwd) if source.startswith(cwd + "/") else source for source in inventory)


def others_line(runs_by_inventory: Mapping[str, Sequence[str]], target: str = "runs", most: int = 3) -> str:
    """Runs of other inventories, by inventory, and how to choose them for a target of make."""
    inventory_runs = (
        f"{some_of(run_ids, most)} (`make {target} INVENTORY={shlex.quote(inventory)}`)"
        for inventory, run_ids in sorted(runs_by_inventory.items())
    )
    return some_of(inventory_runs, 5, "; ")
