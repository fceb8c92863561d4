"""How the weights are updated, so that the loss takes one course for one seed: a slow start, and bounded gradients.

Without either the optimisation is chaotic: the order of a device's sums decides from the fifth step on where it goes.
docs/design/loss.md has the measurements.
"""

from __future__ import annotations

import torch

from ..common.device import TorchDevices
from .task import Task

WARMUP_STEPS = 40
MAX_GRADIENT_NORM = 1.0
COURSE_REVISION = 1
"""Raise it with anything that moves the loss: the constants here, rates and shapes, the data, the first weights."""
COURSE_STEPS = (20, 40, 80, 320, 1280)
"""Steps whose loss is compared: ``quick`` on a GPU reaches the third, ``standard`` the fourth, a CPU all."""


def adamw(task: Task, accelerator: TorchDevices) -> torch.optim.Optimizer:
    fused = {"fused": True} if accelerator.kind == "cuda" else {}
    return torch.optim.AdamW(
        task.model.parameters(), lr=task.learning_rate, betas=(0.9, 0.95), weight_decay=0.1, **fused
    )


def set_rate(optimizer: torch.optim.Optimizer, task: Task, step: int) -> None:
    """Set the learning rate of a step, the first of which is 1."""
    for group in optimizer.param_groups:
        group["lr"] = task.learning_rate * min(1.0, step / WARMUP_STEPS)


def update(optimizer: torch.optim.Optimizer, task: Task, step: int) -> None:
    """Take one step with gradients of bounded norm. The device is not waited for."""
    torch.nn.utils.clip_grad_norm_(task.model.parameters(), MAX_GRADIENT_NORM)
    set_rate(optimizer, task, step)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def course(task: Task, world_size: int) -> str:
    """Return what decides the course of the loss, as one text: losses compare where it is the same."""
    values = task.environment
    setup = task.setup().rpartition(" ")[0]  # eager and compiled take one course
    return f"{setup} x{world_size} seed {values['seed']} rate {task.learning_rate:g}, {values['data']}"
