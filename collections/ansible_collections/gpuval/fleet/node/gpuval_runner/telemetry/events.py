"""Classifies lines of the kernel's log by what they mean for the hardware. Pure.

Callers must pass only lines that the kernel itself wrote: any user can write "Xid" into the log.

Formats: NVIDIA's drivers as leptonai/gpud shows them (components/accelerator/nvidia/error/{xid,sxid}/README.md), amdgpu
and habanalabs as their sources in Linux print them (amdgpu_ras.c, amdgpu_ras_eeprom.c, amdgpu_aca.c, amdgpu_device.c,
amdgpu_kms.c, amdkfd/kfd_int_process_v9.c, habanalabs/common/device.c), mm/oom_kill.c, drivers/edac/edac_mc.c,
drivers/pci/pcie/aer.c, mlx5 en_main.c and events.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple, Optional

#: XIDs that an application can cause or that healthy GPUs log; any other is critical. Source: gcm
#: (facebookresearch/gcm, health checks).
HARMLESS_XIDS = frozenset({13, 31, 43, 45, 63, 68, 92, 109})
#: XIDs of NVLink 5, whose text says whether they are fatal: `149, NETIR_LINK_EVT Fatal XC0 i0 Link 09 (...)`.
NVLINK5_XIDS = range(144, 150)

_ADDRESS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?({_ADDRESS})[^)]*\): (\d+)[,:]([^(]*)")
#: "Nonfatal" in the text of an NVLink XID, near the link's unit or number; never in a process name, which users choose.
_NONFATAL = re.compile(r"^\s*[A-Z][A-Z0-9_]*\s+Non-?fatal\b|\bNon-?fatal\s+XC\d+\s+i\d+\s+Link\b", re.IGNORECASE)
#: XID by which the driver withdraws a recovery action. The text is at the line's end, after the process name.
RECOVERY_XID = 154
_NO_RECOVERY = re.compile(r"(?i)\bGPU recovery action changed from 0x[0-9a-f]+ \([^()]*\) to 0x0+ \(None\)\s*$")
#: Message of a lost GPU, with or without an XID 79.
_OFF_THE_BUS = re.compile(rf"NVRM: (?:.*?\b({_ADDRESS})\b)?.*fallen off the bus")
FALLEN_OFF = 79
_SXID = re.compile(rf"SXid \(PCI:({_ADDRESS})\): (\d+), (?:Fatal|Non-fatal|Nonfatal)", re.IGNORECASE)
_DEVICE = re.compile(rf"^\S+ ({_ADDRESS})[: ]")
#: amdgpu's number of hardware errors. "no uncorrectable hardware errors detected" has no number: all is well.
_AMD_ERRORS = re.compile(r"amdgpu.*?\b(\d+) (?:new )?(uncorrectable|correctable|deferred) hardware errors detected")
#: First line of amdgpu's dump of an error bank, also for corrected errors: the status in the dump tells the kind.
_ACA_HEAD = re.compile(r"Accelerator Check Architecture events logged")
_ACA_STATUS = re.compile(r"\b(?:aca entry\[\d+\]|ACA\[\d+/\d+\])\.STATUS=0x([0-9a-f]{1,16})\b", re.IGNORECASE)
ACA_LINES = 3
#: Bits of an ACA error bank's status: uncorrected, deferred, poison.
ACA_FAULT = 1 << 61 | 1 << 44 | 1 << 43
_LINK = re.compile(rf"^((?!NVRM|nvidia|pcieport)\S+ {_ADDRESS}\b.*)\blink (?:is )?(up|down)\b", re.IGNORECASE)
_LINKED = re.compile(r"\blink (?:is )?up\b|\bPort module event: .*\bCable plugged\b", re.IGNORECASE)
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("ras", r"amdgpu.*(?:GPU reset begin|ring \S+ timeout|poison (?:is |was )?consum|Fatal error during GPU init)"),
    ("ras", r"ERREVENT_ATHUB_INTERRUPT|RAS poison consumption, (?:unmap|fall)|qcm fence wait loop timeout"),
    ("ras", r"amdgpu.*(?:\bfences? (?:wait )?(?:loop )?(?:timed out|timeout)|ATHUB.*uncorrectable)"),
    ("ras", r"amdgpu.*(?:bad pages?\b.*(?:reach|exceed).*threshold|RAS records:\s*\d+ exceed\w* threshold)"),
    ("ras", r"habanalabs.*(?:Going to reset device|H/W error|ECC event|HBM.*uncorrectable)"),
    ("oom", r"\b(?:Memory cgroup out|Out) of memory: Killed process"),
    ("mce", r"Machine check events logged|Machine Check Exception|\[Hardware Error\]: event severity:"),
    ("mce", r"^EDAC \S+: \d+ [CU]E\b|^Memory failure: 0x"),
    ("aer", r"PCIe Bus Error: severity="),
    ("link_flap", r"\bPort module event: .*(?:unplugged|error)"),
)
#: Kinds of kernel events, in the order of the report.
KINDS = ("xid", "sxid", "ras", "ras_corrected", "mce", "oom", "link_flap", "aer")


class KernelEvent(NamedTuple):
    """A hardware event of the kernel's log: `number` of an XID or SXID, `address` of the PCI device as the kernel
    writes it. `nonfatal`: by the text of an NVLink 5 XID, or by an XID 154 that needs no recovery any more."""

    kind: str
    number: Optional[int] = None
    address: Optional[str] = None
    nonfatal: bool = False

    @property
    def critical(self) -> bool:
        """Whether the event is an XID that means a failure of hardware or driver."""
        return self.kind == "xid" and self.number not in HARMLESS_XIDS and not self.nonfatal


class KernelLogReader:
    """Reads the kernel's lines of one stage in order: the meaning of some lines depends on earlier lines."""

    def __init__(self, unlinked: Iterable[str] = ()) -> None:
        """`unlinked`: PCI addresses of network devices without a link before the stage: they cannot lose one."""
        #: Last state of the link (up or down), by network port.
        self._links: dict[str, str] = {}
        self._unlinked = set(unlinked)

    def read(self, texts: Sequence[str]) -> list[tuple[KernelEvent, str]]:
        """Return pairs of event and line, for the lines of the kernel's log that concern the hardware."""
        events = []
        for position, text in enumerate(texts):
            event = classify(text)
            if _ACA_HEAD.search(text):
                if any(map(_ACA_STATUS.search, texts[position + 1 : position + 1 + ACA_LINES])):
                    continue  # the dump's status line tells the kind of the error
            elif link := _LINK.search(text):
                port, word = link[1], link[2].lower()
                if word == self._links.get(port) == "up":  # up twice: the link went down in between, unreported
                    event = KernelEvent("link_flap", None, _device_address(text))
                self._links[port] = word
            if _LINKED.search(text):
                self._unlinked.discard(_device_address(text) or "")
            if event and not (event.kind == "link_flap" and event.address in self._unlinked):
                events.append((event, text))
        return events


def classify(text: str) -> Optional[KernelEvent]:
    """Return the event of a kernel line by its text alone; None for a line that does not concern the hardware."""
    if match := _XID.search(text):
        number = int(match.group(2))
        nonfatal = number in NVLINK5_XIDS and bool(_NONFATAL.search(match.group(3)))
        nonfatal = nonfatal or (number == RECOVERY_XID and bool(_NO_RECOVERY.search(text)))
        return KernelEvent("xid", number, address(match.group(1)), nonfatal)
    if match := _OFF_THE_BUS.search(text):
        return KernelEvent("xid", FALLEN_OFF, address(match.group(1)) if match.group(1) else None)
    if match := _SXID.search(text):
        return KernelEvent("sxid", int(match.group(2)), address(match.group(1)))
    kind = ""
    if match := _AMD_ERRORS.search(text):
        kind = ("ras_corrected" if match.group(2) == "correctable" else "ras") if int(match.group(1)) else ""
    elif match := _ACA_STATUS.search(text):
        kind = "ras" if int(match.group(1), 16) & ACA_FAULT else "ras_corrected"
    elif _ACA_HEAD.search(text):
        kind = "ras"
    elif (match := _LINK.search(text)) and match.group(2).lower() == "down":
        kind = "link_flap"
    else:
        kind = next((kind for kind, pattern in _compiled() if pattern.search(text)), "")
    return KernelEvent(kind, None, _device_address(text)) if kind else None


@cache
def _compiled() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Compile the patterns of kernel messages, by kind, for the first message: most stages have no messages."""
    return tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _PATTERNS)


def _device_address(text: str) -> Optional[str]:
    device = _DEVICE.search(text)
    return address(device.group(1)) if device else None


def address(word: str) -> str:
    """Return a PCI address with its function, as in the facts: `0000:9d:00` becomes `0000:9d:00.0`."""
    word = word.lower()
    if word.count(":") == 1:
        word = f"0000:{word}"
    domain, _, remainder = word.partition(":")
    return f"{int(domain, 16):04x}:{remainder}" + ("" if "." in remainder else ".0")
