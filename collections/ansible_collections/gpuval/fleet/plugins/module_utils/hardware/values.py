"""Parses values that vendor tools print; None for a text without a value."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Optional, Union

Number = Union[int, float]

#: What tools print, in lower case, for a value that a device does not have or report.
ABSENT = {
    "",
    "-",
    "n/a",
    "none",
    "null",
    "not supported",
    "not available",
    "not found",
    "insufficient permissions",
    "requested functionality has been deprecated",
}
#: Texts of a tool that failed to read a value, as opposed to a value that is not supported.
ERRORS = {"err!", "unknown error", "gpu is lost", "gpu requires reset"}
#: Filler, in lower case, that vendors leave in firmware in place of serial numbers and names.
PLACEHOLDERS = {
    "to be filled by o.e.m.",
    "to be filled by oem",
    "default string",
    "not specified",
    "not applicable",
    "system serial number",
    "system product name",
    "chassis serial number",
    "unknown",
    "none",
    "n/a",
    "oem",
    "o.e.m.",
    "0",
    "123456789",
    "0123456789",
    "1234567890",
    "........",
}

BYTE_UNITS = {
    "B": 1,
    # amd-smi prints MB and GB but means powers of two, as its library does
    **{prefix + unit: 1024**power for power, prefix in enumerate("KMGT", 1) for unit in ("B", "IB")},
}
HERTZ_UNITS = {"Hz": 1, "kHz": 1_000, "KHz": 1_000, "MHz": 1_000_000, "Mhz": 1_000_000, "GHz": 1_000_000_000}
WATT_UNITS = {"uW": 1e-6, "mW": 1e-3, "W": 1, "kW": 1e3}
PCIE_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def text(value: Any) -> Optional[str]:
    """Return a value that a tool printed as text; None for a tool's word for no value, such as `N/A`."""
    if value is None or isinstance(value, (dict, list)):
        return None
    word = str(value).strip()
    bare = word.removeprefix("[").removesuffix("]").lower()
    return None if bare in ABSENT or bare in ERRORS else word


def lower(value: Any) -> Optional[str]:
    """Return a value as text in lower case; None for a tool's word for no value."""
    word = text(value)
    return None if word is None else word.lower()


def word(value: Any) -> Optional[str]:
    """Return a tool's word in lower case, also one for no value (`n/a`, `not supported`); None if it is empty."""
    bare = str(value or "").strip().strip("[]").lower()
    return bare or None


def identifier(value: Any) -> Optional[str]:
    """Return an identifier such as a serial number, or None for the filler that vendors leave in firmware."""
    word = text(value)
    if word is None or word.lower() in PLACEHOLDERS or not word.strip("0.-:x "):
        return None
    return word


def number(value: Any) -> Optional[Number]:
    """Return the number in `34 C`, `16x`, `{"value": 34, "unit": "C"}` or 34; None for a bool, NaN or infinity."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return value if math.isfinite(value) else None
    word = text(value)
    match = _NUMBER.match(word) if word else None
    if match is None:
        return None
    digits = match.group()
    return int(digits) if digits.lstrip("+-").isdigit() else float(digits)


def count(value: Any) -> Optional[int]:
    """Return a value as an integer; `Yes` and `No`, as tools print pending and failed states, are 1 and 0."""
    word = text(value)
    if word is not None and word.lower() in ("yes", "no"):
        return int(word.lower() == "yes")
    amount = number(value)
    return None if amount is None else int(amount)


def _scaled(value: Any, factors: Mapping[str, float], default_unit: str) -> Optional[Number]:
    """Return a number with a unit, converted to the base unit by `factors`; None for an unknown unit."""
    amount = number(value)
    named = value.get("unit") if isinstance(value, dict) else _NUMBER.sub("", str(value), count=1).strip()
    unit = str(named or default_unit)
    factor = factors.get(unit, factors.get(unit.upper()))
    return None if amount is None or factor is None else amount * factor


def size_bytes(value: Any, default_unit: str = "B") -> Optional[int]:
    """Return `81920 MiB` or `{"value": 192, "unit": "GB"}` in bytes."""
    amount = _scaled(value, BYTE_UNITS, default_unit)
    return None if amount is None else int(amount)


def megabytes(value: Any) -> Optional[int]:
    """Return `192` or `192 MB` in bytes."""
    return size_bytes(value, "MB")


def hertz(value: Any) -> Optional[Number]:
    """Return a clock in hertz; a number without a unit is in MHz, as the vendors' tools print."""
    return _scaled(value, HERTZ_UNITS, "MHz")


def watts(value: Any) -> Optional[Number]:
    """Return a power such as `690.53 W`, `700` or `250000 mW` in watts."""
    return _scaled(value, WATT_UNITS, "W")


def version(value: Any) -> Optional[str]:
    """Return a version such as `570.133.20` or `1.17.0-28a11ca`; None for any other text, such as a banner."""
    word = text(value)
    return word if word and re.fullmatch(r"[A-Za-z]{0,8}-?\d[\w.+~:-]{0,63}", word) else None


def ratio(value: Any) -> Optional[float]:
    """Return a percentage (`97 %`) as a ratio."""
    amount = number(value)
    return None if amount is None else amount / 100


def pcie_generation(value: Any) -> Optional[int]:
    """Return the PCIe generation for a link speed in GT/s (also `16.0 GT/s PCIe`), or None for an unknown speed."""
    amount = number(value)
    return None if amount is None else PCIE_GENERATIONS.get(float(amount))


def pci_address(value: Any) -> Optional[str]:
    """Return a PCI address (`00000000:1A:00.0`, `1a:00.0`) in the kernel's form: `0000:1a:00.0`."""
    word = text(value)
    match = re.fullmatch(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])", word or "")
    if match is None:
        return None
    domain = int(match.group(1) or "0", 16)
    return f"{domain:04x}:{match.group(2)}:{match.group(3)}.{match.group(4)}".lower()
