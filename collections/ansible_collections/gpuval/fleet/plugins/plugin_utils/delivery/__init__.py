"""What goes to the customer of a run: names converted, secrets and internal addresses left out, checksums beside it."""

from __future__ import annotations


class DeliveryError(Exception):
    """The delivery cannot be made or sent; the message says what to do."""
