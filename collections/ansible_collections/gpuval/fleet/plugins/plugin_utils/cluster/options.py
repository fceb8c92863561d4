"""Access to the cluster that an action's options name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .api import Access


def access_of(options: Mapping[str, Any]) -> Access:
    """From options of the documentation fragment `cluster`."""
    return Access(options["kubeconfig"], options["context"], options["namespace"])
