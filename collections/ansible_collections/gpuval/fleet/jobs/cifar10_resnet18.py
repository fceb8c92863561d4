"""Train ResNet-18 on CIFAR-10, in its format for Python, with DDP; prints losses, accuracy and speed.

CIFAR10_EPOCHS, CIFAR10_BATCH (of a process), CIFAR10_RATE (of learning, for 128 images), CIFAR10_WIDTH (ResNet-18: 64).
"""

import os
import pickle
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

EPOCHS = int(os.environ.get("CIFAR10_EPOCHS", "5"))
BATCH = int(os.environ.get("CIFAR10_BATCH", "512"))
RATE = float(os.environ.get("CIFAR10_RATE", "0.05"))
WIDTH = int(os.environ.get("CIFAR10_WIDTH", "64"))
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class ArraysOnly(pickle.Unpickler):
    """A pickle may run anything: only what NumPy's arrays need is loaded."""

    ALLOWED = {
        *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
        *(("numpy", name) for name in ("ndarray", "dtype")),
        ("_codecs", "encode"),
    }

    def find_class(self, module: str, name: str):
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in CIFAR-10")
        return super().find_class(module, name)


def read(folder: Path, names: list[str], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Images as normalized floats, and labels."""
    images, labels = [], []
    for name in names:
        with (folder / name).open("rb") as file:
            batch = ArraysOnly(file, encoding="bytes").load()
        images.append(torch.from_numpy(batch[b"data"]).reshape(-1, 3, 32, 32))
        labels.append(torch.tensor(batch[b"labels"]))
    mean, deviation = (torch.tensor(one, device=device).view(1, 3, 1, 1) for one in (MEAN, DEVIATION))
    pixels = torch.cat(images).to(device).float() / 255
    return (pixels - mean) / deviation, torch.cat(labels).to(device)


class Block(nn.Module):
    """Two convolutions and a shortcut around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after))
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.second(functional.relu(self.first(x))) + self.shortcut(x))


def resnet18(width: int) -> nn.Module:
    """ResNet-18 for images of 32 x 32: a stem of 3 x 3, no pooling after it."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage in range(4):
        after = width << stage
        layers += [Block(before, after, 2 if stage else 1), Block(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def augmented(images: torch.Tensor) -> torch.Tensor:
    """Images moved by up to four pixels; half of the batches mirrored."""
    left, top = (int(place) for place in torch.randint(0, 9, (2,)))
    moved = functional.pad(images, (4, 4, 4, 4))[:, :, top : top + 32, left : left + 32]
    return moved.flip(3) if torch.rand(()) < 0.5 else moved


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in zip(images.split(BATCH), labels.split(BATCH)))
    model.train()
    return right / len(labels)


def main() -> None:
    on_gpu = torch.cuda.is_available()
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    folder = next(Path(os.environ["GPUVAL_DATASET_CIFAR10"]).rglob("data_batch_1")).parent
    images, labels = read(folder, [f"data_batch_{number}" for number in range(1, 6)], device)
    torch.manual_seed(1 + rank)
    model = DistributedDataParallel(resnet18(WIDTH).to(device), device_ids=[device] if on_gpu else None)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=RATE * BATCH * world / 128, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    steps = len(images) // (BATCH * world)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, optimizer.param_groups[0]["lr"], steps * EPOCHS)
    start = trained = 0.0
    for epoch in range(EPOCHS):
        if epoch == min(1, EPOCHS - 1):  # the first is warm-up
            start, trained = synchronized(on_gpu), 0
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch)).to(device)
        for chosen in order[: steps * BATCH * world].split(BATCH)[rank::world]:
            loss = functional.cross_entropy(model(augmented(images[chosen])), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            trained += len(chosen) * world
        if rank == 0:
            print(f"epoch {epoch + 1} of {EPOCHS}, loss: {loss.item():.4f}", flush=True)
    seconds = synchronized(on_gpu) - start
    if rank == 0:
        right = accuracy(model.module, *read(folder, ["test_batch"], device))
        print(f"accuracy: {right:.4f}", flush=True)
        print(f"performance: {trained / seconds:.1f} samples/s", flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


def synchronized(on_gpu: bool) -> float:
    """The time once all processes have done their work."""
    if on_gpu:
        torch.cuda.synchronize()
    distributed.barrier()
    return time.monotonic()


if __name__ == "__main__":
    main()
