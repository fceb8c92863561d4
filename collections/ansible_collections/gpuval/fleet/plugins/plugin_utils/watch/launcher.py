"""Launches plans on nodes while the window (maximum of nodes at work) has room, and records how each launch ended."""

from collections.abc import Callable, Mapping
from typing import Any

from ..core.text import with_remedy
from ..records import launch_errors
from ..records.documents import LAUNCHED
from ..records.failure_classes import NOT_MEASURED_AGAIN, row_of
from ..records.launch_errors import OTHER_RUN
from ..runs import cleanable
from ..runs import folder as run_folder
from . import launch_inputs
from .decisions import NodeView, keep_started, to_launch, to_relaunch
from .placement import LaunchEnd, Placement, PlannedAttempt
from .watched_run import WatchedRun
from .window import Window, read_window, window_file

#: Nothing is launched if fewer seconds of the run are left.
MIN_SECONDS = 30


class Launcher:
    def __init__(
        self,
        watched: WatchedRun,
        placement: Placement,
        window: Window,
        warn: Callable[[str], None],
        wait_for_node: float = 0.0,
    ) -> None:
        """`window`: limits that the command sets; `wait_for_node`: seconds for which a launch is retried while another
        run uses the node."""
        self._wait_for_node = wait_for_node
        self._watched, self._placement, self._command_window, self._warn = watched, placement, window, warn
        #: {node name: further attempt that waits until the window has room}
        self.ordered: dict[str, PlannedAttempt] = {}
        self.started: set[str] = set()
        self._store_problems: set[str] = set()
        self._remedies: set[str] = set()
        self.window = window
        memory = watched.memory
        if memory.window not in (None, [window.nodes, window.transfers]):  # a new command overrides an earlier `window`
            window_file(watched.folder).unlink(missing_ok=True)
        memory.window = [window.nodes, window.transfers]
        self.read_window()

    def read_window(self) -> None:
        """Apply limits of nodes at work that `make window` has set during the run."""
        window = read_window(self._watched.folder, self._command_window)
        if window != self.window:
            self.window = window
            self._watched.say(f"window: {window}")

    def plan_starts(self, now: float) -> None:
        """Mark the nodes to launch or to resume. Nodes that the probe did not reach, or on which an earlier task
        failed, are recorded as failed launches. `now`: monotonic seconds."""
        present, everyone = self._placement.present, self._placement.everyone
        probed = run_folder.read_json_or({}, self._watched.folder.state / launch_inputs.PROBE_FILE)
        for view in self._watched.views.values():
            view.in_play = view.name in present
            if view.name not in everyone or (view.complete and view.launch.get("nonce")):
                continue  # a complete node without nonce was started elsewhere: a launch finds that out
            if view.not_measured_again:
                continue
            if not view.in_play:
                message = "a task before the launch failed on this node: see its error above"
                self.fail(view, {"state": "failed", "message": message}, now)
                continue
            away = launch_inputs.unreachable(probed, view.name)
            if away:
                self.fail(view, away, now)
            else:
                view.to_start = True

    def has_time(self, now: float) -> bool:
        return self._watched.seconds_left(now) >= MIN_SECONDS

    def relaunch(self, orders: Mapping[str, PlannedAttempt], now: float) -> None:
        """Launch further attempts as far as the window has room: ``orders`` (by node) and those that still wait."""
        self.ordered.update(orders)
        for name in to_relaunch(self._watched.views, list(self.ordered), at_once=self.window.nodes):
            self._launch(name, self.ordered.pop(name), now)

    def launch_next(self, now: float) -> None:
        """Launch nodes for the first time, and retry unreachable ones, as far as the window has room."""
        views = list(self._watched.views.values())
        for name in to_launch(views, now, at_once=self.window.nodes, transfers=self.window.transfers):
            self._launch(name, PlannedAttempt(), now)

    def _launch(self, name: str, attempt: PlannedAttempt, now: float) -> None:
        if self.has_time(now):
            view = self._watched.views[name]
            view.to_start, view.busy = False, "launch"
            self._placement.launch(view, attempt, min(attempt.seconds, self._watched.seconds_left(now)))

    def ended(self, view: NodeView, event: LaunchEnd, before: Mapping[str, Any], now: float) -> None:
        """Handle the end of a launch on the node of `view`; `before`: the node's previous launch document."""
        view.tried_at, view.changed_at = now, max(view.changed_at, now)
        if event.failed:
            state = "unreachable" if event.unreachable else "failed"
            self.fail(view, {"state": state, "message": event.message}, now)
        elif view.launch.get("state") in LAUNCHED:
            view.tries, view.queued_until = 0, None
            if event.started:
                self.started.add(view.name)
            # Nodes mostly have the same reason: report it once, and count them in the progress.
            message = str(view.launch.get("message") or "")
            without = view.launch.get("store_reachable") is False and message.startswith("the store")
            if without and message not in self._store_problems:
                self._store_problems.add(message)
                self._warn(f"{view.name}: {message}; records of such nodes are fetched from them")
        else:
            if view.launch.get("class") == OTHER_RUN:
                self._name_other_run(view)
            self._queue(view, now)
            self._not_started(view, before, reported=event.reported or view.queued_until is not None)

    def _name_other_run(self, view: NodeView) -> None:
        """Complete the remedy of a launch refused for another run by commands that resume or end that run."""
        remedy = str(view.launch.get("remedy") or "")
        run_id = launch_errors.other_run(str(view.launch.get("message") or ""))
        if f"`make clean RUN={run_id}`" in remedy:
            remedy = cleanable.beside(self._watched.folder, view.name, run_id, remedy)
            self._watched.write_launch(view, {**view.launch, "remedy": remedy})

    def _queue(self, view: NodeView, now: float) -> None:
        """Let a launch that was refused because another run uses the node wait for that run's end, for limited time."""
        was_queued = view.queued_until is not None
        until = view.queued_until if view.queued_until is not None else now + self._wait_for_node
        waits = view.launch.get("class") == OTHER_RUN and now < until
        if waits and not was_queued:
            seconds, message = self._wait_for_node, view.launch.get("message")
            self._watched.say(f"{view.name}: queued for {seconds:.0f} s: {message}")
        if was_queued and not waits:  # the wait is over: report why the launch is refused
            view.tries = 0
        view.queued_until = until if waits else None

    def fail(self, view: NodeView, failure: Mapping[str, Any], now: float) -> None:
        """Write the launch file of a node whose launch failed before it could write the file itself."""
        before, earlier = view.launch, self._watched.folder.read_launch(view.name)
        attempt, stages = earlier.get("attempt", 1), earlier.get("stages", [])
        launch = {"node": view.name, "attempt": attempt, "stages": stages, "at": run_folder.now(), **failure}
        if "nonce" in earlier:
            launch["nonce"] = earlier["nonce"]
        view.to_start, view.tried_at, view.queued_until = False, now, None
        self._watched.write_launch(view, keep_started(earlier, launch_errors.described(launch)))
        self._not_started(view, before)

    def end_second_measurements(self, now: float) -> None:
        """Give up second measurements that cannot start or did not start in time: the first measurement counts."""
        begin_by = self._watched.memory.begin_by
        for name, seconds in list(begin_by.items()):
            view, is_late = self._watched.views[name], now - self._watched.opened > seconds
            waits = name in self.ordered
            has_begun = any(record["attempt"] > 1 and record["started_at"] for record in view.records.values())
            if has_begun or (view.done and not waits and launch_errors.loss_of(view.launch)):
                del begin_by[name]
                continue
            if not (is_late if waits else view.done or (is_late and self._placement.withdraw(view))):
                continue
            why = (view.launch.get("contact") or view.launch).get("message") or "the second one did not start in time"
            row = row_of(NOT_MEASURED_AGAIN)
            reason = {"class": row.name, "message": f"not measured again: {why}", "remedy": row.remedy}
            self._watched.say(f"{name}: {reason['message']}; its first measurement stands")
            self._watched.write_launch(
                view, {**view.launch, "interruptions": [reason, *view.launch.get("interruptions", ())]}
            )
            del begin_by[name]
            self.ordered.pop(name, None)
            view.busy = ""

    def end_waiting(self, now: float) -> None:
        """Stop launching: nodes that still wait for room in the window, or for another run's end, are not launched."""
        self.ordered.clear()
        for view in self._watched.views.values():
            view.queued_until = None
            if view.to_start and not view.busy:
                message = "the node was not launched before the run's deadline: raise gpuval_deadline_seconds"
                self.fail(view, {"state": "failed", "message": message}, now)

    def end_at_deadline(self, now: float) -> None:
        self.end_waiting(now)
        for view in self._watched.views.values():
            if view.busy == "launch" and not view.launched:
                message = "the launch, or the transfer of images before it, was not complete at the run's deadline"
                self.fail(view, {"state": "failed", "message": message}, now)

    def _not_started(self, view: NodeView, previous_launch: Mapping[str, Any], *, reported: bool = False) -> None:
        view.tries += 1
        if reported:
            return
        state, message = view.launch.get("state"), view.launch.get("message")
        if (state, message) != (previous_launch.get("state"), previous_launch.get("message")) or view.tries == 1:
            remedy = str(view.launch.get("remedy") or "") if state in ("refused", "failed") else ""
            new = "" if remedy in self._remedies else remedy.replace("{node}", view.name)
            self._remedies.add(remedy)
            self._warn(with_remedy(f"{view.name}: not started ({state}): {message}", new))
