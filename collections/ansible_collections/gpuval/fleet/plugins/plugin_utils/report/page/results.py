"""Reads the curves in nodes' series files, for a fleet in other processes while this one makes other forms."""

import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...core.escape import NODE_NAME
from ...core.processes import processors
from . import curves

MAX_PROCESSES = 4
#: Nodes that are not PASS get so many times the points per curve, unless they are a quarter of the fleet or more.
MORE_POINTS = 4
#: {node name: names of its evidence files in the results folder}
Files = Mapping[str, frozenset[str]]
#: Evidence files by node, and an iterator over the curves of each node (``curves.as_data``), which waits for them.
Read = tuple[Files, Iterator[list[list[Any]]]]


@dataclass(frozen=True)
class EvidencePlace:
    """Where a stage's evidence files are, relative to the report. ``path``: a pattern with {node} and {stage}, without
    suffix; ``kinds``: suffixes of the files that the report links."""

    path: str
    kinds: tuple[str, ...]

    def of(self, node: str, stage: str) -> str:
        return self.path.format(node=node, stage=stage)

    def linked(self, files: Files) -> Files:
        """{node: names of its evidence files that the report links}, those with a suffix in ``kinds``."""
        return {
            node: frozenset(name for name in names if name.rpartition(".")[2] in self.kinds)
            for node, names in files.items()
        }


RESULTS = EvidencePlace("nodes/{node}/{stage}", ("log", "json"))
DELIVERY = EvidencePlace("logs/{stage}/{node}", ("log",))


@contextmanager
def reading(report: Mapping[str, Any], directory: Path | None) -> Iterator[Read]:
    """Begin to read the evidence in a run's results folder. For a fleet other processes read the curves, forked like
    Ansible's own; they end with the context."""
    files = _files(directory)
    bad = sum(node["verdict"] != "PASS" for node in report["nodes"])
    more = MORE_POINTS if MORE_POINTS * bad < len(report["nodes"]) else 1
    nodes = [
        {"name": node["name"], "stages": node["stages"], "more": 1 if node["verdict"] == "PASS" else more,
         "files": files.get(node["name"], frozenset())}
        for node in report["nodes"]
    ]  # fmt: skip
    read = partial(_read_node, directory or Path(), len(nodes))
    processes = min(MAX_PROCESSES, processors(len(files)))
    results: Iterator[Any] = map(read, nodes)
    if processes < 2:
        yield files, results
        return
    # gc.freeze: a garbage collection in a process would copy the report's memory pages.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), initializer=gc.freeze)
    try:
        with suppress(BrokenExecutor):  # a process was killed before all work was submitted (out of memory?)
            results = _or_here(pool.map(read, nodes, chunksize=8), read, nodes)
        yield files, results
    finally:
        pool.shutdown(cancel_futures=True)


def _or_here(results: Iterator[Any], read: Callable[[Any], Any], nodes: list[dict[str, Any]]) -> Iterator[Any]:
    """Yield the ``results`` of other processes, one for each node. If one was killed, ``read`` the rest here."""
    done = 0
    try:
        for result in results:
            yield result
            done += 1
    except BrokenExecutor:  # a process was killed (out of memory?)
        yield from map(read, nodes[done:])


def _files(directory: Path | None) -> dict[str, frozenset[str]]:
    if directory is None or not (directory / "nodes").is_dir():
        return {}
    with os.scandir(directory / "nodes") as entries:
        names = [entry.name for entry in entries if entry.is_dir() and NODE_NAME.fullmatch(entry.name)]
    return {name: frozenset(path.name for path in (directory / "nodes" / name).iterdir()) for name in names}


def _read_node(directory: Path, node_count: int, node: Mapping[str, Any]) -> list[list[Any]]:
    if not node["files"]:
        return []
    folder = directory / "nodes" / node["name"]
    return curves.as_data(curves.of_node(folder, node, node["files"]), node_count, node["more"])
