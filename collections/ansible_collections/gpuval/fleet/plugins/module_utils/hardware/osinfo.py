"""Facts on operating system and firmware, and the identity of this machine."""

from __future__ import annotations

import os
import shlex
from typing import Any, Optional

from .tree import Tree
from .values import identifier, text

DMI = "/sys/class/dmi/id"
DMI_TEXTS = ("board_vendor", "board_name", "bios_vendor", "bios_version", "bios_date")
PLATFORM = "/sys/devices/platform"
MACHINE_ID = "/etc/machine-id"
CONTAINER_MARKS = {
    "/var/run/secrets/kubernetes.io": "kubernetes",
    "/run/secrets/kubernetes.io": "kubernetes",
    "/.dockerenv": "docker",
    "/run/.containerenv": "podman",
}


def os_facts(tree: Tree) -> dict[str, Any]:
    release = os_release(tree.read("/etc/os-release") or tree.read("/usr/lib/os-release") or "")
    system = os.uname() if tree.is_real else None
    return {
        "id": release.get("ID"),
        "version": release.get("VERSION_ID"),
        "name": release.get("PRETTY_NAME"),
        "kernel": system.release if system else tree.read("/proc/sys/kernel/osrelease"),
        "architecture": system.machine if system else None,
        "hostname": system.nodename if system else tree.read("/etc/hostname"),
        "boot_id": tree.read("/proc/sys/kernel/random/boot_id"),
        "container": container(tree),
    }


def firmware_facts(tree: Tree) -> dict[str, Any]:
    """Return what the firmware reports about the machine; None for values that only root may read."""
    device_tree = "/proc/device-tree/model"  # on machines without DMI
    return {
        "system_vendor": text(tree.read(f"{DMI}/sys_vendor")),
        "product_name": text(tree.read(f"{DMI}/product_name")) or tree.read(device_tree),
        **{name: identifier(tree.read(f"{DMI}/{name}")) for name in ("product_serial", "product_uuid", "board_serial")},
        **{name: text(tree.read(f"{DMI}/{name}")) for name in DMI_TEXTS},
        "bmc_version": _bmc_version(tree),
    }


def _bmc_version(tree: Tree) -> Optional[str]:
    """Return version and build of the BMC's firmware; the IPMI driver reads both from the BMC, in bounded time."""
    bmc = next((name for name in tree.entries(PLATFORM) if name.startswith("ipmi_bmc")), None)
    if bmc is None:
        return None
    version = tree.read(f"{PLATFORM}/{bmc}/firmware_revision")
    build = tree.read(f"{PLATFORM}/{bmc}/aux_firmware_revision")
    return text(f"{version} {build or ''}") if version else None


def machine_id(tree: Tree) -> Optional[str]:
    """Return the machine's id (/etc/machine-id), in a pod the node's; None in a container that has its image's id."""
    mounts = (line.split() for line in (tree.read("/proc/self/mountinfo") or "").splitlines())
    if container(tree) is not None and not any(fields[4:5] == [MACHINE_ID] for fields in mounts):
        return None
    word = tree.read(MACHINE_ID)
    return word if word and word != "uninitialized" else None


def container(tree: Tree) -> Optional[str]:
    """Return the kind of container that this process runs in, None outside of containers."""
    marked = next((kind for path, kind in CONTAINER_MARKS.items() if tree.exists(path)), None)
    first = tree.read("/proc/1/cgroup") or ""
    by_group = next((kind for kind in ("kubepods", "docker", "lxc") if f"/{kind}" in first), None)
    return marked or tree.read("/run/systemd/container") or by_group


def os_release(content: str) -> dict[str, str]:
    """Return the variables in the content of an os-release file, unquoted."""
    variables = {}
    for line in content.splitlines():
        name, equals, value = line.strip().partition("=")
        if not equals or name.startswith("#"):
            continue
        try:
            variables[name] = "".join(shlex.split(value))
        except ValueError:  # an unclosed quote
            variables[name] = value
    return variables
