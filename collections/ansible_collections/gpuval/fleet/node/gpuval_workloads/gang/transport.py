"""How the collectives' library got from node to node, by its debug log: network, GPUs' own memory or not, algorithm.

Lines are those of NCCL 2.18 to 2.28 (src/transport/net.cc, src/init.cc, src/enqueue.cc); RCCL prints the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_USING = re.compile(r"Using network (\S.*?)\s*$", re.MULTILINE)
_CHANNEL = re.compile(r"\] via NET/([^/\n]+)/(\S+)")
_NVLINK = re.compile(r"\] via P2P/MNNVL\b")
_CHOICE = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)")
#: In the log of NCCL 2.18 to 2.22 an algorithm and a protocol are numbers.
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")


def networks(text: str) -> set[str]:
    """The networks by which channels to other nodes go: IB (RoCE too), Socket, AWS Libfabric, MNNVL (NVLink) ..."""
    return {match[1] for match in _CHANNEL.finditer(text)} | ({"MNNVL"} if _NVLINK.search(text) else set())


def initialised(text: str) -> set[str]:
    """The networks that the library says it uses, whether or not anything went by them."""
    return set(_USING.findall(text))


def reads_gpu_memory(text: str) -> bool | None:
    """Whether the network reads the GPUs' memory itself on every channel (GPUDirect RDMA); None without channels."""
    ways = {"GDRDMA" in match[2] for match in _CHANNEL.finditer(text)}
    return all(ways) if ways else None


def choices(lines: Iterable[str]) -> dict[str, dict[int, tuple[str, str]]]:
    """For each collective and its size in bytes the algorithm and protocol chosen (the log's TUNING lines)."""
    found: dict[str, dict[int, tuple[str, str]]] = {}
    for line in lines:
        match = _CHOICE.search(line)
        if match:
            name, size, algorithm, protocol = match.groups()
            chosen = (_word(algorithm, ALGORITHMS), _word(protocol, PROTOCOLS))
            found.setdefault(name, {})[int(size)] = chosen
    return found


def _word(text: str, words: tuple[str, ...]) -> str:
    return words[int(text)] if text.isdigit() and int(text) < len(words) else text
