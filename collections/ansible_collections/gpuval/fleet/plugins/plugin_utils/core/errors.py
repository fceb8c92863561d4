"""The base of every expected error. Its class is defined in module_utils, whose code also runs on nodes."""

from __future__ import annotations

from ...module_utils.errors import GpuvalError

__all__ = ["GpuvalError"]
