"""Versions that must be on a node, as its owner declares them (``gpuval_versions``), held against its facts."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import SettingError
from ..core.text import meant, pattern_of
from ..records import environment
from ..records.documents import Record
from ..records.properties import PATHS
from .entries import Entry, own_entry


@dataclass(frozen=True)
class Version:
    """A property of the facts (``records.properties``) that may be declared, and what to do where it is another."""

    metric: str
    what: str
    remedy: str


KINDS: Mapping[str, Version] = {
    "driver": Version(
        "gpu_driver_version", "the GPU driver", "install the declared driver and reboot, or correct gpuval_versions"
    ),
    "runtime": Version(
        "gpu_runtime_version", "CUDA or ROCm of the driver",
        "install the driver that brings the declared CUDA or ROCm, or correct gpuval_versions",
    ),
    "vbios": Version(
        "gpu_firmware_version", "VBIOS or firmware of the GPU",
        "flash the declared firmware, or have the GPU replaced by one that carries it",
    ),
    "kernel": Version("kernel_version", "the kernel", "boot the declared kernel"),
    "os": Version("os_version", "the operating system", "install the declared release"),
    "bios": Version("bios_version", "the BIOS", "flash the declared BIOS and reboot"),
    "bmc": Version("bmc_version", "the BMC", "flash the declared firmware of the BMC"),
    "nic_firmware": Version(
        "nic_firmware_version", "firmware of the RDMA devices", "flash the declared firmware and reset the device"
    ),
}  # fmt: skip


def declared(value: Any) -> dict[str, list[str]]:
    """``gpuval_versions`` as run.json keeps it: a list of texts for each kind. Raises SettingError."""
    if not value:
        return {}
    if not isinstance(value, Mapping):
        raise SettingError("gpuval_versions is a dictionary, such as {driver: 580.159.04}")
    versions = {}
    for key, entry in value.items():
        if key not in KINDS:
            raise SettingError(f"gpuval_versions has the key {key!r}{meant(key, KINDS)}; known are {', '.join(KINDS)}")
        if any(isinstance(text, float) for text in (entry if isinstance(entry, list) else [entry])):
            raise SettingError(
                f"gpuval_versions: {key} is a number to YAML (580.10 would be 580.1): write it in quotes"
            )
        single = isinstance(entry, (str, int)) and not isinstance(entry, bool)
        texts = [
            " ".join(str(text).split()) for text in ([entry] if single else entry if isinstance(entry, list) else [])
        ]
        if not texts or not all(texts):
            raise SettingError(f"gpuval_versions: {key} names no version")
        versions[str(key)] = texts
    return versions


def checks(declared_versions: Mapping[str, list[str]], facts: Record | None, stage: str) -> list[Entry]:
    """The entries of every declared version; a part with another version has one of its own."""
    entries: list[Entry] = []
    for kind, texts in declared_versions.items():
        entries += _checks(kind, KINDS[kind], texts, facts, stage)
    return entries


def _checks(kind: str, version: Version, texts: list[str], facts: Record | None, stage: str) -> list[Entry]:
    expected = " or ".join(texts)

    entry = functools.partial(
        own_entry, f"versions_{kind}", stage, "equal", remedy=version.remedy, metric=version.metric, expected=expected,
        source=f"gpuval_versions of the inventory: {kind}",
    )  # fmt: skip
    if facts is None:
        return [entry("missing", "no facts say what the node has")]
    pairs = environment.members(facts["environment"], PATHS[kind])
    if not pairs:
        return [entry("missing", f"the facts do not tell the version of {version.what}")]
    wrong = [(member, text) for member, text in pairs if not any(pattern_of(one).fullmatch(text) for one in texts)]
    entries = []
    for member, text in wrong:
        part = part_of(member)
        entries.append(entry("fail", f"{version.what} is {text}, not {expected}", part=part, value=text))
        if part == "node":  # one of a list without indexes: once is enough
            break
    gpus = len(environment.members(facts["environment"], "gpus[].index"))
    if PATHS[kind].startswith("gpus[]") and len(pairs) < gpus:
        entries.append(entry("missing", f"{gpus - len(pairs)} of {gpus} GPUs do not tell {version.what}"))
    return entries or [entry("pass", f"{version.what} is {', '.join(sorted({text for _, text in pairs}))}")]


def part_of(member: Mapping[str, Any]) -> str:
    """gpu:3 for the GPU with that index; the node for anything else."""
    index = member.get("index")
    return f"gpu:{index}" if type(index) is int and 0 <= index < 10_000 else "node"
