"""The delivery of a run to a customer: unique ids for names, no secrets, no internal addresses, checksums."""

from ..core.errors import GpuvalError


class DeliveryError(GpuvalError):
    """The delivery cannot be made or sent; the message says how to fix it."""
