"""Reads from the logs of NCCL or RCCL which transport is used between the devices of a node. `src/transport/p2p.cc`,
`shm.cc` and `net.cc` (NCCL 2.18 to 2.28) write the lines: ``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM``."""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path

_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[(?:send|receive)\])? via (\w+)")
_NVLS = re.compile(r"NVLS comm 0x|Connected NVLS")
_VERSION = re.compile(r"(?:NCCL|RCCL) version[ :]+([\w.+-]+)")
#: Lines of NCCL's log that report trouble, also with the choice of a network: NET/IB : No device found.
_TROUBLE = re.compile(
    r"NCCL (?:WARN|ERROR)|\b(?:error|failed|failure|timed out|timeout)\b|NET/[^/:]{1,40}:", re.IGNORECASE
)
#: Lines that NCCL logs for each call, which never explain a failure.
_TUNING = re.compile(r" Bytes -> Algo ")
MAX_BYTES = 8 << 20
#: Limits of what is printed of NCCL's logs after a failure: logs, lines of trouble, bytes of each log's end, letters.
MAX_LOGS, MAX_TROUBLES, END_BYTES, MAX_LINE = 16, 100, 8 << 10, 500
NAME = "nccl.%h.%p.log"


def ask(environ: MutableMapping[str, str], directory: Path) -> None:
    """Set variables in ``environ`` that make NCCL write its log to files in ``directory``. They replace the site's
    values: with a quieter NCCL_DEBUG a good node would lack the transport that criteria require."""
    environ["NCCL_DEBUG"] = "INFO"
    environ["NCCL_DEBUG_SUBSYS"] = "INIT,NVLS,P2P,SHM,NET,GRAPH,ENV"
    environ["NCCL_DEBUG_FILE"] = str(directory / NAME)


def read(environ: Mapping[str, str]) -> str:
    """Return the text of all NCCL logs that :func:`ask` requested, empty without logs: of each at most 8 MiB. Print
    the names of longer logs."""
    texts = []
    for path in logs(environ):
        with path.open("rb") as file:
            texts.append(file.read(MAX_BYTES).decode("utf-8", "replace"))
            size = os.fstat(file.fileno()).st_size
        if size > MAX_BYTES:
            print(f"{_printable(path.name)}: the first {MAX_BYTES} of {size} bytes are read", flush=True)
    return "\n".join(texts)


def logs(environ: Mapping[str, str]) -> list[Path]:
    """Return the paths of the NCCL logs that :func:`ask` requested, one per process."""
    pattern = Path(environ.get("NCCL_DEBUG_FILE") or "none")
    return sorted(pattern.parent.glob("nccl.*.log")) if pattern.name == NAME else []


def print_logs(environ: Mapping[str, str]) -> None:
    """After a failure, print lines of trouble and the ends of NCCL's logs, as printable lines of bounded size: the log
    files are removed with the scratch directory."""
    paths = logs(environ)
    for path in paths[:MAX_LOGS]:
        name = _printable(path.name)
        try:
            troubles, end = _trouble(path, max(1, MAX_TROUBLES // min(len(paths), MAX_LOGS)))
        except OSError as error:
            print(f"{name}: cannot be read: {error.strerror}")
            continue
        for line in [*troubles, *end]:
            print(f"{name}: {line}")
    if len(paths) > MAX_LOGS:
        print(f"{len(paths) - MAX_LOGS} more logs of NCCL are not shown")
    sys.stdout.flush()


def _trouble(path: Path, most: int) -> tuple[list[str], list[str]]:
    """Return the last lines of trouble (at most ``most``) before the end of an NCCL log, and the lines of that end."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES)
        size = os.fstat(file.fileno()).st_size
        if size > MAX_BYTES:
            file.seek(max(MAX_BYTES, size - MAX_BYTES))
            data += b"\n" + file.read(MAX_BYTES)
    lines = [line for line in data.decode("utf-8", "replace").split("\n") if line and not _TUNING.search(line)]
    start, bytes_left = len(lines), END_BYTES
    while start and bytes_left >= len(lines[start - 1][:MAX_LINE]):
        start -= 1
        bytes_left -= len(lines[start][:MAX_LINE]) + 1
    troubles = deque((line for line in lines[:start] if _TROUBLE.search(line[:MAX_LINE])), most)
    return [_printable(line) for line in troubles], [_printable(line) for line in lines[start:]]


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in line[:MAX_LINE])


def fingerprints(text: str) -> dict[str, str]:
    """Return fingerprints from NCCL's logs: transport (P2P, SHM, NET, or several joined by +), use of NVLink SHARP."""
    names = sorted(transports(text.splitlines()))
    if not names:
        return {}
    return {"diagnostics_transport": "+".join(names), "diagnostics_nvls": "on" if _NVLS.search(text) else "off"}


def transports(lines: Iterable[str]) -> dict[str, set[tuple[int, int]]]:
    """Return ``{transport: {(sending rank, receiving rank)}}`` from lines of NCCL's log."""
    pairs_by_transport: dict[str, set[tuple[int, int]]] = {}
    for line in lines:
        match = _CHANNEL.search(line)
        if match:
            pairs_by_transport.setdefault(match[3].upper(), set()).add((int(match[1]), int(match[2])))
    return pairs_by_transport


def version(text: str) -> str | None:
    match = _VERSION.search(text)
    return match[1] if match else None
