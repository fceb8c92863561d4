"""The task of a training: model, data, items and FLOPs of a step; and the update of weights, whose warm-up and bounded
gradients give the loss the same course for the same seed (docs/design/loss.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..common.device import TorchDevices
from ..common.ranks import Ranks
from . import data
from .config import TrainingConfig, llama_batch_size, llama_size, precision, resnet18_batch_size, setup_text
from .models import shapes
from .models.llama import Llama
from .models.resnet import ResNet18
from .models.shapes import SIZES

WARMUP_STEPS = 40
MAX_GRADIENT_NORM = 1.0
COURSE_REVISION = 1
"""Revision of the metrics of the loss: raise it with any change of constants, rates, data or weights that moves it."""
COURSE_STEPS = (20, 40, 80, 320, 1280)
"""Steps whose loss is compared: ``quick`` on a GPU reaches the third, ``standard`` the fourth, a CPU all."""

# CIFAR-10's mean and standard deviation per channel, of bytes; close enough for the generated images too.
IMAGE_MEAN = (125.3, 123.0, 113.9)
IMAGE_STD = (63.0, 62.1, 66.7)


@dataclass
class Task:
    """What the training loop trains. ``item``: ``tokens`` or ``samples``; items and FLOPs are per batch of one rank."""

    model: nn.Module
    batches: Iterator[tuple[Tensor, Tensor]]
    steps_per_epoch: int
    item: str
    items_per_batch: int
    flops_per_batch: int
    learning_rate: float
    autocast: bool
    environment: dict

    def setup(self) -> str:
        """Return a text of all that determines the training's speed: a GPU model's floors hold for one such text."""
        values = self.environment
        batch = [values[key] for key in ("batch_size_per_process", "sequence_length") if key in values]
        return setup_text(values["model"], values.get("size"), batch, values["precision"].split()[0], values["compile"])


def build_task(config: TrainingConfig, ranks: Ranks, is_compiled: bool = False) -> Task:
    """Return the training task on this rank's device, with equal weights on every rank and the rank's own data.
    ``is_compiled``: whether the model will be compiled, which determines the batch size."""
    dtype = precision(config, ranks.accelerator.is_gpu)
    task = _llama(config, ranks, dtype, is_compiled) if config.model == "llama" else _resnet18(config, ranks, dtype)
    task.environment.update(
        model=config.model,
        compile=is_compiled,
        seed=config.seed,
        steps_per_epoch=task.steps_per_epoch,
        learning_rate=task.learning_rate,
    )
    return task


def _llama(config: TrainingConfig, ranks: Ranks, dtype: str, is_compiled: bool) -> Task:
    memory = torch.cuda.mem_get_info()[1] if ranks.accelerator.kind == "cuda" else 0
    size = llama_size(config, ranks.accelerator.is_gpu, memory)
    shape = SIZES[size]
    batch_size = llama_batch_size(config, size, is_compiled, memory)
    length = config.sequence_length or shape.sequence_length
    sequences = max(batch_size, (4_000_000 if ranks.accelerator.is_gpu else 100_000) // length)
    shard = data.markov_text(shape.vocabulary, length, sequences, config.seed, ranks.rank).to(ranks.device)
    with ranks.device:
        model = Llama(shape, length)
    # bf16 weights and optimizer state without fp32 copy: least memory traffic per step, and the loss still falls.
    model = model.to(torch.bfloat16 if dtype == "bf16" else torch.float32)
    model.initialize(torch.Generator(ranks.device).manual_seed(config.seed))
    return Task(
        model=model,
        batches=shard.batches(batch_size, config.seed + ranks.rank),
        steps_per_epoch=shard.steps_per_epoch(batch_size),
        item="tokens",
        items_per_batch=batch_size * length,
        flops_per_batch=shapes.llama_flops(shape, length, batch_size * length),
        learning_rate=config.learning_rate or shape.learning_rate,
        autocast=False,
        environment={
            "size": size,
            "parameters": shapes.llama_parameters(shape),
            "batch_size_per_process": batch_size,
            "sequence_length": length,
            "precision": f"{dtype} weights",
            "flops_formula": shapes.LLAMA_FORMULA,
            "data": shard.source,
            "data_entropy_nats": data.MARKOV_ENTROPY,
        },
    )


def _resnet18(config: TrainingConfig, ranks: Ranks, dtype: str) -> Task:
    is_gpu = ranks.accelerator.is_gpu
    batch_size = resnet18_batch_size(config, is_gpu)
    if config.data_dir:
        shard = data.cifar10(config.data_dir, ranks.rank, ranks.world_size)
    else:
        shard = data.generated_images(max(batch_size, 49152 if is_gpu else 4096), config.seed, ranks.rank)
    shard = shard.to(ranks.device)
    with ranks.device:
        model = ResNet18()
    layout = torch.channels_last if is_gpu else torch.contiguous_format
    model = model.to(memory_format=layout)  # type: ignore[call-overload]  # missing in its stubs
    model.initialize(torch.Generator(ranks.device).manual_seed(config.seed))
    return Task(
        model=model,
        batches=_prepared(shard.batches(batch_size, config.seed + ranks.rank), ranks.device, layout),
        steps_per_epoch=shard.steps_per_epoch(batch_size),
        item="samples",
        items_per_batch=batch_size,
        flops_per_batch=shapes.resnet18_flops(batch_size),
        learning_rate=config.learning_rate or 1e-3,
        autocast=dtype == "bf16",
        environment={
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "batch_size_per_process": batch_size,
            "precision": "bf16 autocast, fp32 weights" if dtype == "bf16" else "fp32 weights",
            "flops_formula": shapes.RESNET_FORMULA,
            "data": shard.source,
        },
    )


def _prepared(
    batches: Iterator[tuple[Tensor, Tensor]], device: torch.device, layout: torch.memory_format
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of image bytes as the model's inputs: centred, scaled, half of the batches mirrored."""
    mean = torch.tensor(IMAGE_MEAN, device=device).view(3, 1, 1)
    std = torch.tensor(IMAGE_STD, device=device).view(3, 1, 1)
    for number, (images, labels) in enumerate(batches):
        prepared = (images.float() - mean) / std
        if number % 2:
            prepared = prepared.flip(-1)
        yield prepared.contiguous(memory_format=layout), labels


def adamw(task: Task, accelerator: TorchDevices) -> torch.optim.Optimizer:
    fused = {"fused": True} if accelerator.kind == "cuda" else {}
    return torch.optim.AdamW(
        task.model.parameters(), lr=task.learning_rate, betas=(0.9, 0.95), weight_decay=0.1, **fused
    )


def set_rate(optimizer: torch.optim.Optimizer, task: Task, step: int) -> None:
    """Set the learning rate for a step; the first step is 1."""
    for group in optimizer.param_groups:
        group["lr"] = task.learning_rate * min(1.0, step / WARMUP_STEPS)


def update(optimizer: torch.optim.Optimizer, task: Task, step: int) -> None:
    """Update the weights for a step, with clipped gradients, without waiting for the device."""
    torch.nn.utils.clip_grad_norm_(task.model.parameters(), MAX_GRADIENT_NORM)
    set_rate(optimizer, task, step)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def course(task: Task, world_size: int) -> str:
    """Return a text of all that determines the loss at each step: trainings with equal texts are comparable."""
    values = task.environment
    setup = task.setup().rpartition(" ")[0]  # eager and compiled have the same course
    return f"{setup} x{world_size} seed {values['seed']} rate {task.learning_rate:g}, {values['data']}"
