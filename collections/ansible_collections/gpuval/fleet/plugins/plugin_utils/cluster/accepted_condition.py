"""The node condition `gpuval.io/Accepted`: the verdict in a node's labels and annotations, in the form that other
controllers read. Only a PASS expires. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from ..runs.failed_checks import FAIL, PASS
from . import names

ACCEPTED = "gpuval.io/Accepted"
VERDICT_LABEL = "gpuval.io/verdict"
TIME_ANNOTATION = "gpuval.io/validated-at"
CLASS_ANNOTATION = "gpuval.io/class"
#: The condition's status by verdict; of any other verdict it is Unknown.
_STATUS = {PASS: "True", FAIL: "False"}
_UNKNOWN, _OUTDATED = "Unknown", "Outdated"
_FORM = "%Y-%m-%dT%H:%M:%SZ"

NodeMetadata = Mapping[str, Mapping[str, str | None]]


def condition_of(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The condition that a Node object has; None without one."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == ACCEPTED), None)


def condition_for(metadata: NodeMetadata, now: datetime, max_age_days: float) -> dict[str, str] | None:
    """The condition for the verdict in a node's `labels` and `annotations`; None without a verdict. `max_age_days`:
    after how many days a PASS expires; 0: never."""
    verdict, notes = metadata["labels"].get(VERDICT_LABEL), metadata["annotations"]
    if not verdict:
        return None
    failure_class, judged_at = notes.get(CLASS_ANNOTATION), _moment(notes.get(TIME_ANNOTATION))
    status, reason = _STATUS.get(verdict, _UNKNOWN), failure_class or verdict.capitalize()
    message = f"{verdict} in run {notes.get(names.RUN_ANNOTATION)}" + (f": {failure_class}" if failure_class else "")
    is_old = judged_at is None or now - judged_at > timedelta(days=max_age_days)
    if verdict == PASS and max_age_days > 0 and is_old:
        status, reason = _UNKNOWN, _OUTDATED
        message += f", older than {max_age_days:g} days: validate the node again"
    heartbeat = {"lastHeartbeatTime": judged_at.strftime(_FORM)} if judged_at else {}
    return {"type": ACCEPTED, "status": status, "reason": reason, "message": message, **heartbeat}


class ConditionChange(NamedTuple):
    """The strategic merge patch of a Node's status, and the condition before and after it as lines of a diff."""

    patch: dict[str, Any]
    before: str
    after: str


def condition_change(
    node: Mapping[str, Any], metadata: NodeMetadata, now: datetime, max_age_days: float
) -> ConditionChange | None:
    """The change that makes a Node's condition fit the verdict in `metadata`; None if it fits already. The patch names
    this condition alone, so that it undoes no change of another controller. `max_age_days`: see `condition_for`."""
    before, after = condition_of(node), condition_for(metadata, now, max_age_days)
    if after.items() <= before.items() if after and before else after is before:
        return None
    patched = dict(after or {"type": ACCEPTED, "$patch": "delete"})
    if after and (before is None or before.get("status") != after["status"]):
        patched["lastTransitionTime"] = now.strftime(_FORM)
    return ConditionChange({"status": {"conditions": [patched]}}, _line(before), _line(after))


def _line(condition: Mapping[str, Any] | None) -> str:
    return f"{ACCEPTED}: {condition['status']} ({condition.get('reason')})\n" if condition else ""


def _moment(text: str | None) -> datetime | None:
    """The time in an annotation's text, in UTC; None if the text is no time."""
    try:
        return datetime.fromisoformat(text or "").astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
