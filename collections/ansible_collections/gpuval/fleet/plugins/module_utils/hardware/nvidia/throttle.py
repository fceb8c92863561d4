"""Why an NVIDIA GPU's clocks are low: the bits of nvmlClocksEventReason, which NVML and nvidia-smi share."""

from __future__ import annotations

from typing import Any, Optional

SW_POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, HW_POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
KINDS = {
    "throttle_thermal": SW_THERMAL | HW_THERMAL,
    "throttle_power": SW_POWER_CAP | HW_POWER_BRAKE,
    "throttle_hardware": HW_SLOWDOWN | HW_THERMAL | HW_POWER_BRAKE,
}


def throttle(reasons: int) -> dict[str, int]:
    """Return 1 for each kind of throttling that a mask of reasons names, else 0. Idle and set clocks are none."""
    return {kind: int(bool(reasons & bits)) for kind, bits in KINDS.items()}


def throttle_of_hex(word: Any) -> Optional[dict[str, int]]:
    """Return the kinds of throttling of a mask in hexadecimal (`0x0000000000000004`); None for any other text."""
    try:
        return throttle(int(word, 16))
    except (TypeError, ValueError):
        return None
