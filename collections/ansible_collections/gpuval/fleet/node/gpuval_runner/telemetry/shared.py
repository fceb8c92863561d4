"""What the facts use to read vendor tools, which travels in the same archive."""

from __future__ import annotations

import importlib
from types import ModuleType

from gpuval_runner.telemetry.source import SourceError


def values() -> ModuleType:
    """Return the module that turns what tools print into numbers. Raises ``SourceError``."""
    return _part("values")


def tools() -> ModuleType:
    """Return the module that runs tools with a deadline. Raises ``SourceError``."""
    return _part("tools")


def amd() -> ModuleType:
    """Return the module that reads AMD's tools. Raises ``SourceError``."""
    return _part("amd")


def _part(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"gpuval_node.hardware.{name}")
    except ImportError:
        raise SourceError("the runner was started without its hardware package") from None
