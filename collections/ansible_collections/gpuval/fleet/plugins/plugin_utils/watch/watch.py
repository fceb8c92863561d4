"""The watch over a run: launch plans, read what changed in the store, judge, retry, until every node is done.

`StorePoller` reads the store, `Launcher` starts plans in a sliding window, `Attempts` decides on retries,
`WatchPublisher` writes to the store what only the controller knows, and a `Placement` acts on nodes.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ...module_utils.store import Store, StoreError
from ..core.console import COLUMNS
from ..core.processes import Parent
from ..core.step_options import PathText, StoreOptions
from ..judge.check import Check
from ..records import launch_errors
from ..records.documents import FINAL_STATES, RUN_ENDED
from ..runs import folder as run_folder
from ..runs.action import RunOptions
from ..store.backend import StoreBackend
from .attempts import Attempts
from .decisions import NodeView, class_of_loss, forecast, last_heartbeat, lost_after, lost_contact, progress, to_fetch
from .exchange import StorePoller, WatchPublisher
from .launcher import Launcher
from .placement import Event, LaunchEnd, NodeNews, Placement
from .watched_run import WatchedRun
from .window import Window

PROGRESS_SECONDS = 30
#: Factor by which the store is polled less often while launches use the controller's processors.
LAUNCHING_POLLS = 3
#: Interval at which the watch saves its state: a killed controller repeats at most so many seconds of work.
SAVE_SECONDS = 10


@dataclass(frozen=True)
class WatchLimits:
    """Intervals and time limits of a watch, and how many nodes work (`max_nodes_at_once`) or load images
    (`max_transfers`) at once; 0 is all of them."""

    #: Seconds between two reads of the store, and between two fetches from a node that cannot reach the store.
    poll_seconds: float = 2.0
    pull_seconds: float = 15.0
    #: Seconds without a heartbeat until a node's records are fetched, and until the node is given up.
    silence_seconds: float = 90.0
    lost_seconds: float = 1800.0
    #: Number of retries of one stage.
    retries: int = 1
    #: How long a launch is retried while another run uses the node; 0 refuses it at once. A second measurement waits
    #: as long for a scheduler, or 600 s if this is 0.
    wait_for_node: float = 0.0
    max_nodes_at_once: int = 0
    max_transfers: int = 16


class WatchOptions(RunOptions, WatchLimits):
    """Options of steps that watch a run; those about SSH or pods have no effect with other placements."""

    placement: str = "ssh"
    store: StoreOptions
    criteria: Sequence[PathText] = ()
    #: The document gpuval.run/1 in check mode, which writes no run.json.
    run: Mapping[str, Any] = field(default_factory=dict)
    #: Time limits on a node over SSH: for a launch, for fetching its evidence, for sending images that the store lacks.
    launch_seconds: float = 180.0
    fetch_seconds: float = 300.0
    send_seconds: float = 3600.0
    #: How long a pod may lack its image, placement, volumes or node; how long it may lack a running container without a
    #: reported cause; and how long a Job may wait for its queue. 0 is until the run's deadline.
    patience_seconds: float = 300.0
    start_seconds: float = 1800.0
    admission_seconds: float = 0.0
    #: Whether new nodes of the cluster that match the label selector join the run, with the variables of a node of
    #: their SKU.
    accept_new_nodes: bool = False
    selector: str = ""
    skus: Mapping[str, Any] = field(default_factory=dict)
    ids: Any = field(default_factory=dict)
    label_groups: Mapping[str, Any] = field(default_factory=dict)


class RunWatch:
    """Watches one run: launches plans, follows records, decides on retries, until all nodes are done."""

    def __init__(
        self,
        limits: WatchLimits,
        folder: run_folder.RunFolder,
        access: StoreBackend,
        checks: Sequence[Check],
        placement: Placement,
        display: Any,
        store: Store | None = None,
    ) -> None:
        """`access`: the run's store; `store`: a client of it to reuse, since each needs 20 MB. Raises SettingError."""
        self.limits, self.placement, self.display = limits, placement, display
        self.parent = Parent()
        self.watched = WatchedRun(folder, store or access.store(), display.display)
        window = Window(limits.max_nodes_at_once, limits.max_transfers)
        self.launcher = Launcher(self.watched, placement, window, display.warning, limits.wait_for_node)
        self.attempts = Attempts(self.watched, placement, checks, limits.retries, limits.wait_for_node)
        self.publisher = WatchPublisher(self.watched, limits.silence_seconds, display)
        self.poller = StorePoller(self.watched, access, self.publisher.progress)

    @property
    def _views(self) -> list[NodeView]:
        return list(self.watched.views.values())

    def run(self) -> list[str]:
        """Watch until all nodes are done or the deadline has passed. Returns the nodes on which a plan was started.
        Raises RunError if the store has another run of this name."""
        watched = self.watched
        now = time.monotonic()
        self.poller.restore()
        watched.restore_times(now)
        try:
            for line in self._read_store(now):  # a node that is complete by now needs no launch
                watched.say(line)
        except StoreError as error:
            self.poller.failed(now, error)
        self.placement.begin(watched.views)
        self.launcher.plan_starts(now)
        self.publisher.publish(now, self.launcher.window)
        self._loop(saved_at=now)
        self.display.end_progress()
        watched.save()
        self.publisher.publish(time.monotonic(), self.launcher.window, ended=True)
        return sorted(self.launcher.started)

    def _read_store(self, now: float) -> list[str]:
        self.publisher.publish_run()
        return self.poller.read(now)

    def _loop(self, saved_at: float) -> None:
        watched = self.watched
        has_forecast = "gangs" in watched.info  # rounds are many and short: they need no forecast
        reported_at = float("-inf")
        while True:
            now = time.monotonic()
            lines = []
            try:
                if now >= self.poller.due_at:
                    lines = self._read_store(now)
                    self.poller.answered(now)
            except StoreError as error:
                if not self._closed():  # after a clean the store stays stopped
                    self.poller.failed(now, error)
            by_store = self.poller.by_store
            for line in lines:
                watched.say(line)
            moment = datetime.now(timezone.utc)
            if not has_forecast and (line := forecast(self._views, self.launcher.window.nodes, moment)):
                has_forecast = True  # plans are known from the first launch on
                watched.say(line)
            if lines or COLUMNS or now - reported_at >= PROGRESS_SECONDS:
                self.display.progress(progress(self._views, now - watched.opened))
                reported_at = now
            if self._closed():
                watched.say("the run was closed by another command: the watch ends")
                for view in self._views:
                    for stage in view.stages:
                        if view.state(stage) not in FINAL_STATES:
                            watched.evidence.add_problem(RUN_ENDED, node=view.name, stage=stage)
                return
            self.launcher.read_window()
            if nodes := self.placement.new_nodes():
                self.publisher.run_changed = True
                for view in watched.join(nodes, now):
                    self.placement.add(view)
                    watched.say(f"{view.name}: joins the run")
            if self._decide(now, by_store=by_store):
                return
            if now - saved_at >= SAVE_SECONDS:
                watched.save()
                saved_at = now
            if by_store:  # each request to an unreachable store takes seconds
                self.publisher.publish(now, self.launcher.window, if_due=True)
            self._wait_for_next_round()

    def _closed(self) -> bool:
        return self.watched.folder.read_run()["finished_at"] is not None

    def _wait_for_next_round(self) -> None:
        """Wait until the next poll of the store, and handle events of the placement: a launch that ended makes room."""
        are_launching = any(view.busy == "launch" for view in self._views)
        # While nodes wait for room in the window, poll as usual: a record of one node may make room for another.
        only_launches = are_launching and not any(view.to_start for view in self._views)
        until = time.monotonic() + self.limits.poll_seconds * (LAUNCHING_POLLS if only_launches else 1)
        while True:
            events = self.placement.wait(until - time.monotonic())
            self.parent.check()
            now = time.monotonic()
            for event in events:
                self._handle(event, now)
            if events:
                self.launcher.launch_next(now)
            news = any(
                isinstance(event, LaunchEnd) or (event.launch, event.records) != (None, None) for event in events
            )
            if now >= until or (news and not self.placement.busy):
                return

    def _decide(self, now: float, *, by_store: bool) -> bool:
        """Launch, fetch from, restart or give up nodes as due. Returns whether the watch is over."""
        launcher, limits, views = self.launcher, self.limits, self._views
        lost_seconds = lost_after(views, limits.lost_seconds)
        for view in views:
            if not view.lost and lost_contact(view, now, lost_seconds):
                self._lose(view, now)
        launcher.end_second_measurements(now)
        if now > self.watched.deadline:
            launcher.end_at_deadline(now)
            late = [view.name for view in views if view.launched and not (view.complete or view.given_up)]
            incomplete = ", ".join(late) or "only nodes that never started"
            seconds = self.watched.info["deadline_seconds"]
            self.watched.say(f"the deadline of {seconds:.0f} s has passed; incomplete: {incomplete}")
            return True
        if launcher.has_time(now):
            free = [view for view in views if view.in_play and not view.busy and view.name not in launcher.ordered]
            launcher.relaunch(self.attempts.due(free), now)
        else:
            launcher.end_waiting(now)
        launcher.launch_next(now)
        silence, interval = limits.silence_seconds, limits.pull_seconds
        unread = self.poller.unread_nodes
        for name in to_fetch(views, now, silence=silence, interval=interval, by_store=by_store, unread=unread):
            view = self.watched.views[name]
            view.busy, view.fetched_at = "fetch", now
            self.placement.fetch(view, by_store=by_store and name not in unread)
        if not all(view.done for view in views) or launcher.ordered or self.placement.unsettled():
            return False
        if launcher.has_time(now):
            launcher.relaunch(self.attempts.second_measurements(now, launcher.window.nodes), now)
        if launcher.ordered or any(view.busy for view in views):
            return False
        for view in views:
            if view.given_up:
                self.watched.say(f"{view.name}: the runner exits after every start: read runner.log on the node")
        return True

    def _handle(self, event: Event, now: float) -> None:
        view, folder = self.watched.views[event.node], self.watched.folder
        if isinstance(event, NodeNews):
            self._apply(view, event, now)
            return
        view.busy = ""
        before, known = view.launch, folder.read_launch(view.name)
        if known:
            self.watched.know_launch(view, known)
        if folder.plan_file(view.name).exists():
            view.plan = folder.read_plan(view.name)
        if event.kind == "launch":
            self.launcher.ended(view, event, before, now)
            return
        if event.failed:
            contact = launch_errors.contact(event.message, view.launch.get("contact"))
            self.watched.write_launch(view, {**view.launch, "contact": contact})
        if view.launch.get("contact"):
            view.misses += 1
            return
        view.misses, view.answered_at = 0, now
        if view.lost:
            view.lost = False
            self.watched.say(f"{view.name}: answers again")

    def _apply(self, view: NodeView, news: NodeNews, now: float) -> None:
        """Keep the records and the launch file in a node's news, and print what changed. ``now``: monotonic seconds."""
        for key, raw in (news.records or {}).items():
            line = self.poller.accept(key, raw, now)
            if line:
                self.watched.say(line)
        if news.launch and news.launch != view.launch:
            before = view.launch
            self.watched.write_launch(view, dict(news.launch))
            new, old = (item.get("contact", {}).get("message") or item.get("message") for item in (news.launch, before))
            if new and new != old and not news.reported:
                self.watched.say(f"{view.name}: {new}")

    def _lose(self, view: NodeView, now: float) -> None:
        view.lost = True
        known = self.watched.folder.read_launch(view.name)
        contact = known.get("contact") or launch_errors.contact("")
        message = f"{launch_errors.LOST}{last_heartbeat(view, now)}; {contact['message']}"
        contact = {**contact, "class": class_of_loss(contact["class"]), "message": message}
        self.watched.write_launch(view, {**known, "contact": contact})
        self.display.warning(f"{view.name}: {message}")
