"""Why a stage that passed was run again: a fault of its own, a want of memory or disk, or an end from outside. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..records import launch_errors

FLAKY, OUT_OF_MEMORY, DISK_FULL, INTERRUPTED = "flaky", "out_of_memory", "disk_full", "interrupted"
#: In what the runner and the controller write about a stage that the kernel killed for want of memory.
_OOM = re.compile(r"\b(?:probably )?out of memory: the |\bOOMKilled\b")
#: The runner's words for a container that ended together with its pod, and for a record that a new pod finds at work.
_ENDED_WITH_POD = "its container ended without a final record"
_CUT_OFF = "cut off (last seen "


def retried_for(record: Mapping[str, Any]) -> str | None:
    """The worst cause of the record's earlier attempts; None without any that began."""
    causes = {_cause(attempt, record) for attempt in record["attempts"] if not attempt.get("unrelated")}
    return next((cause for cause in (FLAKY, OUT_OF_MEMORY, DISK_FULL, INTERRUPTED) if cause in causes), None)


def _cause(attempt: Mapping[str, Any], record: Mapping[str, Any]) -> str | None:
    message = str(attempt.get("message") or "")
    earlier = attempt["attempt"] < record["attempt"]
    # A heartbeat of the same attempt is no earlier attempt: the end is known from the pod alone.
    if attempt["state"] in ("pending", "skipped") or (attempt["state"] == "running" and not earlier):
        return None
    # Within one attempt a machine that came back, after a reboot for instance, cut the stage off.
    new_pod = message.startswith(_CUT_OFF) and earlier
    if attempt["state"] in ("running", "cancelled") or _ENDED_WITH_POD in message or new_pod:
        return INTERRUPTED
    if attempt["state"] != "crash":
        return FLAKY
    if launch_errors.classify("", message).name == DISK_FULL:
        return DISK_FULL
    return OUT_OF_MEMORY if _OOM.search(message) else FLAKY
