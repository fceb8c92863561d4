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
    """``retried``: runs passed only on a further attempt. ``changes``: from PASS to FAIL or back on the same hardware,
    ``pattern`` the verdicts of that stretch (P, F)."""

    judged: int
    retried: tuple[str, ...]
    changes: int
    pattern: str

    @property
    def flaky(self) -> bool:
        return bool(self.retried) or self.changes >= MIN_CHANGES


def flakiness(history: Iterable[Judged]) -> Flakiness:
    """Of one machine's runs in their order.

    INCOMPLETE is no evidence about the machine and is ignored. A GPU that falls off the bus and comes back is no change
    of hardware; one that was not there before is.
    """
    judged = [one for one in history if one.verdict in _FINAL]
    by_asked: dict[Hashable, list[Judged]] = defaultdict(list)
    for one in judged:
        by_asked[one.asked].append(one)
    changes, pattern = 0, ""
    for comparable in by_asked.values():
        for stretch in _same_hardware(comparable):
            verdicts = [one.verdict for one in stretch]
            moved = sum(before != after for before, after in zip(verdicts, verdicts[1:]))
            if moved > changes:
                changes, pattern = moved, "".join(verdict[0] for verdict in verdicts)
    retried = tuple(one.run_id for one in judged if one.retried and one.verdict == "PASS")
    return Flakiness(len(judged), retried, changes, pattern)


def _same_hardware(history: Sequence[Judged]) -> list[list[Judged]]:
    stretches: list[list[Judged]] = []
    seen: set[str] = set()
    for one in history:
        if not stretches or (seen and one.gpus - seen):
            stretches.append([])
            seen = set()
        stretches[-1].append(one)
        seen |= one.gpus
    return stretches
