"""The settings of the fingerprint stage."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..common.arguments import positive_float, positive_int

MIN_REPEATS = 2
_PART = re.compile(r"(?:(?:gpu|rank):)?(\d{1,4})(?:@(\d{1,6}))?")


@dataclass(frozen=True)
class BitFlip:
    """A fault to inject: on which part, and in which repeat (1 is the first; None: in all)."""

    part: int
    repeat: int | None = None

    def hits(self, part: int, repeat: int) -> bool:
        return part == self.part and self.repeat in (None, repeat)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the configuration of a command line; ends the program with exit code 2 when it makes no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m gpuval_workloads.fingerprint",
        description="Train, decode and multiply alike on every GPU, again and again, and compare the results' bits.",
    )
    add = parser.add_argument
    add("--seconds", type=positive_float, default=10.0, help=f"of repeating; {MIN_REPEATS} repeats at least")
    add("--processes", type=positive_int, help="default: one per GPU; on a CPU 2 if it has 2 cores")
    flip = "flip one bit of one weight on a part (gpu:1, rank:1 or 1) before training, in every repeat or in one"
    add("--inject-bit-flip", type=bit_flip, metavar="PART[@REPEAT]", help=flip)
    return parser.parse_args(list(arguments))


def bit_flip(text: str) -> BitFlip:
    """Return what to inject. Raises what argparse turns into a message."""
    match = _PART.fullmatch(text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text} is not PART or PART@REPEAT, such as gpu:1 or gpu:1@2")
    part, repeat = match.groups()
    return BitFlip(int(part), int(repeat) if repeat else None)
