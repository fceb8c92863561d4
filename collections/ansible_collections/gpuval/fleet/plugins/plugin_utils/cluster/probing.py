"""The probe of the nodes of clusters: what their hosts' variables say, held against what the API server says. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..ssh import findings as ssh_findings
from . import nodes, pod_settings
from .pod_settings import PodSettings, PodSettingsError

PLACEMENT = "kubernetes"
#: The variables of a host that say where it is and what is expected of it.
VARIABLES = (
    *("gpuval_placement", "gpuval_kubeconfig", "gpuval_kube_context"),
    *("gpuval_sku", "gpuval_gpu_count", "gpuval_pods"),
)


@dataclass(frozen=True)
class ProbedNode:
    """A node as the inventory has it. `settings` are those of `gpuval_pods`; `expected_gpus` None is not declared."""

    node: str
    kubeconfig: str = ""
    context: str = ""
    sku: str = "auto"
    expected_gpus: int | None = None
    settings: PodSettings = field(default_factory=PodSettings)

    @property
    def cluster(self) -> tuple[str, str]:
        return self.kubeconfig, self.context


def target(name: str, variables: Mapping[str, Any]) -> ProbedNode | None:
    """The target of a host with these values of VARIABLES, or None for one that is no node of a cluster.

    Raises PodSettingsError for `gpuval_pods`.
    """
    if variables.get("gpuval_placement") != PLACEMENT:
        return None
    number = str(variables.get("gpuval_gpu_count") or "")
    try:
        settings = pod_settings.parse(variables.get("gpuval_pods") or {})
    except PodSettingsError as error:
        raise PodSettingsError(f"{name}: {error}") from None
    return ProbedNode(
        node=name,
        kubeconfig=str(variables.get("gpuval_kubeconfig") or ""),
        context=str(variables.get("gpuval_kube_context") or ""),
        sku=str(variables.get("gpuval_sku") or "auto"),
        expected_gpus=int(number) if number.isdecimal() else None,
        settings=settings,
    )


def judge(targets: Iterable[ProbedNode], found: Iterable[Mapping[str, Any]]) -> dict[str, ssh_findings.ProbeFinding]:
    """Findings of the nodes of one cluster; `found` are its Node objects."""
    known = {str(node["metadata"]["name"]): nodes.describe(node) for node in found}
    return {
        one.node: nodes.finding(
            one.node, known.get(one.node), sku=one.sku, expected_gpus=one.expected_gpus, settings=one.settings
        )
        for one in targets
    }
