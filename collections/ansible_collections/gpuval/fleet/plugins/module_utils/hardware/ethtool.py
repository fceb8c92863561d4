"""Firmware of a network interface, as its driver tells it (ETHTOOL_GDRVINFO); needs no tool and no privileges."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from typing import Optional

_SIOCETHTOOL, _GDRVINFO = 0x8946, 0x00000003
#: struct ethtool_drvinfo: command, driver, version, firmware version, ... of linux/ethtool.h.
_SIZE, _FIRMWARE = 196, slice(68, 100)
MAX_NAME = 15


def firmware_version(name: str) -> Optional[str]:
    """None where the interface has none, or is gone."""
    if len(name.encode()) > MAX_NAME:
        return None
    info = array.array("B", struct.pack("I", _GDRVINFO).ljust(_SIZE, b"\0"))
    request = struct.pack("16sP16x", name.encode(), info.buffer_info()[0])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SIOCETHTOOL, request)
    except OSError:
        return None
    text = info.tobytes()[_FIRMWARE].partition(b"\0")[0].decode("ascii", "replace").strip()
    return text if text not in ("", "N/A") else None
