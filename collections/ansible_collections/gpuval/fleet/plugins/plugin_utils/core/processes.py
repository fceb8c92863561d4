"""Processes around this one: ansible-playbook, which started it, and a child that computes beside it."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

#: Minimum number of nodes for which a further process pays off.
MIN_NODES = 48

Item = TypeVar("Item")
Result = TypeVar("Result")


def processors(nodes: int) -> int:
    """How many may share the work on so many nodes, by fork; 1 where that is not safe (macOS, a daemon's child)."""
    if nodes < MIN_NODES or multiprocessing.current_process().daemon or not hasattr(os, "sched_getaffinity"):
        return 1
    return len(os.sched_getaffinity(0))


@contextmanager
def beside(function: Callable[[], Result], nodes: int) -> Iterator[Callable[[], Result]]:
    """What returns the result of ``function``, which a child computes from now on, by fork as Ansible's own. For few
    ``nodes`` or on one processor this process computes it first; if the child fails, when it is asked for."""
    if processors(nodes) < 2:
        computed = function()
        yield lambda: computed
        return
    fork = multiprocessing.get_context("fork")
    reader, writer = fork.Pipe(duplex=False)

    def compute() -> None:
        with suppress(Exception):  # raised again where the result is asked for, not printed here
            writer.send(function())

    child = fork.Process(target=compute, daemon=True)
    child.start()
    writer.close()

    def result() -> Result:
        try:
            received: Result = reader.recv()
        except (EOFError, OSError):  # killed, perhaps while it sent: out of memory? An error is raised again here
            return function()
        return received

    try:
        yield result
    finally:
        child.kill()  # a signal that it can handle may not end it: it has this process' handlers
        child.join()
        reader.close()


def by_halves(function: Callable[[Sequence[Item]], Result], nodes: Sequence[Item]) -> tuple[Result, Result]:
    """``function`` of the first half of the nodes, and of the others, which a child computes."""
    half = len(nodes) // 2
    with beside(lambda: function(nodes[half:]), len(nodes)) as second_half:
        return function(nodes[:half]), second_half()


class AbandonedError(Exception):
    """ansible-playbook is gone: no process reads a result, and the next command may be running already. Its workers are
    in sessions of their own, and outlive one that is killed."""


class Parent:
    """The process that this one was started by."""

    def __init__(self) -> None:
        self._pid = os.getppid()

    def check(self) -> None:
        """Raise AbandonedError if the parent process is gone."""
        if os.getppid() != self._pid:
            raise AbandonedError("ansible-playbook has ended without its worker")
