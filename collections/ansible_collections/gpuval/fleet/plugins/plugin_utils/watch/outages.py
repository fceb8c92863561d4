"""Nodes that did not answer their scheduler for a while in mid-run, though their work survived it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..records.failure_classes import FailureClass
from ..runs import folder as run_folder


@dataclass
class NodeOutages:
    """``failure``: the class of a node that does not answer this scheduler."""

    failure: FailureClass
    #: By node and attempt when the outage began, by the clock that counts seconds and as text, and its reason.
    _open: dict[tuple[str, Any], tuple[float, str, str]] = field(default_factory=dict)

    def noted(self, node: str, launch: Mapping[str, Any], reason: str, now: float) -> dict[str, Any]:
        """The launch, with an outage among its interruptions once that is over. ``reason`` is empty while the node
        answers, and when its work has ended."""
        key = (node, launch.get("attempt", 1))
        if reason:
            self._open.setdefault(key, (now, run_folder.now(), reason))
        if reason or key not in self._open:
            return dict(launch)
        began, at, why = self._open.pop(key)
        message = f"no answer from {at} for {now - began:.0f} s ({why}); its work went on"
        outage = {"class": self.failure.name, "message": message, "remedy": self.failure.remedy}
        return {**launch, "interruptions": [*launch.get("interruptions", ()), outage]}
