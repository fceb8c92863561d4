"""Decides which nodes get a further attempt: resumed runners, evicted pods, and stages that may be retried."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..judge import baseline, verdict
from ..judge.check import Check
from ..judge.kinds import Context
from ..runs import applied_criteria
from . import retry
from .decisions import NodeView, to_restart
from .placement import Attempt, Placement
from .state import WatchedRun


class Attempts:
    def __init__(self, watched: WatchedRun, placement: Placement, checks: Sequence[Check], retries: int) -> None:
        """`retries`: how often a stage is repeated. Raises SettingError."""
        self._watched, self._placement, self._retries = watched, placement, retries
        held = applied_criteria.judged_by(watched.folder, [], "")[1]
        self._context = Context(checks, baseline.read(Path(held)) if held else None)
        #: When each node's evidence last changed before it was judged: judging all nodes at every poll takes seconds.
        self._judged: dict[str, float] = {}

    def due(self, views: Sequence[NodeView]) -> dict[str, Attempt]:
        """Further attempts by node; `views` are the nodes that can be launched now."""
        say, orders = self._watched.say, {}
        for name in to_restart(views):
            view = self._watched.views[name]
            say(f"{name}: its runner exited; the plan resumes where it stopped")
            view.restarts += 1
            self._watched.memory.restarts[name] = view.restarts
            orders[name] = Attempt(view.launch.get("attempt", 1), view.launch.get("stages", []))
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
                orders[view.name] = Attempt(2, stages)
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
