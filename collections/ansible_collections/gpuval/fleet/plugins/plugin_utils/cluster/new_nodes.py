"""Nodes that appear in a cluster while a run is watched: which of them join it, and what is expected of them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..core.escape import NODE_NAME
from ..runs import labels
from . import nodes
from .dra import ClusterDevices
from .pod_settings import PodSettings

Described = Mapping[str, Any]
#: Expectations that a new node copies from the node most like it; gang stages too, so that no node passes without them.
INHERITED = ("stages", "gang_stages", "sku", "gpu_count", "nics", "versions", "declared")


def most_like(
    description: Described, candidates: Iterable[Described], skus: Mapping[str, Mapping[str, str]]
) -> str | None:
    """Name of the candidate with the same SKU and GPU resource as a node, preferably of its instance type; or None."""

    def kind(described: Described) -> tuple[str, str]:
        sku = nodes.sku_of(described, skus)
        return sku, nodes.gpus(described, PodSettings(), sku).resource

    own_kind, match = kind(description), None
    for candidate in candidates:
        if candidate["name"] == description["name"] or kind(candidate) != own_kind:
            continue
        if candidate["instance_type"] == description["instance_type"]:
            return str(candidate["name"])
        match = match or str(candidate["name"])
    return match


class Newcomers:
    """Decides which new nodes of a cluster join a run: those like a node of the run that `matches` accepts by name (it
    asks the API server). `skus`: the inventory's SKU rules. `ids`: the customer's ids by node name. `show` prints why
    a node waits, once for each reason. `label_groups`: {label of Nodes: name of the label in the run}."""

    def __init__(
        self,
        matches: Callable[[str], bool],
        skus: Mapping[str, Mapping[str, str]],
        ids: Mapping[str, str],
        show: Callable[[str], None],
        label_groups: Mapping[str, str] | None = None,
    ) -> None:
        self.skus = skus
        self._accepts, self._ids, self._show, self._label_groups = matches, ids, show, label_groups or {}
        #: Nodes of the run, and nodes excluded by inventory or --limit: these do not join.
        self._known: set[str] = set()
        self._waiting: dict[str, Mapping[str, Any]] = {}
        #: By node, its labels when the selector was last applied, and whether the selector chose the node.
        self._chosen: dict[str, tuple[Mapping[str, str], bool]] = {}
        self._printed: dict[str, str] = {}
        self._news = False

    def know(self, node_names: Iterable[str]) -> None:
        """Exclude nodes from joining, even nodes that `see` has received before."""
        for name in node_names:
            self._known.add(name)
            self._waiting.pop(name, None)

    def see(self, name: str, node: Mapping[str, Any] | None) -> None:
        """Take in the changed Node object of a node; `node` is None when the object is gone."""
        if name in self._known or not NODE_NAME.fullmatch(name):
            return
        self._news = True
        if node is None:
            self._waiting.pop(name, None)
        else:
            self._waiting[name] = node

    def ready(
        self,
        run_nodes: Mapping[str, Mapping[str, Any]],
        describe_all: Callable[[], Iterable[Described]],
        settings_of: Callable[[str], PodSettings],
        devices_for: Callable[[Mapping[str, Any]], ClusterDevices | None] = lambda _node: None,
    ) -> dict[str, tuple[str, dict[str, Any]]]:
        """Nodes that join the run now, each returned once: by name, the most similar node of the run and what is
        expected of the new node. `describe_all` describes the run's nodes that the cluster has; `settings_of` gives a
        node's `gpuval_pods`, `devices_for` what a cluster publishes by DRA, as far as its new Node needs it."""
        if not self._news:
            return {}
        described, joined = list(describe_all()), {}
        for name, node in sorted(self._waiting.items()):
            if not self._matches(name, node["metadata"].get("labels") or {}):
                continue
            description = nodes.describe(node, devices := devices_for(node))
            like = most_like(description, described, self.skus)
            if like is None:
                sku = nodes.sku_of(description, self.skus)
                self._wait(name, f"no node of the run is of its kind (SKU {sku})")
                continue
            expected = dict(run_nodes[like])
            finding = nodes.finding_for(name, node, settings_of(like), expected["sku"], expected["gpu_count"], devices)
            if finding:
                self._wait(name, finding["message"])
                continue
            expected = {key: expected[key] for key in INHERITED if key in expected}
            node_labels = labels.of_cluster(description["labels"], self._label_groups)
            if node_labels:
                expected["labels"] = node_labels
            if self._ids.get(name):
                expected["id"] = str(self._ids[name])
            joined[name] = (like, expected)
        self._news = False
        self.know(joined)
        return joined

    def _matches(self, name: str, labels: Mapping[str, str]) -> bool:
        remembered = self._chosen.get(name)
        if remembered is None or remembered[0] != labels:
            self._chosen[name] = remembered = (dict(labels), self._accepts(name))
        return remembered[1]

    def _wait(self, name: str, reason: str) -> None:
        if self._printed.get(name) != reason:
            self._printed[name] = reason
            self._show(f"{name} does not join yet: {reason}")
