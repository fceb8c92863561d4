"""The curves of the nodes' own files. For a fleet other processes read them while this one makes the other forms."""

import gc
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...core.escape import NODE_NAME
from ...core.processes import processors
from . import curves

MAX_PROCESSES = 4
#: Factor of points in curves of nodes that are not PASS, unless these are a quarter of the fleet or more.
MORE_POINTS = 4

#: For each node the names of its evidence files in the results.
Files = Mapping[str, frozenset[str]]
#: The files, and an iterator over each node's curves (``curves.as_data``) that waits until they are read.
Read = tuple[Files, Iterator[list[list[Any]]]]


@dataclass(frozen=True)
class EvidencePlace:
    """Where a stage's files are, seen from the report. ``path``: without suffix; ``kinds``: the suffixes to link."""

    path: str
    kinds: tuple[str, ...]

    def of(self, node: str, stage: str) -> str:
        return self.path.format(node=node, stage=stage)

    def linked(self, files: Files) -> Files:
        """Those files of each node that the report links."""
        return {
            node: frozenset(name for name in names if name.rpartition(".")[2] in self.kinds)
            for node, names in files.items()
        }


RESULTS = EvidencePlace("nodes/{node}/{stage}", ("log", "json"))
DELIVERY = EvidencePlace("logs/{stage}/{node}", ("log",))


@contextmanager
def reading(report: Mapping[str, Any], directory: Path | None) -> Iterator[Read]:
    """Begin to read a run's results; gives the files, and an iterator over each node's curves. For a fleet other
    processes read them, forked like Ansible's own; if a form of the report fails, they end with it."""
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
    if processes < 2:
        yield files, map(read, nodes)
        return
    # gc.freeze: a garbage collection in a process would copy the report's memory pages.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), initializer=gc.freeze)
    try:
        yield files, pool.map(read, nodes, chunksize=8)
    finally:
        pool.shutdown(cancel_futures=True)


def _files(directory: Path | None) -> dict[str, frozenset[str]]:
    if directory is None or not (directory / "nodes").is_dir():
        return {}
    with os.scandir(directory / "nodes") as entries:
        names = [entry.name for entry in entries if entry.is_dir() and NODE_NAME.fullmatch(entry.name)]
    return {name: frozenset(path.name for path in (directory / "nodes" / name).iterdir()) for name in names}


def _read_node(directory: Path, nodes: int, node: Mapping[str, Any]) -> list[list[Any]]:
    if not node["files"]:
        return []
    folder = directory / "nodes" / node["name"]
    return curves.as_data(curves.of_node(folder, node, node["files"]), nodes, node["more"])
