"""Train a small model with DeepSpeed, ZeRO stage 2; prints its loss and its speed. DEEPSPEED_STEPS: how many steps."""

import os
import time

import deepspeed
import torch
from torch import distributed

WARM_UP, BATCH, WIDTH = 5, 64, 512
CONFIGURATION = {
    "train_micro_batch_size_per_gpu": BATCH,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": torch.cuda.is_available()},
}


def main() -> None:
    if not torch.cuda.is_available():  # else DeepSpeed compiles an extension at its first use on CPUs
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIGURATION)
    kind = next(engine.module.parameters()).dtype
    torch.manual_seed(1 + distributed.get_rank())
    steps = WARM_UP + int(os.environ.get("DEEPSPEED_STEPS", "50"))
    start = 0.0
    for step in range(steps):
        if step == WARM_UP:
            distributed.barrier()
            start = time.monotonic()
        inputs = torch.randn(BATCH, WIDTH, device=engine.device, dtype=kind)
        loss = (engine(inputs) - inputs.mean(1, keepdim=True)).square().mean()
        engine.backward(loss)
        engine.step()
    last = loss.item()
    distributed.barrier()
    seconds = time.monotonic() - start
    if distributed.get_rank() == 0:
        samples = (steps - WARM_UP) * BATCH * distributed.get_world_size()
        print(f"last loss: {last:.6f}", flush=True)
        print(f"performance: {samples / seconds:.1f} samples/s", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
