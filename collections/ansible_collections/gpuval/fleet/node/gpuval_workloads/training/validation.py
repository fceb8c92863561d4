"""Option ``--validation-only`` of the training: checks devices, collectives and one step's gradients, and ends."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..common.ranks import GIB, Clock, Ranks
from ..common.result import WorkloadResult
from ..diagnostics.matmul import ERROR_LIMITS
from ..diagnostics.run import BASIC_PARTS, run_parts, wrong

DEFAULT_CHECK_SECONDS = 5.0


@dataclass(frozen=True)
class Gradients:
    """The gradients of one backward pass on all ranks: non-finite elements, elements that differ, and seconds."""

    nonfinite_count: int
    mismatch_count: int
    seconds: float


def validate(
    ranks: Ranks, result: WorkloadResult, model: nn.Module, next_loss: Callable[[], Tensor], seconds: float | None
) -> None:
    """Run the checks of the diagnostics and one forward and backward pass; wrong values fail the result."""
    devices = result.environment["devices"]
    for device in devices:
        ranks.say(f"gpu:{device['index']} {device['name']}, {device['memory_bytes'] / GIB:.1f} GiB")
    gradients = one_step(ranks, model, next_loss)
    model.zero_grad(set_to_none=True)
    figures = run_parts(ranks, result, seconds or DEFAULT_CHECK_SECONDS, BASIC_PARTS)
    add = result.add_metric
    add("training_processes_count", ranks.world_size, "count")
    add("training_nonfinite_count", gradients.nonfinite_count, "count")
    add("training_gradient_mismatch_count", gradients.mismatch_count, "count")
    add("training_validation_step_seconds", gradients.seconds, "seconds")
    complaints = complain(ranks, gradients, figures)
    if complaints:
        result.state = "failure"
        result.message = (
            f"validation failed: {'; '.join(complaints)}. Wrong results are not a matter of settings: take the node "
            "out, look for XID and ECC errors and links that are down, and run the diagnostics stage"
        )
        return
    names = sorted({device["name"] for device in devices}) or ["CPU"]
    software = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    result.message = (
        f"validated without training: {ranks.world_size} x {', '.join(names)}"
        f"{f', {software}' if devices else ''}: matrix products, memory, all_reduce, all_gather and gradients are right"
    )


def one_step(ranks: Ranks, model: nn.Module, next_loss: Callable[[], Tensor]) -> Gradients:
    """Run one forward and backward pass and compare the gradients of all ranks, which must be equal bit by bit."""
    clock = Clock(ranks.accelerator)
    begin = clock.mark()
    loss = next_loss()
    loss.backward()
    end = clock.mark()
    counts = torch.zeros(2, dtype=torch.int64, device=ranks.device)
    counts[0] += int(not torch.isfinite(loss))
    for parameter in model.parameters():
        gradient = cast("Tensor", parameter.grad)
        counts[0] += (~torch.isfinite(gradient)).sum()
        counts[1] += differing(gradient)
    dist.all_reduce(counts)
    nonfinite, mismatches = counts.tolist()
    return Gradients(nonfinite, mismatches, clock.laps((begin, end))[0])


def differing(tensor: Tensor) -> Tensor:
    """Return how many elements of this rank's tensor differ from rank 0's; all, also NaNs, are compared as bits."""
    bits = tensor.contiguous().view(torch.int16 if tensor.element_size() == 2 else torch.int32)
    first_rank_bits = bits.clone()
    dist.broadcast(first_rank_bits.view(torch.uint8), src=0)
    return (bits != first_rank_bits).sum()


def complain(ranks: Ranks, gradients: Gradients, everyone: list[list[dict[str, Any]]]) -> list[str]:
    """Return sentences on wrong gradients and figures. ``everyone``: the figures of the diagnostics, of each rank."""
    complaints = []
    if gradients.nonfinite_count:
        complaints.append(f"{gradients.nonfinite_count} gradient values are not finite")
    if gradients.mismatch_count:
        complaints.append(f"{gradients.mismatch_count} gradient values differ between ranks")
    for rank, figures in enumerate(everyone):
        where = ranks.scope_of(rank)
        for figure in figures:
            precision = re.fullmatch(r"diagnostics_matmul_(\w+)_error_ratio", figure["name"])
            value = math.nan if figure["value"] is None else figure["value"]
            if precision and not value <= ERROR_LIMITS[precision[1]]:  # NaN fails, too
                limit = ERROR_LIMITS[precision[1]]
                complaints.append(f"{where}: {precision[1]} product off by {value:.2g}, limit {limit:g}")
        complaints += [f"{where}: {figure['value']} x {_WRONG[figure['name']]}" for figure in wrong(figures)]
    return complaints


_WRONG = {
    "diagnostics_memory_error_count": "an element wrong after a copy in memory",
    "diagnostics_collective_error_count": "an element wrong after a collective",
}
