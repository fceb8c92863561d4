"""Data classes: one accelerator of any vendor, and what a vendor's tool reports about all of a node's accelerators."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, Optional

from . import values
from .source import Counters, Sample, known, metric
from .tools import ToolResult
from .values import Number

#: First words of nvidia-smi's "GPU Recovery Action" other than None: Reset, Reboot, Drain P2P, Drain and Reset.
RECOVERY_ACTIONS = ("reset", "reboot", "drain")

#: State of a GPU that has joined its NVLink fabric, and those of one without a fabric.
COMPLETED, NO_FABRIC = "completed", ("n/a", "not supported")
#: From this driver on nvidia-smi and NVML report state, status, clique and cluster of the fabric. 535 has no clique.
FABRIC_DRIVER = 570

#: Fields: attribute of ``Gpu``, function that reads its text, the tool's names for it (the first with a value counts).
Fields = Iterable[tuple[Any, ...]]


def read_fields(fields: Fields, look_up: Callable[[str], Any]) -> dict[str, Any]:
    """Return values by attribute of ``Gpu``. `look_up` returns what a vendor's tool prints for one of its names."""
    return {
        attribute: next((value for value in (read(look_up(name)) for name in names) if value is not None), None)
        for attribute, read, *names in fields
    }


class SmiReading(NamedTuple):
    """How nvidia-smi prints an attribute of ``Gpu``: function that reads its text, paths in the log (`-q -x`), columns
    of `--query-gpu`; of several, separated by blanks for different drivers, the first with a value counts."""

    read: Callable[[Any], Any]
    paths: str
    columns: str


#: Kinds of attributes of ``Gpu``: a metric of the facts, whose unit is the last word of its name; a counter that shows
#: broken memory; a value that is only sampled beside a stage and is no fact of the machine.
METRIC, FAULT, LIVE = "metric", "fault", "live"


def of_smi(read: Any, paths: str = "", *kinds: str, columns: str = "") -> Any:
    """Return the declaration of an attribute of ``Gpu`` that nvidia-smi prints."""
    return field(default=None, metadata={"smi": SmiReading(read, paths, columns), "kinds": kinds})


def of_kind(*kinds: str) -> Any:
    """Return the declaration of an attribute of ``Gpu`` whose value nvidia-smi does not print as such."""
    return field(default=None, metadata={"kinds": kinds})


_PCIE = "pci/pci_gpu_link_info"
_REMAPPED = "remapped_rows/remapped_row"
_EXHAUSTED = "remapped_rows/row_remapper_histogram/row_remapper_histogram_none"
# Drivers 535 and later split power into GPU and module readings; before that there was one block.
_POWER = (
    "gpu_power_readings/power_draw gpu_power_readings/instant_power_draw gpu_power_readings/average_power_draw"
    " power_readings/power_draw"
)
_LIMIT = "gpu_power_readings/current_power_limit power_readings/enforced_power_limit power_readings/power_limit"
#: Paths of the flag for pages that wait for retirement: drivers before 450 print the second.
_PENDING = "retired_pages/pending_retirement retired_pages/pending_blacklist"


@dataclass
class Gpu:
    """Facts of one accelerator in base units; None if its tool gives no value. Each attribute is declared with the way
    in which nvidia-smi prints it."""

    vendor: str
    index: int
    name: Optional[str] = of_smi(values.text, "product_name")
    uuid: Optional[str] = of_smi(values.text, "uuid", columns="uuid")
    serial: Optional[str] = of_smi(values.identifier, "serial")
    pci_address: Optional[str] = of_smi(values.pci_address, "pci/pci_bus_id", columns="pci.bus_id")
    driver_version: Optional[str] = None
    runtime_version: Optional[str] = None
    firmware_version: Optional[str] = of_smi(values.text, "vbios_version")
    memory_bytes: Optional[int] = of_smi(values.megabytes, "fb_memory_usage/total", METRIC)
    memory_used_bytes: Optional[int] = of_smi(values.megabytes, "fb_memory_usage/used", METRIC, columns="memory.used")
    temperature_celsius: Optional[Number] = of_smi(
        values.number, "temperature/gpu_temp", METRIC, columns="temperature.gpu"
    )
    memory_temperature_celsius: Optional[Number] = of_smi(values.number, "", LIVE, columns="temperature.memory")
    temperature_margin_celsius: Optional[Number] = of_smi(values.number, "", LIVE, columns="temperature.gpu.tlimit")
    power_draw_watts: Optional[Number] = of_smi(values.watts, _POWER, METRIC, columns="power.draw")
    power_limit_watts: Optional[Number] = of_smi(values.watts, _LIMIT, METRIC, columns="enforced.power.limit")
    core_clock_hertz: Optional[Number] = of_smi(values.hertz, "clocks/sm_clock", columns="clocks.current.sm")
    core_clock_max_hertz: Optional[Number] = of_smi(values.hertz, "max_clocks/sm_clock")
    memory_clock_hertz: Optional[Number] = of_smi(values.hertz, "clocks/mem_clock", columns="clocks.current.memory")
    utilisation_ratio: Optional[float] = of_smi(values.ratio, "", LIVE, columns="utilization.gpu")
    throttle: Optional[dict[str, int]] = of_kind(LIVE)
    throttle_counters: Optional[dict[str, int]] = of_kind(LIVE)
    ecc_mode: Optional[str] = of_smi(values.lower, "ecc_mode/current_ecc")
    ecc_corrected_count: Optional[int] = of_smi(values.count, "", METRIC, columns="ecc.errors.corrected.volatile.total")
    ecc_uncorrected_count: Optional[int] = of_smi(
        values.count, "", METRIC, FAULT, columns="ecc.errors.uncorrected.volatile.total"
    )
    ecc_corrected_aggregate_count: Optional[int] = None
    ecc_uncorrected_aggregate_count: Optional[int] = of_kind(METRIC)
    row_remap_pending_count: Optional[int] = of_smi(values.count, f"{_REMAPPED}_pending", METRIC, FAULT)
    row_remap_failed_count: Optional[int] = of_smi(values.count, f"{_REMAPPED}_failure", METRIC, FAULT)
    row_remap_corrected_count: Optional[int] = of_smi(values.count, f"{_REMAPPED}_corr")
    row_remap_uncorrected_count: Optional[int] = of_smi(values.count, f"{_REMAPPED}_unc")
    row_remap_exhausted_count: Optional[int] = of_smi(values.count, _EXHAUSTED, METRIC)
    sram_threshold_exceeded_count: Optional[int] = of_smi(
        values.count, "ecc_errors/aggregate/sram_threshold_exceeded", FAULT
    )
    memory_repair_pending_count: Optional[int] = of_kind(FAULT)
    unrepairable_memory_count: Optional[int] = of_smi(values.count, "ecc_errors/unrepairable_memory", FAULT)
    page_retirement_pending_count: Optional[int] = of_smi(values.count, _PENDING, FAULT)
    pcie_generation: Optional[int] = of_smi(
        values.count, f"{_PCIE}/pcie_gen/current_link_gen", METRIC, columns="pcie.link.gen.current"
    )
    pcie_generation_max: Optional[int] = of_smi(values.count, f"{_PCIE}/pcie_gen/max_link_gen", METRIC)
    pcie_width: Optional[int] = of_smi(
        values.count, f"{_PCIE}/link_widths/current_link_width", METRIC, columns="pcie.link.width.current"
    )
    pcie_width_max: Optional[int] = of_smi(values.count, f"{_PCIE}/link_widths/max_link_width", METRIC)
    pcie_replay_count: Optional[int] = of_kind(LIVE)
    recovery_action: Optional[str] = of_smi(values.text, "gpu_recovery_action")
    persistence_mode: Optional[str] = of_smi(values.lower, "persistence_mode")
    fabric_state: Optional[str] = of_smi(values.word, "fabric/state")
    fabric_status: Optional[str] = of_smi(values.word, "fabric/status")
    fabric_clique: Optional[int] = of_smi(values.count, "fabric/cliqueId")
    fabric_cluster_uuid: Optional[str] = of_smi(values.lower, "fabric/clusterUuid")
    fabric_health: Optional[dict[str, str]] = None
    fabric_problem: Optional[str] = None
    partition_mode: Optional[str] = None
    chassis_serial: Optional[str] = of_smi(values.identifier, "platformInfo/chassis_serial_number")
    chassis_slot: Optional[int] = of_smi(values.count, "platformInfo/slot_number")
    tray_index: Optional[int] = of_smi(values.count, "platformInfo/tray_index")
    host_id: Optional[int] = of_smi(values.count, "platformInfo/host_id")
    peer_type: Optional[str] = of_smi(values.text, "platformInfo/peer_type")
    module_id: Optional[int] = of_smi(values.count, "platformInfo/module_id gpu_module_id")
    fabric_guid: Optional[str] = of_smi(values.identifier, "platformInfo/gpu_fabric_guid")
    link_errors: Optional[dict[str, int]] = of_kind(LIVE)
    nvlinks: Optional[list[dict[str, Any]]] = None
    slot: Optional[str] = None
    processes: list[dict[str, Any]] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in BY_KIND[LIVE]}

    def sample(self) -> Sample:
        """Return a GPU's telemetry readings; those that the vendor's tool does not give are left out."""
        readings = {reading: getattr(self, attribute) for attribute, reading in SAMPLED.items()}
        return {**known(readings), **(self.throttle or {})}

    def counters(self) -> Counters:
        """Return a GPU's identity and error counters; those that the vendor's tool does not give are left out."""
        counters = known({reading: getattr(self, attribute) for attribute, reading in COUNTED.items()})
        return {**counters, **(self.throttle_counters or {})}

    @property
    def faulty(self) -> bool:
        """Whether a GPU's counters show broken memory, or its driver asks for a reset, reboot or drain."""
        words = (self.recovery_action or "").lower().split()
        return any(getattr(self, name) for name in BY_KIND[FAULT]) or any(word in RECOVERY_ACTIONS for word in words)

    @property
    def pcie_degraded(self) -> bool:
        """Whether a GPU's PCIe link has fewer lanes than possible. (The generation drops by design in idle GPUs.)"""
        width, maximum = self.pcie_width, self.pcie_width_max
        return width is not None and maximum is not None and width < maximum

    @property
    def ecc_off(self) -> bool:
        """Whether ECC is off on a GPU that has ECC."""
        return (self.ecc_mode or "") in ("disabled", "off")

    @property
    def ecc_unknown(self) -> bool:
        """Whether the vendor's tool reports no ECC mode of the GPU, or no counter of uncorrected errors."""
        return self.ecc_mode is None or self.ecc_uncorrected_count is None

    @property
    def row_remap_count(self) -> Optional[int]:
        """Number of memory rows that were remapped in the GPU's life; None if the tool reports none."""
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
        """State, clique and problem (else the status) of the GPU's NVLink fabric, as text."""
        clique = None if self.fabric_clique is None else f"clique {self.fabric_clique} of {self.fabric_cluster_uuid}"
        parts = (self.fabric_state or "not reported", clique, self.fabric_problem or self.fabric_status)
        return ", ".join(filter(None, parts))

    @property
    def nvlinks_up_count(self) -> Optional[int]:
        """Number of a GPU's NVLinks that are up; None without NVLink, or if the vendor's tool does not list them."""
        return None if self.nvlinks is None else sum(link["is_up"] for link in self.nvlinks)

    @property
    def nvlinks_down(self) -> list[str]:
        """A GPU's NVLinks that are listed and not up, such as ``link 7``."""
        return [f"link {link['link']}" for link in self.nvlinks or () if not link["is_up"]]

    def metrics(self) -> list[dict[str, Any]]:
        """Return a GPU's metrics for checks; a value that the vendor's tool does not give makes no metric."""
        figures = {name: getattr(self, name) for name in (*BY_KIND[METRIC], *_PROPERTIES)}
        return [
            metric(f"gpu_{name}" if name.endswith(_UNITS) else f"gpu_{name}_count", value, f"gpu:{self.index}")
            for name, value in figures.items()
            if value is not None
        ]


#: Endings of attributes of ``Gpu`` that name a unit; the metric of any other attribute is a count.
_UNITS = ("_bytes", "_celsius", "_watts", "_count")
#: Properties of ``Gpu`` that are metrics, too.
_PROPERTIES = ("row_remap_count", "fabric_joined_count", "fabric_clique_count", "nvlinks_up_count")
BY_KIND = {
    kind: [entry.name for entry in fields(Gpu) if kind in entry.metadata.get("kinds", ())]
    for kind in (METRIC, FAULT, LIVE)
}
#: Names in telemetry of the attributes of ``Gpu`` that have another name there.
_RENAMED = {
    "power_draw_watts": "power_watts",
    "core_clock_hertz": "sm_clock_hertz",
    "ecc_corrected_count": "ecc_corrected",
    "ecc_uncorrected_count": "ecc_uncorrected",
    "pcie_replay_count": "pcie_replays",
}


def smi_fields(output: str) -> list[tuple[Any, ...]]:
    """Return the attributes that nvidia-smi prints in its log (`paths`) or its query (`columns`), as ``Fields``."""
    rows = ((entry.name, entry.metadata["smi"]) for entry in fields(Gpu) if "smi" in entry.metadata)
    return [(name, row.read, *getattr(row, output).split()) for name, row in rows if getattr(row, output)]


_COUNTERS = ("uuid", "pci_address", "ecc_corrected_count", "ecc_uncorrected_count", "pcie_replay_count", "link_errors")
#: For attributes of ``Gpu``, the names of their readings in a telemetry sample, and in the counters before and after a
#: stage. `throttle` gives three readings of a sample.
SAMPLED = {name: _RENAMED.get(name, name) for name, *_ in smi_fields("columns") if name not in _COUNTERS}
COUNTED = {name: _RENAMED.get(name, name) for name in (*_COUNTERS, "pcie_width")}
READINGS = {**SAMPLED, **COUNTED, "throttle": "throttle"}


def differing_fabrics(gpus: Iterable[Gpu]) -> list[Gpu]:
    """Return the GPUs whose NVLink fabric differs from that of most of the node's GPUs of their model. Without a
    majority returns all: the node has a fault, but it is unknown on which GPU."""
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
    """Return the detection if a vendor's tool is missing (`missing`: the message) or hangs; None if the tool ended."""
    if result.missing:
        return Detection(vendor, problem=missing or result.complaint, installed=False)
    return Detection(vendor, problem=result.complaint, hung=True) if result.timed_out else None
