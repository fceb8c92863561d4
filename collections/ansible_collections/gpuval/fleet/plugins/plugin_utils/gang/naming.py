"""Conflicts between ids of runs and of rounds: `r.all` is round `all` of run `r` in folders, containers and Jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..runs.folder import RunError, RunFolder, known_runs
from .rounds import run_id_of

#: Names of rounds (``forming``, ``rounds.name_of``).
ROUND = re.compile(r"[a-z0-9-]+")


def check(results: Path, run: Mapping[str, Any]) -> None:
    """Refuse a new run whose id equals that of a possible round of a known run, or the reverse.

    Other ids with dots are fine. Raises RunError.
    """
    run_id = run["run_id"]
    folders = {folder.path.name: folder for folder in known_runs(results, imported=True)}
    for rival in _could_own(run_id, folders):
        raise RunError(
            f"gpuval_run_id {run_id!r} is also the id of a gang round of run {rival} on nodes and in the cluster: "
            "choose another one"
        )
    if _has_gangs(run):
        for rival in folders:
            if rival != run_id and _is_round_of(rival, run_id):
                raise RunError(
                    f"gpuval_run_id {run_id!r}: a gang round would have the id of run {rival} on nodes and in the "
                    "cluster: choose another one"
                )


def _could_own(run_id: str, folders: Mapping[str, RunFolder]) -> Iterable[str]:
    for rival, folder in folders.items():
        if rival != run_id and _is_round_of(run_id, rival):
            try:
                if _has_gangs(folder.read_run()):
                    yield rival
            except RunError:  # it may have rounds
                yield rival


def _is_round_of(run_id: str, run: str) -> bool:
    """Whether a round of `run` may have this id."""
    name = run_id.rpartition(".")[2]
    return bool(name and name != run_id and ROUND.fullmatch(name)) and run_id_of(run, name) == run_id


def _has_gangs(run: Mapping[str, Any]) -> bool:
    return any(node.get("gang_stages") for node in run["nodes"].values())
