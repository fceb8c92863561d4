"""The error of everything that is wrong about a model repository or its settings."""

from __future__ import annotations

from ..core.errors import GpuvalError


class MadError(GpuvalError, ValueError):
    """What is wrong, in which file, model and field, and what to do."""
