"""Decides which nodes get a further attempt: resumed runners, evicted pods, stages that may be retried, and nodes that
differ from their peers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from ..core.text import some_of
from ..judge import baseline, verdict
from ..judge.check import Check
from ..judge.kinds import JudgeContext
from ..judge.peer_groups import PeerHistory
from ..runs import applied_criteria
from . import retry
from .decisions import NodeView, to_restart
from .placement import Placement, PlannedAttempt
from .state import WatchedRun

#: A second measurement is for stages of minutes, not for the hours of a burn-in.
MAX_AGAIN_SECONDS = 1800
#: Of a launch until its first stage works, at most.
START_SECONDS = 120
#: How long a second measurement may wait for a scheduler, unless the run's `wait_for_node` says so.
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
        """`retries`: how often a stage is repeated. Raises SettingError."""
        self._watched, self._placement, self._retries = watched, placement, retries
        self._queue_seconds = wait_for_node or QUEUE_SECONDS
        held = applied_criteria.judged_by(watched.folder, [], "")[1]
        self._context = JudgeContext(checks, baseline.read(Path(held), watched.folder.path.name) if held else None)
        #: When each node's evidence last changed before it was judged: judging all nodes at every poll takes seconds.
        self._judged: dict[str, float] = {}
        #: The nodes have been compared with each other; a controller that resumes the run compares them again.
        self._compared = False

    def due(self, views: Sequence[NodeView]) -> dict[str, PlannedAttempt]:
        """Further attempts by node; `views` are the nodes that can be launched now."""
        say, orders = self._watched.say, {}
        for name in to_restart(views):
            view = self._watched.views[name]
            say(f"{name}: its runner exited; the plan resumes where it stopped")
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
        """Stages to repeat by the node's own checks, once its plan is complete."""
        if view.launch.get("attempt", 1) > 1 or not view.launched or not view.complete:
            return []
        if self._judged.get(view.name) == view.changed_at:
            return []
        self._judged[view.name] = view.changed_at
        node = verdict.judge_node(self._watched.info, view.name, self._watched.evidence, self._context)
        failed = verdict.failed_criteria(node, self._context.criteria)
        return retry.stages_to_retry(view.plan["stages"], view.records, failed, 1 + self._retries)

    def second_measurements(self, now: float, at_once: int = 0) -> dict[str, PlannedAttempt]:
        """Once all nodes are done: those that their peers show to be doubtful are measured again, with two good peers.

        None where the first measurement took longer than MAX_AGAIN_SECONDS or too little time is left (``at_once``: how
        many nodes may work, 0 is no limit), and none of a node with a further attempt.
        """
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
            again = retry.stages_to_retry(view.plan["stages"], view.records, slow, 1 + self._retries)
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
