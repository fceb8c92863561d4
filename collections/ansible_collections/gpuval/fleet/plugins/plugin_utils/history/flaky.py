"""Machines that pass one day and fail the next. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

#: One change is a machine that broke or was repaired; back and forth is neither.
MIN_CHANGES = 2
_FINAL = ("PASS", "FAIL")


@dataclass(frozen=True)
class Judged:
    """One machine in one run. Only verdicts with the same ``asked`` (profile and stages) are compared."""

    run_id: str
    asked: Hashable
    verdict: str
    retried: bool
    gpus: frozenset[str]


@dataclass(frozen=True)
class Flakiness:
    """``retried_runs`` passed only on a further attempt. ``changes``: from PASS to FAIL or back on the same hardware,
    ``pattern`` the verdicts of that stretch (P, F)."""

    judged: int
    retried: int
    retried_runs: list[str]
    changes: int
    pattern: str

    @property
    def flaky(self) -> bool:
        return bool(self.retried) or self.changes >= MIN_CHANGES


def flakiness(history: Iterable[Judged]) -> Flakiness:
    """Of one machine's runs in their order. INCOMPLETE is no evidence about the machine and is ignored. A GPU that
    falls off the bus and comes back is no change of hardware; one that was not there before is."""
    judged = [run for run in history if run.verdict in _FINAL]
    by_asked: dict[Hashable, list[Judged]] = defaultdict(list)
    for run in judged:
        by_asked[run.asked].append(run)
    changes, pattern = 0, ""
    for comparable in by_asked.values():
        for stretch in _same_hardware(comparable):
            verdicts = [run.verdict for run in stretch]
            moved = sum(before != after for before, after in zip(verdicts, verdicts[1:]))
            if moved > changes:
                changes, pattern = moved, "".join(verdict[0] for verdict in verdicts)
    retried = [run.run_id for run in judged if run.retried and run.verdict == "PASS"]
    return Flakiness(len(judged), len(retried), retried, changes, pattern)


def _same_hardware(history: Sequence[Judged]) -> list[list[Judged]]:
    stretches: list[list[Judged]] = []
    gpus: set[str] = set()
    for run in history:
        if not stretches or (gpus and run.gpus - gpus):
            stretches.append([])
            gpus = set()
        stretches[-1].append(run)
        gpus |= run.gpus
    return stretches
