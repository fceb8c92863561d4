"""What a training is told, and what it decides for itself when told ``auto``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..common.arguments import positive_float, positive_int
from .models.shapes import SIZES

DEFAULT_SECONDS = 60.0
_GB = 10**9


@dataclass(frozen=True)
class Config:
    """A training as asked for. None means: decide by the device."""

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
    compile: bool = False
    seed: int = 1234
    processes: int | None = None
    validation_only: bool = False
    inject_nan_step: int | None = None


def parse_arguments(arguments: Sequence[str]) -> Config:
    """Return the configuration of a command line; ends the program with exit code 2 when it makes no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m gpuval_workloads.training",
        description="Train a model from scratch on every GPU of the node, or on its CPU.",
        epilog=f"The first bound that is reached ends the training; without one it is --seconds {DEFAULT_SECONDS:g}.",
    )
    add = parser.add_argument
    add("--model", choices=["llama", "resnet18"], default=Config.model)
    add("--size", choices=["auto", *SIZES], default=Config.size, help="of llama; auto: by the device's memory")
    add("--batch-size", type=positive_int, help="sequences or images per process and step")
    add("--sequence-length", type=positive_int, help="tokens per sequence")
    add("--epochs", type=positive_int, help="passes over the data")
    add("--steps", type=positive_int, help="optimizer steps, warm-up included")
    add("--seconds", type=positive_float, help="of training after the warm-up; one step at least")
    add("--data-dir", type=Path, help="folder of cifar-10-batches-py or cifar-10-batches-bin; else generated data")
    add("--learning-rate", type=positive_float)
    add("--precision", choices=["auto", "bf16", "fp32"], default=Config.precision, help="auto: bf16 on GPUs")
    add("--compile", action="store_true", help="torch.compile the model")
    add("--seed", type=int, default=Config.seed)
    add("--processes", type=positive_int, help="default: one per GPU; on a CPU 2 where there are 2 cores")
    add("--validation-only", action="store_true", help="check devices, collectives and gradients; do not train")
    add("--inject-nan-step", type=positive_int, help="put a NaN into the last rank's weights before this step")
    config = Config(**vars(parser.parse_args(list(arguments))))
    if config.model == "llama" and config.data_dir:
        parser.error("--data-dir holds images: use it with --model resnet18")
    if config.model == "resnet18" and (config.size != "auto" or config.sequence_length):
        parser.error("--size and --sequence-length belong to --model llama")
    return config


def llama_size(config: Config, is_gpu: bool, memory_bytes: int) -> str:
    """Return the size asked for, or the one that fills the device: 1b trains in 60 GB at its default batch."""
    if config.size != "auto":
        return config.size
    if not is_gpu:
        return "tiny"
    return "1b" if memory_bytes >= 60 * _GB else "small"


def precision(config: Config, is_gpu: bool) -> str:
    """Return bf16 or fp32, as asked or by the device."""
    if config.precision != "auto":
        return config.precision
    return "bf16" if is_gpu else "fp32"
