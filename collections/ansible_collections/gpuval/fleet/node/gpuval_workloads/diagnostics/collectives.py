"""Measures collectives over all devices: time, bus bandwidth, and whether every element is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from ..common.laps import LapSummary
from ..common.ranks import GIB, Ranks
from .measure import Meter

GPU_SIZES = (8, 2**13, 2**20, 2**24, 2**26, 2**28, 2**30, 2**33)
CPU_SIZES = (8, 2**13, 2**20, 2**22)
CHECKED_BYTES = 2**20
"""Size of the collectives that check each element type; those that are timed are checked in fp32 as well."""
PART = 2**26
"""Number of elements that are compared at one time, to bound the memory needed."""
WRONG = -1
"""Value that spoils an output before a run: no right sum is negative, and hardly any transferred bits equal it."""
_FEW_RANKS = 128
_WEIGHTS = 8
ELEMENT_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32)

# PyTorch 2.12 has new names for these functions and deprecates the old ones.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Fill = Callable[[], object]
SetUp = tuple[Fill, Fill, Callable[[], int]]


@dataclass(frozen=True)
class Collective:
    """One collective: its name, bytes on the bus per byte of its size (nccl-tests' PERFORMANCE.md), and its set-up.
    ``set_up(ranks, elements, dtype)`` returns three functions: one spoils the output (or renews a shared input), one
    runs the collective, one counts wrong elements. The size in bytes is the whole buffer's, over all ranks for
    gathers."""

    name: str
    bus_factor: Callable[[int], float]
    set_up: Callable[[Ranks, int, torch.dtype], SetUp]
    is_shared_out: bool = True
    is_in_place: bool = False


def collectives(
    ranks: Ranks,
    meter: Meter,
    seconds: float,
    prefix: str = "diagnostics",
    chosen: Sequence[Collective] | None = None,
    most_bytes: int | None = None,
    on_wrong: Callable[[int], object] = lambda _errors: None,
) -> None:
    """Run every collective at every size up to ``most_bytes`` for ``seconds`` in all; add bus bandwidth, latency and a
    curve over sizes of each, and the number of wrong elements, with names that start with ``prefix``. ``on_wrong`` gets
    the number of wrong elements on this rank so far whenever it grows."""
    chosen = chosen or COLLECTIVES
    sizes = [size for size in _sizes(ranks) if size <= (most_bytes or size)]
    errors = 0

    def count(wrong: int) -> None:
        nonlocal errors
        errors += wrong
        if wrong:
            on_wrong(errors)

    for collective in chosen:
        for dtype in ELEMENT_TYPES:
            renew, run, wrong = collective.set_up(ranks, _elements(collective, ranks, CHECKED_BYTES, dtype), dtype)
            renew()
            run()
            count(wrong())
        x, times, rates = [], [], []
        for size in sizes:
            elements = _elements(collective, ranks, size, torch.float32)
            renew, run, wrong = collective.set_up(ranks, elements, torch.float32)
            share = seconds / len(chosen) * (0.4 if size == sizes[-1] else 0.6 / (len(sizes) - 1))
            timed = meter.time(run, share, prepare=renew if collective.is_in_place else None)
            renew()  # run once more, from a spoilt output: this reveals a run that writes nothing
            run()
            count(wrong())
            meter.report()
            del renew, run, wrong
            # The mean over all ranks, like nccl-tests by default.
            laps = LapSummary.mean(ranks.gather(timed.summary()))
            amount = elements * 4 * collective.bus_factor(ranks.world_size)
            x.append(elements * 4)
            times.append(laps.median_seconds)
            rates.append(amount / laps.seconds)
        name = f"{prefix}_{collective.name}"
        meter.add(f"{name}_latency_seconds", times[0], "seconds", "node")
        meter.curves.append((f"{name}_seconds", "seconds", x, times))
        if ranks.world_size > 1:
            meter.speed(name, amount, laps, "bytes/s", "bus_bytes_per_second", "node")
            meter.curves.append((f"{name}_bus_bytes_per_second", "bytes/s", x, rates))
    meter.add(f"{prefix}_collective_largest_bytes", x[-1], "bytes", "node")
    meter.add(f"{prefix}_collective_error_count", errors, "count", "node")


def _elements(collective: Collective, ranks: Ranks, size: int, dtype: torch.dtype) -> int:
    """Return the number of elements in about ``size`` bytes, with equal shares of at least one if ranks have shares."""
    elements = size // dtype.itemsize
    if collective.is_shared_out:
        return max(1, elements // ranks.world_size) * ranks.world_size
    return elements


def _sizes(ranks: Ranks) -> tuple[int, ...]:
    """Return the message sizes in bytes of which four buffers (input, output, references) fit into every device."""
    if not ranks.accelerator.is_gpu:
        return CPU_SIZES
    if ranks.world_size == 1:  # nothing is sent: large sizes would only take minutes of copies
        return GPU_SIZES[:2]
    least_free = -int(ranks.greatest(-ranks.memory()[0])[0])
    limit = max(0, least_free - 2 * GIB) // 4
    return tuple(size for size in GPU_SIZES if size <= max(limit, GPU_SIZES[2]))


def _addends(elements: int, dtype: torch.dtype, device: torch.device, ranks: int, rank: int, part: slice) -> Tensor:
    """Return the elements ``part`` of a rank's input to a sum: integers so small that the sum over all ranks is exact.

    bf16 is exact to 256: at most 2 from each of up to 128 ranks; with more, each element gets 1 from every k-th rank.
    fp32 is exact to 2**24: at most 96 x 8 from each of up to 21,000 ranks.
    """
    start, stop, _ = part.indices(elements)
    places = torch.arange(start, stop, device=device)
    if dtype not in (torch.bfloat16, torch.float16):
        return (places % 97 * (rank % _WEIGHTS + 1)).to(dtype)
    if ranks <= _FEW_RANKS:
        return ((places + rank) % 3).to(dtype)
    return ((places + rank) % -(-ranks // (2 * _FEW_RANKS)) == 0).to(dtype)


def _sums(elements: int, dtype: torch.dtype, ranks: Ranks, part: slice) -> Tensor:
    """Return the right sums of all ranks' inputs (:func:`_addends`) for the elements ``part``."""
    size = ranks.world_size
    start, stop, _ = part.indices(elements)
    if dtype in (torch.bfloat16, torch.float16):
        total = torch.zeros(stop - start, dtype=torch.int32, device=ranks.device)
        for rank in range(size):
            total += _addends(elements, dtype, ranks.device, size, rank, part).int()
        return total.to(dtype)
    places = torch.arange(start, stop, device=ranks.device)
    return (places % 97 * sum(rank % _WEIGHTS + 1 for rank in range(size))).to(dtype)


def _carried(elements: int, seed: int, dtype: torch.dtype, device: torch.device, part: slice) -> Tensor:
    """Return the elements ``part`` of data that ranks only transfer: bits that differ between elements and seeds."""
    start, stop, _ = part.indices(elements)
    words = torch.arange(start, stop, dtype=torch.int32, device=device).mul_(-1640531535).add_(seed * 40503 + 1)
    return words if dtype.itemsize == 4 else words.to(torch.int16)


def _parts(tensor: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of a tensor of bounded size, each with its elements as integers of the same bits."""
    bits = torch.int32 if tensor.element_size() == 4 else torch.int16
    for start in range(0, len(tensor), PART):
        part = slice(start, start + PART)
        yield part, tensor[part].view(bits)


def _compare(tensor: Tensor, expected: Callable[[slice], Tensor]) -> int:
    """Return the number of elements whose bits differ from those that ``expected`` returns for a slice."""
    return sum(int((bits != expected(part).view(bits.dtype)).sum()) for part, bits in _parts(tensor))


def _compare_chunks(out: Tensor, ranks: Ranks, seed_of: Callable[[int], int]) -> int:
    """Return the number of wrong elements in ``out``: equal chunks by sending rank, made from ``seed_of(rank)``."""
    return sum(
        _compare(chunk, partial(_carried, len(chunk), seed_of(rank), out.dtype, ranks.device))
        for rank, chunk in enumerate(out.chunk(ranks.world_size))
    )


def _filled(tensor: Tensor, values_of: Callable[[slice], Tensor]) -> Tensor:
    for part, bits in _parts(tensor):
        bits.copy_(values_of(part).view(bits.dtype))
    return tensor


def _all_reduce(ranks: Ranks, elements: int, dtype: torch.dtype) -> SetUp:
    addends = partial(_addends, elements, dtype, ranks.device, ranks.world_size, ranks.rank)
    values = _filled(torch.empty(elements, dtype=dtype, device=ranks.device), addends)
    buffer = values.clone()
    return (
        lambda: buffer.copy_(values),
        lambda: dist.all_reduce(buffer),
        lambda: _compare(buffer, partial(_sums, elements, dtype, ranks)),
    )


def _reduce_scatter(ranks: Ranks, elements: int, dtype: torch.dtype) -> SetUp:
    addends = partial(_addends, elements, dtype, ranks.device, ranks.world_size, ranks.rank)
    values = _filled(torch.empty(elements, dtype=dtype, device=ranks.device), addends)
    out = torch.zeros(elements // ranks.world_size, dtype=dtype, device=ranks.device)
    offset = len(out) * ranks.rank

    def expected(part: slice) -> Tensor:
        return _sums(elements, dtype, ranks, slice(offset + part.start, offset + min(part.stop, len(out))))

    return lambda: out.fill_(WRONG), lambda: _REDUCE_SCATTER(out, values), lambda: _compare(out, expected)


def _all_gather(ranks: Ranks, elements: int, dtype: torch.dtype) -> SetUp:
    share = elements // ranks.world_size
    payload = partial(_carried, share, ranks.rank, dtype, ranks.device)
    contribution = _filled(torch.empty(share, dtype=dtype, device=ranks.device), payload)
    out = torch.zeros(share * ranks.world_size, dtype=dtype, device=ranks.device)
    wrong = partial(_compare_chunks, out, ranks, lambda rank: rank)
    return lambda: out.fill_(WRONG), lambda: _ALL_GATHER(out, contribution), wrong


def _all_to_all(ranks: Ranks, elements: int, dtype: torch.dtype) -> SetUp:
    share, size = elements // ranks.world_size, ranks.world_size
    values = torch.empty(share * size, dtype=dtype, device=ranks.device)
    for target, part_of in enumerate(values.chunk(size)):
        _filled(part_of, partial(_carried, share, ranks.rank * size + target, dtype, ranks.device))
    out = torch.zeros_like(values)
    wrong = partial(_compare_chunks, out, ranks, lambda source: source * size + ranks.rank)
    return lambda: out.fill_(WRONG), lambda: dist.all_to_all_single(out, values), wrong


def _broadcast(ranks: Ranks, elements: int, dtype: torch.dtype) -> SetUp:
    buffer = torch.zeros(elements, dtype=dtype, device=ranks.device)
    payload = partial(_carried, elements, 7, dtype, ranks.device)
    if ranks.is_first:
        _filled(buffer, payload)
    return (
        lambda: None if ranks.is_first else buffer.fill_(WRONG),
        lambda: dist.broadcast(buffer, src=0),
        lambda: _compare(buffer, payload),
    )


def _send_receive(ranks: Ranks, elements: int, dtype: torch.dtype) -> SetUp:
    """Set up a ring: each rank sends to the next and receives from the previous rank, like nccl-tests' sendrecv."""
    payload = partial(_carried, elements, dtype=dtype, device=ranks.device)
    following, before = (ranks.rank + 1) % ranks.world_size, (ranks.rank - 1) % ranks.world_size
    values = torch.empty(elements, dtype=dtype, device=ranks.device)
    _filled(values, lambda part: payload(ranks.rank, part=part))
    out = torch.zeros_like(values)

    def run() -> None:
        operations = [dist.P2POp(dist.isend, values, following), dist.P2POp(dist.irecv, out, before)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return lambda: out.fill_(WRONG), run, lambda: _compare(out, lambda part: payload(before, part=part))


COLLECTIVES = (
    Collective("all_reduce", lambda n: 2 * (n - 1) / n, _all_reduce, is_shared_out=False, is_in_place=True),
    Collective("all_gather", lambda n: (n - 1) / n, _all_gather),
    Collective("reduce_scatter", lambda n: (n - 1) / n, _reduce_scatter),
    Collective("all_to_all", lambda n: (n - 1) / n, _all_to_all),
    Collective("broadcast", lambda n: 1.0, _broadcast, is_shared_out=False),
)
SEND_RECEIVE = Collective("send_receive", lambda n: 1.0, _send_receive, is_shared_out=False)
