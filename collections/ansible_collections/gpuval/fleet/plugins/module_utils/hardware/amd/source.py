"""AMD GPUs: samples from the driver's files in sysfs, counters before and after also from `amd-smi`.

The files cost microseconds; `amd-smi` is a Python program of half a second and runs in the loop only where the files
are not there (a container), and then seldom. Files: kernel documentation, gpu/amdgpu/thermal.rst and driver-misc.rst.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from ..gpu import Gpu
from ..source import Counters, Sample, Source, SourceError, known
from ..tools import toolbox
from ..tree import read_number, read_text
from ..values import number, pcie_generation, ratio
from .smi import ROCM_SMI_ARGUMENTS, by_index, find_json, parse_amd_smi, parse_rocm_smi

VENDOR = "0x1002"
CARD = re.compile(r"card\d+")
TOOL_SECONDS = 20.0
#: Without an answer in this time the cards are counted by their PCI addresses, as the tools do too.
LIST_SECONDS = 5.0
TOOL_PERIOD_SECONDS = 5.0
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
        gpus = parse_amd_smi(None, metric, metric)
        seconds_left = deadline - time.monotonic()
        if gpus or seconds_left <= 0:
            return gpus
        return parse_rocm_smi(self._ask(seconds_left, "rocm-smi", *ROCM_SMI_ARGUMENTS))

    def _ask(self, seconds: float, tool: str, *arguments: str) -> Any:
        answer = toolbox()(tool, *arguments, timeout=seconds)
        if answer.missing or answer.timed_out:
            self.absent[tool] = answer.complaint
            return None
        return find_json(answer.stdout)


def cards(root: Path) -> dict[int, Path]:
    """Return the device folders of amdgpu's cards by index, in the order of their PCI addresses as the tools count."""
    folders = {}
    drm = root / "sys/class/drm"
    try:
        names = [name for name in os.listdir(drm) if CARD.fullmatch(name)]  # noqa: PTH208 - names alone
    except OSError:
        return {}
    for name in names:
        folder = drm / name / "device"
        if read_text(folder / "vendor") == VENDOR and (folder / "mem_info_vram_used").exists():
            folders[folder.resolve().name] = folder
    return dict(enumerate(folders[address] for address in sorted(folders)))


def by_tool_index(cards_seen: dict[int, Card], listing: Any) -> dict[int, Card]:
    """Return the cards by the index that `amd-smi list --json` gives to their PCI addresses, if it knows all."""
    index = {str(row.get("bdf")).lower(): number for number, row in by_index(listing).items()}
    if not all(card.address in index for card in cards_seen.values()):
        return cards_seen
    return {index[card.address]: card for card in cards_seen.values()}


class Card:
    """One GPU's files; which there are is looked for once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = folder.resolve().name
        hwmon = next(iter(sorted(folder.glob("hwmon/hwmon*"))), folder / "hwmon")
        #: By name the files of a GPU, of its sensors, and inputs of those by their labels.
        files = {path.name: path for path in (*folder.glob("*"), *hwmon.glob("power1_*"))}
        for kind in ("temp", "freq"):
            for path in sorted(hwmon.glob(f"{kind}*_input")):
                label = read_text(path.with_name(path.name.replace("_input", "_label"))) or path.name
                files[f"{kind} {label.lower()}"] = path
        existing = {name: [files[key] for key in keys if key in files] for name, (_read, *keys) in FILES.items()}
        self._files = {name: paths[0] for name, paths in existing.items() if paths}
        #: Readings that this GPU does not have and why: a file that exists and cannot be read is no such reason.
        self.absent = dict.fromkeys((name for name, paths in existing.items() if not paths), NO_FILE)
        if read_text(folder / "current_link_width") == "0":
            self.absent.update(dict.fromkeys(("pcie_width", "pcie_generation"), VIRTUAL))

    def sample(self) -> Sample:
        return known({name: FILES[name][0](read_text(path)) for name, path in self._files.items() if FILES[name][0]})

    def counters(self) -> Counters:
        folder = self._folder
        corrected, uncorrected = ras_counts(folder / "ras")
        return known(
            {
                "uuid": read_text(folder / "unique_id"),
                "pci_address": self.address,
                "ecc_corrected": corrected,
                "ecc_uncorrected": uncorrected,
                "pcie_replays": read_number(folder / "pcie_replay_count"),
                "pcie_width": read_number(folder / "current_link_width") or None,  # 0: a virtual function
                "lost": None if folder.exists() else True,
            }
        )


def _divided(by: float) -> Callable[[Optional[str]], Optional[float]]:
    def read(text: Optional[str]) -> Optional[float]:
        value = number(text)
        return None if value is None else value / by

    return read


#: Of a reading how the text of its file is read (millidegrees, microwatts, a percentage), and the file or the label of
#: the sensor: of several the first that there is. Counters, without a reader, are no sample.
FILES: dict[str, tuple[Any, ...]] = {
    "temperature_celsius": (_divided(1000), "temp junction", "temp edge"),  # AMD throttles by the junction
    "memory_temperature_celsius": (_divided(1000), "temp mem"),
    "power_watts": (_divided(1e6), "power1_average", "power1_input"),
    "power_limit_watts": (_divided(1e6), "power1_cap"),
    "sm_clock_hertz": (number, "freq sclk"),
    "memory_clock_hertz": (number, "freq mclk"),
    "utilisation_ratio": (ratio, "gpu_busy_percent"),
    "memory_used_bytes": (number, "mem_info_vram_used"),
    "pcie_width": (lambda text: number(text) or None, "current_link_width"),  # 0: a virtual function
    "pcie_generation": (pcie_generation, "current_link_speed"),
    "pcie_replays": (None, "pcie_replay_count"),
    "ecc_corrected": (None, "ras"),
    "ecc_uncorrected": (None, "ras"),
}


def ras_counts(folder: Path) -> list[Optional[int]]:
    """Return correctable and uncorrectable errors of all blocks (`ue: 0` and `ce: 3` in each `<block>_err_count`)."""
    text = "\n".join(read_text(path) or "" for path in sorted(folder.glob("*_err_count")))
    counts = ([int(count) for count in re.findall(rf"^{kind}:\s*(\d+)", text, re.MULTILINE)] for kind in ("ce", "ue"))
    return [sum(numbers) if numbers else None for numbers in counts]
