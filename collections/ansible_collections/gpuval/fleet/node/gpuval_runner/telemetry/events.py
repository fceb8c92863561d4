"""What a line of the kernel's log means for the hardware. Pure.

Only lines that the kernel itself wrote may come here: any user can write "Xid" into the log.

Formats: NVIDIA's drivers as leptonai/gpud shows them (components/accelerator/nvidia/error/{xid,sxid}/README.md), amdgpu
and habanalabs as their sources in Linux print them (amdgpu_ras.c, amdgpu_device.c, habanalabs/common/device.c),
mm/oom_kill.c, drivers/edac/edac_mc.c, drivers/pci/pcie/aer.c, mlx5 en_main.c and events.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

#: XIDs that an application can cause or that healthy GPUs log; any other is critical. Source: gcm
#: (facebookresearch/gcm, health checks).
HARMLESS_XIDS = frozenset({13, 31, 43, 45, 63, 68, 92, 109})

_ADDRESS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?({_ADDRESS})[^)]*\): (\d+)[,:]")
_SXID = re.compile(rf"SXid \(PCI:({_ADDRESS})\): (\d+), (?:Fatal|Non-fatal|Nonfatal)", re.IGNORECASE)
_DEVICE = re.compile(rf"^\S+ ({_ADDRESS})[: ]")
#: "no uncorrectable hardware errors detected" is amdgpu's all-clear.
_AMD_ERRORS = re.compile(r"amdgpu.*?\b(\d+) (?:new )?(?:un)?correctable hardware errors detected")
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("ras", r"amdgpu.*(?:GPU reset begin|ring \S+ timeout|poison consumption|deferred hardware errors detected)"),
    ("ras", r"habanalabs.*(?:Going to reset device|H/W error|ECC event|HBM.*uncorrectable)"),
    ("oom", r"\b(?:Memory cgroup out|Out) of memory: Killed process"),
    ("mce", r"Machine check events logged|Machine Check Exception|\[Hardware Error\]: event severity:"),
    ("mce", r"^EDAC \S+: \d+ [CU]E\b|^Memory failure: 0x"),
    ("aer", r"PCIe Bus Error: severity="),
    ("link_flap", rf"^(?!NVRM|nvidia|pcieport)\S+ {_ADDRESS}\b.*\blink (?:is )?down\b"),
    ("link_flap", r"\bPort module event: .*(?:unplugged|error)"),
)
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _PATTERNS)
#: Kinds of events, in the order of the report.
KINDS = ("xid", "sxid", "ras", "mce", "oom", "link_flap", "aer")


@dataclass(frozen=True)
class Event:
    """What a line means: `number` of an XID or SXID, `address` of the PCI device as the kernel writes it."""

    kind: str
    number: Optional[int] = None
    address: Optional[str] = None

    @property
    def critical(self) -> bool:
        """Whether it is an XID by which hardware or driver failed."""
        return self.kind == "xid" and self.number not in HARMLESS_XIDS


def classify(text: str) -> Optional[Event]:
    """Return what a line of the kernel means; None for one that does not concern the hardware."""
    match = _XID.search(text)
    if match:
        return Event("xid", int(match.group(2)), address(match.group(1)))
    match = _SXID.search(text)
    if match:
        return Event("sxid", int(match.group(2)), address(match.group(1)))
    match = _AMD_ERRORS.search(text)
    device = _DEVICE.search(text)
    place = address(device.group(1)) if device else None
    if match:
        return Event("ras", None, place) if int(match.group(1)) else None
    for kind, pattern in _COMPILED:
        if pattern.search(text):
            return Event(kind, None, place)
    return None


def address(word: str) -> str:
    """Return a PCI address in full, as the facts write it: `0000:9d:00` is `0000:9d:00.0`."""
    word = word.lower()
    if word.count(":") == 1:
        word = f"0000:{word}"
    domain, _, rest = word.partition(":")
    return f"{int(domain, 16):04x}:{rest}" + ("" if "." in rest else ".0")
