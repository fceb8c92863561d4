"""Rewrites commands in messages: ``make TARGET`` in a checkout, ansible-playbook if only the collection is installed.

Code writes each command as in a checkout, between backticks, and a page of the documentation by its path in ``docs/``.
`pasteable` rewrites them in all that is printed or reported.
"""

import functools
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .paths import COLLECTION, INSTALLED

REQUIREMENTS = COLLECTION / "requirements.txt"
#: The Makefile of a checkout. An operator's project may have another Makefile at this path.
MAKEFILE = INSTALLED.parents[3] / "Makefile"
FAILED_NODES = "results/latest/failed_nodes.txt"
#: {make target that is not just the playbook of its name: (playbook, options)}
TARGETS = {
    "baseline-diff": ("compare_baselines",),
    "in-cluster": ("in_cluster",),
    "calibrate": ("baseline", "-e", "baseline_state=spreads", "-e", "baseline_name=spreads"),
    "rerun": ("validate", "--limit", "@{failed}"),
    "shell": ("reach", "-e", "run_reach=shell"),
    "follow": ("reach", "-e", "run_reach=follow"),
}
#: {variable of make, or "target variable" if it differs for one target: extra variable that it sets}
VARIABLES = {
    "FILE": "run_hostfile",
    "FOLDER": "verify_folder",
    "LIST": "provision_list",
    "N": "run_window_nodes",
    "NAME": "baseline_name",
    "NODE": "run_reach_node",
    "REGISTRY": "container_image_registry",
    "REPO": "gpuval_mad_repository",
    "ROTATE": "ssh_keys_rotate",
    "RUN": "gpuval_run_id",
    "RUNS": "accept_runs",
    "SIGNING": "ssh_keys_signing",
    "history NODE": "history_node",
}
#: The inventory of a make command without INVENTORY=, and targets that have a playbook but take no inventory.
DEFAULT_INVENTORY = "inventories/local"
NOT_OF_INVENTORIES = ("baseline-diff",)
#: Command that validates again, set in the container image `validate`, whose inventory ends with the container.
AGAIN = os.environ.get("GPUVAL_AGAIN", "")
#: Sources of the inventory (paths) for commands that run without Ansible.
look_sources: list[str] = []
DOCUMENTATION = "https://github.com/gpuval/gpuval/blob/main/"
_PAGE = re.compile(r"(?<![\w/])docs/[a-z_]+\.md")
_MAKE = re.compile(r"`make ([a-z-]+)([^`\n]*)`")


def pasteable(text: str, inventory: str = "", *, failed: str = FAILED_NODES, checkout: bool | None = None) -> str:
    """The text with each command rewritten so that it can be pasted here.

    ``inventory``: the one that commands name, by default that of this process. ``failed``: path of the file with nodes
    to validate again. ``checkout``: whether to write make commands, None to find out.
    """
    sources = _sources(inventory) if inventory else own_sources()
    if in_checkout() if checkout is None else checkout:
        chosen = f" INVENTORY={shlex.quote(','.join(sources))}" if sources not in ([], [DEFAULT_INVENTORY]) else ""

        def target(match: re.Match[str]) -> str:
            name = TARGETS.get(match[1], (match[1],))[0]
            takes_one = (COLLECTION / f"playbooks/{name}.yml").exists() and match[1] not in NOT_OF_INVENTORIES
            return f"`make {match[1]}{chosen if takes_one and 'INVENTORY=' not in match[2] else ''}{match[2]}`"

        return _MAKE.sub(target, text)
    text = _PAGE.sub(rf"{DOCUMENTATION}\g<0>", text)

    def playbook(match: re.Match[str]) -> str:
        try:
            return f"`{_playbook(match[1], match[2], sources, failed)}`"
        except ValueError:  # unclosed quotes: text from a node, not a command of gpuval
            return match[0]

    return _MAKE.sub(playbook, text)


def own_sources() -> list[str]:
    """The sources (paths) of this process's inventory, as given to its command."""
    arguments = getattr(sys.modules.get("ansible.context"), "CLIARGS", {})
    return [str(source).removeprefix(f"{Path.cwd()}/") for source in look_sources or arguments.get("inventory") or ()]


@functools.cache
def in_checkout() -> bool:
    """Whether the collection in use is in a checkout of gpuval, so that there are make targets."""
    try:
        return MAKEFILE.read_text(encoding="utf-8").startswith("# gpuval:")
    except (OSError, UnicodeDecodeError):
        return False


def command(line: str) -> str:
    """The make command ``line``, rewritten so that it can be pasted here."""
    return pasteable(f"`{line}`")[1:-1]


def in_remedy(text: str) -> str:
    """A remedy with pasteable commands. In a checkout they name no inventory: a delivery would reveal its path."""
    return pasteable(text, DEFAULT_INVENTORY if in_checkout() else "")


def in_remedies(document: Any, written: Callable[[str], str] = in_remedy) -> None:
    """Replace each text with the key ``remedy`` in a JSON document, in place, by what ``written`` makes of it."""
    if isinstance(document, dict):
        for name, value in document.items():
            if name == "remedy" and isinstance(value, str):
                document[name] = written(value)
            elif isinstance(value, (dict, list)):
                in_remedies(value, written)
    elif isinstance(document, list):
        for item in document:
            in_remedies(item, written)


def _playbook(target: str, make_arguments: str, sources: Sequence[str], failed_file: str) -> str:
    if target == "setup":
        return shlex.join([sys.executable, "-m", "pip", "install", "-r", str(REQUIREMENTS)])
    name, *options = (word.format(failed=failed_file) for word in TARGETS.get(target, (target,)))
    if AGAIN and name == "validate":
        return AGAIN
    for word in shlex.split(make_arguments):
        variable, _, value = word.partition("=")
        if variable == "INVENTORY":
            sources = _sources(value)
        elif variable == "ARGS":
            options += shlex.split(value)
        else:
            name_here = VARIABLES.get(f"{target} {variable}") or VARIABLES.get(variable, variable)
            options += ["-e", f"{name_here}={value}"]
    chosen = [word for source in sources for word in ("-i", source)]
    return shlex.join(["ansible-playbook", f"gpuval.fleet.{name}", *chosen, *options])


def _sources(inventory: str) -> list[str]:
    """The sources of an inventory, split as in the Makefile: at commas, if each part is an existing path."""
    paths = inventory.split(",")
    return paths if all(path and Path(path).exists() for path in paths) else [inventory]
