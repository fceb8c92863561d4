"""The base of all errors that are meant for the operator, on the controller and on nodes."""

from __future__ import annotations


class GpuvalError(Exception):
    """An expected failure: the message says what happened and what to do. `subject`: what failed, if known."""

    subject = ""
