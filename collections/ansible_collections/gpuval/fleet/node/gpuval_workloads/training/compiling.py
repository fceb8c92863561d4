"""Compile the model's layers where that pays, within bounded time; where it fails, train without and say so.

One forward and backward pass on every rank by itself, before gradients are exchanged: a rank whose compiler fails or
takes too long leaves no rank waiting in a collective, and all fall back together.
"""

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
    """The time is up. No Exception, so that no handler inside the compiler takes it for a failure of its own."""


def compile_layers(
    model: nn.Module, next_loss: Callable[[], Tensor], ranks: Ranks, limit_seconds: float = COMPILE_LIMIT_SECONDS
) -> tuple[float, str]:
    """Compile the layers on all ranks; return the seconds it took, and why it was given up ("" where it was not).

    Layer by layer, so that gradients are exchanged while the backward pass goes on. Given up, the model is as before.
    """
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
        except Exception as error:  # a compiler may raise whatever it likes; without it the training still runs
            problem = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]
        model.zero_grad(set_to_none=True)
        ranks.empty_cache()  # the training lays its memory out anew
        problems = ranks.gather(problem)
    seconds = time.perf_counter() - started
    for rank, rank_problem in enumerate(problems):
        if rank_problem:
            undo(model)
            return seconds, f"{ranks.scope_of(rank)}: {rank_problem}"
    ranks.say(f"compiled after {seconds:.0f} s")
    return seconds, ""


def undo(model: nn.Module) -> None:
    """Let the layers run as they are written again."""
    for layer in model.get_submodule("layers").children():
        layer._compiled_call_impl = None  # what Module.compile() set; it offers no way back
    torch._dynamo.reset()


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise ``_Expired`` in the main thread when the time is up, and again each second until it gets through.

    Python drops an exception that meets a finalizer or a weak reference's callback, and compilers are full of them.
    """

    def expire(*_: object) -> None:
        raise _Expired

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
