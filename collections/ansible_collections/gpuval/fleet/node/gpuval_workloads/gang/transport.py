"""Reads from NCCL's debug log how collectives went between nodes: network, GPUDirect RDMA, algorithm.

A fall-back to sockets is slow and silent: :func:`complaint` names it.

Lines are those of NCCL 2.18 to 2.28 (src/transport/net.cc, src/init.cc, src/enqueue.cc); RCCL prints the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from ..common.command import run
from .config import AUTO, NETWORK
from .config import NVLINK as NVLINK_FABRIC
from .host.rdma import Port

_USING = re.compile(r"Using network (\S.*?)\s*$", re.MULTILINE)
_CHANNEL = re.compile(r"\] via NET/([^/\n]+)/(\S+)")
_NVLINK = re.compile(r"\] via P2P/MNNVL\b")
_CLIQUE = re.compile(r"\bMNNVL 1 cliqueId \w+ cliqueSize (\d+)")
_CHOICE = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)")
_SENT = re.compile(r"Data Tx: (\d+) KiB")
TOOL_SECONDS = 20.0
SOCKET, NVLINK = "Socket", "MNNVL"
#: Names of InfiniBand and RoCE in the log, for NCCL's own transport and that of HPC-X.
IB = ("IB", "IBext*")
#: Algorithms by number: the log of NCCL 2.18 to 2.22 has numbers for algorithm and protocol.
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")


def networks(text: str) -> set[str]:
    """Return the networks of channels to other nodes in NCCL's log: IB (also RoCE), Socket, AWS Libfabric, MNNVL ..."""
    return {match[1] for match in _CHANNEL.finditer(text)} | ({NVLINK} if _NVLINK.search(text) else set())


def largest_clique(text: str) -> int:
    """Return the largest number of ranks that reach each other over NVLink, by the lines on MNNVL in NCCL's log, one
    per communicator; 0 without such a line."""
    return max((int(match[1]) for match in _CLIQUE.finditer(text)), default=0)


def nvlink_sent_bytes() -> int | None:
    """Return the bytes that the NVLinks of this node's GPUs have sent so far; None if nvidia-smi does not tell."""
    counts = _SENT.findall(run(["nvidia-smi", "nvlink", "-gt", "d"], TOOL_SECONDS).output)
    return 1024 * sum(map(int, counts)) if counts else None


def initialised(text: str) -> set[str]:
    """Return the networks that NCCL's log reports as initialised, used or not."""
    return set(_USING.findall(text))


def reads_gpu_memory(text: str) -> bool | None:
    """Whether all channels between nodes in NCCL's log use GPUDirect RDMA; None without channels."""
    answers = {"GDRDMA" in match[2] for match in _CHANNEL.finditer(text)}
    return all(answers) if answers else None


def choices(lines: Iterable[str]) -> dict[str, dict[int, tuple[str, str]]]:
    """Return ``{collective: {size in bytes: (algorithm, protocol)}}`` from the TUNING lines of NCCL's log."""
    choice_by_size: dict[str, dict[int, tuple[str, str]]] = {}
    for line in lines:
        match = _CHOICE.search(line)
        if match:
            name, size, algorithm, protocol = match.groups()
            chosen = (_word(algorithm, ALGORITHMS), _word(protocol, PROTOCOLS))
            choice_by_size.setdefault(name, {})[int(size)] = chosen
    return choice_by_size


def _word(text: str, words: tuple[str, ...]) -> str:
    return words[int(text)] if text.isdigit() and int(text) < len(words) else text


def is_ib(networks: Sequence[str]) -> bool:
    """Whether InfiniBand or RoCE are the only networks between the nodes."""
    return bool(networks) and all(any(fnmatchcase(name, pattern) for pattern in IB) for name in networks)


def complaint(
    networks: Sequence[str],
    expected: Sequence[str],
    rdma_ports: Sequence[Port],
    driverless: Sequence[str] = (),
    fabric: str = AUTO,
) -> str | None:
    """Return what is wrong with the networks in use, empty if nothing; None if NCCL's log names no network.
    ``expected``: names as in NCCL's log, ``*`` is any text. Without these, sockets are wrong on a node with an RDMA
    port, whatever its state, or an InfiniBand controller without a driver (PCI addresses in ``driverless``).
    ``fabric``: NVLink or the network, whichever the stage tests; traffic over the other is wrong, even if it works."""
    if not networks:
        return None
    used = " and ".join(networks)
    if fabric == NVLINK_FABRIC:
        wrong = f"the collectives went by {used}, not by NVLink alone: check IMEX (nvidia-imex-ctl -N) and the cliques"
        return "" if list(networks) == [NVLINK] else wrong
    if fabric == NETWORK and NVLINK in networks:
        return f"the collectives went by {used} although NCCL_MNNVL_ENABLE=0 chooses the network"
    if expected:
        unexpected = [
            name for name in networks if not any(fnmatchcase(name.lower(), pattern.lower()) for pattern in expected)
        ]
        if len(unexpected) < len(networks):  # NVLink within a rack, beside the network between racks
            unexpected = [name for name in unexpected if name != NVLINK]
        return f"the collectives went by {used}, not by {' or '.join(expected)} as declared" if unexpected else ""
    if SOCKET in networks and rdma_ports:
        listed = ", ".join(f"{port.name} {port.state or 'unknown'}" for port in rdma_ports[:8])
        return (
            f"the collectives went by {used} although {len(rdma_ports)} RDMA ports are here ({listed}): bring them up, "
            "or declare gpuval_network: tcp where sockets are meant"
        )
    if SOCKET in networks and driverless:
        return (
            f"the collectives went by {used} although {len(driverless)} InfiniBand controllers are here without a "
            f"driver ({', '.join(driverless[:8])}): load it (mlx5_ib), or declare gpuval_network: tcp where "
            "sockets are meant"
        )
    return ""
