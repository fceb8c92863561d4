"""Settings of a training, what their ``auto`` means on a device, and when the training ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..common.arguments import positive_float, positive_int, workload_parser
from .models.shapes import SIZES

DEFAULT_SECONDS = 60.0
COMPILE_PAYS_SECONDS = 120.0
"""Shortest training to compile: compiling takes 37 to 52 s, makes steps a tenth to a sixth faster (1b on an H200)."""
WINDOW_SECONDS = 1.0
MAX_WINDOW_STEPS = 100
_GB = 10**9


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of a training. None limits nothing (epochs, steps, seconds); elsewhere it means the default."""

    model: str = "llama"
    size: str = "auto"
    batch_size: int | None = None
    sequence_length: int | None = None
    epochs: int | None = None
    steps: int | None = None
    seconds: float | None = None
    data_dir: Path | None = None
    learning_rate: float | None = None
    precision: str = "auto"
    compile: str = "auto"
    seed: int = 1234
    processes: int | None = None
    validation_only: bool = False
    inject_nan_step: int | None = None


def parse_arguments(arguments: Sequence[str]) -> TrainingConfig:
    bounds = f"The first bound that is reached ends the training; without one it is --seconds {DEFAULT_SECONDS:g}."
    description = "Train a model from scratch on every GPU of the node, or on its CPU."
    parser = workload_parser("training", description, epilog=bounds)
    add = parser.add_argument
    add("--model", choices=["llama", "resnet18"], default=TrainingConfig.model)
    add("--size", choices=["auto", *SIZES], default=TrainingConfig.size, help="of llama; auto: by the device's memory")
    add("--batch-size", type=positive_int, help="sequences or images per process and step")
    add("--sequence-length", type=positive_int, help="tokens per sequence")
    add("--epochs", type=positive_int, help="passes over the data")
    add("--steps", type=positive_int, help="optimizer steps, warm-up included")
    add("--seconds", type=positive_float, help="duration after the warm-up; one step at least")
    add("--data-dir", type=Path, help="folder of cifar-10-batches-py or cifar-10-batches-bin; else generated data")
    add("--learning-rate", type=positive_float)
    add("--precision", choices=["auto", "bf16", "fp32"], default=TrainingConfig.precision, help="auto: bf16 on GPUs")
    compiling = f"torch.compile the layers; auto: llama on NVIDIA GPUs, for {COMPILE_PAYS_SECONDS:g} s or longer"
    modes = ("auto", "always", "never")
    add("--compile", nargs="?", choices=modes, const="always", default=TrainingConfig.compile, help=compiling)
    add("--seed", type=int, default=TrainingConfig.seed)
    add("--processes", type=positive_int, help="default: 1 per GPU; on a CPU 2 if it has 2 cores")
    add("--validation-only", action="store_true", help="check devices, collectives and gradients; do not train")
    add("--inject-nan-step", type=positive_int, help="put a NaN into the last rank's weights before this step")
    config = TrainingConfig(**vars(parser.parse_args(list(arguments))))
    if config.model == "llama" and config.data_dir:
        parser.error("--data-dir holds images: use it with --model resnet18")
    if config.model == "resnet18" and (config.size != "auto" or config.sequence_length):
        parser.error("--size and --sequence-length belong to --model llama")
    return config


def llama_size(config: TrainingConfig, is_gpu: bool, memory_bytes: int) -> str:
    """Return the configured model size, or the one that fills the device: 1b needs 60 GB at its default batch."""
    if config.size != "auto":
        return config.size
    if not is_gpu:
        return "tiny"
    return "1b" if memory_bytes >= 60 * _GB else "small"


def llama_batch_size(config: TrainingConfig, size: str, is_compiled: bool, memory_bytes: int) -> int:
    """Return the configured number of sequences per step, or the fastest that fits into the device's memory: a compiled
    1b keeps less for its backward pass, 24 fit in 140 GB and gave 471 TFLOP/s against 450 with 8."""
    if config.batch_size:
        return config.batch_size
    return 24 if size == "1b" and is_compiled and memory_bytes >= 135 * _GB else SIZES[size].batch_size


def wants_compile(config: TrainingConfig, is_nvidia: bool) -> bool:
    """Return whether to compile: as configured, else if it is known to work and the training is long enough."""
    if config.validation_only or config.compile == "never":
        return False
    if config.compile == "always":
        return True
    is_long = not (config.steps or config.epochs) and (config.seconds or DEFAULT_SECONDS) >= COMPILE_PAYS_SECONDS
    return is_nvidia and config.model == "llama" and is_long


def resnet18_batch_size(config: TrainingConfig, is_gpu: bool) -> int:
    """Return the configured number of images per step, or a number that keeps the device busy."""
    return config.batch_size or (2048 if is_gpu else 32)


def gpu_setups(config: TrainingConfig, is_nvidia: bool, memory_bytes: int) -> list[str]:
    """Return the setup texts that a GPU with this memory may report: compiled, or eager if compilation fails."""
    dtype, setups = precision(config, is_gpu=True), []
    for is_compiled in (True, False) if wants_compile(config, is_nvidia) else (False,):
        size, batch = None, [resnet18_batch_size(config, is_gpu=True)]
        if config.model == "llama":
            size = llama_size(config, True, memory_bytes)
            length = config.sequence_length or SIZES[size].sequence_length
            batch = [llama_batch_size(config, size, is_compiled, memory_bytes), length]
        setups.append(setup_text(config.model, size, batch, dtype, is_compiled))
    return setups


def setup_text(model: str, size: str | None, batch: Sequence[int], dtype: str, is_compiled: bool) -> str:
    """Return all that determines a training's speed as one text; ``batch``: samples, or sequences and their length."""
    name = f"{model}-{size}" if size else model
    return f"{name} {'x'.join(map(str, batch))} {dtype} {'compiled' if is_compiled else 'eager'}"


def precision(config: TrainingConfig, is_gpu: bool) -> str:
    """Return bf16 or fp32, as configured or by the device."""
    if config.precision != "auto":
        return config.precision
    return "bf16" if is_gpu else "fp32"


@dataclass(frozen=True)
class TrainingBounds:
    """Decides when a training ends, and the number of steps until the next decision; rank 0 decides for all. The first
    limit counts: ``max_steps`` (with warm-up), or ``seconds`` after the warm-up; at least one is set."""

    warmup_steps: int
    max_steps: int | None
    seconds: float | None

    @classmethod
    def of(cls, config: TrainingConfig, steps_per_epoch: int, is_gpu: bool) -> TrainingBounds:
        limits = [config.steps, config.epochs and config.epochs * steps_per_epoch]
        max_steps = min((limit for limit in limits if limit), default=None)
        seconds = config.seconds or (None if max_steps else DEFAULT_SECONDS)
        warmup = 5 if is_gpu else 2
        return cls(warmup if max_steps is None else min(warmup, max_steps - 1), max_steps, seconds)

    def next_window(self, steps_done: int, measured_seconds: float, step_seconds: float) -> int:
        """Return the number of steps until all ranks exchange their losses again; 0 ends the training, at least one
        step after the warm-up. ``steps_done`` counts all steps, ``measured_seconds`` runs from the end of the warm-up,
        ``step_seconds`` is a recent step's time."""
        if steps_done < self.warmup_steps:
            # The first step may compile kernels for minutes: report after it.
            return self.warmup_steps - steps_done if steps_done else 1
        window = MAX_WINDOW_STEPS
        if step_seconds > 0:
            window = max(1, min(window, int(WINDOW_SECONDS / step_seconds)))
        if self.max_steps is not None:
            window = min(window, self.max_steps - steps_done)
        if self.seconds is not None and steps_done > self.warmup_steps:
            seconds_left = self.seconds - measured_seconds
            if seconds_left <= 0:
                return 0
            if step_seconds > 0:
                window = min(window, max(1, round(seconds_left / step_seconds)))
        return window
