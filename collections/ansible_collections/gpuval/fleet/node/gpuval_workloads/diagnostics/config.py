"""The settings of the diagnostics."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from ..common.arguments import positive_float, positive_int


@dataclass(frozen=True)
class DiagnosticsConfig:
    """How long to measure, in all, and in how many processes (None: by the device)."""

    seconds: float = 20.0
    processes: int | None = None
    p2p_off_seconds: float = 0.0
    #: These are the ranks that measure with the direct way between GPUs turned off, and nothing else.
    p2p_off: bool = False


def parse_arguments(arguments: Sequence[str]) -> DiagnosticsConfig:
    """Return the configuration of a command line; ends the program with exit code 2 when it makes no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m gpuval_workloads.diagnostics",
        description="Check matrix products, memory and collectives on all devices at once: speed and right results.",
    )
    parser.add_argument(
        "--seconds", type=positive_float, default=DiagnosticsConfig.seconds, help="of measuring, in all"
    )
    parser.add_argument("--processes", type=positive_int, help="default: one per GPU; on a CPU 2 if it has 2 cores")
    parser.add_argument(
        "--p2p-off-seconds", type=positive_float, default=0.0, help="of an all-reduce that goes not from GPU to GPU"
    )
    parser.add_argument("--p2p-off", action="store_true", help=argparse.SUPPRESS)
    return DiagnosticsConfig(**vars(parser.parse_args(list(arguments))))
