"""Measures the device's memory: speed of copies, and whether it keeps what is written."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from ..common.ranks import GIB, Ranks
from .measure import Meter

GPU_COPY_BYTES, CPU_COPY_BYTES = 4 * GIB, 2**26
GPU_SPARE_BYTES = 3 * GIB
"""Bytes of device memory that the pattern test leaves free: for collectives' buffers, the driver, other processes."""
GPU_CHUNK_BYTES, CPU_CHUNK_BYTES = GIB, 2**25
CPU_TESTED_BYTES = 2**26

KNUTH = {torch.int64: -7046029254386353131, torch.int32: -1640531535}
"""Multipliers near 2^64 and 2^32 over the golden ratio: numbers that follow each other differ in many bits."""


def copy(ranks: Ranks, meter: Meter, seconds: float, size_bytes: int | None = None) -> None:
    """Measure copies in the device's memory on all ranks for ``seconds``; add bytes/s, read and written, and errors."""
    size_bytes = size_bytes or (GPU_COPY_BYTES if ranks.accelerator.is_gpu else CPU_COPY_BYTES)
    source = torch.arange(size_bytes // 4, dtype=torch.int32, device=ranks.device)
    target = torch.zeros_like(source)
    laps = meter.time(lambda: target.copy_(source), seconds).summary()
    target.bitwise_not_()  # all elements wrong: reveals a copy that writes nothing
    target.copy_(source)
    meter.speed("diagnostics_memory", 2 * source.nbytes, laps, "bytes/s", "bytes_per_second")
    meter.add("diagnostics_memory_error_count", int((target != source).sum()), "count")


def pattern(ranks: Ranks, meter: Meter, seconds: float) -> None:
    """Fill most of the free device memory with a pattern that differs at every address, read it back, then the same
    with its complement, for ``seconds`` and at least once. Add the tested bytes, their share of the memory, and the
    number of wrong words."""
    free, total, spare, size = CPU_TESTED_BYTES, CPU_TESTED_BYTES, 0, CPU_CHUNK_BYTES
    if ranks.accelerator.is_gpu:
        (free, total), spare, size = ranks.memory(), GPU_SPARE_BYTES, GPU_CHUNK_BYTES
    dtype, count = _word(ranks), max(1, (free - spare) // size)
    chunks = [torch.empty(size // dtype.itemsize, dtype=dtype, device=ranks.device) for _ in range(count)]
    fewer = int(ranks.greatest(len(chunks))[0]) - len(chunks)
    errors, rounds, started = 0, 0, time.perf_counter()
    while True:
        for flip in (0, -1):  # both values of every bit
            for number, chunk in enumerate(chunks):
                _write(chunk, number + rounds, flip)
            for number, chunk in enumerate(chunks):
                errors += _wrong(chunk, number + rounds, flip)
                ranks.tick()
                meter.report()
            for _ in range(fewer):  # all ranks must count the same, whatever memory is free
                ranks.tick()
        rounds += 1
        spent = time.perf_counter() - started
        if not ranks.agree(int(spent + spent / rounds < seconds)):
            break
    tested = sum(chunk.nbytes for chunk in chunks)
    meter.add("diagnostics_memory_pattern_error_count", errors, "count")
    meter.add("diagnostics_memory_tested_bytes", tested, "bytes")
    if ranks.accelerator.is_gpu:
        meter.add("diagnostics_memory_tested_ratio", tested / total, "ratio")


def _word(ranks: Ranks) -> torch.dtype:
    """Return the integer type of the memory test's words: Gaudi stores int64 in 32 bits."""
    return torch.int32 if ranks.accelerator.kind == "hpu" else torch.int64


def _write(chunk: Tensor, seed: int, flip: int) -> None:
    """Fill a chunk with numbers that differ in many bits between addresses (Knuth's multiplicative hash) and seeds."""
    torch.arange(seed, seed + len(chunk), dtype=chunk.dtype, device=chunk.device, out=chunk)
    chunk.mul_(KNUTH[chunk.dtype])
    if flip:
        chunk.bitwise_not_()


def _wrong(chunk: Tensor, seed: int, flip: int) -> int:
    """Return how many words of a chunk are not as :func:`_write` wrote them; in parts, as comparing needs memory."""
    step = max(1, len(chunk) // 4)
    wrong = torch.zeros((), dtype=torch.int64, device=chunk.device)
    for start in range(0, len(chunk), step):
        part = slice(start, start + step)
        first, last, _ = part.indices(len(chunk))
        numbers = torch.arange(first + seed, last + seed, dtype=chunk.dtype, device=chunk.device)
        expected = numbers.mul_(KNUTH[chunk.dtype])
        if flip:
            expected.bitwise_not_()
        wrong += (chunk[part] != expected).sum()
    return int(wrong)
