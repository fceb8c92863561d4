"""Hardware and software of the nodes: each property with its values, and the nodes that differ."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...core import units
from ...core.escape import one_line
from ...records.evidence import MAX_RECORD_BYTES

MAX_TEXT = 160

#: Property, stage (any for *), and its path in the environment of the record; distinct values of a list.
PROPERTIES = (
    ("GPU model", "facts", ("gpus", "*", "name")),
    ("GPU driver", "facts", ("gpus", "*", "driver_version")),
    ("GPU runtime", "facts", ("gpus", "*", "runtime_version")),
    ("GPU firmware", "facts", ("gpus", "*", "firmware_version")),
    ("GPU memory", "facts", ("gpus", "*", "memory_bytes")),
    ("GPU power limit", "facts", ("gpus", "*", "power_limit_watts")),
    ("ECC", "facts", ("gpus", "*", "ecc_mode")),
    ("Partitions", "facts", ("gpus", "*", "partition_mode")),
    ("Machine", "facts", ("firmware", "product_name")),
    ("BIOS", "facts", ("firmware", "bios_version")),
    ("CPU", "facts", ("cpu", "model")),
    ("CPU sockets", "facts", ("cpu", "socket_count")),
    ("CPU cores", "facts", ("cpu", "core_count")),
    ("Operating system", "facts", ("os", "name")),
    ("Kernel", "facts", ("os", "kernel")),
    ("Network cards", "facts", ("nics", "*", "driver")),
    ("Docker", "facts", ("engines", "docker")),
    ("Podman", "facts", ("engines", "podman")),
    ("Container toolkit", "facts", ("engines", "nvidia_container_toolkit")),
    ("Python", "*", ("python",)),
    ("PyTorch", "*", ("torch",)),
    ("CUDA", "*", ("cuda",)),
    ("ROCm", "*", ("rocm",)),
    ("Collective library", "*", ("collective_library",)),
    ("Inference server", "inference", ("server",)),
    ("Version of the server", "inference", ("server_version",)),
    ("Model trained", "training", ("model",)),
    ("Model loaded", "loading", ("model_folder",)),
)
_BYTES = frozenset({"GPU memory"})


def of_fleet(report: Mapping[str, Any], directory: Path | None) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """For each property its values, the most common first, with the names of their nodes."""
    seen: dict[str, dict[str, list[str]]] = {label: defaultdict(list) for label, *_ in (*PROPERTIES, ("Image",))}
    for node in report["nodes"] if directory is not None else ():
        for label, value in sorted(set(_values(directory / "nodes" / node["name"], node))):
            seen[label][value].append(node["name"])
    return [
        (label, sorted(values.items(), key=lambda item: (-len(item[1]), item[0])))
        for label, values in seen.items()
        if values
    ]


def _values(folder: Path, node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for stage in node["stages"]:
        record = _record(folder / f"{stage['name']}.json")
        if isinstance(record.get("image"), str):
            yield "Image", one_line(f"{stage['name']}: {record['image']}", MAX_TEXT)
        for label, of_stage, path in PROPERTIES:
            if of_stage in ("*", stage["name"]):
                values = sorted({_text(label, value) for value in _found(record.get("environment"), path)})
                if values:
                    yield label, one_line(", ".join(values), MAX_TEXT)


def _record(path: Path) -> dict[str, Any]:
    """A record from the results; empty if it is unreadable. Its content is shown, never judged."""
    try:
        if path.stat().st_size > MAX_RECORD_BYTES:
            return {}
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _found(value: Any, path: tuple[str, ...]) -> Iterator[Any]:
    if not path:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool) and value != "":
            yield value
    elif path[0] == "*":
        for item in value[:64] if isinstance(value, list) else ():
            yield from _found(item, path[1:])
    elif isinstance(value, dict):
        yield from _found(value.get(path[0]), path[1:])


def _text(label: str, value: Any) -> str:
    if isinstance(value, str):
        return one_line(value, MAX_TEXT)
    unit = "bytes" if label in _BYTES else "watts" if label.endswith("limit") else ""
    return units.human(value, unit) if abs(value) < 1e300 else str(value)[:MAX_TEXT]
