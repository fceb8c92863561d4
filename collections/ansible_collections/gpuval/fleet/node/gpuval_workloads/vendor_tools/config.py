"""The settings of the stage."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..common.arguments import positive_float

NAMES = ("nccl_tests", "dcgm", "rccl_tests", "rvs", "agfhc", "hl_qual")
LEVELS = range(1, 5)


@dataclass(frozen=True)
class Config:
    """Which tools (None: those that fit the node and are there), how thorough (1 to 4), for how long in all, and where
    to look before the usual places."""

    tools: tuple[str, ...] | None = None
    level: int = 2
    seconds: float = 300.0
    paths: tuple[Path, ...] = ()


def parse_arguments(arguments: Sequence[str]) -> Config:
    """Return the configuration of a command line; ends the program with exit code 2 when it makes no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m gpuval_workloads.vendor_tools",
        description="Run nccl-tests, DCGM, rccl-tests, RVS, AGFHC or hl_qual, whichever is there and fits the node.",
    )
    parser.add_argument("--tools", type=_tools, default=Config.tools, help=f"auto, or some of {', '.join(NAMES)}")
    parser.add_argument("--level", type=int, choices=LEVELS, default=Config.level, help="of dcgmi diag, RVS and AGFHC")
    parser.add_argument("--seconds", type=positive_float, default=Config.seconds, help="for all tools together")
    parser.add_argument("--path", action="append", default=[], help="folder, or several with colons, to look in first")
    options = parser.parse_args(list(arguments))
    folders = [Path(folder) for path in options.path for folder in path.split(":") if folder]
    return Config(options.tools, options.level, options.seconds, tuple(folders))


def _tools(text: str) -> tuple[str, ...] | None:
    if text == "auto":
        return None
    names = tuple(name for name in text.replace(",", " ").split() if name)
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"want auto or some of {', '.join(NAMES)}, not {text!r}")
    return names
