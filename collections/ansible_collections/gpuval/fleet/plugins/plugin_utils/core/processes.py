"""Detects the end of the parent process, ansible-playbook, and computes in forked child processes."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

#: Minimum number of nodes in the fleet for which a further process saves time.
MIN_NODES = 48
#: Seconds to wait for a child; a fork may hang on a lock that a thread of the parent held.
CHILD_SECONDS = 3600.0

Item = TypeVar("Item")
Result = TypeVar("Result")


def processors(node_count: int) -> int:
    """Number of processors for work on so many nodes; 1 for few nodes, or where a fork is unsafe (macOS, daemons)."""
    if node_count < MIN_NODES or multiprocessing.current_process().daemon or not hasattr(os, "sched_getaffinity"):
        return 1
    return len(os.sched_getaffinity(0))


@contextmanager
def beside(function: Callable[[], Result], node_count: int) -> Iterator[Callable[[], Result]]:
    """Compute ``function`` in a forked child while the context runs. Yields a function that waits for the result, and
    computes it here if the child fails or hangs. For few nodes, or on one processor, it is computed here at once."""
    if processors(node_count) < 2:
        computed = function()
        yield lambda: computed
        return
    fork = multiprocessing.get_context("fork")
    reader, writer = fork.Pipe(duplex=False)

    def compute() -> None:
        with suppress(Exception):  # result() computes again in the parent, and raises there
            writer.send(function())

    child = fork.Process(target=compute, daemon=True)
    child.start()
    writer.close()

    def result() -> Result:
        with suppress(EOFError, OSError):  # the child failed, or was killed (out of memory?)
            if reader.poll(CHILD_SECONDS):
                received: Result = reader.recv()
                return received
        return function()

    try:
        yield result
    finally:
        child.kill()  # SIGKILL, since the child has inherited this process's signal handlers
        child.join()
        reader.close()


def by_halves(function: Callable[[Sequence[Item]], Result], nodes: Sequence[Item]) -> tuple[Result, Result]:
    """Both results of ``function``: for the first half of ``nodes``, and for the second half, by a child process."""
    half = len(nodes) // 2
    with beside(lambda: function(nodes[half:]), len(nodes)) as second_half:
        return function(nodes[:half]), second_half()


class AbandonedError(Exception):
    """ansible-playbook has ended, so a worker must end, too: the next command may be running already. Workers are in
    sessions of their own, and survive when ansible-playbook is killed."""


class Parent:
    """The parent process (ansible-playbook), as it was when this object was made."""

    def __init__(self) -> None:
        self._pid = os.getppid()

    def check(self) -> None:
        """Raise AbandonedError if the parent process is gone."""
        if os.getppid() != self._pid:
            raise AbandonedError("ansible-playbook has ended without its worker")
