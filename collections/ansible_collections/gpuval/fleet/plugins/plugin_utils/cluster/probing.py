"""The probe of the nodes of clusters: what their hosts' variables say, held against what the API server says. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.text import some_of
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


def short(findings: Mapping[str, ssh_findings.ProbeFinding]) -> list[str]:
    """The nodes that work can be placed on, but that offer fewer GPUs than expected."""
    return [name for name, finding in findings.items() if finding.state == ssh_findings.REACHABLE and finding.message]


def summary(findings: Mapping[str, ssh_findings.ProbeFinding], seconds: float) -> list[str]:
    """The lines for the operator: counts, then each class with its nodes, the first messages and the remedy."""
    ready = sum(finding.state == ssh_findings.REACHABLE for finding in findings.values())
    rest = ssh_findings.summary(findings, seconds, Path())[1:]
    lines = [f"cluster: {ready} of {len(findings)} node(s) can be worked on, {seconds:.1f} s", *rest]
    few = short(findings)
    if few:
        lines.append(f"  fewer GPUs than expected ({len(few)}): {some_of(few, ssh_findings.SHOWN)}")
        lines.append(f"    {few[0]}: {findings[few[0]].message}")
        lines.append(f"      -> {findings[few[0]].remedy}")
    return lines
