"""Facts on disks, and on the local file systems with their free space."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, Optional

from .tree import Tree

BLOCK = "/sys/block"
SECTOR_BYTES = 512  # unit of sysfs, whatever the disk's own sector size is
#: Block devices that are virtual, removable, made of other disks (also md_NAME), or one path of an NVMe disk.
NOT_DISKS = re.compile(r"(loop|ram|zram|dm-|md|sr|fd|nbd)\d*|md_.+|nvme\d+c\d+n\d+")
MOUNT_LIMIT = 64


def facts(tree: Tree) -> list[dict[str, Any]]:
    return [*_disks(tree), *_filesystems(tree)]


def disk_sectors(tree: Tree) -> dict[str, int]:
    """Return the size of each of the machine's disks in sectors, by the kernel's name."""
    names = (name for name in tree.entries(BLOCK) if not NOT_DISKS.fullmatch(name))
    return {name: sectors for name in names if (sectors := tree.number(f"{BLOCK}/{name}/size"))}


def _disks(tree: Tree) -> list[dict[str, Any]]:
    disks = []
    for name, sectors in disk_sectors(tree).items():
        rotational = tree.number(f"{BLOCK}/{name}/queue/rotational")
        device = f"{BLOCK}/{name}/device"
        disk = {
            "kind": "disk",
            "name": name,
            "size_bytes": sectors * SECTOR_BYTES,
            "model": tree.read(f"{device}/model"),
            "firmware_version": tree.read(f"{device}/firmware_rev") or tree.read(f"{device}/rev"),
            "rotational": None if rotational is None else bool(rotational),
        }
        disks.append(disk)
    return disks


def _filesystems(tree: Tree) -> list[dict[str, Any]]:
    """Return the local file systems; a network file system would hang if its server is down."""
    mounts: dict[str, dict[str, Any]] = {}
    for device, mount, kind, options in tree.mounts() or ():
        local = device.startswith("/dev/") or (mount == "/" and kind == "overlay")
        if not local or device.startswith("/dev/loop") or device in {entry["device"] for entry in mounts.values()}:
            continue
        mounts[mount] = {
            "kind": "filesystem",
            "device": device,
            "mount": mount,
            "type": kind,
            "read_only": "ro" in options.split(","),
            **_space(tree, mount),
        }
    return list(mounts.values())[:MOUNT_LIMIT]


def _space(tree: Tree, mount: str) -> dict[str, Any]:
    space = None
    with contextlib.suppress(OSError):  # hidden below another mount, or forbidden to this user
        space = os.statvfs(mount) if tree.is_real else None
    return {
        "size_bytes": space and space.f_blocks * space.f_frsize,
        "free_bytes": space and space.f_bavail * space.f_frsize,
        "used_ratio": space and used_ratio(space.f_blocks, space.f_bfree, space.f_bavail),
    }


def used_ratio(blocks: int, free: int, available: int) -> Optional[float]:
    """Return the used share of a file system as df does: blocks reserved for root are neither used nor free."""
    used = blocks - free
    return round(used / (used + available), 4) if used + available > 0 else None


def root_used_ratio(filesystems: list[dict[str, Any]]) -> Optional[float]:
    return next((entry.get("used_ratio") for entry in filesystems if entry.get("mount") == "/"), None)
