"""Access control of PCIe (ACS): whether a port sends what devices below it send each other up to the processor."""

from __future__ import annotations

from typing import Optional

_EXTENDED, _ACS = 0x100, 0x0D
#: Bits of the ACS control register: requests, completions redirected; what is already translated may go straight (ATS).
_REQUESTS, _COMPLETIONS, _DIRECT = 0x04, 0x08, 0x40


def redirects(config: bytes) -> Optional[bool]:
    """Whether a port sends peers' data up, by its configuration space; None where only its beginning may be read."""
    if len(config) <= _EXTENDED or config[:4] == b"\xff" * 4:  # 64 bytes without privileges; all ones from nothing
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
