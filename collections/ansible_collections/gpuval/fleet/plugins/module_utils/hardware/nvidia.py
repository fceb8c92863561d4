"""NVIDIA GPUs by `nvidia-smi -q -x`."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any, Optional

from . import values
from .gpu import Detection, Gpu
from .tools import VENDOR_TOOL_TIMEOUT_SECONDS, Run

VENDOR = "nvidia"
ESSENTIAL = ("product_name", "uuid", "fb_memory_usage/total")

_END = "</nvidia_smi_log>"
# Seen as "GPU0000:CB:00.0: Unknown Error", "GPU 0000:CB:00.0: ..." and "GPU1: 0000:34:00.0: ...".
_UNREADABLE = re.compile(
    r"device handle for GPU\s*(?:\d+:\s*)?([0-9A-F]{4,8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7])", re.IGNORECASE
)


def detect(run: Run) -> Detection:
    result = run("nvidia-smi", "-q", "-x", timeout=VENDOR_TOOL_TIMEOUT_SECONDS)
    if result.missing:
        return Detection(VENDOR, problem=result.complaint, installed=False)
    lost = unreadable(result.stdout + "\n" + result.stderr)
    try:
        gpus, lost_in_log = parse(result.stdout)
    except ET.ParseError:
        problem = result.complaint if not result.ok else "nvidia-smi -q -x did not write XML"
        return Detection(VENDOR, problem=problem, lost=lost, hung=result.timed_out)
    lost = sorted({*lost, *lost_in_log})
    if lost:
        problem = f"nvidia-smi cannot read the GPU at {', '.join(lost)}"
    elif not result.ok:
        problem = result.complaint
    else:
        problem = None if gpus else "nvidia-smi lists no GPU"
    return Detection(VENDOR, gpus, problem, lost, hung=result.timed_out)


def parse(xml: str) -> tuple[list[Gpu], list[str]]:
    """The usable GPUs of an `nvidia-smi -q -x` log, and the PCI addresses of those that the driver lost.

    Raises `xml.etree.ElementTree.ParseError` when the text is no XML.
    """
    log = ET.fromstring(_document(xml))  # noqa: S314 - this machine's own driver wrote it
    driver = _text(log, "driver_version")
    cuda = _text(log, "cuda_version")
    gpus, lost = [], []
    for index, element in enumerate(log.findall("gpu")):
        gpu = _gpu(element, index)
        gpu.driver_version, gpu.runtime_version = driver, cuda
        # A GPU that fell off the bus may still be listed, with an error in place of its values.
        if gpu.uuid is None or any(values.is_error(element.findtext(path)) for path in ESSENTIAL):
            lost.append(gpu.pci_address or f"index {index}")
        else:
            gpus.append(gpu)
    return gpus, lost


def unreadable(output: str) -> list[str]:
    """PCI addresses that nvidia-smi complains of outside its log (`Unable to determine the device handle for GPU`)."""
    found = (values.pci_address(address) for address in _UNREADABLE.findall(output))
    return sorted({address for address in found if address})


def _document(output: str) -> str:
    """The log itself, without complaints printed before or after it."""
    start, end = output.find("<nvidia_smi_log"), output.rfind(_END)
    return output[start : end + len(_END)] if 0 <= start < end else output.strip()


def _gpu(element: ET.Element, index: int) -> Gpu:
    address = values.pci_address(_text(element, "pci/pci_bus_id")) or values.pci_address(element.get("id"))
    mig = _text(element, "mig_mode/current_mig")
    return Gpu(
        vendor=VENDOR,
        index=index,
        name=_text(element, "product_name"),
        uuid=_text(element, "uuid"),
        serial=values.identifier(_text(element, "serial")),
        pci_address=address,
        firmware_version=_text(element, "vbios_version"),
        memory_bytes=values.size_bytes(_text(element, "fb_memory_usage/total"), "MiB"),
        memory_used_bytes=values.size_bytes(_text(element, "fb_memory_usage/used"), "MiB"),
        temperature_celsius=values.number(_text(element, "temperature/gpu_temp")),
        power_draw_watts=_first_number(element, POWER_DRAW),
        power_limit_watts=_first_number(element, POWER_LIMIT),
        core_clock_hertz=values.hertz(_text(element, "clocks/sm_clock")),
        core_clock_max_hertz=values.hertz(_text(element, "max_clocks/sm_clock")),
        memory_clock_hertz=values.hertz(_text(element, "clocks/mem_clock")),
        ecc_mode=_lower(_text(element, "ecc_mode/current_ecc")),
        ecc_corrected_count=_ecc(element, "volatile", CORRECTED),
        ecc_uncorrected_count=_ecc(element, "volatile", UNCORRECTED),
        ecc_corrected_aggregate_count=_ecc(element, "aggregate", CORRECTED),
        ecc_uncorrected_aggregate_count=_ecc(element, "aggregate", UNCORRECTED),
        row_remap_pending_count=values.count(_text(element, "remapped_rows/remapped_row_pending")),
        row_remap_failed_count=values.count(_text(element, "remapped_rows/remapped_row_failure")),
        row_remap_uncorrected_count=values.count(_text(element, "remapped_rows/remapped_row_unc")),
        pcie_generation=values.count(_text(element, "pci/pci_gpu_link_info/pcie_gen/current_link_gen")),
        pcie_generation_max=values.count(_text(element, "pci/pci_gpu_link_info/pcie_gen/max_link_gen")),
        pcie_width=values.count(_text(element, "pci/pci_gpu_link_info/link_widths/current_link_width")),
        pcie_width_max=values.count(_text(element, "pci/pci_gpu_link_info/link_widths/max_link_width")),
        recovery_action=_text(element, "gpu_recovery_action"),
        persistence_mode=_lower(_text(element, "persistence_mode")),
        fabric_state=_lower(_text(element, "fabric/state")),
        partition_mode=None if mig is None else f"mig {mig.lower()}",
        module_id=values.count(_text(element, "gpu_module_id")),
        processes=[_process(process) for process in element.findall("processes/process_info")],
    )


# Drivers 535 and later split power into GPU and module readings; before that there was one block.
POWER_DRAW = (
    "gpu_power_readings/power_draw",
    "gpu_power_readings/instant_power_draw",
    "gpu_power_readings/average_power_draw",
    "power_readings/power_draw",
)
POWER_LIMIT = (
    "gpu_power_readings/current_power_limit",
    "power_readings/enforced_power_limit",
    "power_readings/power_limit",
)
# Each tuple is one generation of the driver's format; the first that has a number is summed.
CORRECTED = (("sram_correctable", "dram_correctable"), ("single_bit/total",))
UNCORRECTED = (
    ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable"),
    ("sram_uncorrectable", "dram_uncorrectable"),
    ("double_bit/total",),
)


def _ecc(element: ET.Element, period: str, generations: tuple[tuple[str, ...], ...]) -> Optional[int]:
    for names in generations:
        counts = [values.count(_text(element, f"ecc_errors/{period}/{name}")) for name in names]
        if counts[0] is not None:
            return sum(count for count in counts if count is not None)
    return None


def _process(element: ET.Element) -> dict[str, Any]:
    return {
        "pid": values.count(_text(element, "pid")),
        "type": _text(element, "type"),
        "name": _text(element, "process_name"),
        "memory_used_bytes": values.size_bytes(_text(element, "used_memory"), "MiB"),
    }


def _text(element: ET.Element, path: str) -> Optional[str]:
    return values.text(element.findtext(path))


def _first_number(element: ET.Element, paths: tuple[str, ...]) -> Optional[values.Number]:
    for path in paths:
        amount = values.number(_text(element, path))
        if amount is not None:
            return amount
    return None


def _lower(word: Optional[str]) -> Optional[str]:
    return None if word is None else word.lower()
