"""NVLink fabric and rack position of an NVIDIA GPU, read by NVML and given in the words of `nvidia-smi -q`."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable
from typing import Any, Optional

from . import values
from .nvidia_gpus import fabric_problem

SUCCESS, NOT_SUPPORTED = 0, 3
STATES = ("Not Supported", "Not Started", "In Progress", "Completed")
SUMMARIES = ("N/A", "Healthy", "Unhealthy", "Limited Capacity")
_BOOLEAN = ("N/A", "True", "False")
#: Parts of the bit mask for an NVLink fabric's health: name, position of the first bit, words by value.
HEALTH = (
    ("bandwidth", 0, ("N/A", "Degraded", "Full")),
    ("route_recovery_in_progress", 2, _BOOLEAN),
    ("route_unhealthy", 4, _BOOLEAN),
    ("access_timeout_recovery", 6, _BOOLEAN),
    (
        "incorrect_configuration",
        8,
        (
            *("N/A", "None", "Incorrect System GUID", "Incorrect Chassis Serial Number", "No Partition"),
            *("Insufficient NVLinks", "Incompatible GPU Firmware", "Invalid Location", "GPU State Invalid"),
        ),
    ),
    ("partition_assigned", 12, _BOOLEAN),
)
_WIDTHS = {"incorrect_configuration": 0xF}
PEERS = ("Direct Connected", "Switch Connected")


class _FabricInfo(ctypes.Structure):  # nvmlGpuFabricInfo_v3_t; version 2 ends before the summary
    _fields_ = [
        ("version", ctypes.c_uint),
        ("cluster_uuid", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
        ("health_mask", ctypes.c_uint),
        ("summary", ctypes.c_ubyte),
    ]


class _PlatformInfo(ctypes.Structure):  # nvmlPlatformInfo_v2_t
    _fields_ = [
        ("version", ctypes.c_uint),
        ("fabric_guid", ctypes.c_ubyte * 16),
        ("chassis_serial", ctypes.c_char * 16),
        ("slot", ctypes.c_ubyte),
        ("tray", ctypes.c_ubyte),
        ("host", ctypes.c_ubyte),
        ("peer_type", ctypes.c_ubyte),
        ("module", ctypes.c_ubyte),
    ]


#: Calls an NVML function by name with its arguments; returns NVML's return code.
NvmlCaller = Callable[..., int]


def read_fabric(call: NvmlCaller, handle: ctypes.c_void_p, error_text: Callable[[int], str]) -> dict[str, Any]:
    """Return the attributes of ``Gpu`` on its NVLink fabric; empty if this driver's NVML does not report them."""
    info, size = _FabricInfo(), ctypes.sizeof(_FabricInfo)
    for version, length in ((3, size), (2, _FabricInfo.summary.offset)):
        info.version = length | version << 24
        code = call("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info))
        if code in (SUCCESS, NOT_SUPPORTED):
            break
    else:
        return {}
    if code == NOT_SUPPORTED:
        return {"fabric_state": "n/a"}
    health = {name: _word(words, info.health_mask >> shift & _WIDTHS.get(name, 0x3)) for name, shift, words in HEALTH}
    health["summary"] = _word(SUMMARIES, info.summary if version == 3 else 0)
    status = "Success" if info.status == SUCCESS else error_text(info.status)
    return {
        "fabric_state": _word(STATES, info.state).lower(),
        "fabric_status": status.lower(),
        "fabric_clique": int(info.clique),
        "fabric_cluster_uuid": str(uuid.UUID(bytes=bytes(info.cluster_uuid))),
        "fabric_health": health,
        "fabric_problem": fabric_problem({**health, "status": status}),
    }


def read_platform(call: NvmlCaller, handle: ctypes.c_void_p) -> dict[str, Any]:
    """Return the attributes of ``Gpu`` on its position in the rack; for a GPU outside of racks, `module_id` alone."""
    info = _PlatformInfo()
    info.version = ctypes.sizeof(info) | 2 << 24
    if call("nvmlDeviceGetPlatformInfo", handle, ctypes.byref(info)) != SUCCESS:
        return {}
    guid = int.from_bytes(bytes(info.fabric_guid)[:8], "big")
    serial = values.identifier(info.chassis_serial.decode("ascii", "replace"))
    if not guid and serial is None:  # an H200 answers with zeros, which read as slot 0 and no switch
        return {"module_id": int(info.module)}
    return {
        "chassis_serial": serial,
        "chassis_slot": int(info.slot),
        "tray_index": int(info.tray),
        "host_id": int(info.host),
        "peer_type": _word(PEERS, info.peer_type),
        "module_id": int(info.module),
        "fabric_guid": f"0x{guid:016x}" if guid else None,
    }


def fabric_text(fabric: dict[str, Any]) -> Optional[str]:
    """Return state, status, clique and problem of an NVLink fabric as one text to compare; None without a fabric."""
    parts = [fabric.get(f"fabric_{name}") for name in ("state", "status", "clique", "cluster_uuid", "problem")]
    return " ".join(str(part) for part in parts if part is not None) or None


def _word(words: tuple[str, ...], value: int) -> str:
    return words[value] if value < len(words) else f"{value}"
