"""Decides which nodes of a run to launch, retry, fetch from or give up, and which are done. Pure functions."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from ..core import units
from ..records.documents import FINAL_STATES, LAUNCHED
from ..records.failure_classes import traits_of
from ..records.launch_errors import is_not_measured_again

#: Maximum number of restarts of a runner that exited.
MAX_RESTARTS = 2
#: Back-off of an unreachable node in seconds: the first wait, doubled up to the longest.
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 15.0, 300.0
#: Maximum processor time of one fetch on the controller: with many nodes to fetch from, the interval grows.
FETCH_SECONDS = 0.25
#: Seconds without contact after which a node is lost if only it is missing: a GPU server reboots in up to 600 s.
ALONE_SECONDS = 600.0
#: The stage that brings images, whose transfers `gpuval_max_transfers` limits.
TRANSFER_STAGE = "image"
#: Maximum seconds between two launches on a node that another run still uses.
QUEUE_SECONDS = 30.0
#: A launch that timed out occupies a worker for minutes, so its retries are limited.
SLOW, SLOW_TRIES = "no_answer", 3


@dataclass
class NodeView:
    """The state of a node in a watched run. Times are seconds of the controller's monotonic clock."""

    name: str
    plan: Mapping[str, Any]
    launch: Mapping[str, Any]
    records: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    #: {stage: attempt whose last record was invalid although it came from the node}: no better record follows.
    refused: dict[str, int] = field(default_factory=dict)
    changed_at: float = 0.0
    fetched_at: float | None = None
    restarts: int = 0
    #: "launch" or "fetch" while a task of this kind runs or waits for the node, else empty.
    busy: str = ""
    #: Whether the node waits to be launched.
    to_start: bool = False
    #: Whether tasks can run on the node: it is a host of this play that has not failed.
    in_play: bool = True
    #: When the last launch ended, and the number of failed launches in a row.
    tried_at: float = 0.0
    tries: int = 0
    #: Until when the launch is retried because another run uses the node; None if none does.
    queued_until: float | None = None
    #: Number of failed fetches in a row, and time of the last successful one.
    misses: int = 0
    answered_at: float | None = None
    lost: bool = False
    #: Whether the cluster still pulls the node's images; None if a stage of the plan brings them.
    pulling: bool | None = None
    #: Whether the node's pod ended before the plan of the attempt was complete.
    attempt_ended: bool = False

    @property
    def stages(self) -> list[str]:
        return [stage["name"] for stage in self.plan["stages"]]

    @property
    def attempt(self) -> int:
        """The number of the attempt that was launched last."""
        return int(self.launch.get("attempt", 1))

    def state(self, stage: str) -> str:
        record = self.records.get(stage)
        return record["state"] if record else "missing"

    @property
    def launched(self) -> bool:
        """Whether the runner was started on the node, even if the connection was lost afterwards."""
        return self.launch.get("state") in LAUNCHED or any(item["started_at"] for item in self.records.values())

    @property
    def complete(self) -> bool:
        """Whether every stage of the node has a final record of the launched attempt, or an invalid final record."""
        attempt = self.attempt
        again = set(self.launch.get("stages") or self.stages) if attempt > 1 else set()
        return all(
            self.refused.get(stage, 0) >= (attempt if stage in again else 1)
            or (self.state(stage) in FINAL_STATES and (stage not in again or self.records[stage]["attempt"] >= attempt))
            for stage in self.stages
        )

    @property
    def given_up(self) -> bool:
        """Whether the node's runner exited after every restart, with an incomplete plan."""
        is_gone = self.launch.get("runner") == "gone" and self.restarts >= MAX_RESTARTS
        return self.launched and is_gone and not self.complete

    @property
    def not_measured_again(self) -> bool:
        return is_not_measured_again(self.launch)

    @property
    def refused_again(self) -> bool:
        """Whether the node's further attempt was not started, so that the previous attempt has the last records. A
        launch without an answer may have started it."""
        attempt = self.attempt
        has_begun = any(record["attempt"] >= attempt for record in self.records.values())
        may_work = has_begun or self.launch.get("class") in (SLOW, "lost_contact")
        return attempt > 1 and self.launch.get("state") not in LAUNCHED and not may_work

    @property
    def done(self) -> bool:
        """Whether the watch expects no further records of the node."""
        if self.busy or self.to_start or self.queued_until is not None:
            return False
        ended = self.complete or self.given_up or self.lost or self.attempt_ended or self.refused_again
        return ended or self.not_measured_again or not self.launched

    @property
    def last_contact_at(self) -> float:
        """When the node last wrote a record or answered over its connection, in seconds of the monotonic clock."""
        return max(self.changed_at, self.answered_at if self.answered_at is not None else self.changed_at)

    @property
    def working(self) -> bool:
        """Whether the node counts towards `gpuval_max_nodes_at_once`."""
        return self.busy == "launch" or (self.launched and not self.to_start and not self.done)

    @property
    def transferring(self) -> bool:
        """Whether the node counts towards `gpuval_max_transfers`: from its launch until its images are present."""
        return self.needs_images and self.working

    @property
    def needs_images(self) -> bool:
        """Whether images of the node's plan are still missing on the node."""
        if self.pulling is not None:
            return self.pulling
        return TRANSFER_STAGE in self.stages and self.state(TRANSFER_STAGE) not in FINAL_STATES

    def due_again(self, now: float) -> bool:
        """Whether a launch is due for a retry: the node was unreachable, too slow, or in use by another run."""
        if self.busy or self.to_start or self.launched:
            return False
        if self.queued_until is not None:
            return now - self.tried_at >= min(QUEUE_SECONDS, backoff(self.tries), self.queued_until - self.tried_at)
        slow = self.launch.get("class") == SLOW and self.tries < SLOW_TRIES
        away = self.launch.get("state") == "unreachable" and traits_of(self.launch.get("class")).retried
        return (slow or away) and now - self.tried_at >= backoff(self.tries)


def backoff(misses: int) -> float:
    """Seconds to wait before the next try, after ``misses`` failures in a row."""
    return min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** max(0, min(misses, 16) - 1))


def to_launch(views: Sequence[NodeView], now: float, *, at_once: int = 0, transfers: int = 0) -> list[str]:
    """Names of the nodes to launch now, in the order of the inventory. `at_once`: how many nodes may work at once;
    `transfers`: how many of them may load images; 0 is no limit. Retries of unreachable nodes come after first
    launches, and only while other nodes are at work."""
    working = sum(view.working for view in views)
    transferring = sum(view.transferring for view in views)
    waiting = [view for view in views if view.to_start and not view.busy]
    if waiting or not all(view.done for view in views):
        waiting += [view for view in views if view.due_again(now)]
    chosen = []
    for view in waiting:
        if at_once and working >= at_once:
            break
        needs_images = view.needs_images
        if needs_images and transfers and transferring >= transfers:
            continue
        working, transferring = working + 1, transferring + needs_images
        chosen.append(view.name)
    return chosen


def to_relaunch(views: Mapping[str, NodeView], ordered: Iterable[str], *, at_once: int = 0) -> list[str]:
    """Names of the nodes in `ordered`, which have a further attempt, that may be launched now. `at_once`: how many
    nodes may work at once, 0 is no limit. A node whose runner exited counts as at work already."""
    working = sum(view.working for view in views.values())
    chosen = []
    for name in ordered:
        view = views[name]
        if view.busy:
            continue
        if not view.working:
            if at_once and working >= at_once:
                continue
            working += 1
        chosen.append(name)
    return chosen


def lost_contact(view: NodeView, now: float, seconds: float) -> bool:
    """Whether a working node has sent nothing for `seconds`, and fetches from it fail, too."""
    if view.done or view.busy or not view.launched or view.to_start:
        return False
    return (view.misses >= 2 or not view.in_play) and now - view.last_contact_at >= seconds


def lost_after(views: Sequence[NodeView], seconds: float) -> float:
    """Seconds without contact after which a node is lost: `seconds`, or less if all other nodes are done."""
    at_work = [view for view in views if not view.done]
    only_waits = len(at_work) < len(views) and all(view.misses >= 2 for view in at_work)
    return min(seconds, ALONE_SECONDS) if only_waits else seconds


def class_of_loss(contact_class: str) -> str:
    """The failure class of a node that the watch gave up: `contact_class` if only an operator can fix the contact."""
    return "lost_contact" if traits_of(contact_class).retried else contact_class


def last_heartbeat(view: NodeView, now: float) -> str:
    """Text on how long ago, and in which stage, the node sent its last heartbeat."""
    running = [stage for stage in view.stages if view.state(stage) == "running"]
    where = f" in {running[0]}" if running else ""
    return f"no heartbeat for {clock(now - view.last_contact_at)}{where}"


def keep_started(earlier: Mapping[str, Any], launch: Mapping[str, Any]) -> dict[str, Any]:
    """The launch document to keep after a new launch: if that failed, the earlier runner may still be at work."""
    if launch["state"] in LAUNCHED or earlier.get("state") not in LAUNCHED:
        return dict(launch)
    if earlier.get("attempt", 1) == launch["attempt"]:
        return {**earlier, "message": f"started earlier; now {launch['state']}: {launch['message']}"}
    return {**launch, "directory": earlier.get("directory")}  # its evidence is there


def update(view: NodeView, stage: str, record: Mapping[str, Any], now: float) -> str | None:
    """Put a stage's record into the node's view. Returns a line of text if the state changed, None for a heartbeat."""
    before, attempt_before = view.state(stage), view.records.get(stage, {}).get("attempt")
    view.records[stage] = record
    view.refused.pop(stage, None)
    view.changed_at = now
    state = record["state"]
    if (state, record["attempt"]) == (before, attempt_before) or state == "pending":
        return None
    line = f"{view.name} {stage}: {state}"
    if record["attempt"] > 1:
        line += f" (attempt {record['attempt']})"
    if state in FINAL_STATES and record["duration_seconds"] is not None:
        line += f" after {record['duration_seconds']:.1f} s"
    if record["message"]:
        line += f": {record['message']}"
    return line


#: A stage that takes longer than expected is estimated to need this share of its time so far in addition.
LATE_SHARE = 0.2


def progress(views: Sequence[NodeView], elapsed: float) -> str:
    """A run's progress in one line: nodes done, counts per stage and state, ``elapsed`` and expected seconds."""
    stages: dict[str, Counter[str]] = {}
    for view in views:
        for stage in view.stages:
            stages.setdefault(stage, Counter())[view.state(stage)] += 1
    parts = []
    for stage, counts in stages.items():
        texts = [f"{count} {state}" for state, count in sorted(counts.items()) if state not in ("missing", "pending")]
        if texts:
            parts.append(f"{stage} {', '.join(texts)}")
    without = sum(view.launch.get("store_reachable") is False for view in views)
    if without:
        parts.append(f"{without} without the store")
    count_done = sum(view.done for view in views)
    line = f"{clock(elapsed)} nodes {count_done}/{len(views)} done"
    estimates = [seconds_left(view) for view in views if not view.done]
    seconds = 0.0 if None in estimates else max(filter(None, estimates), default=0.0)
    if seconds:
        line += f", about {clock(seconds)} left"
    return " | ".join([line, *parts])


def forecast(views: Sequence[NodeView], at_once: int, moment: datetime) -> str:
    """The expected end and the GPU-hours of a run's open stages, as text; empty if a stage has no expected time.
    `at_once`: how many nodes work at once, 0 for all; `moment`: the time now. If a node's number of GPUs is not
    declared, node-hours. A node that was not launched is assumed to have the plan of one with the same stages."""
    plans = {tuple(view.stages): view.plan for view in views if view.launched}
    waiting = [
        view if view.launched else replace(view, plan=plans.get(tuple(view.stages), view.plan))
        for view in views
        if not view.done
    ]
    estimates = [remaining for view in waiting if (remaining := seconds_left(view)) is not None]
    if not any(estimates) or len(estimates) < len(waiting):
        return ""
    seconds = max(estimates) * math.ceil(len(estimates) / (at_once or len(estimates)))
    gpus = [view.plan.get("accelerator", {}).get("count") for view in waiting]
    per_node = [1] * len(gpus) if None in gpus else gpus
    hours = math.fsum(remaining * number for remaining, number in zip(estimates, per_node, strict=True)) / 3600
    unit = "node-hours (gpuval_gpu_count is not declared)" if None in gpus else "GPU-hours"
    end = moment + timedelta(seconds=seconds)
    duration = units.duration(seconds)
    return f"by the plan the last node ends about {end:%Y-%m-%d %H:%M} UTC, after {duration}; {hours:,.1f} {unit}"


def seconds_left(view: NodeView) -> float | None:
    """Expected seconds of a node's open stages, as declared; None if one declares none, or the cluster pulls images."""
    if view.pulling:
        return None
    total = 0.0
    for stage in view.plan["stages"]:
        record = view.records.get(stage["name"])
        if record is not None and record["state"] in FINAL_STATES:
            continue
        if stage["expected_seconds"] is None:
            return None
        spent = record["duration_seconds"] or 0.0 if record is not None and record["state"] == "running" else 0.0
        total += max(stage["expected_seconds"] - spent, spent * LATE_SHARE)
    return total


def clock(seconds: float) -> str:
    """Seconds as text in hours, minutes and seconds: 1:02:03."""
    total = int(seconds)
    return f"{total // 3600}:{total // 60 % 60:02d}:{total % 60:02d}"


def to_fetch(
    views: Sequence[NodeView],
    now: float,
    *,
    silence: float,
    interval: float,
    by_store: bool = True,
    unread: Collection[str] = (),
) -> list[str]:
    """Names of the nodes whose records are due for a fetch over the management connection, every `interval` seconds:
    nodes that cannot reach the store, are `unread` there, or sent nothing for `silence` seconds; all nodes if records
    do not come `by_store`. Failed fetches back off. Lost nodes are included: they may return."""
    without = {
        view.name
        for view in views
        if not by_store
        or view.name in unread
        or view.launch.get("store_reachable") is False
        or view.launch.get("state") == "finished"
    }
    interval = max(interval, FETCH_SECONDS * sum(view.name in without and not view.done for view in views))
    chosen = []
    for view in views:
        if view.busy or view.to_start or not view.in_play or (view.done and not view.lost):
            continue
        silent = now - view.changed_at > silence
        since = view.fetched_at if view.fetched_at is not None else view.changed_at
        due = now - since >= max(interval, backoff(view.misses) if view.misses else 0.0)
        if (view.name in without or silent) and due:
            chosen.append(view.name)
    return chosen


def to_restart(views: Sequence[NodeView]) -> list[str]:
    """Names of launched nodes whose runner exited before their plan was complete, so that it must be resumed."""
    return [
        view.name
        for view in views
        if not (view.done or view.busy or view.to_start) and view.launch.get("runner") == "gone"
    ]
