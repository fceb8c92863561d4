"""Which stages of a node are retried. Pure; the watch calls it whenever a node's plan is complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..judge.check import Check
from ..judge.stage_end import IMAGE, lacks_image
from ..records.documents import FAILED_STATES


def stages_to_retry(
    plan_stages: Sequence[Mapping[str, Any]],
    records: Mapping[str, Mapping[str, Any]],
    failed_checks: Iterable[Check],
    max_attempts: int = 2,
) -> list[str]:
    """Names of the stages to retry, in the order of the plan.

    A stage is retried when its plan lists its state under ``retry``, or when it succeeded, its plan lists ``slow`` and
    a failed check of it allows another measurement. It is not retried when a failed check allows none (wrong results),
    nor beyond ``max_attempts``, nor without its image, unless the stage that brings it is retried. A stage skipped only
    because of stages that are retried is retried with them.

    plan_stages: ``stages`` of a plan; where the plan is unknown they have names only, and nothing is retried. records:
    by stage. failed_checks: required criteria that the node failed.
    """
    failed = list(failed_checks)
    final = {check.stage for check in failed if not check.retry}
    slow = {check.stage for check in failed if check.retry} - final
    chosen: list[str] = []
    stopped_for_good = False
    stopped_by_chosen = False
    for stage in plan_stages:
        name, record = stage["name"], records.get(stage["name"])
        if record is None:
            continue
        state = record["state"]
        again = record["attempt"] < max_attempts and name not in final and not stopped_for_good
        again = again and (not lacks_image(record) or IMAGE in chosen)
        retried = stage.get("retry", ())
        allowed = state in retried or (state == "success" and "slow" in retried and name in slow)
        waited = state == "skipped" and _only_waits_for(stage, records, chosen, stopped_by_chosen)
        if again and (waited or (allowed and state in (*FAILED_STATES, "success"))):
            chosen.append(name)
            stopped_by_chosen = stopped_by_chosen or (state in FAILED_STATES and stage.get("on_failure") == "stop")
        elif state in FAILED_STATES and stage.get("on_failure") == "stop":
            stopped_for_good = True
    return chosen


def _only_waits_for(
    stage: Mapping[str, Any], records: Mapping[str, Mapping[str, Any]], chosen: Sequence[str], stopped_by_chosen: bool
) -> bool:
    """Whether a skipped stage would run now that ``chosen`` are retried."""
    needs = stage.get("needs", ())
    met = all(need in chosen or records.get(need, {}).get("state") == "success" for need in needs)
    return met and (stopped_by_chosen or any(need in chosen for need in needs))
