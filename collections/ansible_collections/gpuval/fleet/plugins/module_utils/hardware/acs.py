"""PCIe access control (ACS): whether a port redirects traffic between devices below it up to the processor."""

from __future__ import annotations

from typing import Optional

_EXTENDED, _ACS = 0x100, 0x0D
#: Bits of the ACS control register: redirect requests, redirect completions; pass translated requests directly (ATS).
_REQUESTS, _COMPLETIONS, _DIRECT = 0x04, 0x08, 0x40


def redirects(config: bytes) -> Optional[bool]:
    """Whether a PCIe port redirects peer traffic, by the bytes of its config space; None if most are not readable."""
    if len(config) <= _EXTENDED or config[:4] == b"\xff" * 4:  # users read 64 bytes; all ones if the device is gone
        return None
    offset, visited = _EXTENDED, set()
    while _EXTENDED <= offset <= len(config) - 8 and offset not in visited:
        visited.add(offset)
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == _ACS:
            control = int.from_bytes(config[offset + 6 : offset + 8], "little")
            return bool(control & (_REQUESTS | _COMPLETIONS)) and not control & _DIRECT
        offset = header >> 20 & 0xFFC
    return False
