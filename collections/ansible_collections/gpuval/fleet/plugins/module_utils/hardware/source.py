"""Base classes of the sources of GPU readings: samples during a stage, counters before and after it."""

from __future__ import annotations

import math
from typing import Any, Optional

#: One GPU at one moment: `temperature_celsius`, `memory_temperature_celsius`, `power_watts`, `power_limit_watts`,
#: `sm_clock_hertz`, `memory_clock_hertz`, `utilisation_ratio`, `memory_used_bytes`, `throttle_thermal`,
#: `throttle_power`, `throttle_hardware` (0 or 1), `pcie_width`, `pcie_generation`. Unknown readings are left out.
Sample = dict[str, Any]
#: One GPU's identity and counters: `uuid`, `pci_address`, `lost`, `refused` (lost only in that it may not be read),
#: `ecc_corrected`, `ecc_uncorrected`, `row_remaps`, `row_remap_pending`, `row_remap_failed`, `link_errors` (by link),
#: `link_corrected`, `links_up`, `pcie_replays`, `pcie_width`, `fabric` (state, status, clique and problem as text),
#: `throttle_thermal_microseconds`, `throttle_power_microseconds`, `throttle_hardware_microseconds`, or these in ticks
#: (`throttle_thermal_ticks`), with `throttle_ticks`, the ticks in all.
Counters = dict[str, Any]


class SourceError(Exception):
    """A source of GPU readings cannot be read; the message is the reason in `environment.telemetry.absent`."""


class Source:
    """Readings of a node's GPUs, by the GPU index of the driver's tool. Every call may take long or hang."""

    name = ""
    #: Minimum seconds between two samples: a tool that starts a process is too expensive for every second.
    least_period_seconds = 0.0

    def __init__(self) -> None:
        #: Why a telemetry reading is missing, by the reading's name.
        self.absent: dict[str, str] = {}

    def sample(self) -> dict[int, Sample]:
        """Read the telemetry of all GPUs once. Raises ``SourceError`` when nothing can be read any more."""
        raise NotImplementedError

    def counters(self, seconds: float) -> dict[int, Counters]:
        """Read identity and error counters of all GPUs; tools may take `seconds`. Raises ``SourceError``."""
        raise NotImplementedError

    def counters_at_once(self) -> dict[int, Counters]:
        """Read the GPU counters that need no tool: they are reported before a slow tool is started for the others."""
        return {}

    def close(self) -> None:
        """Release the driver resources of the source."""


class ToolSource(Source):
    """GPU readings by a tool that is started each time. Raises ``SourceError`` if it answers none of `queries`."""

    least_period_seconds = 5.0
    #: Time limit of the vendor's tool, and of its first call, for which the driver may have to wake the GPUs.
    seconds = first_seconds = 20.0
    #: Queries of the tool to try, from the newest release to the oldest, and the readings by their columns.
    queries: tuple[tuple[str, ...], ...] = ()
    reading_of: dict[str, str] = {}
    #: Why readings are missing that no query of the tool has, and those that only a newer release has.
    never: dict[str, str] = {}
    not_asked = ""

    def __init__(self) -> None:
        super().__init__()
        problem = ""
        for query in self.queries:
            self._query = query
            try:
                if self.ask(query, self.first_seconds):
                    break
            except SourceError as error:
                problem = str(error)
        else:
            raise SourceError(problem or f"{self.name} lists no device")
        left_out = {reading for column, reading in self.reading_of.items() if column not in self._query}
        left_out -= {self.reading_of[column] for column in self._query if column in self.reading_of}
        self.absent = {**self.never, **dict.fromkeys(left_out, self.not_asked), **self.absent}

    def ask(self, query: tuple[str, ...], seconds: float) -> list[Any]:
        """Return the GPUs that the tool lists. Raises ``SourceError`` without an answer in time."""
        raise NotImplementedError

    def sample(self) -> dict[int, Sample]:
        return {gpu.index: gpu.sample() for gpu in self.ask(self._query, self.seconds)}

    def counters(self, seconds: float) -> dict[int, Counters]:
        return {gpu.index: gpu.counters() for gpu in self.ask(self._query, seconds)}


def metric(name: str, value: Any, scope: str = "node", unit: str = "") -> dict[str, Any]:
    """Return a metric as records have them; its unit is the last word of its name, unless another one is given."""
    return {"name": name, "value": value, "unit": unit or name.rpartition("_")[2], "scope": scope}


def known(reading: dict[str, Optional[Any]]) -> dict[str, Any]:
    """Return the readings without those that are None, NaN or infinite."""
    return {
        name: value
        for name, value in reading.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }
