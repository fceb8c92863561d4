"""Train a small model with DDP; prints its loss and its speed. DDP_STEPS: how many steps."""

import os
import time

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

WARM_UP, BATCH, WIDTH = 5, 256, 512


def main() -> None:
    on_gpu = torch.cuda.is_available()
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    rank = distributed.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(1 + rank)
    layers = (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1))
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = WARM_UP + int(os.environ.get("DDP_STEPS", "50"))
    start = 0.0
    for step in range(steps):
        if step == WARM_UP:
            synchronize(on_gpu)
            start = time.monotonic()
        inputs = torch.randn(BATCH, WIDTH, device=device)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean() / WIDTH
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    synchronize(on_gpu)
    seconds = time.monotonic() - start
    if rank == 0:
        samples = (steps - WARM_UP) * BATCH * distributed.get_world_size()
        print(f"loss: {loss.item():.6f}", flush=True)
        print(f"performance: {samples / seconds:.1f} samples/s", flush=True)
    distributed.destroy_process_group()


def synchronize(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()
    distributed.barrier()


if __name__ == "__main__":
    main()
