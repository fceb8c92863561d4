"""Compiles the model's layers within bounded time; if that fails, the training runs without and says so. Every rank
runs a pass alone before gradients are exchanged: if its compiler fails, no rank waits, and all fall back together."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from ..common.ranks import Ranks

COMPILE_LIMIT_SECONDS = 240.0
"""Compiling a Llama of 1.1 billion took 37 to 52 s on an H200 node; a busy or slow host may take several times that."""


class _Expired(BaseException):
    """The time limit is reached. Not an Exception, so that no handler inside the compiler catches it."""


def compile_layers(
    model: nn.Module, next_loss: Callable[[], Tensor], ranks: Ranks, limit_seconds: float = COMPILE_LIMIT_SECONDS
) -> tuple[float, str]:
    """Compile the layers one by one, so that gradients are exchanged during the backward pass; return the seconds, and
    why all ranks gave up ("" if they did not), with the model as before."""
    ranks.say(f"compiling the layers, for {limit_seconds:.0f} s at most")
    started = time.perf_counter()
    problem = ""
    with ranks.patience(limit_seconds + 60):
        for layer in model.get_submodule("layers").children():
            layer.compile()
        try:
            with _alarm(limit_seconds):
                next_loss().backward()
                ranks.synchronize()
        except _Expired:
            problem = f"not done after {limit_seconds:.0f} s"
        except Exception as error:  # a compiler may raise any error; the training runs without it
            problem = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]
        model.zero_grad(set_to_none=True)
        ranks.empty_cache()  # the training allocates its memory anew
        problems = ranks.gather(problem)
    seconds = time.perf_counter() - started
    for rank, rank_problem in enumerate(problems):
        if rank_problem:
            undo(model)
            return seconds, f"{ranks.scope_of(rank)}: {rank_problem}"
    ranks.say(f"compiled after {seconds:.0f} s")
    return seconds, ""


def undo(model: nn.Module) -> None:
    """Undo the compilation: the layers run as written."""
    for layer in model.get_submodule("layers").children():
        layer._compiled_call_impl = None  # set by Module.compile(), which cannot be undone otherwise
    torch._dynamo.reset()


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise ``_Expired`` in the main thread after ``seconds``, and again each second: Python drops an exception in a
    finalizer or a weak reference's callback, which compilers use a lot."""

    def expire(*_: object) -> None:
        raise _Expired

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
