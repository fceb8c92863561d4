"""The file of one stage on one node: a JSON header, the output of the vendor's tool (from the archive that `make logs`
fetched, else from the node's facts), the log. The header has the size of each part in bytes, so that no line of a log
can pose as the start of another part."""

import gzip
import io
import json
import re
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...module_utils.engines import engine_types
from ..core.escape import one_line
from ..records import environment
from ..records.documents import Record
from ..records.properties import properties_of

SCHEMA = "gpuval.delivered_stage/1"
_RECORD = ("workload", "attempt", "state", "message", "started_at", "updated_at", "finished_at", "duration_seconds",
           "command", "image", "exit_code", "signal", "metrics", "fingerprints", "environment")  # fmt: skip
#: Fields of the header that only gpuval writes; nodes cannot change them.
OWN_FIELDS = ("schema", "stage", "verdict", "state")
#: {software version in the header: property of a node's facts that has it (records/properties.py)}
SOFTWARE = {
    "os": "os_name", "kernel": "kernel", **{name: name for name in engine_types()}, "driver": "driver",
    "runtime": "runtime", "firmware": "vbios",
}  # fmt: skip
_EARLIER = ("attempt", "state", "message", "started_at", "finished_at", "duration_seconds", "exit_code", "signal")
_CHECK = ("name", "metric", "severity", "verdict", "part", "value", "unit", "expected", "reason")
#: Fields of facts left out: they identify a machine in its network and mean nothing to a customer.
INTERNAL = frozenset({"hostname", "machine_id", "boot_id"})
#: Files in a node's archive. The ``SHORT`` ones go into the file of each stage, all of them into the file of `facts`.
SHORT = ("gpu/nvidia-smi.txt", "gpu/hl-smi.txt", "gpu/rocm-smi.txt", "gpu/amd-smi-metric.txt")
LONG = ("gpu/nvidia-driver.txt", "gpu/nvidia-smi-q.txt", "gpu/nvidia-smi-topo.txt", "gpu/nvidia-smi-nvlink.txt",
        "gpu/amd-smi-static.txt", "gpu/amd-smi-topology.txt", "gpu/hl-smi-q.txt")  # fmt: skip
ADDRESSES = "network/addresses.txt"
MAX_PART_BYTES = 1 << 20
MAX_ARCHIVE_BYTES = 64 << 20
MAX_MEMBERS = 4096
#: Maximum bytes of an unpacked archive, with headers and skipped files.
MAX_UNPACKED_BYTES = 128 << 20
_INET = re.compile(r"\binet6? ([0-9A-Fa-f:.]+)")
_LINK = re.compile(r"\blink/(?:ether|infiniband) ([0-9A-Fa-f:]+)")
_COLUMNS = ("name", "serial", "uuid", "pci_address", "driver_version", "firmware_version", "temperature_celsius",
            "power_draw_watts", "power_limit_watts", "core_clock_hertz", "memory_used_bytes",
            "memory_bytes", "ecc_mode", "ecc_uncorrected_count", "pcie_generation", "pcie_width")  # fmt: skip


def header(
    run: Mapping[str, Any],
    node: Mapping[str, Any],
    stage: Mapping[str, Any],
    record: Record | None,
    facts: Record | None,
) -> dict[str, Any]:
    """The header of a stage's file, before names and addresses are converted. ``node``, ``stage``: from the report;
    ``record``, ``facts``: the records of this stage and of the stage facts, None without one."""
    recorded: Mapping[str, Any] = record or {}
    reported = properties_of(facts) if facts else {}
    fields = {key: recorded[key] if key in recorded else stage.get(key) for key in _RECORD}
    return {
        "schema": SCHEMA, "run_id": run["run_id"], "profile": run["profile"], "node": node["name"],
        "stage": stage["name"], "verdict": node["verdict"], "class": node.get("class"),
        "sku": node.get("catalogue_sku") or node["sku"], "accelerator": node["accelerator"],
        "gpus": node["identity"].get("gpus", []),
        "software": {name: reported[key] for name, key in SOFTWARE.items() if key in reported},
        **fields,
        "metrics": recorded.get("metrics", []),
        "environment": without_internal(recorded.get("environment") or {}),
        "earlier_attempts": [{key: earlier.get(key) for key in _EARLIER} for earlier in recorded.get("attempts", [])],
        "checks": [
            {key: check[key] for key in _CHECK}
            for check in node["checks"]
            if check["stage"] == stage["name"] or not check["stage"]
        ],
    }  # fmt: skip


def without_internal(value: Any) -> Any:
    """A JSON value from facts without the fields in INTERNAL, at any depth."""
    if isinstance(value, Mapping):
        return {key: without_internal(item) for key, item in value.items() if key not in INTERNAL}
    if isinstance(value, list):
        return [without_internal(item) for item in value]
    return value


def pieces(head: Mapping[str, Any], parts: Iterable[tuple[str, str]]) -> list[bytes]:
    """The content of a stage's file in pieces. ``head``: its header; ``parts``: (title, text) of each section."""
    texts = [(title, text if not text or text.endswith("\n") else f"{text}\n") for title, text in parts]
    encoded = [(title, text.encode("utf-8", "replace")) for title, text in texts]
    sections = [{"name": title, "bytes": len(data)} for title, data in encoded]
    out = [json.dumps({**head, "sections": sections}, indent=1, ensure_ascii=False).encode("utf-8", "replace"), b"\n"]
    for title, data in encoded:
        out += [f"\n===== {title} =====\n".encode(), data]
    return out


class _Limited(io.RawIOBase):
    """A stream that raises ValueError after MAX_UNPACKED_BYTES: a small archive may unpack to any size."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream, self._left = stream, MAX_UNPACKED_BYTES

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"the archive unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
        return data


class GatheredOutput:
    """Output of vendor tools in a node's archive of `make logs`: {file name: text}, and the node's own addresses. Empty
    if the archive is missing, too large, or damaged before the addresses; incomplete if it is damaged after them."""

    def __init__(self, archive: Path) -> None:
        self.texts: dict[str, str] = {}
        self.addresses, self.macs, names = set[str](), set[str](), {*SHORT, *LONG, ADDRESSES}
        try:
            if archive.is_symlink() or archive.stat().st_size > MAX_ARCHIVE_BYTES:
                return
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
                        self.addresses, self.macs = set(_INET.findall(text)), set(_LINK.findall(text))
                    else:
                        self.texts[member.name] = text
        except (OSError, tarfile.TarError, EOFError, ValueError, zlib.error):
            if ADDRESSES in names:
                self.texts.clear()  # their addresses would not be recognised


def vendor_parts(outputs: Mapping[str, str], facts: Mapping[str, Any] | None, stage: str) -> list[tuple[str, str]]:
    """(title, text) of each part with output of a vendor tool; ``outputs``: {file name: text} of a `GatheredOutput`."""
    names = [*SHORT, *LONG] if stage == "facts" else SHORT
    chosen = [
        (f"vendor tool: {name.removeprefix('gpu/').removesuffix('.txt')}, when logs were gathered", outputs[name])
        for name in names
        if outputs.get(name, "").strip()
    ]
    return chosen or [("vendor tool: accelerators, when facts were gathered", from_facts(facts))]


def from_facts(facts: Mapping[str, Any] | None) -> str:
    """The accelerators in a node's facts as text, for nodes without output of a vendor tool."""
    if not (gpus := environment.objects((facts or {}).get("environment"), "gpus[]")):
        return "no accelerator, or no facts\n"
    lines = []
    for gpu in gpus:
        lines.append(f"{one_line(str(gpu.get('vendor') or ''), 40)} accelerator {one_line(str(gpu.get('index')), 20)}")
        for column in _COLUMNS:
            if gpu.get(column) is not None:
                lines.append(f"    {column:<24}: {one_line(str(gpu[column]), 200)}")
    return "\n".join(lines) + "\n"
