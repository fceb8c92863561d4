"""Facts on systemd services and mounted file systems, to check those that the node's owner expects."""

from __future__ import annotations

import re
from typing import Any, Optional

from .tools import Run
from .tree import Tree

MAX_NAMES = 256
#: Types of file systems that are not listed: the kernel's own, and those of containers and packages.
NOT_SHOWN = frozenset(
    {
        *("binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts"),
        *("devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "overlay", "proc"),
        *("pstore", "ramfs", "rpc_pipefs", "securityfs", "selinuxfs", "squashfs", "sysfs", "tracefs"),
    }
)
#: Mounts of containers on the node, which may be hundreds and are not listed.
OF_CONTAINERS = re.compile(r"/(kubelet|containerd|containers|docker)/")
#: Type of a mount point whose file system is mounted at its first use.
AUTOMOUNT = "autofs"


def facts(tree: Tree, run: Run) -> dict[str, Any]:
    """Return `active` and `failed`, names of services (None without systemd), `mounts`, the mounted folders, and
    `automounts`, folders that are mounted at first use (both None if the kernel does not list mounts)."""
    answer = run("systemctl", "list-units", "--type=service", "--all", "--plain", "--no-legend", "--no-pager")
    states = units(answer.stdout) if answer.ok else None
    mounts = tree.mounts()
    return {
        "active": _named(states, "active"),
        "failed": _named(states, "failed"),
        "mounts": None if mounts is None else _folders(mounts, is_auto=False),
        "automounts": None if mounts is None else _folders(mounts, is_auto=True),
    }


def units(text: str) -> dict[str, str]:
    """Return state by service of ``systemctl list-units --plain --no-legend``: unit, load, active, sub, description."""
    rows = (line.split() for line in text.splitlines())
    return {row[0].removesuffix(".service"): row[2] for row in rows if len(row) >= 4 and row[0].endswith(".service")}


def _folders(mounts: list[list[str]], *, is_auto: bool) -> list[str]:
    chosen = (
        folder
        for _device, folder, kind, _options in mounts
        if kind not in NOT_SHOWN and not OF_CONTAINERS.search(folder) and (kind == AUTOMOUNT) is is_auto
    )
    return list(dict.fromkeys(chosen))[:MAX_NAMES]


def _named(states: Optional[dict[str, str]], state: str) -> Optional[list[str]]:
    return None if states is None else sorted(name for name, now in states.items() if now == state)[:MAX_NAMES]
