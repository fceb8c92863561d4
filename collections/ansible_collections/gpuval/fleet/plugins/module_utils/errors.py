"""The base of all errors that are meant for the operator, on the controller and on nodes."""

from __future__ import annotations


class GpuvalError(Exception):
    """An expected failure: the message says what happened and what to do. `subject`: what failed, if known."""

    subject = ""


class StoreError(GpuvalError):
    """The store cannot be used; the message says what to do. `code`: S3's error code, if the store answered."""

    code: str | None = None
