"""Settings and sizes of the fingerprint stage's work. A change of a size changes fingerprints: raise ``SEQUENCE``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..common.arguments import positive_float, positive_int, workload_parser
from ..training.models.shapes import LlamaShape

SEQUENCE = 1
"""Revision of the fingerprint stage's work; fingerprints of different revisions are not comparable."""

MIN_REPEATS = 2
_PART = re.compile(r"(?:(?:gpu|rank):)?(\d{1,4})(?:@(\d{1,6}))?")
FLIPPED_BIT = 12
"""Bit to flip of a float32 weight's 23 mantissa bits: it changes one weight of thousands by 2^-11 of itself. The loss
does not show that beside its rounding, yet an update cannot round it away."""


@dataclass(frozen=True)
class ProductSize:
    """A product of integer matrices up to ``magnitude``, (rows x inner) times (inner x columns), repeated ``times``. If
    ``magnitude``^2 x inner is below 2^22, all partial sums are exact in fp32 in any order; else results are equal on
    devices of the same kind only."""

    precision: str
    rows: int
    inner: int
    columns: int
    times: int
    magnitude: int = 127

    @property
    def is_exact(self) -> bool:
        return self.magnitude**2 * self.inner < (2**53 if self.precision == "fp64" else 2**22)

    @property
    def title(self) -> str:
        return f"{self.precision} product {self.rows}x{self.inner}x{self.columns} of numbers up to {self.magnitude}"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the fingerprint stage's work. The model ``checked`` is trained in fp32 and bf16, and in float64 on the
    host; ``loaded`` in bf16, to load the device. Lengths are in tokens."""

    checked: LlamaShape
    checked_steps: int
    loaded: LlamaShape | None
    loaded_steps: int
    prompts: int
    context: int
    tokens: int
    products: tuple[ProductSize, ...]


GPU = Sizes(
    checked=LlamaShape(512, 2, 8, 4, 1408, 2048, 256, 4, 0.5),
    checked_steps=3,
    loaded=LlamaShape(2048, 2, 16, 4, 5632, 8192, 512, 16, 0.5),
    loaded_steps=8,
    prompts=64,
    context=128,
    tokens=24,
    products=(
        ProductSize("bf16", 8192, 8192, 8192, 128),
        ProductSize("fp16", 8192, 8192, 8192, 128),
        ProductSize("bf16", 4104, 2056, 8200, 32),  # no multiples of a tile: selects other kernels
        ProductSize("fp32", 4096, 4096, 4096, 32),
        ProductSize("fp64", 4096, 4096, 4096, 32),
        ProductSize("bf16", 8192, 4096, 8192, 32, magnitude=15),
        ProductSize("fp16", 8192, 4096, 8192, 32, magnitude=15),
        ProductSize("fp32", 4096, 4096, 4096, 16, magnitude=15),
    ),
)
CPU = Sizes(
    checked=LlamaShape(64, 2, 4, 2, 176, 256, 32, 4, 0.5),
    checked_steps=3,
    loaded=None,
    loaded_steps=0,
    prompts=4,
    context=16,
    tokens=8,
    products=(
        ProductSize("fp32", 192, 2048, 200, 4),
        ProductSize("bf16", 264, 1032, 200, 4),
        ProductSize("fp64", 256, 256, 256, 4),
        ProductSize("fp32", 256, 256, 256, 4, magnitude=15),
        ProductSize("bf16", 256, 256, 256, 4, magnitude=15),
    ),
)


def sizes_for(kind: str) -> Sizes:
    """Return the sizes for a kind of device, by PyTorch's name. Gaudi has no fp64."""
    if kind == "cpu":
        return CPU
    return GPU if kind == "cuda" else replace(GPU, products=tuple(p for p in GPU.products if p.precision != "fp64"))


@dataclass(frozen=True)
class BitFlip:
    """A bit flip to inject: on which GPU (``part``), and in which repeat (1 is the first; None: in all)."""

    part: int
    repeat: int | None = None

    def hits(self, part: int, repeat: int) -> bool:
        return part == self.part and self.repeat in (None, repeat)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    description = "Train, decode and multiply alike on every GPU, again and again, and compare the results' bits."
    parser = workload_parser("fingerprint", description)
    add = parser.add_argument
    add("--seconds", type=positive_float, default=10.0, help=f"duration; {MIN_REPEATS} repeats at least")
    add("--processes", type=positive_int, help="default: 1 per GPU; on a CPU 2 if it has 2 cores")
    flip = "flip one bit of one weight on a part (gpu:1, rank:1 or 1) before training, in every repeat or in one"
    add("--inject-bit-flip", type=bit_flip, metavar="PART[@REPEAT]", help=flip)
    return parser.parse_args(list(arguments))


def bit_flip(text: str) -> BitFlip:
    """Return the bit flip that the text of ``--inject-bit-flip`` describes. Raises ``ArgumentTypeError``."""
    match = _PART.fullmatch(text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text} is not PART or PART@REPEAT, such as gpu:1 or gpu:1@2")
    part, repeat = match.groups()
    return BitFlip(int(part), int(repeat) if repeat else None)
