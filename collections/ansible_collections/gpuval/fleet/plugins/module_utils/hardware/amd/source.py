"""AMD GPUs: samples from the driver's files in sysfs, counters before and after also from `amd-smi`.

The files cost microseconds; `amd-smi` is a Python program of half a second and runs in the loop only where the files
are not there (a container), and then seldom. Files: kernel documentation, gpu/amdgpu/thermal.rst and driver-misc.rst.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any, Optional

from ..gpu import Gpu
from ..source import Counters, Sample, Source, SourceError, known
from ..tools import toolbox
from ..values import pcie_generation, ratio
from .smi import ROCM_SMI_ARGUMENTS, by_index, find_json, parse_amd_smi, parse_rocm_smi

VENDOR = "0x1002"
CARD = re.compile(r"card\d+")
TOOL_SECONDS = 20.0
#: Without an answer in this time the cards are counted by their PCI addresses, as the tools do too.
LIST_SECONDS = 5.0
TOOL_PERIOD_SECONDS = 5.0
MAX_FILE_BYTES = 1 << 16
#: A temperature for each purpose, the first label that the GPU has: AMD throttles by the junction (hot spot).
LABELS = {"temperature_celsius": ("junction", "edge"), "memory_temperature_celsius": ("mem",)}
#: Files of a GPU's folder by what they are read for.
FILES = {
    "utilisation_ratio": "gpu_busy_percent",
    "pcie_width": "current_link_width",
    "pcie_generation": "current_link_speed",
    "pcie_replays": "pcie_replay_count",
    "ecc_corrected": "ras",
    "ecc_uncorrected": "ras",
}
NO_FILE = "not there: amdgpu has no such file for this GPU"
VIRTUAL = "not supported by a virtual function, which reports 0"
RETIRES = "AMD GPUs retire pages instead"
NO_THROTTLE = "amdgpu reports why clocks are low in gpu_metrics only, which is not read"


class Amd(Source):
    """Raises ``SourceError`` where neither the driver's files nor a tool list a GPU."""

    name = "amdgpu"

    def __init__(self, root: str = "/") -> None:
        super().__init__()
        self._cards = {index: Card(folder) for index, folder in cards(Path(root)).items()}
        self._cards = by_tool_index(self._cards, self._ask(LIST_SECONDS, "amd-smi", "list", "--json"))
        if not self._cards:
            self.least_period_seconds = TOOL_PERIOD_SECONDS
            if not self._by_tools(TOOL_SECONDS):
                raise SourceError("no AMD GPU in /sys/class/drm, amd-smi or rocm-smi")
        self.absent["throttle"] = NO_THROTTLE
        self.absent["row_remaps"] = RETIRES
        for card in self._cards.values():
            self.absent.update(card.absent)

    def sample(self) -> dict[int, Sample]:
        if self._cards:
            return {index: card.sample() for index, card in self._cards.items()}
        return {gpu.index: gpu.sample() for gpu in self._by_tools(TOOL_SECONDS)}

    def counters(self, seconds: float) -> dict[int, Counters]:
        by_tool = {gpu.index: gpu.counters() for gpu in self._by_tools(seconds)}
        if not self._cards:
            if not by_tool:
                raise SourceError("amd-smi and rocm-smi gave no counters in time")
            return by_tool
        return {index: {**by_tool.get(index, {}), **gpu} for index, gpu in self.counters_at_once().items()}

    def counters_at_once(self) -> dict[int, Counters]:
        return {index: card.counters() for index, card in self._cards.items()}

    def _by_tools(self, seconds: float) -> list[Gpu]:
        """Ask one tool, and the other where that gives nothing, in so many seconds altogether."""
        deadline = time.monotonic() + seconds
        metric = self._ask(seconds, "amd-smi", "metric", "--json")
        found = parse_amd_smi(None, metric, metric)
        left = deadline - time.monotonic()
        if found or left <= 0:
            return found
        return parse_rocm_smi(self._ask(left, "rocm-smi", *ROCM_SMI_ARGUMENTS))

    def _ask(self, seconds: float, tool: str, *arguments: str) -> Any:
        answer = toolbox()(tool, *arguments, timeout=seconds)
        if answer.missing or answer.timed_out:
            self.absent[tool] = answer.complaint
            return None
        return find_json(answer.stdout)


def cards(root: Path) -> dict[int, Path]:
    """Return the device folders of amdgpu's cards by index, in the order of their PCI addresses as the tools count."""
    found = {}
    drm = root / "sys/class/drm"
    try:
        names = [name for name in os.listdir(drm) if CARD.fullmatch(name)]  # noqa: PTH208 - names alone
    except OSError:
        return {}
    for name in names:
        folder = drm / name / "device"
        if read(folder / "vendor") == VENDOR and (folder / "mem_info_vram_used").exists():
            found[folder.resolve().name] = folder
    return dict(enumerate(found[address] for address in sorted(found)))


def by_tool_index(found: dict[int, Card], listing: Any) -> dict[int, Card]:
    """Return the cards by the index that `amd-smi list --json` gives to their PCI addresses, if it knows all."""
    index = {str(row.get("bdf")).lower(): number for number, row in by_index(listing).items()}
    if not all(card.address in index for card in found.values()):
        return found
    return {index[card.address]: card for card in found.values()}


class Card:
    """One GPU's files; which there are is looked for once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = folder.resolve().name
        hwmon = next(iter(sorted((folder / "hwmon").glob("hwmon*"))), None)
        self._power = _first(hwmon, "power1_average", "power1_input")
        self._cap = _first(hwmon, "power1_cap")
        self._clocks = _labelled(hwmon, "freq")
        heat = _labelled(hwmon, "temp")
        wanted = {name: [heat[label] for label in labels if label in heat] for name, labels in LABELS.items()}
        self._heat = {name: paths[0] for name, paths in wanted.items() if paths}
        #: Readings that this GPU does not have and why: a file that exists and cannot be read is no such reason.
        self.absent = self._absent()

    def _absent(self) -> dict[str, str]:
        folder = self._folder
        there = {
            "power_watts": self._power,
            "power_limit_watts": self._cap,
            "sm_clock_hertz": self._clocks.get("sclk"),
            **{name: self._heat.get(name) for name in LABELS},
            **{name: folder / file for name, file in FILES.items() if (folder / file).exists()},
        }
        absent = {name: NO_FILE for name in (*there, *FILES) if there.get(name) is None}
        if read(folder / "current_link_width") == "0":
            absent.update(dict.fromkeys(("pcie_width", "pcie_generation"), VIRTUAL))
        return absent

    def sample(self) -> Sample:
        folder = self._folder
        power, cap = number(self._power), number(self._cap)
        heat = {name: number(path) for name, path in self._heat.items()}
        return known(
            {
                **{name: None if value is None else value / 1000 for name, value in heat.items()},
                "power_watts": None if power is None else power / 1e6,
                "power_limit_watts": None if cap is None else cap / 1e6,
                "sm_clock_hertz": number(self._clocks.get("sclk")),
                "memory_clock_hertz": number(self._clocks.get("mclk")),
                "utilisation_ratio": ratio(read(folder / "gpu_busy_percent")),
                "memory_used_bytes": number(folder / "mem_info_vram_used"),
                "pcie_width": number(folder / "current_link_width") or None,  # 0: a virtual function
                "pcie_generation": pcie_generation(read(folder / "current_link_speed")),
            }
        )

    def counters(self) -> Counters:
        folder = self._folder
        unique = read(folder / "unique_id")
        corrected, uncorrected = ras_counts(folder / "ras")
        return known(
            {
                "uuid": unique,
                "pci_address": self.address,
                "ecc_corrected": corrected,
                "ecc_uncorrected": uncorrected,
                "pcie_replays": number(folder / "pcie_replay_count"),
                "pcie_width": number(folder / "current_link_width") or None,  # 0: a virtual function
                "lost": None if folder.exists() else True,
            }
        )


def ras_counts(folder: Path) -> tuple[Optional[int], Optional[int]]:
    """Return correctable and uncorrectable errors of all blocks (`ue: 0` and `ce: 3` in each `<block>_err_count`)."""
    texts = [text for text in (read(path) for path in sorted(folder.glob("*_err_count"))) if text]
    counts = {
        kind: [int(value) for text in texts for value in re.findall(rf"^{kind}:\s*(\d+)", text, re.MULTILINE)]
        for kind in ("ce", "ue")
    }
    return (sum(counts["ce"]) if counts["ce"] else None), (sum(counts["ue"]) if counts["ue"] else None)


def read(path: Optional[Path]) -> Optional[str]:
    """Return a file's text, stripped; None where it is not there, empty, or the driver has no value now."""
    if path is None:
        return None
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_FILE_BYTES).decode("utf-8", "replace").strip() or None
    except OSError:
        return None


def number(path: Optional[Path]) -> Optional[int]:
    """Return the whole number in a file, if there is one."""
    text = read(path)
    try:
        return int(text) if text else None
    except ValueError:
        return None


def _first(folder: Optional[Path], *names: str) -> Optional[Path]:
    return next((folder / name for name in names if folder and (folder / name).exists()), None)


def _labelled(folder: Optional[Path], kind: str) -> dict[str, Path]:
    """Return the inputs of a kind (temp, freq) by their labels."""
    if folder is None:
        return {}
    inputs = sorted(folder.glob(f"{kind}*_input"))
    return {(read(path.with_name(path.name.replace("_input", "_label"))) or path.name).lower(): path for path in inputs}
