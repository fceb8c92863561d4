"""Provisioning: a DigitalOcean Kubernetes cluster or node pools for a run, their cost, and their removal by tag."""

from ..core.errors import GpuvalError


class ProvisionError(GpuvalError):
    """Provisioning or deletion failed or stopped; the message says what to do."""
