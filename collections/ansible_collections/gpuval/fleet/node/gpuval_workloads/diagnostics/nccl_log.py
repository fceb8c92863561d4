"""What NCCL or RCCL says of the way it took between the devices of a node.

Channel lines are of `src/transport/p2p.cc`, `shm.cc` and `net.cc` (NCCL 2.18 to 2.28; RCCL prints the same):
``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path

_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[(?:send|receive)\])? via (\w+)")
_NVLS = re.compile(r"NVLS comm 0x|Connected NVLS")
_VERSION = re.compile(r"(?:NCCL|RCCL) version[ :]+([\w.+-]+)")
MAX_BYTES = 8 << 20
NAME = "nccl.%h.%p.log"


def ask(environ: MutableMapping[str, str], directory: Path) -> None:
    """Have the library write its log to files in ``directory``, whatever the environment says of its log.

    Criteria ask for the way between the GPUs: a quieter NCCL_DEBUG of the site would leave a good node without it.
    """
    environ["NCCL_DEBUG"] = "INFO"
    environ["NCCL_DEBUG_SUBSYS"] = "INIT,NVLS,P2P,SHM,NET,GRAPH,ENV"
    environ["NCCL_DEBUG_FILE"] = str(directory / NAME)


def read(environ: Mapping[str, str]) -> str:
    """Return the text of all logs that :func:`ask` asked for, of each the first megabytes; empty without any."""
    pattern = Path(environ.get("NCCL_DEBUG_FILE") or "none")
    if pattern.name != NAME:
        return ""
    texts = []
    for path in sorted(pattern.parent.glob("nccl.*.log")):
        with path.open("rb") as file:
            texts.append(file.read(MAX_BYTES).decode("utf-8", "replace"))
    return "\n".join(texts)


def fingerprints(text: str) -> dict[str, str]:
    """Return what the logs say: transport (P2P, SHM, NET, or several joined by +) and whether NVLS was in use."""
    ways = sorted(transports(text.splitlines()))
    if not ways:
        return {}
    return {"diagnostics_transport": "+".join(ways), "diagnostics_nvls": "on" if _NVLS.search(text) else "off"}


def transports(lines: Iterable[str]) -> dict[str, set[tuple[int, int]]]:
    """Return each transport with the (from, to) ranks that used it."""
    found: dict[str, set[tuple[int, int]]] = {}
    for line in lines:
        match = _CHANNEL.search(line)
        if match:
            found.setdefault(match[3].upper(), set()).add((int(match[1]), int(match[2])))
    return found


def version(text: str) -> str | None:
    match = _VERSION.search(text)
    return match[1] if match else None
