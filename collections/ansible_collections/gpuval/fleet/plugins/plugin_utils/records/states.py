"""The states of records and launches (gpuval.record/1)."""

from __future__ import annotations

#: A stage in one of these states does not change any more.
FINAL_STATES = frozenset({"success", "failure", "crash", "timeout", "skipped", "cancelled"})
#: The stage ran and did not succeed.
FAILED_STATES = frozenset({"failure", "crash", "timeout"})
#: Launch states in which a runner is, or was, at work on the node.
LAUNCHED = frozenset({"started", "finished"})
#: Why a stage of a run that was cleaned while it worked has no end.
RUN_ENDED = "the run was ended by another command (clean)"
#: A stage in one of these states proves nothing yet.
UNFINISHED = frozenset({"pending", "running"})
