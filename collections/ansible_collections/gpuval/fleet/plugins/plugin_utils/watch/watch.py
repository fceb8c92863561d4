"""The watch over a run: start each node's plan in its turn, read what changed in the store, judge, start again.

One LIST a round shows what changed, only that is read. How a plan gets to its node, and how a node is asked for what
the store does not have, is the placement's: over SSH, or by the API of a cluster.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from ansible_collections.gpuval.fleet.plugins.module_utils.store import Store, StoreError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.parent_process import Parent
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import baseline, verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.criteria import Check
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import launch_errors
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import (
    MAX_RECORD_BYTES,
    Evidence,
    parse_key,
    take_record,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import publishing
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.node_tasks import Outcome
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.access import (
    StoreAccess,
    ensure_same_run,
    put_run,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import imported_run, launching, retry, window
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.decisions import (
    LAUNCHED,
    NodeView,
    keep_started,
    last_sign,
    lost_contact,
    note,
    progress,
    to_ask,
    to_launch,
    to_relaunch,
    to_restart,
)

#: Nodes cancel by themselves at the deadline; their last records may still be on the way.
DEADLINE_SLACK_SECONDS = 120
PROGRESS_SECONDS = 30
#: So many times rarer are looks at the store while launches take the controller's time: a stage that begins and ends
#: meanwhile is read once, not four times.
LAUNCHING_POLLS = 3
#: What a controller that is killed forgets at most; it reads that again.
REMEMBER_SECONDS = 10
#: How often the store is told what only the controller knows, if there is something new: rarer for many nodes.
TELL_SECONDS, TELL_SECONDS_A_NODE = 2.0, 0.01
#: With less time left a plan is not started any more.
LEAST_SECONDS = 30
UNKNOWN = {"state": "unknown", "message": "the node was never started"}


@dataclass(frozen=True)
class Limits:
    """How often is looked, how long is waited (seconds), and how many nodes at once; 0 is all of them."""

    poll_seconds: float
    pull_seconds: float
    silence_seconds: float
    lost_seconds: float
    retries: int
    max_nodes_at_once: int
    max_transfers: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Limits:
        """From options of the documentation fragment `watch`."""
        return cls(**{field.name: options[field.name] for field in fields(cls)})


class Placement(Protocol):
    """How plans get to nodes. Launches and fetches go on beside the watch; `wait` tells how they ended.

    A launch leaves the node's launch file and its plan in the run's folder. An outcome's `kind` is `launch`, `fetch`,
    or `state`: what else became known of a node, its launch file's new content under `launch` of the result, and under
    `records`, by key, records that came by another way than the store.
    """

    #: Nodes that can be worked on, and all that the play was begun with.
    present: set[str]
    everyone: set[str]

    @property
    def busy(self) -> bool: ...

    def begin(self, views: Mapping[str, NodeView]) -> None:
        """Called once, with what is known of the nodes, before the first of them is launched."""

    def again(self, view: NodeView) -> dict[str, Any] | None:
        """The order of a further launch for a node whose attempt ended by no fault of its own; None for no launch."""

    def unsettled(self) -> bool:
        """Whether `again` may yet have an order for a node that is over by its records."""

    def joined(self) -> Mapping[str, Mapping[str, Any]]:
        """Nodes that came up since the last call and are to be part of the run: what run.json expects of each."""

    def welcome(self, view: NodeView) -> None:
        """Called for each that joined, once it is part of the run."""

    def launch(self, view: NodeView, order: Mapping[str, Any], seconds: float) -> None:
        """Start the plan; the order may name an attempt and its stages. `seconds` is what is left of the run's time."""

    def fetch(self, view: NodeView) -> None:
        """Ask the node for records that the store does not have."""

    def wait(self, seconds: float) -> list[Outcome]:
        """At most so long, at once when something has ended."""


class RunWatch:
    """One controller's watch over one run."""

    def __init__(
        self,
        limits: Limits,
        folder: run_folder.RunFolder,
        access: StoreAccess,
        checks: Sequence[Check],
        placement: Placement,
        display: Any,
        store: Store | None = None,
    ) -> None:
        """`store`: a client that is there already; each takes some 20 MB. Raises BaselineError."""
        self.options = limits
        self.parent = Parent()
        #: Launches of further attempts that wait for a place.
        self.ordered: dict[str, dict[str, Any]] = {}
        self.run_folder = folder
        self.run_info = folder.read_run()
        self.checks = checks
        held = imported_run.judged_by(folder, [], "")[1]
        self.held_against = baseline.read(Path(held)) if held else None
        self.access = access
        self.store = store or access.store()
        self.placement = placement
        self.display = display
        #: run.json has changed, and the store has still the old one.
        self.to_publish = True
        self.publisher = publishing.Publisher(folder)
        self.progress = publishing.Progress()
        self.told_at = float("-inf")

    def carry_out(self) -> list[str]:
        """Until all nodes are over or the deadline has passed. Returns the nodes on which a plan was started.

        Raises RunError where the store has a run of this name that is another one.
        """
        ensure_same_run(self.store, self.run_info)
        self._publish()
        self.memory = self._remembered()
        problems = self.run_folder.problems_file
        self.evidence = Evidence(problems=run_folder.read_json(problems) if problems.exists() else [])
        now = time.monotonic()
        self.started = now - run_folder.seconds_since(self.run_info["created_at"])
        self._begin_time(now)
        self._open_window()
        self.views = self._views()
        self.changed = []
        self.judged = {}
        for key in list(self.memory["seen"]):
            self._take(key, self._kept(key))
        self._remember_times(now)
        self.remembered_at = now
        try:
            for line in self._round(now):  # who was done while no controller looked needs no launch
                self._say(line)
        except StoreError as error:
            self._say(f"the store does not answer yet: {error}")
        self.placement.begin(self.views)
        self._plan_starts(now)
        self._tell_store(now)
        self._watch()
        self._remember()
        self._tell_store(time.monotonic(), ended=True)
        return sorted(set(self.changed))

    def _begin_time(self, now):
        self.begun = now - self._begun_seconds_ago()
        self.deadline = self.begun + self.run_info["deadline_seconds"] + DEADLINE_SLACK_SECONDS

    def _begun_seconds_ago(self):
        """Since when the run's time counts: since its first launch, or since the last nodes joined it."""
        if self.memory["begun_at"] is None:
            self.memory["begun_at"] = run_folder.now()
        joined = [node["joined_at"] for node in self.run_info["nodes"].values() if node.get("joined_at")]
        return run_folder.seconds_since(max([self.memory["begun_at"], *joined]))

    def _open_window(self):
        """As the run has it; one that was set during an earlier watch gives way to a command that asks for another."""
        self.window = asked = window.Window(self.options.max_nodes_at_once, self.options.max_transfers)
        if self.memory["window"] not in (None, [asked.nodes, asked.transfers]):
            window.file_of(self.run_folder).unlink(missing_ok=True)
        self.memory["window"] = [asked.nodes, asked.transfers]
        self._look_at_window()

    def _look_at_window(self):
        asked = window.Window(self.options.max_nodes_at_once, self.options.max_transfers)
        wanted = window.read(self.run_folder, asked)
        if wanted != self.window:
            self.window = wanted
            self._say(f"window: {wanted.told()}")

    def _plan_starts(self, now):
        """Whose plan this controller starts, or takes up; nodes that the probe did not reach are left alone for now."""
        present, everyone = self.placement.present, self.placement.everyone
        probe_file = self.run_folder.state / launching.PROBE_FILE
        probed = run_folder.read_json(probe_file) if probe_file.exists() else {}
        for view in self.views.values():
            view.askable = view.name in present
            if view.name not in everyone or view.complete:
                continue
            if view.name not in present:
                told = "a task before the launch failed on this node: see what it said above"
                self._launch_failed(view, {"state": "failed", "message": told}, now)
                continue
            away = launching.away(probed, view.name)
            if away:
                self._launch_failed(view, away, now)
            else:
                view.to_start = True

    def _watch(self):
        """Until all nodes are over or the deadline has passed."""
        spoke = float("-inf")
        away_since = None
        while True:
            now = time.monotonic()
            try:
                lines = self._round(now)
                if away_since is not None:
                    self._say(f"the store answers again after {now - away_since:.0f} s")
                    away_since = None
            except StoreError as error:
                lines = []
                if away_since is None:
                    away_since = now
                    self._say(f"the store does not answer, nodes go on and keep their records: {error}")
                self._revive()
            for line in lines:
                self._say(line)
            if lines or now - spoke >= PROGRESS_SECONDS:
                self._say(progress(list(self.views.values()), now - self.started))
                spoke = now
            if self.run_folder.read_run()["finished_at"] is not None:
                self._say("the run was closed by another command: the watch ends")
                return
            self._look_at_window()
            self._join(now)
            if self._decide(now):
                return
            if now - self.remembered_at >= REMEMBER_SECONDS:
                self._remember()
                self.remembered_at = now
            if now - self.told_at >= max(TELL_SECONDS, TELL_SECONDS_A_NODE * len(self.views)):
                self._tell_store(now)
            self._pause()

    def _pause(self):
        """Until the next round; what ended on a node meanwhile is taken in at once, and the next one has its turn."""
        until = time.monotonic() + self.options.poll_seconds * (LAUNCHING_POLLS if self._only_launches() else 1)
        while True:
            ended = self.placement.wait(until - time.monotonic())
            self.parent.check()
            now = time.monotonic()
            for outcome in ended:
                self._ended(outcome, now)
            if ended:
                self._start_next(now)
            more = any(outcome.kind != "state" or outcome.result for outcome in ended)
            if now >= until or (more and not self.placement.busy):
                return

    def _only_launches(self):
        """Whether launches are under way and no node waits for another's record to have its turn."""
        views = self.views.values()
        return any(view.busy == "launch" for view in views) and not any(view.to_start for view in views)

    def _join(self, now):
        """Nodes that came up meanwhile become part of the run, behind those that wait for their turn."""
        joined = self.placement.joined()
        if joined:
            wanted = {**self.run_info, "created_at": run_folder.now(), "nodes": dict(joined)}
            self.run_info, names = run_folder.merge(self.run_folder.read_run(), wanted)
            self.run_folder.write_run(self.run_info)
            self.to_publish = True
            self._begin_time(now)
            for name in names:
                view = self.views[name] = self._view(name, {}, UNKNOWN)
                view.changed_at, view.to_start = now, True
                self.placement.welcome(view)
                self._say(f"{name}: has come up and joins the run")

    def _decide(self, now):
        """Have done on nodes what is due; whether the watch is over."""
        views = list(self.views.values())
        for view in views:
            if not view.lost and lost_contact(view, now, self.options.lost_seconds):
                self._lose(view, now)
        if now > self.deadline:
            self._end_late(now)
            return True
        if launching.remaining_seconds(self.run_info, now - self.begun) >= LEAST_SECONDS:
            self.ordered.update(self._relaunches())
            for name in to_relaunch(self.views, list(self.ordered), at_once=self.window.nodes):
                self._launch(name, self.ordered.pop(name), now)
        else:
            self.ordered.clear()
        self._start_next(now)
        silence, interval = self.options.silence_seconds, self.options.pull_seconds
        for name in to_ask(views, now, silence=silence, interval=interval):
            view = self.views[name]
            view.busy, view.asked_at = "fetch", now
            self.placement.fetch(view)
        if all(view.over for view in views) and not self.ordered and not self.placement.unsettled():
            for view in views:
                if view.given_up:
                    self._say(f"{view.name}: its runner ends whenever it is started: read its runner.log on the node")
            return True
        return False

    def _end_late(self, now):
        for view in self.views.values():
            if view.busy == "launch" and not view.launched:
                told = "its launch, or the sending of its images before it, was not done at the run's deadline"
                self._launch_failed(view, {"state": "failed", "message": told}, now)
            if view.to_start:
                told = "its turn did not come before the run's deadline: raise gpuval_deadline_seconds"
                self._launch_failed(view, {"state": "failed", "message": told}, now)
        late = [view.name for view in self.views.values() if view.launched and not (view.complete or view.given_up)]
        seconds = self.run_info["deadline_seconds"]
        self._say(f"the deadline of {seconds:.0f} s has passed; not done: {', '.join(late) or 'what never started'}")

    def _start_next(self, now):
        chosen = to_launch(list(self.views.values()), now, at_once=self.window.nodes, transfers=self.window.transfers)
        for name in chosen:
            self._launch(name, {}, now)

    def _launch(self, name, order, now):
        view = self.views[name]
        left = launching.remaining_seconds(self.run_info, now - self.begun)
        if left < LEAST_SECONDS:
            return
        view.to_start, view.busy = False, "launch"
        self.placement.launch(view, order, left)

    def _ended(self, outcome, now):
        """A launch or a fetch has ended; what it did stands in the launch file."""
        view = self.views[outcome.node]
        if outcome.kind == "state":
            self._changed(view, outcome.result or {}, now)
            return
        view.busy = ""
        before, view.launch = view.launch, self.run_folder.read_launch(view.name) or view.launch
        if self.run_folder.plan_file(view.name).exists():
            view.plan = self.run_folder.read_plan(view.name)
        if outcome.kind == "fetch":
            away = outcome.failed or bool(view.launch.get("contact"))
            if outcome.failed:
                contact = launch_errors.contact(outcome.message, view.launch.get("contact"))
                view.launch = {**view.launch, "contact": contact}
                run_folder.write_json(self.run_folder.launch_file(view.name), view.launch)
            view.misses = view.misses + 1 if away else 0
            if not away:
                view.answered_at = now
                if view.lost:
                    view.lost = False
                    self._say(f"{view.name}: answers again")
            return
        view.tried_at, view.changed_at = now, max(view.changed_at, now)
        if outcome.failed:  # before the launch itself had its say, or later than its time
            state = "unreachable" if outcome.unreachable else "failed"
            self._launch_failed(view, {"state": state, "message": outcome.message}, now)
        elif view.launch.get("state") in LAUNCHED:
            view.tries = 0
            if outcome.result and outcome.result.get("changed"):
                self.changed.append(view.name)
        else:
            self._not_started(view, before)

    def _changed(self, view, result, now):
        """Something became known of a node by its placement: how its launch stands, and records it did not write."""
        for key, raw in result.get("records", {}).items():
            line = self._take(key, raw, now)
            if line:
                self._say(line)
        launch = result.get("launch")
        if launch and launch != view.launch:
            before, view.launch = view.launch, dict(launch)
            run_folder.write_json(self.run_folder.launch_file(view.name), view.launch)
            told = [item.get("contact", {}).get("message") or item.get("message") for item in (launch, before)]
            if told[0] and told[0] != told[1]:
                self._say(f"{view.name}: {told[0]}")

    def _launch_failed(self, view, found, now):
        before, known = view.launch, self.run_folder.read_launch(view.name)
        launch = {"node": view.name, "attempt": 1, "stages": [], "at": run_folder.now(), **found}
        if known:
            launch.update(attempt=known.get("attempt", 1), stages=known.get("stages", []))
        view.launch = keep_started(known, launch_errors.described(launch))
        view.to_start, view.tried_at = False, now
        run_folder.write_json(self.run_folder.launch_file(view.name), view.launch)
        self._not_started(view, before)

    def _not_started(self, view, before):
        view.tries += 1
        said = (view.launch.get("state"), view.launch.get("message"))
        if said != (before.get("state"), before.get("message")) or view.tries == 1:
            self.display.warning(f"{view.name}: not started ({said[0]}): {said[1]}")

    def _lose(self, view, now):
        view.lost = True
        told = last_sign(view, now)
        known = self.run_folder.read_launch(view.name)
        contact = known.get("contact") or launch_errors.contact("")
        message = f"{launch_errors.LOST}{told}; {contact['message']}"
        view.launch = {**known, "contact": {**contact, "class": "lost_contact", "message": message}}
        run_folder.write_json(self.run_folder.launch_file(view.name), view.launch)
        self.display.warning(f"{view.name}: {message}")

    def _relaunches(self):
        """Attempt 2 for stages that may be measured again, and resumption where a runner is gone."""
        orders = {}
        reachable = [
            view for view in self.views.values() if view.askable and not view.busy and view.name not in self.ordered
        ]
        for name in to_restart(reachable):
            view = self.views[name]
            self._say(f"{name}: its runner is gone, the plan is taken up where it stands")
            view.restarts += 1
            self.memory["restarts"][name] = view.restarts
            orders[name] = {"attempt": view.launch.get("attempt", 1), "stages": view.launch.get("stages", [])}
        for view in reachable:
            order = self.placement.again(view) if view.over else None
            if order:
                self._say(f"{view.name}: launched again, as attempt {order['attempt']}")
                view.ended = False
                orders[view.name] = order
        if not self.options.retries:
            return orders
        for view in reachable:
            if view.launch.get("attempt", 1) > 1 or not view.launched or not view.complete:
                continue
            if self.judged.get(view.name) == view.changed_at:
                continue  # nothing new since: judging every node at every poll costs a hundred nodes seconds
            self.judged[view.name] = view.changed_at
            node = verdict.judge_node(
                self.run_info, view.name, self.evidence, self.checks, held_against=self.held_against
            )
            failed = verdict.failed_criteria(node, self.checks)
            stages = retry.stages_to_retry(view.plan["stages"], view.records, failed, 1 + self.options.retries)
            if stages:
                self._say(f"{view.name}: {', '.join(stages)} again, as attempt 2")
                orders[view.name] = {"attempt": view.launch.get("attempt", 1) + 1, "stages": stages}
        return orders

    def _publish(self):
        if self.to_publish:
            put_run(self.store, self.run_info)
            held_against = publishing.criteria_file(self.run_folder)
            if held_against.exists():
                document = run_folder.read_json(held_against)
                publishing.put(self.store, self.run_info, publishing.CRITERIA_FILE, document)
            self.to_publish = False

    def _tell_store(self, now, *, ended=False):
        """What only this controller knows, for whoever has the store alone; while the store is away it waits."""
        self.told_at = now
        document = publishing.watch_document(
            self.run_info,
            {
                view.name: publishing.NodeTold(
                    view.plan, None if view.launch is UNKNOWN else view.launch, view.to_start
                )
                for view in self.views.values()
            },
            self.evidence.problems,
            publishing.Times(now - self.started, now - self.begun),
            window=(self.window.nodes, self.window.transfers),
            silence_seconds=self.options.silence_seconds,
            ended=ended,
        )
        try:
            self.publisher.publish(self.store, self.run_info, document, now)
            self.progress.publish(self.store, self.run_info)
        except StoreError as error:
            if ended:
                self._say(f"the store was not told how the watch ended: {error}")
        except schemas.Invalid as error:  # what others are told must not end the watch
            self.display.warning(f"the store is not told how the launches went: {error}")

    def _round(self, now):
        self._publish()
        lines = []
        for entry in self.store.list(f"{self.run_info['folder']}/records/"):
            if self.memory["seen"].get(entry.key) == entry.stamp:
                continue
            raw = self.store.get(entry.key, max_bytes=MAX_RECORD_BYTES)
            self.memory["seen"][entry.key] = entry.stamp
            line = self._take(entry.key, raw, now, entry.stamp)
            if line:
                lines.append(line)
        return lines

    def _take(self, key, raw, now=None, stamp=None):
        if raw is None:
            return None
        before = len(self.evidence.problems)
        record = take_record(self.evidence, self.run_info, key, raw)
        self.progress.note(self.run_info, key, stamp, record)
        if record is None:
            new = self.evidence.problems[before:]
            return "; ".join(f"refused: {problem['node'] or key!r}: {problem['reason']}" for problem in new) or None
        node, stage = record["node"], record["stage"]
        run_folder.write_json(self.run_folder.evidence_file(node, stage), record)
        view = self.views[node]
        if view.lost:
            view.lost, view.misses = False, 0
        if now is not None and view.launch.get("contact"):
            view.launch = launch_errors.heard_again(view.launch)
            run_folder.write_json(self.run_folder.launch_file(node), view.launch)
        view.answered_at = now if now is not None else view.answered_at
        return note(view, stage, record, now if now is not None else time.monotonic())

    def _kept(self, key):
        """A record read in an earlier round of this or another controller; None when it was refused then."""
        place = parse_key(self.run_info["folder"], key)
        if place is None:
            return None
        try:
            return self.run_folder.evidence_file(place[2], place[1]).read_bytes()
        except FileNotFoundError:
            return None

    def _views(self):
        launches, plans = self.run_folder.read_launches(), self.run_folder.read_plans()
        views = {}
        for name in self.run_info["nodes"]:
            views[name] = self._view(name, plans.get(name), launches.get(name, UNKNOWN))
        return views

    def _view(self, name, plan, launch):
        stages = self.run_info["nodes"][name]["stages"]
        plan = plan or {"stages": [{"name": stage, "expected_seconds": None} for stage in stages]}
        return NodeView(name, plan, launch, restarts=self.memory["restarts"].get(name, 0))

    def _remember_times(self, now):
        """When each node was heard of and asked: the watch is left and begun again for the sake of other nodes."""
        for view in self.views.values():
            view.changed_at = self.started + self.memory["changed"].get(view.name, now - self.started)
            asked = self.memory["asked"].get(view.name)
            view.asked_at = None if asked is None else self.started + asked

    def _revive(self):
        """The embedded store is ours to keep alive; an S3 service is waited for."""
        if self.access.embedded is None:
            return
        try:
            if self.access.embedded.start():
                self._say("the embedded store was started again")
            self.store = self.access.store()  # with the keys of now: a clean of another run may have changed them
        except StoreError as error:
            self._say(str(error))

    @property
    def _memory_file(self):
        return self.run_folder.state / "watch.json"

    def _remembered(self):
        # times in seconds since the run was opened
        empty = {"seen": {}, "restarts": {}, "changed": {}, "asked": {}, "begun_at": None, "window": None}
        try:
            return {**empty, **run_folder.read_json(self._memory_file)}
        except FileNotFoundError:
            return empty

    def _remember(self):
        views = self.views.values()
        self.memory["changed"] = {view.name: view.changed_at - self.started for view in views}
        self.memory["asked"] = {view.name: view.asked_at - self.started for view in views if view.asked_at is not None}
        run_folder.write_json(self._memory_file, self.memory)
        run_folder.write_json(self.run_folder.problems_file, self.evidence.problems)

    def _say(self, line):
        self.display.display(line)
