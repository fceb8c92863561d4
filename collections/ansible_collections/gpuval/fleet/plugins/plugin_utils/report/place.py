"""Where the files of a stage lie, seen from the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """``path`` without a suffix; ``kinds`` are the suffixes of the files that readers are led to."""

    path: str
    kinds: tuple[str, ...]

    def of(self, node: str, stage: str) -> str:
        return self.path.format(node=node, stage=stage)

    def linked(self, files: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
        """Of the files of each node those that are led to."""
        return {
            node: frozenset(name for name in names if name.rpartition(".")[2] in self.kinds)
            for node, names in files.items()
        }


RESULTS = Place("nodes/{node}/{stage}", ("log", "json"))
DELIVERY = Place("logs/{stage}/{node}", ("log",))
