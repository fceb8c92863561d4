"""The nonce that binds a record to the launch of its node. The plan brings it: other nodes do not know it."""

from __future__ import annotations

import hashlib
import hmac


def of_attempt(nonce: str, attempt: int) -> str:
    """The nonce of an attempt, by that of the first. It is the same when a killed controller launches it again.

    Empty for a plan without one.
    """
    if attempt <= 1 or not nonce:
        return nonce
    return hmac.new(nonce.encode(), f"attempt {attempt}".encode(), hashlib.sha256).hexdigest()[:32]


def matches(nonce: str, attempt: int, reported: str) -> bool:
    """Whether a record of the attempt shows its nonce. Every record does where none was drawn."""
    return not nonce or hmac.compare_digest(of_attempt(nonce, attempt).encode(), reported.encode())
