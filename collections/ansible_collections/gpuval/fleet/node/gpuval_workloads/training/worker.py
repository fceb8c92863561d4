"""One rank of the training workload: the training loop, from the first batch to the result."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..common.laps import LapStatistics, StepCurve, ThinnedSample, percentile
from ..common.ranks import Ranks, leave, run_rank, software_environment
from ..common.result import RESULT_FILE_VARIABLE, WorkloadResult
from .compiling import compile_layers
from .config import TrainingBounds, TrainingConfig, parse_arguments, wants_compile
from .pace import SLOW_RATIO, StepPace, StepTime, on_last_gradient, slowest
from .task import COURSE_REVISION, COURSE_STEPS, Task, adamw, build_task, course, update
from .validation import validate

PROGRESS_SECONDS = 5.0
PARTIAL_SECONDS = 30.0
LOSS_POINTS = 2000
TIMED_STEPS = 20_000
"""Most step times that a rank keeps, evenly spread over the training: a burn-in of hours has millions of steps."""


def main(ranks: Ranks, result: WorkloadResult) -> None:
    config = parse_arguments(sys.argv[1:])
    torch.manual_seed(config.seed)
    task = prepare(config, ranks, result)
    result.environment.update(software_environment(ranks), **task.environment)
    ranks.say(
        f"{task.environment['parameters']:,} parameters, {task.environment['precision']}, {task.environment['data']}"
    )
    model = parallel(task.model, ranks)
    if config.validation_only:
        validate(ranks, result, task.model, lambda: forward(task, model, ranks), config.seconds)
    else:
        result.fingerprints.update(training_setup=task.setup(), training_course=course(task, ranks.world_size))
        TrainingLoop(config, ranks, result, task, model).run()


def prepare(config: TrainingConfig, ranks: Ranks, result: WorkloadResult) -> Task:
    """Return the model, data and batch size to train; the model's layers are compiled if configured and possible."""
    is_compiled = wants_compile(config, ranks.accelerator.kind == "cuda" and torch.version.hip is None)
    task = build_task(config, ranks, is_compiled)
    if not is_compiled:
        result.add_metric("training_compile_failed_count", 0, "count")
        return task
    seconds, problem = compile_layers(task.model, partial(forward, task, task.model, ranks), ranks)
    result.add_metric("training_compile_seconds", seconds, "seconds")
    result.add_metric("training_compile_failed_count", 1 if problem else 0, "count")
    if not problem:
        return task
    ranks.say(f"not compiled ({problem}); training goes on without")
    result.environment["compile_problem"] = problem
    del task  # the batch may not fit without compilation: free the memory, build anew
    gc.collect()
    ranks.empty_cache()
    return build_task(config, ranks)


def parallel(model: nn.Module, ranks: Ranks) -> nn.Module:
    """Return the model wrapped so that each rank gets the mean of all ranks' gradients."""
    if ranks.world_size == 1:
        return model
    device_ids = [ranks.rank] if ranks.accelerator.is_gpu else None
    parameters = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in parameters else "broadcast_buffers"  # before 2.13
    options: dict[str, Any] = {buffers: False}
    return DistributedDataParallel(
        model, device_ids=device_ids, gradient_as_bucket_view=True, static_graph=True, **options
    )


def poison(model: nn.Module) -> None:
    """Inject a NaN into the last layer, on which every loss depends."""
    with torch.no_grad():
        list(model.parameters())[-1].view(-1)[0] = float("nan")


def forward(task: Task, model: nn.Module, ranks: Ranks) -> Tensor:
    inputs, targets = next(task.batches)
    device = ranks.accelerator.kind
    with torch.autocast(device, torch.bfloat16) if task.autocast else contextlib.nullcontext():
        return model(inputs, targets)


@dataclass
class TrainingLoop:
    """The training loop, with its losses, times and figures. Steps run in windows of about a second, in which nothing
    waits for the device. At a window's end the ranks exchange their losses (the only copy to the host), and rank 0 sets
    the number of steps of the next window, so that all stop together."""

    config: TrainingConfig
    ranks: Ranks
    result: WorkloadResult
    task: Task
    model: nn.Module
    losses: StepCurve = field(default_factory=lambda: StepCurve(LOSS_POINTS, COURSE_STEPS))
    step_times: ThinnedSample = field(default_factory=lambda: ThinnedSample(TIMED_STEPS))
    step_seconds: float = 0.0
    compute: LapStatistics = field(default_factory=LapStatistics)
    nonfinite: int = 0

    def run(self) -> None:
        self.bounds = TrainingBounds.of(self.config, self.task.steps_per_epoch, self.ranks.accelerator.is_gpu)
        self.optimizer = adamw(self.task, self.ranks.accelerator)
        self.model.train()
        hook = on_last_gradient(self.task.model, self._gradients_done)
        if self.ranks.accelerator.kind == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.started = self.measured_from = self.progress_at = self.partial_at = time.perf_counter()
        recent = 0.0
        while window := self.ranks.agree(self.bounds.next_window(len(self.losses), self._measured_seconds(), recent)):
            is_warmup = len(self.losses) < self.bounds.warmup_steps
            times = self._take(window)
            if self.result.state == "failure":
                break
            if is_warmup:
                self.measured_from = time.perf_counter()
                recent = times[-1].seconds
            else:
                self.step_times.extend(times)
                self.compute.extend(time.compute for time in times)
                seconds = sum(time.seconds for time in times)
                self.step_seconds += seconds
                recent = seconds / len(times)
            self._show_progress()
        hook.remove()
        self._report()

    def _take(self, window: int) -> list[StepTime]:
        """Run ``window`` steps; return this rank's times of each step. A loss that is not finite fails the result."""
        self.pace = StepPace(self.ranks.accelerator)
        self.ranks.follow(self.pace.events)
        losses = []
        for number in range(len(self.losses) + 1, len(self.losses) + window + 1):
            if number == self.config.inject_nan_step and self.ranks.rank == self.ranks.world_size - 1:
                poison(self.task.model)
            loss = forward(self.task, self.model, self.ranks)
            self.ranks.tick()
            loss.backward()
            self.pace.mark()
            update(self.optimizer, self.task, number)
            losses.append(loss.detach())
            self.pace.step_done()
        by_rank = self.ranks.gather_tensor(torch.stack(losses).float())
        self._judge(by_rank)
        return self.pace.times()

    def _gradients_done(self) -> None:
        self.pace.mark()
        self.ranks.tick()

    def _judge(self, by_rank: Tensor) -> None:
        """Record the losses of a window, of shape (ranks, steps), up to the first step with one that is not finite."""
        bad = (~torch.isfinite(by_rank)).T.nonzero().tolist()  # by step, then by rank
        self.nonfinite = len(bad)
        good = bad[0][0] if bad else by_rank.shape[1]
        self.losses.extend(by_rank[:, :good].mean(dim=0).tolist())
        if not bad:
            return
        step, rank = len(self.losses) + 1, bad[0][1]
        self.result.state = "failure"
        self.result.message = (
            f"the loss is not finite from step {step} on, first on rank {rank} ({self.ranks.scope_of(rank)}). If other "
            "nodes train with the same settings, suspect this part: look for XID and ECC errors and run the "
            "diagnostics stage; if they do not, lower --learning-rate or use --precision fp32"
        )

    def _measured_seconds(self) -> float:
        return time.perf_counter() - self.measured_from

    def _rate(self) -> float:
        return self.ranks.world_size * self.step_times.count * self.task.items_per_batch / self._measured_seconds()

    def _show_progress(self) -> None:
        now = time.perf_counter()
        is_early = len(self.losses) in (1, self.bounds.warmup_steps)
        if is_early or now - self.progress_at >= PROGRESS_SECONDS:
            self.progress_at = now
            rate = f"  {self._rate():,.0f} {self.task.item}/s" if self.step_times.count else ""
            self.ranks.say(f"step {len(self.losses)}  loss {self.losses.last:.4f}{rate}")
        if self.ranks.is_first and now - self.partial_at >= PARTIAL_SECONDS and os.environ.get(RESULT_FILE_VARIABLE):
            self.partial_at = now
            self._add_figures()
            self.result.write()

    def _add_figures(self) -> None:
        """Add the figures to the result that rank 0 knows without the other ranks."""
        add = self.result.add_metric
        add("training_duration_seconds", time.perf_counter() - self.started, "seconds")
        add("training_steps_count", len(self.losses), "count")
        add("training_processes_count", self.ranks.world_size, "count")
        add("training_nonfinite_count", self.nonfinite, "count")
        if self.losses:
            first_loss, last_loss = self.losses.first_and_last()
            add("training_loss_first", first_loss, "loss")
            add("training_loss_last", last_loss, "loss")
            for step, loss in self.losses.at.items():
                add(f"training_loss_step_{step}", loss, "loss", revision=COURSE_REVISION)
            steps, losses = self.losses.thinned()
            self.result.add_series("training_loss", "loss", steps, losses)
        if self.step_times.count:
            add(f"training_{self.task.item}_per_second", self._rate(), f"{self.task.item}/s")

    def _report(self) -> None:
        """Gather all ranks' figures; rank 0 completes the result with them."""
        self._add_figures()
        rank_report: dict[str, float | None] = {"peak_memory": None, "seconds": None}
        if self.ranks.accelerator.kind == "cuda":
            rank_report["peak_memory"] = torch.cuda.max_memory_allocated()
        if self.step_times.count:
            seconds, compute, wait = zip(*((t.seconds, t.compute, t.wait) for t in self.step_times.kept))
            rank_report["seconds"] = self.step_seconds / self.step_times.count
            rank_report["p50"], rank_report["p99"] = (percentile(seconds, percent) for percent in (50, 99))
            rank_report["compute"], rank_report["wait"] = median(compute), median(wait)
            rank_report["lost"] = self.compute.summary().lost_ratio
        everyone = self.ranks.gather(rank_report)
        add = self.result.add_metric
        rates = []
        for rank, other_report in enumerate(everyone):
            scope = self.ranks.scope_of(rank)
            if other_report["seconds"]:
                rates.append(self.task.flops_per_batch / other_report["seconds"] / 1e12)
                add("training_model_tflops", rates[-1], "TFLOP/s", scope)
                add("training_step_p50_seconds", other_report["p50"], "seconds", f"rank:{rank}")
                add("training_step_p99_seconds", other_report["p99"], "seconds", f"rank:{rank}")
                add("training_compute_p50_seconds", other_report["compute"], "seconds", scope)
                add("training_compute_lost_ratio", other_report["lost"], "ratio", scope)
                add("training_wait_p50_seconds", other_report["wait"], "seconds", scope)
            if other_report["peak_memory"] is not None:
                add("training_peak_memory_bytes", other_report["peak_memory"], "bytes", scope)
        if rates:
            add("training_model_tflops", sum(rates) / len(rates), "TFLOP/s")
        remarks = self._remarks([other_report["compute"] for other_report in everyone if other_report["seconds"]])
        if self.result.state == "running":
            first_loss, last_loss = self.losses.first_and_last()
            rate = self.result.metric(f"training_{self.task.item}_per_second")
            self.result.message = (
                f"{len(self.losses)} steps on {self.ranks.world_size} x {self.ranks.accelerator.kind}: "
                f"loss {first_loss:.3f} to {last_loss:.3f}, {rate:,.0f} {self.task.item}/s{remarks}"
            )

    def _remarks(self, compute_seconds: list[float]) -> str:
        """Add ratios of the ranks' median ``compute_seconds`` per step to the result; return remarks for a message."""
        remarks = ""
        if compute_seconds:
            fastest = min(compute_seconds)
            for rank, seconds in enumerate(compute_seconds):
                ratio = seconds / fastest if fastest > 0 else 1.0
                self.result.add_metric("training_compute_ratio", ratio, "ratio", self.ranks.scope_of(rank))
            part, ratio = slowest(compute_seconds)
            self.result.add_metric("training_slowest_compute_ratio", ratio, "ratio")
            if ratio > SLOW_RATIO:
                remarks += (
                    f"; the others wait for {self.ranks.scope_of(part)}, whose own work on a step takes {ratio:.2f} "
                    "times the median of all"
                )
        problem = self.result.environment.get("compile_problem")
        return f"{remarks}; not compiled ({problem})" if problem else remarks


if __name__ == "__main__":
    leave(run_rank(main))
