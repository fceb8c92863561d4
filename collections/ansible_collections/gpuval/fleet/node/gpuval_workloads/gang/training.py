"""One rank of a gang's training: DDP within each node alone, DDP across all nodes, then DeepSpeed ZeRO.

The three train the same model on the same data in one run, so that what the network costs (the second beside the first)
and what sharding costs or saves (the third beside the second) are ratios of figures with all else alike.
"""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..common.ranks import Ranks, leave, run_rank, software_environment
from ..common.result import WorkloadResult
from ..training.task import COURSE_REVISION, COURSE_STEPS, Task, adamw, build_task, course, set_rate, update
from . import zero
from .collectives import absent_nodes
from .config import GangTrainingConfig, parse_arguments
from .phases import NONFINITE, TrainingPhase, train

COMPARED_SHARE = 0.25
"""Of the seconds, for each of the two trainings that ZeRO is held against."""


def main(ranks: Ranks, result: WorkloadResult) -> None:
    config = parse_arguments(sys.argv[1:])
    assert isinstance(config, GangTrainingConfig)
    torch.manual_seed(config.seed)
    engine_version = zero.version()  # at once where it is not there
    result.environment.update(software_environment(ranks), deepspeed=engine_version, zero_stage=config.zero)
    nodes = _nodes(ranks)
    result.environment["nodes"] = len(nodes)
    groups = [dist.new_group(list(node)) for node in nodes]  # every rank has to make all of them
    node_group = groups[next(i for i, node in enumerate(nodes) if ranks.rank in node)]

    phases: dict[str, TrainingPhase] = {}
    if len(nodes) > 1:
        phases["node"] = _distributed(
            "DDP on each node alone", config, ranks, config.seconds * COMPARED_SHARE, node_group
        )
        _free_memory(ranks)
    phases["ddp"] = _distributed("DDP across the gang", config, ranks, config.seconds * COMPARED_SHARE, None)
    _free_memory(ranks)
    task = build_task(config.of_one_node(), ranks)
    result.environment.update(task.environment)
    result.fingerprints["gang_course"] = f"{course(task, ranks.world_size)} by ZeRO-{config.zero}"
    phases["zero"], spread = _sharded(task, config, ranks)
    _report(ranks, result, task, phases, spread, len(nodes))


def _nodes(ranks: Ranks) -> list[range]:
    """The ranks of every node, in order."""
    bounds = (ranks.of_node.start, ranks.of_node.stop)
    return [range(*ends) for ends in sorted(set(map(tuple, ranks.gather(bounds))))]


def _distributed(
    name: str, config: GangTrainingConfig, ranks: Ranks, seconds: float, group: dist.ProcessGroup | None
) -> TrainingPhase:
    """Train by PyTorch's DDP in a group of ranks."""
    task = build_task(config.of_one_node(), ranks)
    size = dist.get_world_size(group)
    model: nn.Module = task.model
    if size > 1:
        ids = [ranks.local_rank] if ranks.accelerator.is_gpu else None
        model = DistributedDataParallel(
            model, device_ids=ids, process_group=group, gradient_as_bucket_view=True, static_graph=True
        )
    optimizer, numbers = adamw(task, ranks.accelerator), itertools.count(1)

    def step() -> Tensor:
        loss = model(*next(task.batches))
        loss.backward()
        update(optimizer, task, next(numbers))
        return loss.detach()

    ranks.say(f"{name}: {size} processes each, {seconds:.0f} s")
    return train(name, ranks, step, seconds)


def _free_memory(ranks: Ranks) -> None:
    """Give back the memory of the training before, whose gradients' hooks hold it in a circle."""
    gc.collect()
    ranks.empty_cache()


def _sharded(task: Task, config: GangTrainingConfig, ranks: Ranks) -> tuple[TrainingPhase, float]:
    """Train by ZeRO; return what it saw, and by how much the ranks' losses on one batch differ in the end."""
    optimizer, numbers = adamw(task, ranks.accelerator), itertools.count(1)
    engine = zero.engine(task, config.zero, optimizer, ranks)

    def step() -> Tensor:
        loss = engine(*next(task.batches))
        engine.backward(loss)
        set_rate(optimizer, task, next(numbers))
        engine.step()
        return loss.detach()

    ranks.say(f"ZeRO-{config.zero} across {ranks.world_size} processes, {config.seconds:.0f} s")
    phase = train(f"ZeRO-{config.zero}", ranks, step, config.seconds)
    return phase, _spread(engine, task, ranks)


def _spread(engine: nn.Module, task: Task, ranks: Ranks) -> float:
    """Greatest less least loss of all ranks on rank 0's next batch, as a share: with the same weights it is 0 or so."""
    batch = [tensor.clone() for tensor in next(task.batches)]
    for tensor in batch:
        dist.broadcast(tensor, src=0)
    engine.eval()
    with torch.no_grad():
        loss = engine(*batch).float()
    losses = ranks.gather_tensor(loss.reshape(1))
    return float((losses.max() - losses.min()) / losses.abs().max())


def _report(
    ranks: Ranks, result: WorkloadResult, task: Task, phases: dict[str, TrainingPhase], spread: float, nodes: int
) -> None:
    """Complete the node's result: its own GPUs' figures, and those of the gang."""
    everyone = ranks.gather({name: phase.steps.summary() for name, phase in phases.items()})
    add, zero_phase = result.add_metric, phases["zero"]
    rates = {}
    for name in phases:
        # All wait for the slowest; alone, the nodes do not wait for each other, and their rates add up.
        rates[name] = sum(task.items_per_batch / rank_rates[name][0] for rank_rates in everyone)
        for rank in ranks.of_node:
            tflops = task.flops_per_batch / everyone[rank][name][0] / 1e12
            add(f"gang_{name}_model_tflops", tflops, "TFLOP/s", ranks.scope_of(rank))
    for rank in ranks.of_node:
        add("gang_zero_step_p50_seconds", everyone[rank]["zero"][1], "seconds", f"rank:{rank}")
    add("gang_nodes_count", nodes, "count")
    add("gang_absent_nodes_count", absent_nodes(nodes), "count")
    add("gang_processes_count", ranks.world_size, "count")
    for name, rate in rates.items():
        add(f"gang_{name}_tokens_per_second", rate, "tokens/s")
        mean = statistics.fmean(task.flops_per_batch / rank_rates[name][0] / 1e12 for rank_rates in everyone)
        add(f"gang_{name}_model_tflops", mean, "TFLOP/s")
    if "node" in rates:
        add("gang_scaling_ratio", rates["ddp"] / rates["node"], "ratio")
    add("gang_zero_ratio", rates["zero"] / rates["ddp"], "ratio")
    add("gang_loss_first", zero_phase.losses[0], "loss")
    add("gang_loss_last", zero_phase.losses[-1], "loss")
    for step in COURSE_STEPS:
        if step <= len(zero_phase.losses):
            add(f"gang_loss_step_{step}", zero_phase.losses[step - 1], "loss", revision=COURSE_REVISION)
    add("gang_loss_spread_ratio", spread, "ratio")
    add("gang_steps_count", len(zero_phase.losses), "count")
    add(NONFINITE, 0, "count")  # else the training has ended at once
    result.add_series("gang_loss", "loss", range(1, len(zero_phase.losses) + 1), zero_phase.losses)
    scaling = f", {rates['ddp'] / rates['node']:.2f} of the nodes alone" if "node" in rates else ""
    result.message = (
        f"{nodes} nodes, {ranks.world_size} processes: ZeRO {rates['zero']:,.0f} tokens/s, DDP {rates['ddp']:,.0f}"
        f"{scaling}; loss {zero_phase.losses[0]:.3f} to {zero_phase.losses[-1]:.3f}"
    )


if __name__ == "__main__":
    begun = time.perf_counter()
    code = run_rank(main)
    if not int(os.environ["RANK"]):
        print(f"all phases took {time.perf_counter() - begun:.0f} s", flush=True)
    leave(code)
