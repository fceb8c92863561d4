"""The customer's copy (delivery) of a run: ids in place of names, no secrets, no internal addresses, with checksums."""

from ..core.errors import GpuvalError


class DeliveryError(GpuvalError):
    """The delivery cannot be made or sent; the message says how to fix it."""
