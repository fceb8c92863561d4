"""One criterion as data, and where it applies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.laps import median_of

from ..core.text import pattern_of
from ..records import properties
from ..records.documents import NodeMetric, Record

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

    @property
    def sides(self) -> tuple[float | None, float | None]:
        """How far a figure may be under and over that of its peers, relative."""
        return self.max_below, self.max_above

    @property
    def sign(self) -> int:
        """1 where the greater figure is the better, else -1."""
        return 1 if self.max_below is not None else -1

    @property
    def margin(self) -> float:
        """How far a figure may be off at least, relative."""
        return min(most for most in self.sides if most is not None)


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


#: The stage that reports what a node is.
FACTS = properties.FACTS


def revision_of(metric: NodeMetric) -> int:
    return metric.get("revision", 1)


@dataclass
class Subject:
    """A node with the records of the stages that it was asked to run."""

    name: str
    profile: str
    sku: str
    accelerator: str
    declared_gpus: int | None
    #: As reported: a node may report 7.5, which no check accepts.
    detected_gpus: float | None
    records: Mapping[str, Record]
    #: The temperature that no GPU may exceed, in degrees Celsius, where one is declared.
    gpu_temperature_max: float | None = None
    #: Why it should have GPUs, although none are declared; empty if nothing says so.
    expects_gpus: str = ""
    #: SKU of the catalogue by the facts.
    catalogue_sku: str | None = None
    #: What the node has: versions by its facts, and the labels of the inventory.
    properties: Mapping[str, str] = field(default_factory=dict)
    #: By metric and revision how much healthy parts of one node of its SKU differ, relative; where it was measured.
    known_spreads: Mapping[tuple[str, int], float] = field(default_factory=dict)
    #: By metric and revision what healthy nodes of the SKU made.
    measured: Mapping[tuple[str, int], float] = field(default_factory=dict)
    #: What nodes must share to be compared: the catalogue's SKU, else the models of the GPUs.
    kind: str = ""
    #: By stage the workload of its plan, which decides which checks hold; the record's own does not.
    workloads: Mapping[str, str] = field(default_factory=dict)
    #: By stage and fingerprint the values that the run's settings allow on nodes of its SKU.
    setups: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    #: Precisions that its SKU has by the data sheet, and a floor for.
    precisions: frozenset[str] = frozenset()
    _indexes: dict[int, dict[tuple[str, str], list[NodeMetric]]] = field(default_factory=dict)

    def metrics(self, record: Record, name: str, scope: str, revision: int | None = 1) -> Sequence[NodeMetric]:
        """The metrics of that name in that kind of scope, of one revision of their definition, None for any. Revision 1
        of a speed is the median of its repeats, which later ones have beside it."""
        index = self._indexes.get(id(record))
        if index is None:
            index = self._indexes[id(record)] = defaultdict(list)
            for metric in record["metrics"]:
                index[metric["name"], metric["scope"].partition(":")[0]].append(metric)
        named = index.get((name, scope), [])
        if revision is None or all(revision_of(metric) == revision for metric in named):
            return named
        same_revision = [metric for metric in named if revision_of(metric) == revision]
        return same_revision or (index.get((median_of(name), scope), []) if revision == 1 else [])

    @property
    def skus(self) -> set[str]:
        """The SKUs that checks may apply to: the declared one, and that of the catalogue."""
        return {self.sku} if self.catalogue_sku is None else {self.sku, self.catalogue_sku}

    @property
    def gpus(self) -> float | None:
        """GPUs that must take part: those declared, else those that the facts found."""
        return self.detected_gpus if self.declared_gpus is None else self.declared_gpus
