"""Write an inventory: of SSH nodes, which are asked for or given as NODES=, or of a cluster (KUBECONFIG=, SLURM=1)."""

from __future__ import annotations

import argparse
import re
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "collections")]

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.console import folded
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import GpuvalError, SettingError, reason_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.inventory import node_list

USUAL = "inventories/mine"
#: Arguments that choose a cluster, and nodes of it.
OF_KUBERNETES, OF_SLURM = ("kubeconfig", "context", "selector"), ("slurm", "partition")
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
        raise SettingError('NODES= is empty: make inventory NODES="gpu[01-16]", KUBECONFIG=PATH or SLURM=1')
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


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files of an inventory, by name, as a new folder: all of them or none. Raises SettingError."""
    draft = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        if folder.exists():
            raise SettingError(f"{folder} is there already: choose another one with OUTPUT=, or remove it")
        for name, text in files.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_text(text, encoding="utf-8")
        draft.rename(folder)
    except OSError as error:
        raise SettingError(f"{folder} cannot be written: {error.strerror}; choose another one with OUTPUT=") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def asked(given: str | None, question: str) -> str:
    """What was given, else the answer to the question; empty without a terminal."""
    return given if given is not None else input(question).strip() if sys.stdin.isatty() else ""


def of_ssh(given: argparse.Namespace) -> tuple[Path, dict[str, str], list[str], Sequence[str]]:
    """Folder, files, lines for the operator and the next commands, for nodes over SSH. Raises SettingError."""
    nodes = asked(given.nodes, "Nodes, as gpu[01-16], a list of names (gpu-1=192.0.2.1) or a .csv file: ")
    text = lines_of(nodes)
    user = asked(given.user, "User on the nodes (empty: that of ~/.ssh/config): ")
    key = asked(given.key, "Private key (empty: that of the agent or ~/.ssh): ")
    variables = settings(user, key, asked(given.gpus, "GPUs ordered per node (empty: not checked): "))
    folder = Path(given.output or asked(None, f"Folder (empty: {USUAL}): ") or USUAL)
    count = len(node_list.parse(text, "nodes.csv"))
    lines = [f"{count} node(s) in {folder}. Choose the store in {folder}/group_vars/all.yml, then:"]
    files = {"hosts.yml": HOSTS, "nodes.csv": text, "group_vars/all.yml": variables}
    return folder, files, lines, ("environment", "validate")


def of_cluster(given: argparse.Namespace) -> tuple[Path, dict[str, str], list[str], Sequence[str]]:
    """The same for the nodes of a cluster. Raises GpuvalError."""
    import cluster_inventory  # noqa: PLC0415 - it reads the libraries of a cluster

    if given.gpus and not given.gpus.isdecimal():
        raise SettingError(f"GPUS {given.gpus!r} is not a whole number")
    folder = Path(given.output or USUAL)
    if folder.exists():
        raise SettingError(f"{folder} is there already: choose another one with OUTPUT=, or remove it")
    shared = {"gpus": given.gpus or "", "store": given.store or ""}
    if given.slurm:
        inventory = cluster_inventory.of_slurm(given.partition or "", **shared)
    else:
        names = ("kubeconfig", "context", "selector")
        inventory = cluster_inventory.of_kubernetes(folder, *(getattr(given, name) or "" for name in names), **shared)
    return folder, inventory.files, [*inventory.lines, f"{folder} is written. Next:"], inventory.commands


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make inventory", description=__doc__)
    for name in ("nodes", "user", "key", "gpus", "output", "store", *OF_KUBERNETES, *OF_SLURM):
        parser.add_argument(f"--{name}")
    given = parser.parse_args(arguments)
    kinds = [
        names
        for names in (("nodes",), OF_KUBERNETES, OF_SLURM)
        if any(getattr(given, name) is not None for name in names)
    ]
    try:
        if len(kinds) > 1:
            given_twice = " and ".join(f"{names[0].upper()}=" for names in kinds)
            raise SettingError(f"{given_twice} exclude each other: nodes over SSH, of Kubernetes, or of Slurm")
        folder, files, lines, commands = (of_cluster if kinds and kinds[0] != ("nodes",) else of_ssh)(given)
        write(folder, files)
    except GpuvalError as error:
        print(f"make inventory: {folded(str(error))}", file=sys.stderr)
        return 1
    except (EOFError, KeyboardInterrupt):
        print("\nmake inventory: stopped", file=sys.stderr)
        return 1
    print(*lines, *(f"  make {command} INVENTORY={folder}" for command in commands), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
