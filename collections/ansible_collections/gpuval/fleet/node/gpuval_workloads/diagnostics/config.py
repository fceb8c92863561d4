"""The settings of the diagnostics."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..common.arguments import positive_float, positive_int


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the configuration of a command line; ends the program with exit code 2 when it makes no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m gpuval_workloads.diagnostics",
        description="Check matrix products, memory and collectives on all devices at once: speed and right results.",
    )
    add = parser.add_argument
    add("--seconds", type=positive_float, default=20.0, help="of measuring, in all")
    add("--processes", type=positive_int, help="default: one per GPU; on a CPU 2 if it has 2 cores")
    add("--p2p-off-seconds", type=positive_float, default=0.0, help="of an all-reduce that goes not from GPU to GPU")
    #: These are the ranks that measure with the direct way between GPUs turned off, and nothing else.
    add("--p2p-off", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(list(arguments))
