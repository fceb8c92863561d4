"""Nodes that come up in a cluster while a run is watched: which of them become part of it, and as what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import nodes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_settings import PodSettings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import NODE_NAME
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import labels

Described = Mapping[str, Any]
#: What is expected of a newcomer as of the node that it is most like. Gangs, too: who is in none is not accepted.
TAKEN_OVER = ("stages", "gang_stages", "sku", "gpu_count", "versions")


@dataclass(frozen=True)
class Rule:
    """Who is taken: what `matches` by name (the API server knows selectors best), and has the SKU of a node of the run.

    `skus` are those of the inventory, `ids` the customer's ids by name; `say` is told who waits, and why.
    `label_groups` are labels of the cluster and the names that they have as labels of the run.
    """

    matches: Callable[[str], bool]
    skus: Mapping[str, Mapping[str, str]]
    ids: Mapping[str, str]
    say: Callable[[str], None]
    label_groups: Mapping[str, str] = field(default_factory=dict)


def most_like(description: Described, others: Iterable[Described], skus: Mapping[str, Mapping[str, str]]) -> str | None:
    """The name of a node of the same SKU and GPU resource, of the same instance type if there is one; else None."""

    def kind(one: Described) -> tuple[str, str]:
        sku = nodes.sku_of(one, skus)
        return sku, nodes.gpus(one, PodSettings(), sku).resource

    wanted, found = kind(description), None
    for other in others:
        if other["name"] == description["name"] or kind(other) != wanted:
            continue
        if other["instance_type"] == description["instance_type"]:
            return str(other["name"])
        found = found or str(other["name"])
    return found


class Newcomers:
    """Told of each node's news; tells who is ready to join. Each is named once while it waits, with the reason."""

    def __init__(self, rule: Rule, known: Iterable[str]) -> None:
        self._rule = rule
        #: Part of the run, or there before and left out by inventory or --limit: they do not join.
        self._known = set(known)
        self._waiting: dict[str, Mapping[str, Any]] = {}
        #: Whether the selector chose a node, with the labels that it had then.
        self._chosen: dict[str, tuple[Mapping[str, str], bool]] = {}
        self._told: dict[str, str] = {}
        self._news = False

    def see(self, name: str, node: Mapping[str, Any] | None) -> None:
        """Of a node there is news: its object, or None when it is gone."""
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
        there: Callable[[], Iterable[Described]],
        settings_of: Callable[[str], PodSettings],
    ) -> dict[str, tuple[str, dict[str, Any]]]:
        """By name: the node of the run that is most like it, and what is expected of it. They are known from now on.

        `there` describes the nodes of the run that the cluster has; `settings_of` are a node's `gpuval_pods`.
        """
        if not self._news:
            return {}
        described, found = list(there()), {}
        for name, node in sorted(self._waiting.items()):
            description = nodes.describe(node)
            if not self._matches(name, description["labels"]):
                continue
            like = most_like(description, described, self._rule.skus)
            if like is None:
                sku = nodes.sku_of(description, self._rule.skus)
                self._wait(name, f"no node of the run is of its kind (SKU {sku})")
                continue
            expected = dict(run_nodes[like])
            finding = nodes.finding_for(name, node, settings_of(like), expected["sku"], expected["gpu_count"])
            if finding:
                self._wait(name, finding["message"])
                continue
            expected = {key: expected[key] for key in TAKEN_OVER if key in expected}
            told = labels.of_cluster(description["labels"], self._rule.label_groups)
            if told:
                expected["labels"] = told
            if self._rule.ids.get(name):
                expected["id"] = str(self._rule.ids[name])
            found[name] = (like, expected)
        self._news = False
        for name in found:
            self._known.add(name)
            del self._waiting[name]
        return found

    def _matches(self, name: str, labels: Mapping[str, str]) -> bool:
        known = self._chosen.get(name)
        if known is None or known[0] != labels:
            self._chosen[name] = known = (dict(labels), self._rule.matches(name))
        return known[1]

    def _wait(self, name: str, reason: str) -> None:
        if self._told.get(name) != reason:
            self._told[name] = reason
            self._rule.say(f"{name} has come up and does not join yet: {reason}")
