"""Puts what only the controller knows into the store, so that the store alone describes the run."""

from __future__ import annotations

from typing import Any

from ...module_utils.store import StoreError
from ..core import schemas
from ..runs import applied_criteria, publishing
from ..store.access import ensure_same_run, put_run
from .state import UNKNOWN, WatchedRun
from .window import Window

#: Shortest interval between two documents; it grows with the number of nodes.
INTERVAL_SECONDS, INTERVAL_SECONDS_A_NODE = 2.0, 0.01


class WatchPublisher:
    def __init__(self, watched: WatchedRun, silence_seconds: float, display: Any) -> None:
        self._watched, self._silence_seconds, self._display = watched, silence_seconds, display
        self._documents = publishing.DocumentPublisher(watched.folder)
        self._published_at = float("-inf")
        self.progress = publishing.WatchProgress()
        #: run.json has changed since it was last put.
        self.run_changed = True
        #: Nodes whose plan this controller has put.
        self._plans: set[str] = set()

    def publish_run(self) -> None:
        """run.json and the criteria, where they are not in the store yet. Raises StoreError, and RunError for a store
        that holds another run of this name."""
        if not self.run_changed:
            return
        watched = self._watched
        ensure_same_run(watched.store, watched.info)
        put_run(watched.store, watched.info)
        criteria = applied_criteria.kept_criteria(watched.folder)
        if criteria:
            publishing.put(watched.store, watched.info, applied_criteria.CRITERIA_FILE, criteria)
        self.run_changed = False

    def publish_if_due(self, now: float, window: Window) -> None:
        if now - self._published_at >= max(INTERVAL_SECONDS, INTERVAL_SECONDS_A_NODE * len(self._watched.views)):
            self.publish(now, window)

    def publish(self, now: float, window: Window, *, ended: bool = False) -> None:
        """The watch's document and its progress. While the store is away the next call has what is new."""
        watched = self._watched
        self._published_at = now
        nodes = {
            view.name: publishing.NodeUpdate(view.plan, None if view.launch is UNKNOWN else view.launch, view.to_start)
            for view in watched.views.values()
        }
        document = publishing.watch_document(
            watched.info,
            nodes,
            watched.evidence.problems,
            run_seconds=now - watched.opened,
            begun_seconds=now - watched.begun,
            window=(window.nodes, window.transfers),
            silence_seconds=self._silence_seconds,
            ended=ended,
        )
        try:
            self._publish_plans()
            self._documents.publish(watched.store, watched.info, document, now)
            self.progress.publish(watched.store, watched.info)
        except StoreError as error:
            if ended:
                watched.say(f"the end of the watch was not written to the store: {error}")
        except schemas.Invalid as error:  # must not end the watch
            self._display.warning(f"the state of the launches was not written to the store: {error}")

    def _publish_plans(self) -> None:
        """The plans of launched nodes: over the connection that is open, not one of each launch. Raises StoreError."""
        watched = self._watched
        for view in watched.views.values():
            if view.launched and view.name not in self._plans and watched.folder.plan_file(view.name).exists():
                plan = watched.folder.read_plan(view.name)
                publishing.put(watched.store, watched.info, f"plans/{view.name}.json", plan)
                self._plans.add(view.name)
