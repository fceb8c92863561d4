"""What is the same on every machine to the last bit: the numbers to start from, and the digest of a tensor's bits.

Nothing here rounds. Numbers are whole numbers from the CPU's generator times a power of two, small enough for bf16 to
hold them; angles are computed by the C library in float64 and rounded once to float32. A sine or a normal number drawn
by PyTorch would depend on the vector units of the CPU that draws it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

_WORD = 8


def whole_numbers(shape: Sequence[int], magnitude: int, generator: torch.Generator) -> Tensor:
    """Return whole numbers from -magnitude to magnitude, at most 127, as int8."""
    return torch.randint(-magnitude, magnitude + 1, tuple(shape), generator=generator, dtype=torch.int8)


def rotary_tables(head_dim: int, length: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of every position's angles as float32, as ``models.llama`` defines them."""
    frequencies = [theta ** (-index / head_dim) for index in range(0, head_dim, 2)] * 2
    angles = [[position * frequency for frequency in frequencies] for position in range(length)]
    cos, sin = ([[function(angle) for angle in row] for row in angles] for function in (math.cos, math.sin))
    return torch.tensor(cos, dtype=torch.float64).float(), torch.tensor(sin, dtype=torch.float64).float()


def flip_bit(tensor: Tensor, bit: int) -> None:
    """Flip one bit, 0 the lowest, of the float32 tensor's greatest element: one with a full mantissa's weight."""
    words = tensor.view(torch.int32).view(-1)
    index = tensor.abs().argmax()
    words[index] ^= 1 << bit


class Recorder:
    """Notes digests of tensors on their device, in order and by name, without making the device wait."""

    def __init__(self, device: torch.device) -> None:
        # Gaudi's 64-bit whole numbers have 32 bits: there, and wherever it is not known, the host makes the digests.
        self._device = device if device.type in ("cpu", "cuda") else torch.device("cpu")
        self._factors = torch.empty(0, dtype=torch.int64, device=self._device)
        self.start()

    def start(self) -> None:
        """Begin a new list."""
        self.labels: list[str] = []
        self.known: dict[int, int] = {}
        self._sums: list[Tensor] = []

    def note(self, label: str, tensor: Tensor, expected: int | None = None) -> None:
        """Note a tensor's digest; ``known`` is what it must be, where the host knows."""
        if expected is not None:
            self.known[len(self.labels)] = expected
        self.labels.append(label)
        self._sums.append(self.digest(tensor))

    def digests(self) -> tuple[int, ...]:
        """Return all that was noted since the start; waits for the device."""
        return tuple(torch.stack(self._sums).tolist())

    def digest(self, tensor: Tensor) -> Tensor:
        """Return a 64-bit digest of the tensor's bits, as a scalar on its device or on the host.

        The sum of its 8-byte words, each times an odd number of its own, modulo 2^64. Whole numbers add up to the same
        in any order, so however a device sums, the digest is exact; and since odd factors have an inverse, any change
        of a single word changes it for certain, any other but for a chance of about 2^-64.
        """
        data = tensor.detach().to(self._device).contiguous().view(-1).view(torch.uint8)
        aligned = data.numel() // _WORD * _WORD
        total = torch.zeros((), dtype=torch.int64, device=self._device)
        if aligned:
            words = data[:aligned].view(torch.int64)
            total = (words * self._odd(words.numel())).sum()
        tail = data[aligned:].to(torch.int64)
        return total + (tail * self._odd(tail.numel())).sum() if tail.numel() else total

    def _odd(self, count: int) -> Tensor:
        if self._factors.numel() < count:
            # Spread over all 64 bits by Knuth's multiplier, so that neighbours' changes do not cancel.
            numbers = torch.arange(count, dtype=torch.int64, device=self._device)
            self._factors = numbers * 0x5851F42D4C957F2D * 2 + 1
        return self._factors[:count]


def sha256(labels: Sequence[str], digests: Sequence[int]) -> str:
    """Return the hash of a list of named digests."""
    lines = (f"{label}\t{digest & (2**64 - 1):016x}\n" for label, digest in zip(labels, digests))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
