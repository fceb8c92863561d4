"""Why a stage that passed was run again: a fault of its node, a want of memory or disk, an end from outside, or a cause
that is not the node's. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ..records import launch_errors
from ..records.failure_classes import NODE, OWN_PROGRAM, named_cause, subject_of
from ..runs.settings import is_shipped

FLAKY, OUT_OF_MEMORY, DISK_FULL, INTERRUPTED = "flaky", "out_of_memory", "disk_full", "interrupted"
#: The store, the network, the site or a program of the user's own was at fault.
NOT_THE_NODE = "not_the_node"
#: In what the runner and the controller write about a stage that the kernel killed for want of memory.
_OOM = re.compile(r"\b(?:probably )?out of memory: the |\bOOMKilled\b")
#: The runner's words for a container that ended together with its pod, and for a record that a new pod finds at work.
_ENDED_WITH_POD = "its container ended without a final record"
_CUT_OFF = "cut off (last seen "


class EarlierAttempt(NamedTuple):
    """An attempt before the last: its record, and whether it has a lower number than the last. ``cut_off``: an end from
    outside cut off work of the same attempt, so that a stage that had passed may have run again with it. ``slow``: it
    passed, and was slow; else it was measured again beside a node that was."""

    record: Mapping[str, Any]
    earlier: bool
    cut_off: bool = False
    slow: bool = True

    @property
    def state(self) -> str:
        return str(self.record["state"])

    @property
    def message(self) -> str:
        return str(self.record.get("message") or "")

    @property
    def failure_class(self) -> str:
        """The class of its end."""
        stage = self.record["stage"]
        return named_cause(self.record) or (f"{stage}_{self.state}" if is_shipped(stage) else OWN_PROGRAM)


def retried_for(
    record: Mapping[str, Any], of_node: Iterable[Mapping[str, Any]] = (), *, slow: bool = True
) -> str | None:
    """The worst cause of the record's earlier attempts; None without any that began and failed.

    ``of_node``: the records of all stages of the node. ``slow``: attempts that passed were slow.
    """
    cut_off = {_turn(attempt.record) for other in of_node for attempt in _attempts(other) if _was_interrupted(attempt)}
    causes = {
        _cause(attempt._replace(cut_off=_turn(attempt.record) in cut_off, slow=slow))
        for attempt in _attempts(record)
        if not attempt.record.get("unrelated")
    }
    return next((cause for cause in CAUSES if cause in causes), None)


def _attempts(record: Mapping[str, Any]) -> list[EarlierAttempt]:
    return [EarlierAttempt(attempt, attempt["attempt"] < record["attempt"]) for attempt in record["attempts"]]


def _turn(attempt: Mapping[str, Any]) -> tuple[str, int]:
    """What stages of a node ran in together: the round of their gang, and the number of the attempt."""
    return str(attempt.get("of_round", "")), attempt["attempt"]


def _was_interrupted(attempt: EarlierAttempt) -> bool:
    # Within one attempt a machine that came back, after a reboot for instance, cut the stage off.
    new_pod = attempt.message.startswith(_CUT_OFF) and attempt.earlier
    return attempt.state in ("running", "cancelled") or _ENDED_WITH_POD in attempt.message or new_pod


def _found_a_full_disk(attempt: EarlierAttempt) -> bool:
    return attempt.state == "crash" and launch_errors.classify("", attempt.message).name == DISK_FULL


#: The first rule that applies counts; None is no cause for a retry.
RULES: tuple[tuple[str | None, Callable[[EarlierAttempt], object]], ...] = (
    (None, lambda attempt: attempt.state in ("pending", "skipped")),
    (None, lambda attempt: attempt.state == "success" and (attempt.cut_off or not attempt.slow)),
    # A heartbeat of the same attempt is no earlier attempt: the end is known from the pod alone.
    (None, lambda attempt: attempt.state == "running" and not attempt.earlier),
    (INTERRUPTED, _was_interrupted),
    (DISK_FULL, _found_a_full_disk),
    (OUT_OF_MEMORY, lambda attempt: attempt.state == "crash" and _OOM.search(attempt.message)),
    (NOT_THE_NODE, lambda attempt: subject_of(attempt.failure_class) != NODE),
    (FLAKY, lambda attempt: True),
)
#: From the worst.
CAUSES = (FLAKY, OUT_OF_MEMORY, DISK_FULL, INTERRUPTED, NOT_THE_NODE)


def _cause(attempt: EarlierAttempt) -> str | None:
    return next(cause for cause, applies in RULES if applies(attempt))
