"""Command line of the diagnostics workload."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..common.arguments import positive_float, positive_int, workload_parser


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    description = "Check matrix products, memory and collectives on all devices at once: speed and right results."
    parser = workload_parser("diagnostics", description)
    add = parser.add_argument
    add("--seconds", type=positive_float, default=20.0, help="duration of all measurements together")
    add("--processes", type=positive_int, help="default: 1 per GPU; on a CPU 2 if it has 2 cores")
    add("--p2p-off-seconds", type=positive_float, default=0.0, help="duration of an all-reduce without P2P")
    #: For ranks that measure only an all-reduce with P2P between GPUs turned off.
    add("--p2p-off", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(list(arguments))
