"""One rank of multi-node trainings: DDP within each node alone, DDP across all nodes, then DeepSpeed ZeRO.

All three train the same model on the same data in one run. So the cost of the network (second over first) and of
sharding (third over second) are ratios of otherwise equal measurements.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..common.laps import LapStatistics
from ..common.ranks import Clock, Ranks, leave, run_rank, software_environment
from ..common.result import WorkloadFailure, WorkloadResult
from ..training.task import (
    COURSE_REVISION,
    COURSE_STEPS,
    MAX_GRADIENT_NORM,
    Task,
    adamw,
    build_task,
    course,
    set_rate,
    update,
)
from . import wrong_values
from .collectives import absent_nodes
from .config import GangTrainingConfig, parse_arguments, template

COMPARED_SHARE = 0.25
"""Duration of each of the two DDP trainings, as a share of the duration of the ZeRO training."""
TEMPLATE = "deepspeed.json"
NONFINITE = "gang_nonfinite_count"
"""Name of a metric: number of losses that are not finite, of all ranks, up to the end of the first window with one."""
WARMUP_STEPS = 3
WINDOW_SECONDS = 1.0
MOST_STEPS = 50
PROGRESS_SECONDS = 5.0

#: Function that runs one training step and returns its loss.
Step = Callable[[], Tensor]


def main(ranks: Ranks, result: WorkloadResult) -> None:
    config = parse_arguments(sys.argv[1:])
    assert isinstance(config, GangTrainingConfig)
    torch.manual_seed(config.seed)
    engine_version = deepspeed_version()  # fails at once if DeepSpeed is missing
    result.environment.update(software_environment(ranks), deepspeed=engine_version, zero_stage=config.zero)
    nodes = _nodes(ranks)
    result.environment["nodes"] = len(nodes)
    groups = [dist.new_group(list(node)) for node in nodes]  # every rank must create all groups
    node_group = groups[next(i for i, node in enumerate(nodes) if ranks.rank in node)]

    phases: dict[str, TrainingPhase] = {}
    for name, title, group in (("node", "DDP on each node alone", node_group), ("ddp", "DDP across the gang", None)):
        if name == "ddp" or len(nodes) > 1:
            phases[name] = _distributed(title, config, ranks, group)
            gc.collect()  # reference cycles of gradient hooks hold the training's memory
            ranks.empty_cache()
    task = build_task(config.of_one_node(), ranks)
    result.environment.update(task.environment)
    result.fingerprints["gang_course"] = f"{course(task, ranks.world_size)} by ZeRO-{config.zero}"
    phases["zero"], spread = _train_sharded(task, config, ranks)
    _report(ranks, result, task, phases, spread, len(nodes))


def _nodes(ranks: Ranks) -> list[range]:
    """Return the global ranks of each node, as one range per node."""
    bounds = (ranks.of_node.start, ranks.of_node.stop)
    return [range(*ends) for ends in sorted(set(map(tuple, ranks.gather(bounds))))]


def _distributed(name: str, config: GangTrainingConfig, ranks: Ranks, group: dist.ProcessGroup | None) -> TrainingPhase:
    """Train by PyTorch's DDP in a group of ranks (None: all ranks); return losses and step times."""
    seconds = config.seconds * COMPARED_SHARE
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


def _train_sharded(task: Task, config: GangTrainingConfig, ranks: Ranks) -> tuple[TrainingPhase, float]:
    """Train by ZeRO; return losses and step times, and the relative spread of the ranks' losses on one further batch,
    which is 0 if all ranks have equal weights."""
    optimizer, numbers = adamw(task, ranks.accelerator), itertools.count(1)
    engine = make_engine(task, config.zero, optimizer, ranks)

    def step() -> Tensor:
        loss = engine(*next(task.batches))
        engine.backward(loss)
        set_rate(optimizer, task, next(numbers))
        engine.step()
        return loss.detach()

    ranks.say(f"ZeRO-{config.zero} across {ranks.world_size} processes, {config.seconds:.0f} s")
    phase = train(f"ZeRO-{config.zero}", ranks, step, config.seconds)
    batch = [tensor.clone() for tensor in next(task.batches)]
    for tensor in batch:
        dist.broadcast(tensor, src=0)
    engine.eval()
    with torch.no_grad():
        loss = engine(*batch).float()
    losses = ranks.gather_tensor(loss.reshape(1))
    return phase, float((losses.max() - losses.min()) / losses.abs().max())


def _report(
    ranks: Ranks, result: WorkloadResult, task: Task, phases: dict[str, TrainingPhase], spread: float, nodes: int
) -> None:
    """Add figures of this node's GPUs and of all nodes to the node's result. ``spread``: relative spread of the ranks'
    losses on one batch after the ZeRO training; ``nodes``: number of nodes."""
    everyone = ranks.gather({name: phase.steps.summary() for name, phase in phases.items()})
    add, zero_phase = result.add_metric, phases["zero"]
    rates = {}
    for name in phases:
        # In the gang, all wait for the slowest; nodes alone do not wait for each other, and their rates add up.
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
    add(NONFINITE, 0, "count")  # otherwise the training would have ended at once
    result.add_series("gang_loss", "loss", range(1, len(zero_phase.losses) + 1), zero_phase.losses)
    scaling = f", {rates['ddp'] / rates['node']:.2f} of the nodes alone" if "node" in rates else ""
    result.message = (
        f"{nodes} nodes, {ranks.world_size} processes: ZeRO {rates['zero']:,.0f} tokens/s, DDP {rates['ddp']:,.0f}"
        f"{scaling}; loss {zero_phase.losses[0]:.3f} to {zero_phase.losses[-1]:.3f}"
    )


@dataclass
class TrainingPhase:
    """One of the trainings on this rank: the mean loss of all ranks for each step, and this rank's step times."""

    name: str
    losses: list[float] = field(default_factory=list)
    steps: LapStatistics = field(default_factory=LapStatistics)


def train(name: str, ranks: Ranks, step: Step, seconds: float) -> TrainingPhase:
    """Run steps for ``seconds`` after a warm-up. Raises ``WorkloadFailure`` on all ranks at once for a loss that is not
    finite, which the node's first rank notes: a retry never turns it into PASS."""
    phase, recent, reported = TrainingPhase(name), 0.0, time.perf_counter()
    _window(phase, ranks, step, 1)  # the first step may build kernels
    _window(phase, ranks, step, WARMUP_STEPS - 1)
    phase.steps = LapStatistics()
    while True:
        seconds_left = seconds - phase.steps.seconds
        count = max(1, min(MOST_STEPS, int(min(WINDOW_SECONDS, seconds_left) / recent))) if recent else 1
        count = ranks.agree(count if seconds_left > 0 or not phase.steps.count else 0)
        if not count:
            return phase
        before = phase.steps.seconds
        _window(phase, ranks, step, count)
        recent = (phase.steps.seconds - before) / count
        if time.perf_counter() - reported > PROGRESS_SECONDS:
            reported = time.perf_counter()
            ranks.say(f"{name}: step {len(phase.losses)}  loss {phase.losses[-1]:.4f}  {recent:.3f} s a step")


def _window(phase: TrainingPhase, ranks: Ranks, step: Step, count: int) -> None:
    clock = Clock(ranks.accelerator)
    marks = [clock.mark()]
    losses = []
    for _ in range(count):
        losses.append(step())
        ranks.tick()
        marks.append(clock.mark())
    phase.steps.extend(clock.laps(marks))
    by_rank = ranks.gather_tensor(torch.stack(losses).float())
    bad = (~torch.isfinite(by_rank)).T.nonzero().tolist()
    if bad:
        if ranks.local_rank == 0:
            wrong_values.keep(ranks.rank, NONFINITE, len(bad))
        number = bad[0][0]
        culprits = [rank for step, rank in bad if step == number]
        node_of = ranks.gather(ranks.of_node.start)
        is_one_node = len({node_of[rank] for rank in culprits}) == 1
        named = (
            f"rank {culprits[0]}" if len(culprits) == 1 else f"{len(culprits)} ranks at once, {culprits[0]} among them"
        )
        suspects = "their node" if is_one_node else "all nodes"  # gradients spread it to all ranks of the training
        message = (
            f"{phase.name}: the loss is not finite from step {len(phase.losses) + number + 1} on, first on {named}: "
            f"run the diagnostics and fingerprint stages on {suspects}"
        )
        raise WorkloadFailure(message, culprits)
    phase.losses += by_rank.mean(dim=0).tolist()


def deepspeed_version() -> str:
    """Return DeepSpeed's version. Raises ``WorkloadFailure`` if it is not installed."""
    try:
        import deepspeed
    except ImportError as error:
        raise WorkloadFailure(
            f"DeepSpeed cannot be imported ({error}): use an image that has it (docker/training), or install it beside "
            "PyTorch on the nodes (requirements/gangs.txt)"
        ) from None
    return deepspeed.__version__


def make_engine(task: Task, stage: int, optimizer: torch.optim.Optimizer, ranks: Ranks):
    """Return DeepSpeed's engine; ZeRO ``stage`` 1 shards optimizer state, 2 also gradients, 3 also weights."""
    import deepspeed

    if not ranks.accelerator.is_gpu:  # this kernel, for ranks of one machine, would have to be compiled first
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    text = template(TEMPLATE).substitute(
        batch=task.environment["batch_size_per_process"],
        stage=stage,
        bf16=json.dumps(next(task.model.parameters()).dtype == torch.bfloat16),
        norm=MAX_GRADIENT_NORM,
    )
    settings = json.loads(text)
    ranks.say(f"{TEMPLATE}: {json.dumps(settings)}")
    deepspeed.init_distributed(dist_backend=ranks.accelerator.backend, auto_mpi_discovery=False, verbose=False)
    model_engine, *_ = deepspeed.initialize(
        model=task.model,
        optimizer=optimizer,
        model_parameters=task.model.parameters(),
        config=settings,
        dist_init_required=False,
    )
    return model_engine


if __name__ == "__main__":
    begun = time.perf_counter()
    code = run_rank(main)
    if not int(os.environ["RANK"]):
        print(f"all phases took {time.perf_counter() - begun:.0f} s", flush=True)
    leave(code)
