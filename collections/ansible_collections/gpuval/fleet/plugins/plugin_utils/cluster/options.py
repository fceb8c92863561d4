"""How actions are told which cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import Access

CLUSTER_OPTIONS = {
    "kubeconfig": {"type": "path", "default": ""},
    "context": {"type": "str", "default": ""},
    "namespace": {"type": "str", "default": "gpuval"},
}


def access_of(options: Mapping[str, Any]) -> Access:
    """From an action's options, as CLUSTER_OPTIONS declares them."""
    return Access(options["kubeconfig"], options["context"], options["namespace"])
