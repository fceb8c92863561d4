"""Measures matrix products in each precision that the chip supports: speed and numerical errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..common.laps import LapStatistics
from ..common.ranks import Ranks, is_out_of_memory
from .measure import Meter

GPU_SIZE, CPU_SIZE = 8192, 512
ROWS_PER_SAMPLE = 64
"""One row in 64 is checked: a GPU's kernels write large products in tiles of at least so many rows."""

ERROR_LIMITS = {"fp32": 1e-4, "bf16": 1e-2, "fp16": 2e-3, "tf32": 2e-3, "fp8": 1e-2}
"""Greatest relative error of a matrix product that rounding explains, by precision.

bf16 results have 8 significant bits: rounded they err by at most 2^-8 = 4e-3, cut off by 8e-3; fp16 has 11 bits, 5e-4
and 1e-3. fp32 sums of n terms err by at most n 2^-24 of the terms' magnitudes, 3e-5 for n = 512 (Higham, Accuracy and
Stability of Numerical Algorithms, 2.2 and 3.1). tf32 rounds the factors to 11 bits, which errs by 1e-3 at most. fp8
products are given as bf16; the reference has the same rounded factors."""
ELEMENT_ROOM = 4
"""A single element may err, relative to itself or to its row's root mean square if that is greater, by so many limits.

For rounded results that error is at most the format's 2^-8 or 2^-11. The error of tf32 factors is spread like a normal
distribution: of a million elements the worst is off by 5 times the root mean square, which was 3.1e-4 on an H200."""

UNSUPPORTED = ("NOT_SUPPORTED", "INVALID_VALUE", "ARCH_MISMATCH", "no kernel image")
"""Texts in errors of PyTorch's libraries (cublasStatus_t, hipblasStatus_t) that mean that they lack a product in this
precision, not that the device failed."""
DEVICE_ERRORS = ("CUDA error", "HIP error", "CUBLAS_STATUS", "HIPBLAS_STATUS", "CUDNN_STATUS", "NCCL")


@dataclass(frozen=True)
class Precision:
    """A precision of matrix products: the matrices' type on the device, and whether fp32 products use TF32."""

    name: str
    dtype: torch.dtype
    is_tf32: bool = False


BF16 = Precision("bf16", torch.bfloat16)
FP16 = Precision("fp16", torch.float16)
FP32 = Precision("fp32", torch.float32)
TF32 = Precision("tf32", torch.float32, is_tf32=True)


def precisions(ranks: Ranks) -> tuple[list[Precision], dict[str, str]]:
    """Return the precisions that the chip supports, and ``{precision: reason}`` for others."""
    if not ranks.accelerator.is_gpu:
        return [FP32, BF16], {}
    if ranks.accelerator.kind != "cuda":
        return [BF16], dict.fromkeys(("fp16", "tf32", "fp8"), "not measured on this accelerator")
    chosen, left_out = [BF16, FP16], {}
    is_amd = torch.version.hip is not None
    if is_amd:
        left_out["tf32"] = "not measured on AMD"
    elif torch.cuda.get_device_capability()[0] >= 8:
        chosen.append(TF32)
    else:
        left_out["tf32"] = "this chip has no tf32"
    dtype, reason = _fp8(is_amd)
    if dtype:
        chosen.append(Precision("fp8", dtype))
    else:
        left_out["fp8"] = reason
    return chosen, left_out


def _fp8(is_amd: bool) -> tuple[torch.dtype | None, str]:
    """Return the chip's fp8 type, or None and the reason. gfx942 has its own type (fnuz); others have the OCP's."""
    if not hasattr(torch, "_scaled_mm"):
        return None, "this PyTorch has no fp8 product"
    if is_amd:
        name = torch.cuda.get_device_properties(0).gcnArchName.split(":")[0]
        types = {"gfx942": "float8_e4m3fnuz", "gfx950": "float8_e4m3fn", "gfx1200": "float8_e4m3fn"}
        return getattr(torch, types.get(name, ""), None), f"{name} has no fp8"
    if torch.cuda.get_device_capability() < (8, 9):
        return None, "this chip has no fp8"
    return torch.float8_e4m3fn, ""


def matmul(ranks: Ranks, meter: Meter, seconds: float, size: int | None = None) -> None:
    """Measure products of ``size`` x ``size`` matrices on all ranks at once for ``seconds``, two thirds of them in the
    first precision; add TFLOP/s, spread and error of each precision. The error is the greater of the first and the last
    product's, in sampled rows, against float64 on the host from the same rounded factors: a device must not check
    itself. A precision after the first is left out on all ranks if PyTorch on one of them does not support it."""
    size = size or (GPU_SIZE if ranks.accelerator.is_gpu else CPU_SIZE)
    chosen, left_out = precisions(ranks)
    meter.left_out.update(left_out)
    generator = torch.Generator().manual_seed(ranks.rank)
    factors = [torch.randn(size, size, generator=generator) for _ in range(2)]
    rows = torch.arange(0, size, ROWS_PER_SAMPLE)
    rows += torch.randint(ROWS_PER_SAMPLE, rows.shape, generator=generator)
    for number, precision in enumerate(chosen):
        share = 1.0 if len(chosen) == 1 else 0.67 if number == 0 else 0.33 / (len(chosen) - 1)
        with _tf32(precision.is_tf32):
            name = f"diagnostics_matmul_{precision.name}"
            product: TimedProduct | str = first_product(ranks, precision, factors, rows, is_optional=number > 0)
            if isinstance(product, str):
                meter.left_out[precision.name] = product
                continue
            laps, error = product.measure(meter, seconds * share)
        meter.speed(name, 2 * size**3 / 1e12, laps.summary(), "TFLOP/s", "tflops")
        meter.add(f"{name}_error_ratio", error, "ratio")


def first_product(
    ranks: Ranks, precision: Precision, factors: Sequence[Tensor], rows: Tensor, *, is_optional: bool
) -> TimedProduct | str:
    """Multiply once; return the product or, if ``is_optional``, why PyTorch on a rank lacks the precision."""
    if not is_optional:
        return TimedProduct(ranks, precision, factors, rows)
    product: TimedProduct | str = ""
    reason = ""
    try:
        product = TimedProduct(ranks, precision, factors, rows)
    except Exception as error:
        is_unsupported = any(sign in str(error) for sign in UNSUPPORTED)
        if is_out_of_memory(error) or (not is_unsupported and any(sign in str(error) for sign in DEVICE_ERRORS)):
            raise  # the device failed
        first_line, _, _ = str(error).partition("\n")
        reason = f"not supported by this PyTorch: {type(error).__name__}: {first_line}"
    return next(filter(None, ranks.gather(reason)), "") or product


class TimedProduct:
    """The product of two matrices in one precision, multiplied once, and some of its rows computed on the host."""

    def __init__(self, ranks: Ranks, precision: Precision, factors: Sequence[Tensor], rows: Tensor) -> None:
        on_host = [matrix.to(precision.dtype) for matrix in factors]
        self._reference = on_host[0][rows].double() @ on_host[1].double()
        self._rows = rows.to(ranks.device)
        self._multiply, self._out = _product(precision, *(matrix.to(ranks.device) for matrix in on_host))
        self._multiply()

    def measure(self, meter: Meter, seconds: float) -> tuple[LapStatistics, float]:
        """Multiply for about ``seconds``; return lap times, and the greater error of the first and the last product."""
        error_before = self._error()
        self._out().zero_()  # reveals products that are not written
        laps = meter.time(self._multiply, seconds)
        errors = torch.tensor((error_before, self._error()), dtype=torch.float64)
        return laps, float(errors.max())  # PyTorch's max propagates NaN

    def _error(self) -> float:
        return error_ratio(self._out()[self._rows].cpu().double(), self._reference)


def error_ratio(rows: Tensor, reference: Tensor) -> float:
    """Return the greater of two maxima: the relative error of a row (by norms), and that of an element divided by
    ``ELEMENT_ROOM``, which a row of thousands would hide. NaN if an element of ``rows`` is NaN."""
    off = rows - reference
    norms = reference.norm(dim=1)
    usual = (norms / reference.shape[1] ** 0.5).unsqueeze(1)
    of_rows = (off.norm(dim=1) / norms).max()
    of_elements = (off.abs() / torch.maximum(reference.abs(), usual)).max() / ELEMENT_ROOM
    return float(torch.maximum(of_rows, of_elements))


def _product(precision: Precision, a: Tensor, b: Tensor) -> tuple[Callable[[], object], Callable[[], Tensor]]:
    """Return a function that multiplies the matrices ``a`` and ``b``, and one that returns the latest product."""
    if precision.name == "fp8":
        columns = b.t().contiguous().t()  # the kernels need the second factor column-major
        unit_scale = torch.ones((), device=a.device)
        latest = [torch.empty(0)]

        def scaled() -> None:
            product = torch._scaled_mm(  # there is no public function yet
                a, columns, scale_a=unit_scale, scale_b=unit_scale, out_dtype=torch.bfloat16, use_fast_accum=False
            )
            # A tuple, with the greatest magnitude, until PyTorch 2.4 (https://github.com/pytorch/pytorch/pull/128683).
            latest[0] = product[0] if isinstance(product, tuple) else product

        return scaled, lambda: latest[0]
    out = torch.empty_like(a)
    return lambda: torch.matmul(a, b, out=out), lambda: out


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
