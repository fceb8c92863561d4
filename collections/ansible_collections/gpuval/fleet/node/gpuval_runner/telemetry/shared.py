"""What the facts use to read vendor tools, which travels in the same archive."""

from __future__ import annotations

from types import ModuleType
from typing import Optional

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
    module: Optional[ModuleType] = None
    try:
        if name == "values":
            from gpuval_node.hardware import values as module
        elif name == "tools":
            from gpuval_node.hardware import tools as module
        else:
            from gpuval_node.hardware import amd as module
    except ImportError:
        raise SourceError("the runner was started without its hardware package") from None
    return module
