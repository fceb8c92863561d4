"""A criterion as data: which metric is held to which limit, on which nodes; and a node as its checks see it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.laps import median_of

from ..core.stages import DEPTHS
from ..core.text import pattern_of
from ..records import properties
from ..records.documents import NodeMetric, Record
from ..records.metrics import CompactMetrics

#: Stands for all stages where one stage's name is expected.
ANY = "any"


@dataclass(frozen=True)
class Applies:
    """The conditions under which a check applies; an empty tuple is no condition."""

    accelerator: tuple[str, ...] = ()
    sku: tuple[str, ...] = ()
    profile: tuple[str, ...] = ()
    depth: str = DEPTHS[0]
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
    #: Revision of the metric's definition: the limit is for figures of this revision.
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
    #: For ``peers: fleet``: how many other nodes are needed, and how nodes are compared; see fleet_outliers.py.
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
    #: The check also applies to every other stage that reports the figure, under that stage's name.
    every_stage: bool = False
    where_reported: bool = False
    #: Name of a metric that is judged instead, on the parts that report it.
    unless_reported: str | None = None
    #: The SKU of the catalogue that defines the check; nodes of another SKU get no entry.
    catalogue_sku: str | None = None
    #: The limit in words, as the check's kind describes it.
    expected: str = ""

    def __hash__(self) -> int:  # a hash of all fields takes as long as judging a figure
        return hash((self.name, self.stage))

    @property
    def required(self) -> bool:
        return self.severity == "required"

    @property
    def sides(self) -> tuple[float | None, float | None]:
        """How far a figure may be below and above that of its peers, relative; None is no limit on that side."""
        return self.max_below, self.max_above

    @property
    def sign(self) -> int:
        """1 if a greater figure is better, else -1."""
        return 1 if self.max_below is not None else -1

    @property
    def margin(self) -> float:
        """The smaller of the allowed deviations of a figure from its peers, relative."""
        return min(most for most in self.sides if most is not None)


@dataclass(frozen=True)
class Informational:
    """Metrics of one stage (or of all) that are shown but not judged; names may hold ``*``."""

    stage: str
    metrics: tuple[str, ...]
    reason: str


def is_informational(stage: str, metric: str, listed: Iterable[Informational]) -> bool:
    lists = (entry.metrics for entry in listed if entry.stage in (stage, ANY))
    return any(pattern_of(name).fullmatch(metric) for names in lists for name in names)


#: The stage that reports a node's hardware and software.
FACTS = properties.FACTS


def revision_of(metric: NodeMetric) -> int:
    return metric.get("revision", 1)


@dataclass
class Subject:
    """A node to judge, with the records of the stages that it was asked to run."""

    name: str
    profile: str
    depth: str
    sku: str
    accelerator: str
    declared_gpus: int | None
    #: GPUs that the facts report, unchecked: a node may report 7.5, which no check accepts.
    detected_gpus: float | None
    records: Mapping[str, Record]
    #: The temperature that no GPU may exceed, in degrees Celsius, where one is declared.
    gpu_temperature_max: float | None = None
    #: Why the node should have GPUs although none are declared; empty if nothing shows any.
    expects_gpus: str = ""
    #: Name of the catalogue's SKU that the node's facts match; None for none.
    catalogue_sku: str | None = None
    #: The node's properties: versions from its facts, and labels from the inventory.
    properties: Mapping[str, str] = field(default_factory=dict)
    #: For each (metric, revision) how much healthy parts of one node of this SKU differ, relative, if measured.
    known_spreads: Mapping[tuple[str, int], float] = field(default_factory=dict)
    #: For each (metric, revision) the figure that healthy nodes of this SKU reached.
    measured: Mapping[tuple[str, int], float] = field(default_factory=dict)
    #: Only nodes of the same kind are compared: the catalogue's SKU, else the models of the GPUs.
    kind: str = ""
    #: For each stage the workload of its plan. It decides which checks apply; the workload in the record does not.
    workloads: Mapping[str, str] = field(default_factory=dict)
    #: For each stage and fingerprint the values that the run's settings allow on nodes of this SKU.
    setups: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    #: Precisions that the SKU's data sheet lists and the catalogue has a floor for.
    precisions: frozenset[str] = frozenset()
    _compact: dict[int, CompactMetrics] = field(default_factory=dict)

    def metrics(self, record: Record, name: str, scope: str, revision: int | None = 1) -> Sequence[NodeMetric]:
        """A record's metrics of this name and scope (node, gpu, rank, link), by one revision of their definition (None:
        any). Revision 1 of a speed is the median of its repeats, which later revisions report beside the speed."""
        metrics = self._compact.get(id(record))
        if metrics is None:
            metrics = self._compact[id(record)] = CompactMetrics.of(record["metrics"])
        named = metrics.named(name, scope)
        if revision is None or all(revision_of(metric) == revision for metric in named):
            return named
        same_revision = [metric for metric in named if revision_of(metric) == revision]
        return same_revision or (metrics.named(median_of(name), scope) if revision == 1 else [])

    @property
    def skus(self) -> set[str]:
        """The SKUs whose checks may apply: the declared one, and the catalogue's."""
        return {self.sku} if self.catalogue_sku is None else {self.sku, self.catalogue_sku}

    @property
    def gpus(self) -> float | None:
        """Number of GPUs that must take part: the declared one, else the one in the facts."""
        return self.detected_gpus if self.declared_gpus is None else self.declared_gpus
