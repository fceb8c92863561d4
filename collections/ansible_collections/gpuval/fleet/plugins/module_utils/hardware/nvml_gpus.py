"""Facts of NVIDIA GPUs by NVML, where nvidia-smi is missing or does not print the NVLink fabric; read by a child
process, since a call of the driver may hang."""

from __future__ import annotations

import ctypes
from dataclasses import asdict
from typing import Any, Optional

from ..node_directory import NodeError, within
from . import nvidia_gpus, values
from .gpu import BY_KIND, COMPLETED, LIVE, READINGS, Detection, Gpu
from .nvml import CALLS, FI_NVLINK_LINK_COUNT, LIBRARY, Nvml, NvmlCall
from .nvml_fabric import read_fabric, read_platform
from .tools import VENDOR_TOOL_TIMEOUT_SECONDS, Run

#: NVML's fields for an NVLink's speed in MB/s and for recoveries of NVLink 5; the counter for those of NVLink 1 to 4.
FI_LINK_SPEED, FI_LINK_RECOVERIES, LINK_RECOVERIES = 164, 215, 1
#: Readings of telemetry that are facts too, by attribute of ``Gpu``.
_READINGS = {name: reading for name, reading in READINGS.items() if reading in CALLS and name not in BY_KIND[LIVE]}
_CALLS = {
    "memory_bytes": CALLS["memory_used_bytes"]._replace(part="total"),
    "pcie_width_max": NvmlCall("nvmlDeviceGetMaxPcieLinkWidth"),
    "pcie_generation_max": NvmlCall("nvmlDeviceGetMaxPcieLinkGeneration"),
    "module_id": NvmlCall("nvmlDeviceGetModuleId"),
}
_TEXTS = {
    "name": "nvmlDeviceGetName",
    "uuid": "nvmlDeviceGetUUID",
    "serial": "nvmlDeviceGetSerial",
    "firmware_version": "nvmlDeviceGetVbiosVersion",
}
#: NVML functions with two outputs, the present mode and the mode after the next reboot; then the word for each mode.
_MODES = {
    "ecc_mode": ("nvmlDeviceGetEccMode", ("disabled", "enabled")),
    "partition_mode": ("nvmlDeviceGetMigMode", ("mig disabled", "mig enabled")),
}
#: Attributes of ``Gpu`` that NVML fills in where nvidia-smi leaves them out.
_COMPLETED = (
    *("fabric_state", "fabric_status", "fabric_clique", "fabric_cluster_uuid", "fabric_health", "fabric_problem"),
    *("chassis_serial", "chassis_slot", "tray_index", "host_id", "peer_type", "module_id", "fabric_guid"),
)


class NvmlGpus(Nvml):
    """Facts of all NVIDIA GPUs of this machine by NVML. Raises ``SourceError`` without a driver."""

    def gpus(self) -> list[Gpu]:
        driver, cuda = ctypes.create_string_buffer(96), ctypes.c_int()
        has_driver = not self._call("nvmlSystemGetDriverVersion", driver, ctypes.c_uint(len(driver)))
        has_cuda = not self._call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(cuda))
        versions: dict[str, Any] = {
            "driver_version": values.version(_text(driver)) if has_driver else None,
            "runtime_version": f"{cuda.value // 1000}.{cuda.value % 1000 // 10}" if has_cuda else None,
        }
        return [
            Gpu(nvidia_gpus.VENDOR, index, **versions, **self._facts(handle)) for index, handle in self._handles.items()
        ]

    def _facts(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        read = {attribute: self._read(reading, handle) for attribute, reading in _READINGS.items()}
        read.update({attribute: self._read(attribute, handle, _CALLS) for attribute in _CALLS})
        read.update({attribute: self._read_text(function, handle) for attribute, function in _TEXTS.items()})
        read.update({attribute: self._read_mode(*mode, handle) for attribute, mode in _MODES.items()})
        read.update({f"{name}_count": count for name, count in self._remaps(handle).items() if name != "row_remaps"})
        return {
            **read,
            "pci_address": self._pci_address(handle),
            "nvlinks": self._links(handle),
            **read_platform(self._call, handle),
            **read_fabric(self._call, handle, self.error_text),
        }

    def _links(self, handle: ctypes.c_void_p) -> Optional[list[dict[str, Any]]]:
        """Return a GPU's NVLinks as ``nvlinks.read_nvlinks`` does, without counters for those that are down."""
        up = self._links_up(handle)
        if up is None:
            return None
        count = self._field(handle, FI_NVLINK_LINK_COUNT, "link_count") or 0
        numbers = range(max(int(count), *(number + 1 for number in up), 0))
        speeds = [self._field(handle, FI_LINK_SPEED, "link_speed", link) for link in numbers]
        errors = self._link_errors(handle, up) or {}
        return [
            {
                "link": link,
                "is_up": link in up,
                "bytes_per_second": None if speed is None else speed * 1_000_000,
                "errors": errors.get(str(link)),
                "recoveries": self._recoveries(handle, link) if link in up else None,
            }
            for link, speed in enumerate(speeds)
        ]

    def _recoveries(self, handle: ctypes.c_void_p, link: int) -> Optional[int]:
        """Return how often an NVLink recovered: by the counter of NVLink 1 to 4, else by the field of NVLink 5."""
        recoveries = self._link_counter(handle, link, LINK_RECOVERIES)
        if recoveries is not None:
            return recoveries
        return self._field(handle, FI_LINK_RECOVERIES, "link_recoveries", link)

    def _read_mode(self, function: str, words: tuple[str, ...], handle: ctypes.c_void_p) -> Optional[str]:
        present, pending = ctypes.c_uint(), ctypes.c_uint()
        code = self._call(function, handle, ctypes.byref(present), ctypes.byref(pending))
        return None if code or present.value >= len(words) else words[present.value]


def detect(run: Run, library: Optional[str] = LIBRARY) -> Detection:
    """Return NVIDIA's GPUs by nvidia-smi, completed by NVML; by NVML alone where nvidia-smi is not installed."""
    detection = nvidia_gpus.detect(run)
    is_complete = all(
        gpu.fabric_state and (gpu.fabric_state != COMPLETED or gpu.fabric_clique is not None) for gpu in detection.gpus
    )
    if library is None or (detection.installed and (is_complete or detection.hung)):
        return detection
    try:
        answer = within(VENDOR_TOOL_TIMEOUT_SECONDS, _read, library)
    except NodeError:
        answer = {"gpus": [], "lost": 0}
    gpus = [Gpu(**gpu) for gpu in answer["gpus"]]
    if not detection.installed:
        return Detection(nvidia_gpus.VENDOR, gpus, None, unlisted=answer["lost"]) if gpus else detection
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    for gpu in detection.gpus:
        for attribute in _COMPLETED:
            if getattr(gpu, attribute) is None and gpu.uuid in by_uuid:
                setattr(gpu, attribute, getattr(by_uuid[gpu.uuid], attribute))
    return detection


def _read(library: str) -> dict[str, Any]:
    source = NvmlGpus(library)
    return {"gpus": [asdict(gpu) for gpu in source.gpus()], "lost": len(source.lost)}


def _text(buffer: Any) -> str:
    return bytes(buffer.value).decode("utf-8", "replace")
