"""Hardware and software of the nodes: each property with its values, and the nodes that differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core import units
from ...core.escape import one_line
from ...records import environment
from ...records.evidence import MAX_RECORD_BYTES, read_object

MAX_TEXT = 160

#: Property, stage (any for *), its path in the environment of the record (records/environment.py), its unit.
PROPERTIES = (
    ("GPU model", "facts", "gpus[].name", ""),
    ("GPU driver", "facts", "gpus[].driver_version", ""),
    ("GPU runtime", "facts", "gpus[].runtime_version", ""),
    ("GPU firmware", "facts", "gpus[].firmware_version", ""),
    ("GPU memory", "facts", "gpus[].memory_bytes", "bytes"),
    ("GPU power limit", "facts", "gpus[].power_limit_watts", "watts"),
    ("ECC", "facts", "gpus[].ecc_mode", ""),
    ("Partitions", "facts", "gpus[].partition_mode", ""),
    ("Machine", "facts", "firmware.product_name", ""),
    ("BIOS", "facts", "firmware.bios_version", ""),
    ("CPU", "facts", "cpu.model", ""),
    ("CPU sockets", "facts", "cpu.socket_count", ""),
    ("CPU cores", "facts", "cpu.core_count", ""),
    ("CPU governor", "facts", "cpu.governor", ""),
    ("Clock source", "facts", "tuning.clock_source", ""),
    ("Transparent huge pages", "facts", "tuning.transparent_huge_pages", ""),
    ("ECC counters of main memory", "facts", "memory.ecc_problem", ""),
    ("Operating system", "facts", "os.name", ""),
    ("Kernel", "facts", "os.kernel", ""),
    ("Network cards", "facts", "nics[].driver", ""),
    ("Docker", "facts", "engines.docker", ""),
    ("Podman", "facts", "engines.podman", ""),
    ("Container toolkit", "facts", "engines.nvidia_container_toolkit", ""),
    ("Python", "*", "python", ""),
    ("PyTorch", "*", "torch", ""),
    ("CUDA", "*", "cuda", ""),
    ("ROCm", "*", "rocm", ""),
    ("Collective library", "*", "collective_library", ""),
    ("Inference server", "inference", "server", ""),
    ("Version of the server", "inference", "server_version", ""),
    ("Model trained", "training", "model", ""),
    ("Model loaded", "loading", "model_folder", ""),
)


def of_fleet(
    report: Mapping[str, Any], versions: Iterable[Sequence[tuple[str, str]]]
) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """For each property its values, the most common first, with the names of their nodes; by ``of_node`` of each."""
    seen: dict[str, dict[str, list[str]]] = {label: defaultdict(list) for label, *_ in (*PROPERTIES, ("Image",))}
    for node, its in zip(report["nodes"], versions, strict=True):
        for label, value in its:
            seen[label][value].append(node["name"])
    return [
        (label, sorted(values.items(), key=lambda item: (-len(item[1]), item[0])))
        for label, values in seen.items()
        if values
    ]


def of_node(folder: Path, node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Property and value of what the records in ``folder`` report."""
    for stage in node["stages"]:
        record = read_object(folder / f"{stage['name']}.json", MAX_RECORD_BYTES) or {}
        if isinstance(record.get("image"), str):
            yield "Image", one_line(f"{stage['name']}: {record['image']}", MAX_TEXT)
        reported = record.get("environment")
        for label, of_stage, path, unit in PROPERTIES:
            if of_stage in ("*", stage["name"]) and isinstance(reported, dict):
                values = sorted({_human(text, unit) for text in environment.texts(reported, path)})
                if values:
                    yield label, one_line(", ".join(values), MAX_TEXT)


def _human(text: str, unit: str) -> str:
    try:
        return units.human(float(text), unit) if unit else text
    except ValueError:
        return text
