"""DeepSpeed's engine around the model, by a configuration that is a template beside this file."""

from __future__ import annotations

import json

import torch

from ..common.ranks import Ranks
from ..common.result import WorkloadFailure
from ..training.task import MAX_GRADIENT_NORM, Task
from .texts import template

TEMPLATE = "deepspeed.json"


def version() -> str:
    """Return DeepSpeed's version. Raises ``WorkloadFailure`` where it is not there."""
    try:
        import deepspeed
    except ImportError as error:
        raise WorkloadFailure(
            f"DeepSpeed cannot be imported ({error}): use an image that has it (docker/training), or install it beside "
            "PyTorch on the nodes (requirements/gangs.txt)"
        ) from None
    return deepspeed.__version__


def configuration(task: Task, stage: int) -> dict:
    """The configuration of DeepSpeed."""
    is_bf16 = next(task.model.parameters()).dtype == torch.bfloat16
    batch = task.environment["batch_size_per_process"]
    text = template(TEMPLATE).substitute(batch=batch, stage=stage, bf16=json.dumps(is_bf16), norm=MAX_GRADIENT_NORM)
    return json.loads(text)


def engine(task: Task, stage: int, optimizer: torch.optim.Optimizer, ranks: Ranks):
    """Return the model with its gradients, optimizer's state or weights sharded over all ranks."""
    import deepspeed

    if not ranks.accelerator.is_gpu:  # a kernel for ranks of one machine, which would be compiled here and now
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    settings = configuration(task, stage)
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
