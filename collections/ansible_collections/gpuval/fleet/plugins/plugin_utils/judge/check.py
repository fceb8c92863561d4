"""One criterion as data, and where it applies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..core.text import pattern_of

#: In place of a stage: all stages.
ANY = "any"


@dataclass(frozen=True)
class Applies:
    """Where a check is declared applicable; an empty tuple is everywhere."""

    accelerator: tuple[str, ...] = ()
    sku: tuple[str, ...] = ()
    profile: tuple[str, ...] = ()
    workload: tuple[str, ...] = ()
    gpu_count: tuple[int, ...] = ()
    gpus_at_least: int = 0
    fingerprints: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Check:
    """One criterion; see ``schemas/criteria.schema.json`` for the meaning of each field."""

    name: str
    stage: str
    metric: str
    kind: str
    severity: str
    source: str
    remedy: str
    scope: str = "node"
    parts_from: str | None = None
    unit: str | None = None
    #: Of the definition of its metric: the limit is for figures of that one.
    revision: int = 1
    value: float | str | None = None
    value_from: str | None = None
    low: float | None = None
    high: float | None = None
    baseline_metric: str | None = None
    direction: str | None = None
    min_change: float | None = None
    samples_from: str | None = None
    min_samples: int = 0
    peers: str = "fleet"
    max_below: float | None = None
    max_above: float | None = None
    deviations: float = 6
    #: Of ``peers: fleet``: how many other nodes there must be, and how they are compared; see fleet_outliers.py.
    min_peers: int = 7
    relative_to: str | None = None
    same_part: bool = False
    spread_from: str | None = None
    repeats: int = 1
    alike: tuple[str, ...] = ()
    path: str | None = None
    counted: bool = False
    group_by: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    excused_by: tuple[str, ...] = ()
    applies: Applies = Applies()
    retry: bool = False
    of_gang: bool = False
    tells_message: bool = False
    #: It holds for all other stages, too, under their names, where they report the figure.
    every_stage: bool = False
    where_reported: bool = False
    #: The SKU of the catalogue that brings the check; it has no entry on nodes of another SKU.
    catalogue_sku: str | None = None
    #: The limit in words, by its kind.
    expected: str = ""

    def __hash__(self) -> int:  # of all fields it takes as long as judging a figure
        return hash((self.name, self.stage))

    @property
    def required(self) -> bool:
        return self.severity == "required"


@dataclass(frozen=True)
class Informational:
    """Metrics of a stage (or of any) that are shown and not judged; names may hold ``*``."""

    stage: str
    metrics: tuple[str, ...]
    reason: str


def is_informational(stage: str, metric: str, listed: Iterable[Informational]) -> bool:
    """Whether a list declares the metric of the stage informational."""
    lists = (entry.metrics for entry in listed if entry.stage in (stage, ANY))
    return any(pattern_of(name).fullmatch(metric) for names in lists for name in names)
