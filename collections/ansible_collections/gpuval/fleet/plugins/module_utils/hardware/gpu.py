"""One accelerator of any vendor, and the result of a vendor's tool for all accelerators."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from .source import Counters, Sample, known
from .tools import ToolResult
from .values import Number

#: Readings of a telemetry sample, by their attribute of ``Gpu``; `throttle` gives three readings.
_SAMPLE = {
    "temperature_celsius": "temperature_celsius",
    "memory_temperature_celsius": "memory_temperature_celsius",
    "temperature_margin_celsius": "temperature_margin_celsius",
    "power_draw_watts": "power_watts",
    "power_limit_watts": "power_limit_watts",
    "core_clock_hertz": "sm_clock_hertz",
    "memory_clock_hertz": "memory_clock_hertz",
    "utilisation_ratio": "utilisation_ratio",
    "memory_used_bytes": "memory_used_bytes",
    "pcie_width": "pcie_width",
    "pcie_generation": "pcie_generation",
}
_COUNTERS = {
    "uuid": "uuid",
    "pci_address": "pci_address",
    "ecc_corrected_count": "ecc_corrected",
    "ecc_uncorrected_count": "ecc_uncorrected",
    "pcie_replay_count": "pcie_replays",
    "link_errors": "link_errors",
    "pcie_width": "pcie_width",
}
READINGS = {**_SAMPLE, **_COUNTERS, "throttle": "throttle"}
#: Attributes that are only sampled beside a stage and are no facts of the machine.
_LIVE = (
    *("memory_temperature_celsius", "temperature_margin_celsius", "utilisation_ratio", "throttle"),
    *("throttle_counters", "pcie_replay_count", "link_errors"),
)

#: Counters that show broken memory.
_FAULTS = (
    "ecc_uncorrected_count",
    "row_remap_pending_count",
    "row_remap_failed_count",
    "sram_threshold_exceeded_count",
    "memory_repair_pending_count",
    "unrepairable_memory_count",
    "page_retirement_pending_count",
)
#: First words of nvidia-smi's "GPU Recovery Action" other than None: Reset, Reboot, Drain P2P, Drain and Reset.
RECOVERY_ACTIONS = ("reset", "reboot", "drain")

#: State of a GPU that has joined its NVLink fabric, and those of one without a fabric.
COMPLETED, NO_FABRIC = "completed", ("n/a", "not supported")
#: From this driver on nvidia-smi and NVML report state, status, clique and cluster of the fabric. 535 has no clique.
FABRIC_DRIVER = 570

#: Fields: attribute of ``Gpu``, function that reads its text, the tool's names for it (the first with a value counts).
Fields = Iterable[tuple[Any, ...]]


def read_fields(fields: Fields, look_up: Callable[[str], Any]) -> dict[str, Any]:
    """Return the values by attribute; `look_up` returns a tool's text for one of the tool's names."""
    return {
        attribute: next((value for value in (read(look_up(name)) for name in names) if value is not None), None)
        for attribute, read, *names in fields
    }


@dataclass
class Gpu:
    """Facts of one accelerator in base units; None if its tool gives no value."""

    vendor: str
    index: int
    name: Optional[str] = None
    uuid: Optional[str] = None
    serial: Optional[str] = None
    pci_address: Optional[str] = None
    driver_version: Optional[str] = None
    runtime_version: Optional[str] = None
    firmware_version: Optional[str] = None
    memory_bytes: Optional[int] = None
    memory_used_bytes: Optional[int] = None
    temperature_celsius: Optional[Number] = None
    power_draw_watts: Optional[Number] = None
    power_limit_watts: Optional[Number] = None
    core_clock_hertz: Optional[Number] = None
    core_clock_max_hertz: Optional[Number] = None
    memory_clock_hertz: Optional[Number] = None
    ecc_mode: Optional[str] = None
    ecc_corrected_count: Optional[int] = None
    ecc_uncorrected_count: Optional[int] = None
    ecc_corrected_aggregate_count: Optional[int] = None
    ecc_uncorrected_aggregate_count: Optional[int] = None
    row_remap_pending_count: Optional[int] = None
    row_remap_failed_count: Optional[int] = None
    row_remap_corrected_count: Optional[int] = None
    row_remap_uncorrected_count: Optional[int] = None
    row_remap_exhausted_count: Optional[int] = None
    sram_threshold_exceeded_count: Optional[int] = None
    memory_repair_pending_count: Optional[int] = None
    unrepairable_memory_count: Optional[int] = None
    page_retirement_pending_count: Optional[int] = None
    pcie_generation: Optional[int] = None
    pcie_generation_max: Optional[int] = None
    pcie_width: Optional[int] = None
    pcie_width_max: Optional[int] = None
    recovery_action: Optional[str] = None
    persistence_mode: Optional[str] = None
    fabric_state: Optional[str] = None
    fabric_status: Optional[str] = None
    fabric_clique: Optional[int] = None
    fabric_cluster_uuid: Optional[str] = None
    fabric_health: Optional[dict[str, str]] = None
    fabric_problem: Optional[str] = None
    partition_mode: Optional[str] = None
    chassis_serial: Optional[str] = None
    chassis_slot: Optional[int] = None
    tray_index: Optional[int] = None
    host_id: Optional[int] = None
    peer_type: Optional[str] = None
    module_id: Optional[int] = None
    fabric_guid: Optional[str] = None
    nvlinks: Optional[list[dict[str, Any]]] = None
    slot: Optional[str] = None
    processes: list[dict[str, Any]] = field(default_factory=list)
    memory_temperature_celsius: Optional[Number] = None
    utilisation_ratio: Optional[float] = None
    temperature_margin_celsius: Optional[Number] = None
    throttle: Optional[dict[str, int]] = None
    throttle_counters: Optional[dict[str, int]] = None
    pcie_replay_count: Optional[int] = None
    link_errors: Optional[dict[str, int]] = None

    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in _LIVE}

    def sample(self) -> Sample:
        """Return the telemetry readings; readings that the tool does not give are left out."""
        readings = {reading: getattr(self, attribute) for attribute, reading in _SAMPLE.items()}
        return {**known(readings), **(self.throttle or {})}

    def counters(self) -> Counters:
        """Return identity and error counters of the GPU; those that the tool does not give are left out."""
        counters = known({reading: getattr(self, attribute) for attribute, reading in _COUNTERS.items()})
        return {**counters, **(self.throttle_counters or {})}

    @property
    def faulty(self) -> bool:
        """Whether the counters that the GPU has show broken memory, or its driver asks for a reset, reboot or drain."""
        words = (self.recovery_action or "").lower().split()
        return any(getattr(self, name) for name in _FAULTS) or any(word in RECOVERY_ACTIONS for word in words)

    @property
    def pcie_degraded(self) -> bool:
        """Whether the PCIe link has fewer lanes than possible. (The generation drops by design in idle GPUs.)"""
        width, maximum = self.pcie_width, self.pcie_width_max
        return width is not None and maximum is not None and width < maximum

    @property
    def ecc_off(self) -> bool:
        """Whether ECC is off on a GPU that has ECC."""
        return (self.ecc_mode or "") in ("disabled", "off")

    @property
    def ecc_unknown(self) -> bool:
        """Whether the tool reports no ECC mode, or no counter of uncorrected errors."""
        return self.ecc_mode is None or self.ecc_uncorrected_count is None

    @property
    def row_remap_count(self) -> Optional[int]:
        """Memory rows that were remapped in the GPU's life."""
        counts = (self.row_remap_corrected_count, self.row_remap_uncorrected_count)
        return None if counts == (None, None) else sum(count or 0 for count in counts)

    @property
    def partitioned(self) -> bool:
        """Whether the GPU is partitioned: by MIG, or by AMD's compute partitions other than SPX."""
        words = (self.partition_mode or "").replace("/", " ").split()
        return "enabled" in words or any(word in ("dpx", "tpx", "qpx", "cpx") for word in words)

    @property
    def fabric_not_ready(self) -> bool:
        """Whether the GPU's NVLink fabric is started but not joined, or not healthy; without one the SKU decides."""
        return self.fabric_state not in (None, COMPLETED, *NO_FABRIC) or bool(self.fabric_problem)

    @property
    def fabric_joined_count(self) -> Optional[int]:
        """1 if the GPU has joined a healthy NVLink fabric, else 0; None if its driver is too old to report it."""
        if self.fabric_state is None and not self._driver_prints_fabric:
            return None
        return int(self.fabric_state == COMPLETED and not self.fabric_problem)

    @property
    def fabric_clique_count(self) -> Optional[int]:
        """1 if the GPU has a clique in an NVLink domain, else 0; None if its driver is too old to report it."""
        if self.fabric_clique is None and not self._driver_prints_fabric:
            return None
        return int(bool(self.fabric_clique) and bool(re.search("[1-9a-f]", self.fabric_cluster_uuid or "")))

    @property
    def is_outside_rack(self) -> bool:
        """Whether the GPU is in a chassis with NVLink switches (platformInfo) and in no NVLink domain."""
        return bool(self.chassis_serial) and 0 in (self.fabric_joined_count, self.fabric_clique_count)

    @property
    def _driver_prints_fabric(self) -> bool:
        major = (self.driver_version or "").partition(".")[0]
        return self.vendor == "nvidia" and major.isdecimal() and int(major) >= FABRIC_DRIVER

    @property
    def fabric(self) -> str:
        """State, clique and problem (else the status) of the NVLink fabric in words."""
        clique = None if self.fabric_clique is None else f"clique {self.fabric_clique} of {self.fabric_cluster_uuid}"
        parts = (self.fabric_state or "not reported", clique, self.fabric_problem or self.fabric_status)
        return ", ".join(filter(None, parts))

    @property
    def nvlinks_up_count(self) -> Optional[int]:
        """NVLinks that are up; None for a GPU without NVLink, or if its tool does not list them."""
        return None if self.nvlinks is None else sum(link["is_up"] for link in self.nvlinks)

    @property
    def nvlinks_down(self) -> list[str]:
        """NVLinks that are listed and not up, such as ``link 7``."""
        return [f"link {link['link']}" for link in self.nvlinks or () if not link["is_up"]]

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics for checks; a value that the tool does not give makes no metric."""
        scope, metrics = f"gpu:{self.index}", []
        for attribute in _METRICS:
            unit, value = attribute.rpartition("_")[2], getattr(self, attribute)
            name, unit = (f"gpu_{attribute}", unit) if unit in _UNITS else (f"gpu_{attribute}_count", "count")
            metrics += [] if value is None else [{"name": name, "value": value, "unit": unit, "scope": scope}]
        return metrics


#: Units: the last word of an attribute, which names its metric. Without a unit there, the metric is a count.
_UNITS = ("bytes", "celsius", "watts", "count")
_METRICS = (
    "memory_bytes",
    "memory_used_bytes",
    "temperature_celsius",
    "power_draw_watts",
    "power_limit_watts",
    "ecc_corrected_count",
    "ecc_uncorrected_count",
    "ecc_uncorrected_aggregate_count",
    "row_remap_count",
    "row_remap_exhausted_count",
    "row_remap_pending_count",
    "row_remap_failed_count",
    "pcie_generation",
    "pcie_generation_max",
    "pcie_width",
    "pcie_width_max",
    "fabric_joined_count",
    "fabric_clique_count",
    "nvlinks_up_count",
)


def differing_fabrics(gpus: Iterable[Gpu]) -> list[Gpu]:
    """Return the GPUs whose NVLink fabric differs from that of most of the node's GPUs of their model; without a
    majority all: the node is at fault, and which of its GPUs is open."""
    differing = []
    by_model: dict[tuple[str, Optional[str]], list[Gpu]] = {}
    for gpu in gpus:
        by_model.setdefault((gpu.vendor, gpu.name), []).append(gpu)
    for group in by_model.values():
        (fabric, count), *_others = Counter(gpu.fabric for gpu in group).most_common(1)
        differing += [gpu for gpu in group if gpu.fabric != fabric or 2 * count <= len(group) > 1]
    return differing


@dataclass
class Detection:
    """The usable accelerators that a vendor's tool lists, and why others are missing. `problem` is None when the tool
    answered and every listed accelerator is usable. `lost`: PCI addresses of GPUs that the driver can no longer read;
    `unlisted` counts GPUs that the tool counts but does not list. `installed` is False when the vendor's tools are
    absent. `hung`: a tool did not end in time. `unclear`: the tool reports neither GPUs nor that there are none."""

    vendor: str
    gpus: list[Gpu] = field(default_factory=list)
    problem: Optional[str] = None
    lost: list[str] = field(default_factory=list)
    unlisted: int = 0
    installed: bool = True
    hung: bool = False
    unclear: bool = False


def failed_detection(vendor: str, result: ToolResult, missing: str = "") -> Optional[Detection]:
    """Return the detection for a tool that is missing (`missing` is the message) or hangs; None if the tool ended."""
    if result.missing:
        return Detection(vendor, problem=missing or result.complaint, installed=False)
    return Detection(vendor, problem=result.complaint, hung=True) if result.timed_out else None
