"""What every source of GPU readings gives: samples while the work runs, counters before and after it."""

from __future__ import annotations

import math
from typing import Any, Optional

#: One GPU at one moment: `temperature_celsius`, `memory_temperature_celsius`, `power_watts`, `power_limit_watts`,
#: `sm_clock_hertz`, `memory_clock_hertz`, `utilisation_ratio`, `memory_used_bytes`, `throttle_thermal`,
#: `throttle_power`, `throttle_hardware` (0 or 1), `pcie_width`, `pcie_generation`. Unknown ones are left out.
Sample = dict[str, Any]
#: One GPU's identity and counters: `uuid`, `pci_address`, `lost`, `refused` (lost only in that it may not be read),
#: `ecc_corrected`, `ecc_uncorrected`, `row_remaps`, `row_remap_pending`, `row_remap_failed`, `link_errors` (by link),
#: `link_corrected`, `links_up`, `pcie_replays`, `pcie_width`.
Counters = dict[str, Any]


class SourceError(Exception):
    """A source cannot be read; the message says why, in words for `environment.telemetry.absent`."""


class Source:
    """GPUs by the index that their driver's tool gives them. Every call may take long or for ever."""

    name = ""
    #: Minimum time between two samples in seconds: tools that start a process cost more than a second of work would.
    least_period_seconds = 0.0

    def __init__(self) -> None:
        #: What cannot be read and why, by the name of the reading.
        self.absent: dict[str, str] = {}

    def sample(self) -> dict[int, Sample]:
        """Read all GPUs once. Raises ``SourceError`` when nothing can be read any more."""
        raise NotImplementedError

    def counters(self, seconds: float) -> dict[int, Counters]:
        """Read identity and error counters of all GPUs; tools get so many seconds. Raises ``SourceError``."""
        raise NotImplementedError

    def counters_at_once(self) -> dict[int, Counters]:
        """Read the counters that need no tool, where others do: they are sent before a slow tool is asked."""
        return {}

    def close(self) -> None:
        """Release what the source holds."""


def known(reading: dict[str, Optional[Any]]) -> dict[str, Any]:
    """Leave out what is not known."""
    return {
        name: value
        for name, value in reading.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }
