"""Write an inventory of SSH nodes: `make inventory` asks for them, or takes NODES=, SSH_USER=, KEY=, GPUS=, OUTPUT=."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "collections"))

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError, reason_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.inventory import node_list

HOSTS = "---\nplugin: gpuval.fleet.node_list\npath: nodes.csv\n"
#: Where the rest is described.
SETTINGS = """\
---
# All settings: docs/reference/variables.md
{access}
gpuval_profile: standard

# What the workloads run in: docs/install.md#what-the-nodes-need. `make environment` installs it; or images, or:
# gpuval_workload_python: /opt/gpuval/bin/python

# The store, by an address of this controller that the nodes reach: docs/install.md#the-store
# gpuval_store_address: 192.0.2.1
# gpuval_store_port: 9000
"""
#: Where the number of GPUs was not given.
UNDECLARED = """\
# GPUs ordered per node. Without it, nodes without GPU hardware pass as CPU nodes:
# gpuval_gpu_count: 8"""


def lines_of(nodes: str) -> str:
    """The list of nodes as CSV: that of a file, or of names such as ``gpu[01-16]`` and ``gpu-1=192.0.2.1``. Raises
    SettingError."""
    if nodes.lower().endswith(".csv"):
        try:
            text = Path(nodes).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(f"{nodes} cannot be read: {reason_of(error)}") from None
    elif not nodes:
        raise SettingError('NODES= is empty: make inventory NODES="gpu[01-16]"')
    else:
        rows = [word.partition("=") for word in re.split(r"[,\s]+", nodes) if word]
        text = "name,address\n" + "".join(f"{name},{address}\n" for name, _, address in rows)
    node_list.parse(text, "nodes.csv")
    return text


def settings(user: str, key: str, gpus: str) -> str:
    """The text of group_vars/all.yml. Raises SettingError."""
    access = []
    if user:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9._-]*", user):
            raise SettingError(f"SSH_USER {user!r} is no name of a user")
        access.append(f"ansible_user: {user}")
    if key:
        path = Path(key).expanduser().absolute()
        if not path.is_file() or path.suffix == ".pub":
            raise SettingError(f"KEY {key}: give the file of a private key")
        access.append(f"ansible_ssh_private_key_file: {path}")
    if gpus:
        if not gpus.isdecimal():
            raise SettingError(f"GPUS {gpus!r} is not a whole number")
        access.append(f"gpuval_gpu_count: {gpus}")
    else:
        access.append(UNDECLARED)
    return SETTINGS.format(access="\n".join(access))


def write(folder: Path, nodes: str, variables: str) -> None:
    """Write the inventory into a new folder. Raises SettingError."""
    try:
        (folder / "group_vars").mkdir(parents=True)
        for name, text in (("hosts.yml", HOSTS), ("nodes.csv", nodes), ("group_vars/all.yml", variables)):
            (folder / name).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise SettingError(f"{folder} is there already: choose another one with OUTPUT=") from None
    except OSError as error:
        raise SettingError(f"{folder} cannot be written: {error.strerror}; choose another one with OUTPUT=") from None


def asked(given: str | None, question: str) -> str:
    """What was given, else the answer to the question; empty without a terminal."""
    return given if given is not None else input(question).strip() if sys.stdin.isatty() else ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make inventory", description=__doc__)
    for name in ("nodes", "user", "key", "gpus", "output"):
        parser.add_argument(f"--{name}")
    given = parser.parse_args(arguments)
    try:
        nodes = asked(given.nodes, "Nodes, as gpu[01-16], a list of names (gpu-1=192.0.2.1) or a .csv file: ")
        text = lines_of(nodes)
        user = asked(given.user, "User on the nodes (empty: that of ~/.ssh/config): ")
        key = asked(given.key, "Private key (empty: that of the agent or ~/.ssh): ")
        variables = settings(user, key, asked(given.gpus, "GPUs ordered per node (empty: not checked): "))
        folder = Path(given.output or asked(None, "Folder (empty: inventories/mine): ") or "inventories/mine")
        write(folder, text, variables)
    except SettingError as error:
        print(f"make inventory: {error}", file=sys.stderr)
        return 1
    except (EOFError, KeyboardInterrupt):
        print("\nmake inventory: stopped", file=sys.stderr)
        return 1
    count = len(node_list.parse(text, "nodes.csv"))
    print(f"{count} node(s) in {folder}. Choose the store in {folder}/group_vars/all.yml, then:")
    print(f"  make environment INVENTORY={folder}")
    print(f"  make validate INVENTORY={folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
