"""Decides which nodes get a further attempt: after a runner exited, a pod was evicted or a stage failed in a way that
may be retried, and nodes whose figures differ from their peers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.text import some_of
from ..judge import baseline, verdict
from ..judge.check import Check
from ..judge.kinds import JudgeContext
from ..judge.peer_groups import PeerHistory
from ..judge.stage_end import IMAGE, lacks_image
from ..records.documents import FAILED_STATES
from ..runs import applied_criteria
from .decisions import NodeView, to_restart
from .placement import Placement, PlannedAttempt
from .watched_run import WatchedRun

#: Nodes whose stages take longer in total get no second measurement: that of a burn-in would take hours.
MAX_AGAIN_SECONDS = 1800
#: Maximum time from a launch to the start of its first stage.
START_SECONDS = 120
#: How long a second measurement may wait for a scheduler, unless the run has `wait_for_node`.
QUEUE_SECONDS = 600.0


class Attempts:
    def __init__(
        self,
        watched: WatchedRun,
        placement: Placement,
        checks: Sequence[Check],
        retries: int,
        wait_for_node: float = 0.0,
    ) -> None:
        """`retries`: how often a stage is repeated. `wait_for_node`: maximum seconds that a second measurement waits
        for a scheduler, 0 for QUEUE_SECONDS. Raises SettingError."""
        self._watched, self._placement, self._retries = watched, placement, retries
        self._queue_seconds = wait_for_node or QUEUE_SECONDS
        held = applied_criteria.judged_by(watched.folder, [], "")[1]
        self._context = JudgeContext(checks, baseline.read(Path(held), watched.folder.path.name) if held else None)
        #: {node: time of the evidence that it was last judged on}: to judge all nodes at every poll would take seconds.
        self._judged: dict[str, float] = {}
        #: Whether this controller has compared the nodes with each other.
        self._compared = False

    def due(self, views: Sequence[NodeView]) -> dict[str, PlannedAttempt]:
        """{node name: further attempt to launch}. `views`: the nodes that can be launched now."""
        say, orders = self._watched.say, {}
        for name in to_restart(views):
            view = self._watched.views[name]
            say(f"{name}: the runner exited; the plan resumes where it stopped")
            view.restarts += 1
            self._watched.memory.restarts[name] = view.restarts
            orders[name] = PlannedAttempt(view.launch.get("attempt", 1), view.launch.get("stages", []))
        for view in views:
            attempt = self._placement.next_attempt(view) if view.done else None
            if attempt:
                say(f"{view.name}: launched again, as attempt {attempt.number}")
                view.attempt_ended = False
                orders[view.name] = attempt
        for view in views if self._retries else ():
            stages = self._stages_to_retry(view)
            if stages:
                say(f"{view.name}: {', '.join(stages)} again, as attempt 2")
                orders[view.name] = PlannedAttempt(2, stages)
        return orders

    def _stages_to_retry(self, view: NodeView) -> list[str]:
        """Names of the stages that a node repeats because of its own checks; empty until its plan is complete."""
        if view.launch.get("attempt", 1) > 1 or not view.launched or not view.complete:
            return []
        if self._judged.get(view.name) == view.changed_at:
            return []
        self._judged[view.name] = view.changed_at
        node = verdict.judge_node(self._watched.info, view.name, self._watched.evidence, self._context)
        failed = verdict.failed_criteria(node, self._context.criteria)
        return stages_to_retry(view.plan["stages"], view.records, failed, 1 + self._retries)

    def second_measurements(self, now: float, at_once: int = 0) -> dict[str, PlannedAttempt]:
        """{node name: attempt that repeats doubtful measurements}, once all nodes are done: for nodes that differ from
        their peers, and two good peers of each kind. Left out are nodes with a further attempt, stages that take longer
        than MAX_AGAIN_SECONDS, and what does not fit into the time left. ``now``: seconds of the monotonic clock;
        ``at_once``: how many nodes may work at once, 0 is no limit."""
        watched, context = self._watched, self._context
        if self._compared or not self._retries:
            return {}
        self._compared = True
        able = [
            name for name, view in watched.views.items()
            if view.in_play and view.launched and view.complete and view.launch.get("attempt", 1) == 1
        ]  # fmt: skip
        history = PeerHistory.of(applied_criteria.standings(watched.folder))
        comparison = JudgeContext(context.criteria, context.baseline, history)
        orders, left = {}, watched.seconds_left(now)
        chosen = verdict.to_measure_again(watched.info, watched.evidence, comparison, able)
        turns = math.ceil(len(chosen) / at_once) if at_once else 1
        for name, stages in chosen.items():
            view = watched.views[name]
            slow = [check for check in context.criteria if check.stage in stages and check.required and check.retry]
            again = stages_to_retry(view.plan["stages"], view.records, slow, 1 + self._retries)
            seconds = sum(view.records[stage]["duration_seconds"] or 0.0 for stage in again)
            each = 1.5 * seconds + START_SECONDS
            if again and seconds <= MAX_AGAIN_SECONDS and turns * each < left:
                orders[name] = PlannedAttempt(2, again, self._queue_seconds + each)
                begins = min(self._queue_seconds + (turns - 1) * each, left - each)
                watched.memory.begin_by[name] = now - watched.opened + begins
        doubtful = len(comparison.doubtful.keys() & chosen.keys())
        if orders:
            watched.say(f"{doubtful} nodes differ from their peers; measured again, with good ones: {some_of(orders)}")
        elif chosen:
            watched.say(f"{doubtful} nodes differ from their peers; to measure them again would take too long")
        return orders


def stages_to_retry(
    plan_stages: Sequence[Mapping[str, Any]],
    records: Mapping[str, Mapping[str, Any]],
    failed_checks: Iterable[Check],
    max_attempts: int = 2,
) -> list[str]:
    """Names of a node's stages to retry, in the order of its plan. A stage is retried when its plan lists its state
    under ``retry``, or when it succeeded, its plan lists ``slow`` and a failed check of the stage allows another
    measurement. It is not retried when a failed check allows none (wrong results), nor beyond ``max_attempts``, nor
    without its image, unless the stage that brings the image is retried. A stage skipped only because of stages that
    are retried is retried with them.

    plan_stages: ``stages`` of a plan; of an unknown plan they have names only. records: {stage: record}. failed_checks:
    required criteria that the node failed.
    """
    failed = list(failed_checks)
    final = {check.stage for check in failed if not check.retry}
    slow = {check.stage for check in failed if check.retry} - final
    chosen: list[str] = []
    stopped_for_good = stopped_by_chosen = False
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
    """Whether a skipped stage would run if the stages in ``chosen`` are retried."""
    needs = stage.get("needs", ())
    met = all(need in chosen or records.get(need, {}).get("state") == "success" for need in needs)
    return met and (stopped_by_chosen or any(need in chosen for need in needs))
