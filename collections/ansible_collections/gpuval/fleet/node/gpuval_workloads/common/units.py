"""Formats figures for people: 1 GB is 1e9 bytes, 1 Gbps is 1e9 bits per second."""

from __future__ import annotations

_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def human_bytes(count: float) -> str:
    for size, unit in _SIZES:
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def human_rate(bytes_per_second: float) -> str:
    bits = bytes_per_second * 8
    return f"{bits / 1e9:.2f} Gbps" if bits >= 1e9 else f"{bits / 1e6:.2f} Mbps"


def human_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.3f} s"
