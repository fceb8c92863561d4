"""Facts on the links between a node's GPUs and to its NICs, as the vendor's tool prints them."""

from __future__ import annotations

import re
from collections import Counter
from itertools import takewhile
from typing import Any

from .tools import VENDOR_TOOL_TIMEOUT_SECONDS, Run

#: By vendor, the commands that print the topology; the first that answers counts.
COMMANDS = {
    "nvidia": (("nvidia-smi", "topo", "-m"),),
    "amd": (("rocm-smi", "--showtopotype"), ("amd-smi", "topology", "--link-type")),
}
#: Paths from a GPU to a NIC, nearest first: through one PCIe switch or several (PIX, PXB), else through processors.
WAYS = ("PIX", "PXB", "PHB", "NODE", "SYS")
NEAR = ("PIX", "PXB")
XGMI = "XGMI"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
#: The kind of link between two devices, by row and column.
Matrix = dict[str, dict[str, str]]


def facts(run: Run, vendor: str) -> list[dict[str, Any]]:
    """Return each GPU with its links to all others and the path to its nearest NIC; empty without a tool's answer."""
    for command in COMMANDS.get(vendor, ()):
        answer = run(*command, timeout=VENDOR_TOOL_TIMEOUT_SECONDS)
        matrix = (nvidia if vendor == "nvidia" else amd)(answer.stdout) if answer.ok else {}
        if matrix:
            return [_gpu(index, name, row) for index, (name, row) in enumerate(matrix.items())]
    return []


def nvidia(text: str) -> Matrix:
    """Return the rows of GPUs in ``nvidia-smi topo -m``: their links to GPUs and NICs."""
    lines = [line.split() for line in _COLOURS.sub("", text).splitlines()]
    header = next((line for line in lines if line[:1] == ["GPU0"] and line[1:2] != ["X"]), [])
    columns = list(takewhile(lambda word: word != "CPU", header))
    return {
        line[0]: dict(zip(columns, line[1:]))
        for line in lines
        if line is not header and line[:1] and line[0] in columns and is_gpu(line[0]) and len(line) > len(columns)
    }


def amd(text: str) -> Matrix:
    """Return the kinds of links in ``rocm-smi --showtopotype`` or ``amd-smi topology`` (GPUs by PCI address)."""
    lines = [line.split() for line in text.splitlines()]
    title = next((n for n, line in enumerate(lines) if "link type" in " ".join(line).lower()), len(lines))
    table = [line for line in lines[title + 1 :] if line]
    columns = table[0] if table else []
    rows = takewhile(lambda line: line[0] in columns and len(line) == len(columns) + 1, table[1:])
    return {line[0]: dict(zip(columns, line[1:])) for line in rows}


def is_gpu(name: str) -> bool:
    return bool(re.fullmatch(r"GPU\d+", name))


def _gpu(index: int, name: str, row: dict[str, str]) -> dict[str, Any]:
    peers = [way for other, way in row.items() if other != name and (is_gpu(other) or not is_gpu(name))]
    nics = {other: way for other, way in row.items() if is_gpu(name) and not is_gpu(other) and way in WAYS}
    nearest = min(nics.values(), key=WAYS.index, default=None)
    counted = ", ".join(f"{way} x {count}" for way, count in sorted(Counter(peers).items()))
    return {
        "index": index,
        "links": counted or "no other GPU",
        "links_count": _links(peers) if peers else None,
        "nic": " ".join([nearest, *(nic for nic, way in nics.items() if way == nearest)]) if nearest else "no NIC",
        "nic_way": nearest,
    }


def _links(peers: list[str]) -> int:
    """Return the smallest number of NVLinks from a GPU to one of its peers, or with XGMI the number of peers."""
    if XGMI in peers:
        return peers.count(XGMI)
    return min(int(way[2:]) if re.fullmatch(r"NV\d+", way) else 0 for way in peers)


def far_from_nics(gpus: list[dict[str, Any]]) -> int | None:
    """Return how many GPUs reach NICs only through the processors; None if most do, as in virtual machines."""
    near = sum(gpu["nic_way"] in NEAR for gpu in gpus)
    return len(gpus) - near if 2 * near > len(gpus) else None
