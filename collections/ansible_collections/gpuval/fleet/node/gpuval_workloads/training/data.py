"""Training data: CIFAR-10 from its files, or generated data that a model learns fast. Every rank has its own shard, of
equal length, and reads it in a new order in every epoch."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from ..common.result import WorkloadFailure
from .models.shapes import CLASSES, IMAGE_SIZE

IMAGE_BYTES = 3 * IMAGE_SIZE**2
TRAINING_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))

MARKOV_SYMBOLS = 1024
MARKOV_PROBABILITIES = (0.7, 0.15, 0.1, 0.05)
MARKOV_ENTROPY = -sum(p * math.log(p) for p in MARKOV_PROBABILITIES)
"""Nats per token of the generated text: the loss of a perfect model."""


@dataclass(frozen=True)
class Shard:
    """One rank's examples: ``inputs`` and ``targets`` of equal length, and their source in words."""

    inputs: Tensor
    targets: Tensor
    source: str

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return the number of complete batches in one epoch. Raises ``WorkloadFailure`` if there is none."""
        steps = len(self.inputs) // batch_size
        if steps == 0:
            raise WorkloadFailure(
                f"{self.source} gives each process {len(self.inputs)} examples, fewer than one batch of {batch_size}: "
                "lower --batch-size"
            )
        return steps

    def batches(self, batch_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches without end, each epoch in a new order; an incomplete last batch is left out."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(self.inputs), generator=generator).to(self.inputs.device)
            for start in range(0, self.steps_per_epoch(batch_size) * batch_size, batch_size):
                chosen = order[start : start + batch_size]
                yield self.inputs[chosen], self.targets[chosen]

    def to(self, device: torch.device) -> Shard:
        return Shard(self.inputs.to(device), self.targets.to(device), self.source)


def markov_text(vocabulary: int, sequence_length: int, sequences: int, seed: int, rank: int) -> Shard:
    """Return text of a random first-order Markov chain of which every symbol has 4 likely followers, the same for all
    ranks of a seed. The loss starts at ln(vocabulary), falls to ln(symbols) once a model knows which symbols occur,
    then towards ``MARKOV_ENTROPY`` (0.91) as it learns followers."""
    symbols = min(vocabulary, MARKOV_SYMBOLS)
    chain, draw = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1 + rank)
    followers = torch.randint(symbols, (symbols, len(MARKOV_PROBABILITIES)), generator=chain)
    thresholds = torch.tensor(MARKOV_PROBABILITIES).cumsum(0)[:-1]
    choices = torch.bucketize(torch.rand(sequence_length, sequences, generator=draw), thresholds)
    state = torch.randint(symbols, (sequences,), generator=draw)
    states = [state]
    for choice in choices:
        state = followers[state, choice]
        states.append(state)
    text = torch.stack(states, dim=1)
    return Shard(text[:, :-1].contiguous(), text[:, 1:].contiguous(), f"generated Markov chain of {symbols} symbols")


def generated_images(count: int, seed: int, rank: int) -> Shard:
    """Return images of 10 classes in CIFAR-10's form (bytes): a coarse pattern for each class, with noise."""
    patterns = torch.randn(CLASSES, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    patterns = torch.nn.functional.interpolate(patterns, size=IMAGE_SIZE, mode="nearest")
    draw = torch.Generator().manual_seed(seed + 1 + rank)
    labels = torch.randint(CLASSES, (count,), generator=draw)
    images = torch.empty(count, 3, IMAGE_SIZE, IMAGE_SIZE, dtype=torch.uint8)
    for start in range(0, count, 4096):
        part = slice(start, start + 4096)
        noise = torch.randn(images[part].shape, generator=draw)
        images[part] = (128 + 32 * patterns[labels[part]] + 48 * noise).clamp(0, 255).to(torch.uint8)
    return Shard(images, labels, "generated images of 10 classes")


def cifar10(directory: Path, rank: int, world_size: int) -> Shard:
    """Return a rank's share of CIFAR-10's 50,000 training images, from its Python or its binary files. ``directory`` is
    ``cifar-10-batches-py`` or ``cifar-10-batches-bin``, or holds one of them. Raises ``WorkloadFailure`` when both are
    missing, or a file is malformed."""
    forms = (("cifar-10-batches-py", "", read_pickle), ("cifar-10-batches-bin", ".bin", read_binary))
    for (folder, suffix, read), is_inside in product(forms, (True, False)):
        paths = [directory / (folder if is_inside else "") / f"{name}{suffix}" for name in TRAINING_BATCHES]
        if paths[0].is_file():
            images, labels = (torch.cat(tensors) for tensors in zip(*map(read, paths)))
            rank_slice = slice(rank, len(labels) // world_size * world_size, world_size)
            share = (images[rank_slice].contiguous(), labels[rank_slice].contiguous())
            return Shard(*share, f"CIFAR-10 ({folder})")
    raise WorkloadFailure(
        f"--data-dir {directory} holds neither cifar-10-batches-py nor cifar-10-batches-bin: unpack the data set's "
        "archive there, or leave --data-dir out to train on generated images"
    )


def read_binary(path: Path) -> tuple[Tensor, Tensor]:
    """Return images and labels of a file of records: one byte of label, 3,072 of image (planes R, G, B)."""
    data = _read(path)
    if not data or len(data) % (1 + IMAGE_BYTES):
        raise WorkloadFailure(f"{path}: {len(data)} bytes are not whole records of {1 + IMAGE_BYTES}: unpack it again")
    records = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, 1 + IMAGE_BYTES)
    return _checked(path, records[:, 1:], records[:, 0].long())


def read_pickle(path: Path) -> tuple[Tensor, Tensor]:
    """Return images and labels of a pickled dictionary with ``data`` (a NumPy array of bytes) and ``labels``. Stand-ins
    replace the few names that CIFAR-10's files need: nothing that the pickle names is imported or called. Raises
    ``WorkloadFailure`` for any other name or a malformed pickle."""
    try:
        content = _CifarUnpickler(io.BytesIO(_read(path)), encoding="bytes").load()
        array, labels = content[b"data"], content[b"labels"]
        images = torch.frombuffer(bytearray(array.bytes), dtype=torch.uint8).view(array.shape)
        return _checked(path, images, torch.tensor(labels, dtype=torch.int64))
    except WorkloadFailure:
        raise
    except Exception as error:  # a hostile or damaged pickle can raise any error
        raise WorkloadFailure(f"{path} is not a batch of CIFAR-10 ({error}): unpack the data set again") from error


class _Array:
    """Stands in for numpy.ndarray while unpickling: keeps shape and bytes."""

    shape: tuple[int, ...]
    bytes: bytes

    def __setstate__(self, state: tuple) -> None:
        _, self.shape, dtype, is_fortran, self.bytes = state
        if dtype.code not in ("u1", b"u1") or is_fortran:
            raise ValueError("the array is not one of bytes in C order")


class _Dtype:
    """Stands in for numpy.dtype while unpickling: keeps the type's code."""

    def __init__(self, code: str, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: tuple) -> None:
        pass


def _latin1(text: str, encoding: str) -> bytes:
    """Stands in for _codecs.encode, which Python 3 pickles bytes with in protocols that lack them."""
    if encoding not in ("latin1", b"latin1"):
        raise ValueError(f"encoding {encoding!r}")
    return text.encode("latin1")


class _CifarUnpickler(pickle.Unpickler):
    _ALLOWED = {
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
        ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
        ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
        ("_codecs", "encode"): _latin1,
    }

    def find_class(self, module: str, name: str) -> object:
        try:
            return self._ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR-10 file does") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise WorkloadFailure(
            f"{path} cannot be read ({error.strerror}): all of {', '.join(TRAINING_BATCHES)} are needed"
        ) from error


def _checked(path: Path, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    if images.shape != (len(labels), IMAGE_BYTES) or len(labels) == 0:
        raise WorkloadFailure(f"{path}: {tuple(images.shape)} image bytes for {len(labels)} labels: unpack it again")
    if not 0 <= int(labels.min()) <= int(labels.max()) < CLASSES:
        raise WorkloadFailure(f"{path}: a label is outside 0..{CLASSES - 1}: unpack the data set again")
    return images.reshape(-1, 3, IMAGE_SIZE, IMAGE_SIZE), labels
