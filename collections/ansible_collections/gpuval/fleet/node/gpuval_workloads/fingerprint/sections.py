"""The three sections of the fingerprint's work: a short training, greedy decoding, matrix products; equal on every GPU.

A section records digests of its results in a fixed order, and keeps results that the host compares with float64.

The initial numbers, and the digest of a tensor's bits, are equal on every machine to the last bit: nothing rounds. The
numbers are integers from the CPU's generator times a power of two, exact in bf16; angles are computed by the C library
in float64 and rounded once to float32. A sine or a normal random number from PyTorch would depend on the CPU's vector
units.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from ..training.models.llama import Llama
from ..training.models.shapes import LlamaShape
from .sizes import FLIPPED_BIT, ProductSize, Sizes

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LIMITS = {
    "training_fp32_loss": 1e-5,
    "training_fp32_weights": 5e-3,
    "training_bf16_loss": 1e-2,
    "matmul_fp64": 1e-13,
    "matmul_fp32": 1e-4,
    "matmul_fp16": 2e-3,
    "matmul_bf16": 1e-2,
}
"""Greatest relative error against float64 that rounding explains; docs/design/fingerprints.md says why each."""

_WORD = 8
_SEED = 20_261_121
_SCALE = 2.0**-12  # integers up to 127 become weights of standard deviation 0.018
_SCALES = {"fp16": 2.0**-7}  # fp16 ends at 65,504: sums of thousands of products would not fit
_ROWS_PER_SAMPLE = 64


def whole_numbers(shape: Sequence[int], magnitude: int, generator: torch.Generator) -> Tensor:
    """Return random integers from -magnitude to magnitude, at most 127, as int8."""
    return torch.randint(-magnitude, magnitude + 1, tuple(shape), generator=generator, dtype=torch.int8)


def rotary_tables(head_dim: int, length: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of every position's angles as float32, as ``models.llama`` defines them."""
    frequencies = [theta ** (-index / head_dim) for index in range(0, head_dim, 2)] * 2
    angles = [[position * frequency for frequency in frequencies] for position in range(length)]
    cos, sin = ([[function(angle) for angle in row] for row in angles] for function in (math.cos, math.sin))
    return torch.tensor(cos, dtype=torch.float64).float(), torch.tensor(sin, dtype=torch.float64).float()


def flip_bit(tensor: Tensor, bit: int) -> None:
    """Flip one bit (0 is the lowest) in the greatest element of a float32 tensor, where it has the greatest effect."""
    words = tensor.view(torch.int32).view(-1)
    words[tensor.abs().argmax()] ^= 1 << bit


class Recorder:
    """Records digests of tensors on their device, in order and with labels, without making the device wait."""

    def __init__(self, device: torch.device) -> None:
        # Gaudi's 64-bit integers have 32 bits: for Gaudi and unknown devices, the host computes the digests.
        self._device = device if device.type in ("cpu", "cuda") else torch.device("cpu")
        self._factors = torch.empty(0, dtype=torch.int64, device=self._device)
        self.start()

    def start(self) -> None:
        self.labels: list[str] = []
        self.known: dict[int, int] = {}
        self._sums: list[Tensor] = []

    def note(self, label: str, tensor: Tensor, expected: int | None = None) -> None:
        """Record a tensor's digest; ``expected`` is the right digest, if the host knows it."""
        if expected is not None:
            self.known[len(self.labels)] = expected
        self.labels.append(label)
        self._sums.append(self.digest(tensor))

    def digests(self) -> tuple[int, ...]:
        """Return all digests since the start; waits for the device."""
        return tuple(torch.stack(self._sums).tolist())

    def digest(self, tensor: Tensor) -> Tensor:
        """Return a 64-bit digest of the tensor's bits, as a scalar on its device or on the host: the sum of the 8-byte
        words, each times an odd factor of its own, modulo 2^64. Sums of integers do not depend on their order, so it is
        exact on any device. Odd factors have an inverse: a change of one word always changes the digest, any other
        change except with a probability of about 2^-64."""
        data = tensor.detach().to(self._device).contiguous().view(-1).view(torch.uint8)
        aligned = data.numel() // _WORD * _WORD
        total = torch.zeros((), dtype=torch.int64, device=self._device)
        if aligned:
            words = data[:aligned].view(torch.int64)
            total = (words * self._odd_factors(words.numel())).sum()
        tail = data[aligned:].to(torch.int64)
        return total + (tail * self._odd_factors(tail.numel())).sum() if tail.numel() else total

    def _odd_factors(self, count: int) -> Tensor:
        if self._factors.numel() < count:
            # Knuth's multiplier spreads the factors over all 64 bits, so that changes of neighbours do not cancel.
            self._factors = torch.arange(count, dtype=torch.int64, device=self._device) * 0x5851F42D4C957F2D * 2 + 1
        return self._factors[:count]


def sha256(labels: Sequence[str], digests: Sequence[int]) -> str:
    lines = (f"{label}\t{digest & (2**64 - 1):016x}\n" for label, digest in zip(labels, digests))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class Weights:
    """A model's initial weights on the host, exact in any precision, and the text that the model learns."""

    def __init__(self, shape: LlamaShape, seed: int) -> None:
        self.shape = shape
        generator = torch.Generator().manual_seed(seed)
        narrow = _SCALE / 2 if shape.layers < 8 else _SCALE / 4
        self.values: dict[str, Tensor] = {}
        for name, parameter in empty_model(shape).named_parameters():
            if parameter.dim() == 1:
                self.values[name] = torch.ones(parameter.shape)
                continue
            scale = narrow if name.endswith(("wo.weight", "down.weight")) else _SCALE
            self.values[name] = whole_numbers(parameter.shape, 127, generator).float() * scale
        self.inputs = torch.randint(shape.vocabulary, (shape.batch_size, shape.sequence_length), generator=generator)
        self.targets = (5 * self.inputs + 1) % shape.vocabulary  # a rule that can be learnt

    def model(self, device: torch.device, dtype: torch.dtype) -> Llama:
        """Return a model of these dimensions on a device, whose weights are not set."""
        model = empty_model(self.shape).to(dtype).to_empty(device=device)
        cos, sin = rotary_tables(self.shape.head_dim, self.shape.sequence_length, self.shape.rope_theta)
        model.cos.copy_(cos)
        model.sin.copy_(sin)
        return model


def load(model: Llama, values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])
            parameter.grad = None


def empty_model(shape: LlamaShape) -> Llama:
    """Return the model without allocated memory (meta device)."""
    with torch.device("meta"):
        return Llama(shape, shape.sequence_length)


def train_step(model: Llama, inputs: Tensor, targets: Tensor, rate: float) -> Iterator[tuple[str, Tensor]]:
    """Run one step of plain gradient descent, without a normalisation in which the rounding error of a gradient near 0
    would decide the step's sign; yield name and tensor of the loss and every gradient, then update weights."""
    loss = model(inputs, targets)
    loss.backward()
    yield "loss", loss.detach()
    for name, parameter in model.named_parameters():
        yield f"gradient of {name}", cast("Tensor", parameter.grad)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(cast("Tensor", parameter.grad), alpha=rate)
            parameter.grad = None


class TrainingSection:
    """The training section: a few steps in one precision. With ``is_checked``, the host repeats them in float64."""

    def __init__(self, device: torch.device, weights: Weights, precision: str, steps: int, is_checked: bool) -> None:
        self._weights, self._precision, self._steps, self._is_checked = weights, precision, steps, is_checked
        self._model = weights.model(device, DTYPES[precision])
        self._inputs, self._targets = weights.inputs.to(device), weights.targets.to(device)
        self._first = {name: value.to(DTYPES[precision]) for name, value in weights.values.items()}
        on_host = Recorder(torch.device("cpu"))
        self._known = {name: int(on_host.digest(value)) for name, value in self._first.items()}
        self._losses: list[Tensor] = []

    def run(self, recorder: Recorder, flip: bool) -> None:
        """Train from the initial weights and record digests; ``flip`` injects a bit flip, in the fp32 training only."""
        title = f"training {self._precision}{'' if self._is_checked else ' (large)'}"
        model, weights = self._model, self._weights
        load(model, self._first)
        if flip and self._precision == "fp32":
            flip_bit(model.get_parameter("layers.0.ffn.up.weight").data, FLIPPED_BIT)
        for name, parameter in model.named_parameters():
            recorder.note(f"{title}, before step 1, {name}", parameter, self._known[name])
        self._losses = []
        for step in range(1, self._steps + 1):
            for name, value in train_step(model, self._inputs, self._targets, weights.shape.learning_rate):
                recorder.note(f"{title}, step {step}, {name}", value)
                if name == "loss":
                    self._losses.append(value)
        for name, parameter in model.named_parameters():
            recorder.note(f"{title}, after step {self._steps}, {name}", parameter)

    def errors(self, reference: TrainingReference) -> dict[str, float]:
        """Return ``{error: ratio}`` of the last run's losses and weights to the host's; empty if not checked."""
        if not self._is_checked:
            return {}
        losses = torch.stack(self._losses).double().cpu()
        off = ((losses - reference.losses).abs() / reference.losses.abs()).max()
        errors = {f"training_{self._precision}_loss": float(off)}
        if self._precision == "fp32":
            weights = {name: parameter.detach().double().cpu() for name, parameter in self._model.named_parameters()}
            errors["training_fp32_weights"] = reference.weights_error(weights)
        return errors


class TrainingReference:
    """The steps of the training section in float64 on the host."""

    def __init__(self, weights: Weights, steps: int) -> None:
        model = weights.model(torch.device("cpu"), torch.float64)
        load(model, weights.values)
        step = partial(train_step, model, weights.inputs, weights.targets, weights.shape.learning_rate)
        self.losses = torch.stack([value for _ in range(steps) for name, value in step() if name == "loss"])
        self._first = weights.values
        self._last = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def weights_error(self, weights: dict[str, Tensor]) -> float:
        """Return the greatest error of a weight, relative to the change of that tensor's weights by the training."""
        errors = []
        for name, final in self._last.items():
            errors.append((weights[name] - final).abs().max() / (final - self._first[name]).abs().max())
        return float(torch.stack(errors).max())


class Decoding:
    """The decoding section: greedy, in fp32, with a window of fixed length, which keeps shapes and kernels the same."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        weights = Weights(sizes.checked, _SEED + 2)
        self._model = weights.model(device, torch.float32)
        load(self._model, weights.values)
        self._model.requires_grad_(False)
        self._tokens = sizes.tokens
        generator = torch.Generator().manual_seed(_SEED + 3)
        self._prompts = torch.randint(sizes.checked.vocabulary, (sizes.prompts, sizes.context), generator=generator)
        self._prompts = self._prompts.to(device)
        # The tables are as long as the model's sequences; decoding uses the first positions.
        self._model.cos, self._model.sin = (table[: sizes.context] for table in (self._model.cos, self._model.sin))

    def run(self, recorder: Recorder) -> None:
        window = self._prompts
        for number in range(1, self._tokens + 1):
            scores = self._model.logits(window)[:, -1]
            tokens = scores.argmax(dim=-1, keepdim=True)
            recorder.note(f"decoding, token {number}, scores", scores)
            recorder.note(f"decoding, token {number}, choice", tokens)
            window = torch.cat([window[:, 1:], tokens], dim=1)


class Operands:
    """Two matrices of integers on the host, and sampled rows of their product in float64, which are exact."""

    def __init__(self, product: ProductSize) -> None:
        generator = torch.Generator().manual_seed(_SEED + product.magnitude)
        self.a = whole_numbers((product.rows, product.inner), product.magnitude, generator)
        self.b = whole_numbers((product.inner, product.columns), product.magnitude, generator)
        starts = torch.arange(0, product.rows, _ROWS_PER_SAMPLE)
        offsets = torch.randint(_ROWS_PER_SAMPLE, starts.shape, generator=generator)
        self.rows = (starts + offsets).clamp(max=product.rows - 1)
        self.reference = self.a[self.rows].double() @ self.b.double()


class Products:
    """The section of matrix products, each repeated many times; the host checks rows of the last one."""

    def __init__(self, device: torch.device, products: tuple[ProductSize, ...]) -> None:
        self._products = products
        self._operands = []
        on_host = Recorder(torch.device("cpu"))
        operands_by_size: dict[tuple, Operands] = {}  # equal numbers in every precision
        for product in products:
            key = (product.rows, product.inner, product.columns, product.magnitude)
            numbers = operands_by_size.get(key) or operands_by_size.setdefault(key, Operands(product))
            dtype, scale = DTYPES[product.precision], _SCALES.get(product.precision, 1.0)
            reference = numbers.reference * scale
            expected = int(on_host.digest(reference.to(dtype))) if product.is_exact else None
            a = numbers.a.to(device).to(dtype) * scale
            self._operands.append((a, numbers.b.to(device).to(dtype), numbers.rows.to(device), reference, expected))
        self._last_rows: list[Tensor] = []

    def run(self, recorder: Recorder, between: Callable[[], None]) -> None:
        self._last_rows = []
        for product, (a, b, rows, _, expected) in zip(self._products, self._operands):
            out = torch.empty(product.rows, product.columns, dtype=a.dtype, device=a.device)
            for turn in range(1, product.times + 1):
                torch.matmul(a, b, out=out)
                recorder.note(f"{product.title}, turn {turn}", out)
            sampled = out[rows]
            recorder.note(f"{product.title}, rows that the host computed", sampled, expected)
            self._last_rows.append(sampled)
            between()

    def errors(self) -> dict[str, float]:
        """Return the greatest relative error of a row against float64, by precision; NaN if a result is NaN."""
        errors: dict[str, list[Tensor]] = {}
        for product, rows, (*_, reference, _) in zip(self._products, self._last_rows, self._operands):
            off = (rows.double().cpu() - reference).norm(dim=1) / reference.norm(dim=1)
            errors.setdefault(f"matmul_{product.precision}", []).append(off.max())
        return {name: float(torch.stack(worst).max()) for name, worst in errors.items()}  # max propagates NaN


class FingerprintWork:
    """All three sections on one device, ready to run again and again."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        checked = Weights(sizes.checked, _SEED)
        self._reference = TrainingReference(checked, sizes.checked_steps)
        self._trainings = [TrainingSection(device, checked, p, sizes.checked_steps, True) for p in ("fp32", "bf16")]
        if sizes.loaded:
            loaded = Weights(sizes.loaded, _SEED + 1)
            self._trainings.append(TrainingSection(device, loaded, "bf16", sizes.loaded_steps, False))
        self._decoding = Decoding(device, sizes)
        self._products = Products(device, sizes.products)

    def run(self, section: str, recorder: Recorder, flip: bool, between: Callable[[], None]) -> None:
        """Run one section and record its digests; ``between`` is called after each training and product."""
        if section == "training":
            for training in self._trainings:
                training.run(recorder, flip)
                between()
        elif section == "decoding":
            with torch.no_grad():
                self._decoding.run(recorder)
        else:
            with torch.no_grad():
                self._products.run(recorder, between)

    def errors(self, section: str) -> dict[str, float]:
        """Return ``{error: ratio}`` of the section's last run to the host's float64."""
        if section == "training":
            return {name: e for training in self._trainings for name, e in training.errors(self._reference).items()}
        return self._products.errors() if section == "matmul" else {}


SECTIONS = ("training", "decoding", "matmul")
