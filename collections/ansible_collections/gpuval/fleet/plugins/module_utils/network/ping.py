"""What `ping` says: round trips, loss, and the largest packet that goes through whole."""

from __future__ import annotations

import re
from typing import Any, Optional

from ..hardware.tools import toolbox

COUNTS = re.compile(r"(\d+) packets transmitted, (\d+) (?:packets )?received")
TIMES = re.compile(r"(?:rtt|round-trip) min/avg/max(?:/\w+)? = ([\d.]+)/([\d.]+)/([\d.]+)")
#: Usual sizes, tried from the top where the interface's own does not go through.
SIZES = (9000, 8000, 4200, 4096, 2044, 1500, 1450, 1400, 1280)
#: Headers of IP and ICMP.
HEADERS = {4: 28, 6: 48}


def command(address: str, count: int, packet: Optional[int] = None) -> list[str]:
    words = ["ping", "-n", "-q", "-c", str(count), "-i", "0.2", "-W", "1", "-w", str(count + 1)]
    if packet is not None:
        words += ["-M", "do", "-s", str(packet - HEADERS[6 if ":" in address else 4])]
    return [*words, address]


def parse(text: str) -> Optional[dict[str, Any]]:
    counts, times = COUNTS.search(text), TIMES.search(text)
    if counts is None:
        return None
    low, mean, high = (float(value) / 1000 for value in times.groups()) if times else (None, None, None)
    return {
        "sent": int(counts[1]),
        "received": int(counts[2]),
        "minimum_seconds": low,
        "mean_seconds": mean,
        "maximum_seconds": high,
    }


def run(words: list[str]) -> Optional[dict[str, Any]]:
    """What was sent and received; None without a `ping` that can do it."""
    return parse(toolbox()(*words).stdout)


def probe(address: str, mtu: int, check_size: bool) -> dict[str, Any]:
    """Small packets, then whole ones of the interface's size, then smaller ones until they go through."""
    small = run(command(address, 3))
    sizes: dict[str, Any] = {"small": small, "large": None, "path_mtu_bytes": None}
    if not (check_size and small and small["received"]):
        return sizes
    large = run(command(address, 4, mtu))
    sizes["large"] = large
    if large is None:
        return sizes
    if large["received"]:
        sizes["path_mtu_bytes"] = mtu
        return sizes
    for size in SIZES:
        answer = run(command(address, 1, size)) if size < mtu else None
        if answer and answer["received"]:
            sizes["path_mtu_bytes"] = size
            break
    return sizes
