"""Work on many items, shared between processes that are forked for it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

#: With fewer items a pool costs more than it saves.
MIN_ITEMS = 48
MAX_PROCESSES = 4
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_call: Callable[[Any], Any]


def shared_map(call: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """The results in the order of the items; what ``call`` changes beside its result may be lost.

    Items and results travel between processes; ``call``, with all that it holds, is inherited by the fork.
    """
    processes = min(MAX_PROCESSES, len(os.sched_getaffinity(0)))
    if len(items) < MIN_ITEMS or processes < 2 or multiprocessing.current_process().daemon:
        yield from map(call, items)
        return
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, fork, initializer=_inherit, initargs=(call,)) as pool:
        yield from pool.map(_call_inherited, items, chunksize=8)


def _inherit(call: Callable[[Any], Any]) -> None:
    global _call  # noqa: PLW0603 - one for each process of a pool
    _call = call


def _call_inherited(item: Any) -> Any:
    return _call(item)
