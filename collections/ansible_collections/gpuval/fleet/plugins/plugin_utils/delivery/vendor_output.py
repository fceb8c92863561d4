"""Output of the vendor's tools on a node: from the archive that `make logs` fetched, else from the node's facts."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.escape import one_line
from ..records import environment

#: Files in the archive of a node. ``SHORT`` ones go into the file of each stage, all of them into that of `facts`.
SHORT = ("gpu/nvidia-smi.txt", "gpu/hl-smi.txt", "gpu/rocm-smi.txt", "gpu/amd-smi-metric.txt")
LONG = ("gpu/nvidia-driver.txt", "gpu/nvidia-smi-q.txt", "gpu/nvidia-smi-topo.txt", "gpu/nvidia-smi-nvlink.txt",
        "gpu/amd-smi-static.txt", "gpu/amd-smi-topology.txt", "gpu/hl-smi-q.txt")  # fmt: skip
ADDRESSES = "network/addresses.txt"
MAX_PART_BYTES = 1 << 20
MAX_ARCHIVE_BYTES = 64 << 20
MAX_MEMBERS = 4096
#: Of the unpacked stream, headers and what is skipped included.
MAX_UNPACKED_BYTES = 128 << 20

_INET = re.compile(r"\binet6? ([0-9A-Fa-f:.]+)")
_LINK = re.compile(r"\blink/(?:ether|infiniband) ([0-9A-Fa-f:]+)")
_COLUMNS = ("index", "name", "serial", "uuid", "pci_address", "driver_version", "firmware_version",
            "temperature_celsius", "power_draw_watts", "power_limit_watts", "core_clock_hertz", "memory_used_bytes",
            "memory_bytes", "ecc_mode", "ecc_uncorrected_count", "pcie_generation", "pcie_width")  # fmt: skip


@dataclass
class Gathered:
    """Texts by file name in the archive, and the node's own addresses."""

    texts: dict[str, str] = field(default_factory=dict)
    addresses: set[str] = field(default_factory=set)
    macs: set[str] = field(default_factory=set)


class _Limited(io.RawIOBase):
    """A stream that ends with an error after MAX_UNPACKED_BYTES: a small archive may unpack to any size."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream, self._left = stream, MAX_UNPACKED_BYTES

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"it unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
        return data


def gathered(archive: Path) -> Gathered:
    """The tools' output in an archive of `make logs`; empty if the archive is missing, damaged or too large."""
    outputs = Gathered()
    names = {*SHORT, *LONG, ADDRESSES}
    try:
        if archive.is_symlink() or archive.stat().st_size > MAX_ARCHIVE_BYTES:
            return outputs
        with gzip.open(archive) as stream, tarfile.open(fileobj=_Limited(stream), mode="r|") as packed:
            for count, member in enumerate(packed):
                if count > MAX_MEMBERS or not names:
                    break
                if member.name not in names or not member.isfile():
                    continue
                names.discard(member.name)
                part = packed.extractfile(member)
                text = part.read(MAX_PART_BYTES).decode("utf-8", "replace") if part else ""
                if member.name == ADDRESSES:
                    outputs.addresses, outputs.macs = set(_INET.findall(text)), set(_LINK.findall(text))
                else:
                    outputs.texts[member.name] = text
    except (OSError, tarfile.TarError, EOFError, ValueError):
        return outputs
    return outputs


def parts(texts: Mapping[str, str], facts: Mapping[str, Any] | None, stage: str) -> list[tuple[str, str]]:
    """Titles and texts for the file of a stage."""
    names = [*SHORT, *LONG] if stage == "facts" else SHORT
    chosen = [
        (f"vendor tool: {name.removeprefix('gpu/').removesuffix('.txt')}, when logs were gathered", texts[name])
        for name in names
        if texts.get(name, "").strip()
    ]
    return chosen or [("vendor tool: accelerators, when facts were gathered", from_facts(facts))]


def from_facts(facts: Mapping[str, Any] | None) -> str:
    """A table of the accelerators as the facts stage read them from the vendor's tool."""
    gpus = environment.objects((facts or {}).get("environment"), "gpus[]")
    if not gpus:
        return "no accelerator, or no facts\n"
    lines = []
    for gpu in gpus:
        lines.append(f"{one_line(str(gpu.get('vendor') or ''), 40)} accelerator {one_line(str(gpu.get('index')), 20)}")
        for column in _COLUMNS[1:]:
            if gpu.get(column) is not None:
                lines.append(f"    {column:<24}: {one_line(str(gpu[column]), 200)}")
    return "\n".join(lines) + "\n"
