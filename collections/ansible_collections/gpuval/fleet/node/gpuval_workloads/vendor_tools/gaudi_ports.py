"""Network ports of Gaudis, which hl_qual may leave down; Intel's script beside it brings them up and counts them.

Its status has ``accel0``, below it ``3 ports up (1, 8, 22)`` or ``3 ports down (1, 8, 22)``, and so for each device.
Ports without a cable stay down, so those count that were up before. This comes after the tools' time.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from .answer import ToolFault
from .job import ToolTask

SCRIPT = "manage_network_ifs.sh"
CALL_SECONDS = 30.0
#: Links need up to a minute.
SETTLE_SECONDS, PAUSE_SECONDS = 60.0, 5.0

_STATUS = re.compile(r"^\s*(?:accel|hl)_?(\d{1,2})\b|(\d{1,3}) ports? up\b", re.MULTILINE)


def count(text: str) -> dict[int, int]:
    """Return how many ports are up, by the device's index; devices without any are not there."""
    ports: dict[int, int] = {}
    device = None
    for index, up in _STATUS.findall(text):
        if index:
            device = int(index)
        elif device is not None:
            ports[device] = int(up)
    return ports


class GaudiPorts:
    """The ports of a node, as they are when this is made. Without the script nothing is done."""

    def __init__(self, job: ToolTask, folder: Path) -> None:
        self._job, self._script = job, folder / SCRIPT
        self.known = self._script.is_file()
        self._before = self._count()

    def bring_up(self) -> None:
        if self.known:
            self._call("--up")

    def lost(self) -> list[ToolFault]:
        """Return a fault for each device that has fewer ports up than before, once links had time to come up."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            now = self._count() if self._before else {}
            less = {index: up - now.get(index, 0) for index, up in self._before.items() if now.get(index, 0) < up}
            if not less or time.monotonic() >= deadline:
                break
            time.sleep(PAUSE_SECONDS)
        remedy = f"run {self._script} --up on the node, check its cables"
        return [
            ToolFault(f"gpu:{index}", f"{lost} ports are down since hl_qual: {remedy}") for index, lost in less.items()
        ]

    def _count(self) -> dict[int, int]:
        return count(self._call("--status")) if self.known else {}

    def _call(self, operation: str) -> str:
        return self._job.call([self._script, operation], CALL_SECONDS, name="hl_qual_ports").output
