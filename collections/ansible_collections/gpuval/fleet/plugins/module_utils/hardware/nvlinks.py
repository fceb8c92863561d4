"""NVLinks of GPUs one by one: state and speed by `nvidia-smi nvlink -s`, errors since the driver was loaded by `-e`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from . import values
from .gpu import Gpu
from .tools import TOOL_TIMEOUT_SECONDS, Run

#: What nvidia-smi prints, instead of a list, for a GPU whose NVLinks are all down.
_ALL_DOWN = "all links are inactive"
_GPU = re.compile(r"GPU \d{1,4}: .{0,200}\(UUID: (GPU-[0-9a-fA-F-]{1,64})\)")
_LINK = re.compile(r"Link (\d{1,3}): (.{1,200})")
#: Counters of `nvlink -e` that good NVLinks keep at 0 (up to NVLink 4, then from 5 on), and those of recoveries.
_ERRORS = {
    *("Replay Errors", "Recovery Errors", "CRC Errors", "Malformed packet Errors", "Buffer overrun Errors"),
    *("Rx Errors", "Rx remote Errors", "Rx General Errors", "Local link integrity Errors", "Effective Errors"),
}
_RECOVERIES = {"Recovery Errors", "Total link recovery events"}


def read_nvlinks(run: Run, gpus: Iterable[Gpu]) -> None:
    """Add to each GPU its NVLinks: `link`, `is_up`, `bytes_per_second` in one direction, `errors`, `recoveries`. A GPU
    without NVLink, or one that the tool does not list, keeps None; an empty list says that no link is up."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus if gpu.vendor == "nvidia"}
    if not by_uuid:
        return
    status, errors = (run("nvidia-smi", "nvlink", option, timeout=TOOL_TIMEOUT_SECONDS) for option in ("-s", "-e"))
    counted = _lines_by_gpu(errors.stdout)
    for uuid, lines in _lines_by_gpu(status.stdout).items():
        gpu = by_uuid.get(uuid)
        links = [_link(int(link[1]), link[2], counted.get(uuid, ())) for link in map(_LINK.match, lines) if link]
        if gpu is not None and (links or any(_ALL_DOWN in line.lower() for line in lines)):
            gpu.nvlinks = links


def _lines_by_gpu(text: str) -> dict[str, list[str]]:
    by_gpu: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        header = _GPU.search(line)
        if header:
            lines = by_gpu.setdefault(header[1], [])
        lines.append(line[header.end() :].strip() if header else line.strip())
    return by_gpu


def _link(number: int, state: str, counters: Iterable[str]) -> dict[str, Any]:
    speed = re.match(r"([\d.]{1,12}) GB/s", state)  # only a speed proves that the link is up
    counts: dict[str, int] = {}
    for line in counters:
        counter = _LINK.match(line)
        name, _, count = counter[2].partition(": ") if counter and int(counter[1]) == number else ("", "", "")
        if name in (_ERRORS | _RECOVERIES) and (value := values.count(count)) is not None:
            counts[name] = value
    return {
        "link": number,
        "is_up": speed is not None,
        "bytes_per_second": round(float(speed[1]) * 1e9) if speed else None,
        "errors": sum(counts[name] for name in counts.keys() & _ERRORS) if counts else None,
        "recoveries": sum(counts[name] for name in counts.keys() & _RECOVERIES) if counts else None,
    }
