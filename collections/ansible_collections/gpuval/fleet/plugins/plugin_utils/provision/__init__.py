"""Provisioning: a DigitalOcean Kubernetes cluster or node pools for a run, their cost, and their removal by tag."""

from __future__ import annotations

from ..core.errors import GpuvalError


class ProvisionError(GpuvalError):
    """Nothing was, or nothing more is, provisioned or deleted; the message says what to do."""
