"""A node as its checks see it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.laps import median_of

from ..records import properties
from ..records.documents import NodeMetric, Record

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
        """The metrics of that name in that kind of scope, of one revision of their definition, None for any.

        Revision 1 of a speed is the median of its repeats, which later ones have beside it.
        """
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
