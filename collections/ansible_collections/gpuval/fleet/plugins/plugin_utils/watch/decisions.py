"""The watch over a run: what changed, who is done, who needs help. Pure: time and records are handed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FINAL_STATES = frozenset({"success", "failure", "crash", "timeout", "skipped", "cancelled"})

#: Launch states in which a runner is, or was, at work on the node.
LAUNCHED = frozenset({"started", "finished"})

#: How often a runner that is gone is started again.
MAX_RESTARTS = 2

#: A node that cannot be reached is tried again after so many seconds, then after twice as many, up to the second.
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 15.0, 300.0
#: What asking one node costs the controller, generously: many mute nodes are asked less often, not all the time.
ASKING_SECONDS = 0.25

#: The stage that brings images, whose transfers `gpuval_max_transfers` limits.
TRANSFER_STAGE = "image"

#: Reasons for which a node is not tried again: only a person can mend them, and a login repeated may lock an account.
HOPELESS = frozenset({"wrong_host_key", "unknown_host_key", "login_denied", "sudo_password_needed", "sudo_denied"})

#: A launch that ran out of its time. One that hangs takes a worker of the controller for minutes: not for ever.
SLOW, SLOW_TRIES = "no_answer", 3


@dataclass
class NodeView:
    """One node as the watch sees it. Times are seconds of the watch's own monotonic clock."""

    name: str
    plan: Mapping[str, Any]
    launch: Mapping[str, Any]
    records: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    changed_at: float = 0.0
    asked_at: float | None = None
    restarts: int = 0
    #: A launch or a fetch of this node is under way or waits for its turn: "launch", "fetch" or empty.
    busy: str = ""
    #: This controller has still to start its plan, or to see that it is at work.
    to_start: bool = False
    #: It is a host of this play, so that something can be done on it.
    askable: bool = True
    #: When a launch last ended, and how many in a row did not reach the node.
    tried_at: float = 0.0
    tries: int = 0
    #: How many fetches in a row did not reach the node, and when one last did.
    misses: int = 0
    answered_at: float | None = None
    lost: bool = False
    #: Whether it is bringing images, where that is no stage of its plan but the cluster's business; else None.
    bringing: bool | None = None
    #: Nothing more comes of this attempt, although its plan is not done: its pod is gone.
    ended: bool = False

    @property
    def stages(self) -> list[str]:
        return [stage["name"] for stage in self.plan["stages"]]

    def state(self, stage: str) -> str:
        record = self.records.get(stage)
        return record["state"] if record else "missing"

    @property
    def launched(self) -> bool:
        """A runner is or was at work; a connection that broke after the start does not undo it."""
        return self.launch.get("state") in LAUNCHED or any(item["started_at"] for item in self.records.values())

    @property
    def complete(self) -> bool:
        """Every stage has its last record, of the attempt that was asked for."""
        wanted = self.launch.get("attempt", 1)
        again = set(self.launch.get("stages") or self.stages) if wanted > 1 else set()
        return all(
            self.state(stage) in FINAL_STATES and (stage not in again or self.records[stage]["attempt"] >= wanted)
            for stage in self.stages
        )

    @property
    def given_up(self) -> bool:
        """Its runner ends whenever it is started, and the plan is not done."""
        gone = self.launch.get("runner") == "gone" and self.restarts >= MAX_RESTARTS
        return self.launched and gone and not self.complete

    @property
    def over(self) -> bool:
        """Nothing more is to be expected of the node."""
        if self.busy or self.to_start:
            return False
        return not self.launched or self.complete or self.given_up or self.lost or self.ended

    @property
    def heard_at(self) -> float:
        """When the node last gave a sign, by the store or over its connection."""
        return max(self.changed_at, self.answered_at if self.answered_at is not None else self.changed_at)

    @property
    def at_work(self) -> bool:
        """It takes one of the places of `gpuval_max_nodes_at_once`."""
        return self.busy == "launch" or (self.launched and not self.to_start and not self.over)

    @property
    def transferring(self) -> bool:
        """It takes one of the places of `gpuval_max_transfers`: from its launch until its images are there."""
        return self.brings_images and self.at_work

    @property
    def brings_images(self) -> bool:
        """Its images are still to be brought."""
        if self.bringing is not None:
            return self.bringing
        return TRANSFER_STAGE in self.stages and self.state(TRANSFER_STAGE) not in FINAL_STATES

    def comes_again(self, now: float) -> bool:
        """A node that was not reached may have come up since, and one that was too slow may be less busy."""
        if self.busy or self.to_start or self.launched:
            return False
        slow = self.launch.get("class") == SLOW and self.tries < SLOW_TRIES
        away = self.launch.get("state") == "unreachable" and self.launch.get("class") not in HOPELESS
        return (slow or away) and now - self.tried_at >= backoff(self.tries)


def backoff(misses: int) -> float:
    """Seconds to leave a node alone that was not reached so many times in a row."""
    return min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** max(0, min(misses, 16) - 1))


def to_launch(views: Sequence[NodeView], now: float, *, at_once: int = 0, transfers: int = 0) -> list[str]:
    """Nodes whose plan is to be started now: a window slides over the nodes in the order of the inventory.

    `at_once`: how many may be at work; `transfers`: how many may be bringing images; 0 is no limit. Nodes that were not
    reached are tried again behind those whose turn has not come yet, and only while others are still at work.
    """
    working = sum(view.at_work for view in views)
    transferring = sum(view.transferring for view in views)
    waiting = [view for view in views if view.to_start and not view.busy]
    if waiting or not all(view.over for view in views):
        waiting += [view for view in views if view.comes_again(now)]
    chosen = []
    for view in waiting:
        if at_once and working >= at_once:
            break
        brings = view.brings_images
        if brings and transfers and transferring >= transfers:
            continue
        working, transferring = working + 1, transferring + brings
        chosen.append(view.name)
    return chosen


def to_relaunch(views: Mapping[str, NodeView], ordered: Iterable[str], *, at_once: int = 0) -> list[str]:
    """Of the nodes that are ordered to be launched again, those that have their turn: they take places like others.

    One that is at work already (its runner is gone) has its place.
    """
    working = sum(view.at_work for view in views.values())
    chosen = []
    for name in ordered:
        view = views[name]
        if view.busy:
            continue
        if not view.at_work:
            if at_once and working >= at_once:
                continue
            working += 1
        chosen.append(name)
    return chosen


def lost_contact(view: NodeView, now: float, seconds: float) -> bool:
    """Whether a node at work has given no sign for so long and could not be asked either."""
    if view.over or view.busy or not view.launched or view.to_start:
        return False
    return (view.misses >= 2 or not view.askable) and now - view.heard_at >= seconds


def last_sign(view: NodeView, now: float) -> str:
    """When and in which stage a node was last heard of."""
    running = [stage for stage in view.stages if view.state(stage) == "running"]
    where = f" in {running[0]}" if running else ""
    return f"no sign of it for {clock(now - view.heard_at)}{where}"


def keep_started(known: Mapping[str, Any], launch: Mapping[str, Any]) -> dict[str, Any]:
    """The launch to remember after one that may have failed: a runner that was started may be at work all the same."""
    if launch["state"] in LAUNCHED or known.get("state") not in LAUNCHED:
        return dict(launch)
    if known.get("attempt", 1) == launch["attempt"]:
        return {**known, "message": f"started earlier; now {launch['state']}: {launch['message']}"}
    return {**launch, "directory": known.get("directory")}  # where the evidence of the earlier attempt lies


def note(view: NodeView, stage: str, record: Mapping[str, Any], now: float) -> str | None:
    """Take a record in. Returns a line when its state changed, None for a mere heartbeat."""
    before, attempt_before = view.state(stage), view.records.get(stage, {}).get("attempt")
    view.records[stage] = record
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


def progress(views: Sequence[NodeView], elapsed: float) -> str:
    """Counts per stage and state, nodes done, elapsed and expected time."""
    stages: dict[str, Counter[str]] = {}
    for view in views:
        for stage in view.stages:
            stages.setdefault(stage, Counter())[view.state(stage)] += 1
    parts = []
    for stage, counts in stages.items():
        shown = [f"{count} {state}" for state, count in sorted(counts.items()) if state not in ("missing", "pending")]
        if shown:
            parts.append(f"{stage} {', '.join(shown)}")
    done = sum(view.over for view in views)
    line = f"{clock(elapsed)} nodes {done}/{len(views)} done"
    left = max((seconds_left(view) for view in views), default=0.0)
    if left:
        line += f", about {clock(left)} left"
    return " | ".join([line, *parts])


def seconds_left(view: NodeView) -> float:
    """Expected seconds of what the node has not done yet, from the stages' declared expectations."""
    if view.over:
        return 0.0
    total = 0.0
    for stage in view.plan["stages"]:
        expected = stage["expected_seconds"] or 0.0
        record = view.records.get(stage["name"])
        if record is None or record["state"] == "pending":
            total += expected
        elif record["state"] == "running":
            total += max(0.0, expected - (record["duration_seconds"] or 0.0))
    return total


def clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def to_ask(views: Sequence[NodeView], now: float, *, silence: float, interval: float) -> list[str]:
    """Nodes whose records are to be fetched over the management connection: those that said they cannot reach the
    store, every `interval` seconds; and those silent for longer than `silence`, at the same rate. One that could not be
    reached is left alone for longer and longer; one that is lost is asked on, it may come back."""
    mute = [view for view in views if not view.over and _is_mute(view)]
    interval = max(interval, ASKING_SECONDS * len(mute))
    chosen = []
    for view in views:
        if view.busy or view.to_start or not view.askable or (view.over and not view.lost):
            continue
        silent = now - view.changed_at > silence
        since = view.asked_at if view.asked_at is not None else view.changed_at
        due = now - since >= max(interval, backoff(view.misses) if view.misses else 0.0)
        if (_is_mute(view) or silent) and due:
            chosen.append(view.name)
    return chosen


def _is_mute(view: NodeView) -> bool:
    return view.launch.get("store_reachable") is False or view.launch.get("state") == "finished"


def to_restart(views: Sequence[NodeView]) -> list[str]:
    """Launched nodes whose runner is known to be gone although their plan is not done: the plan is resumed."""
    return [
        view.name
        for view in views
        if not (view.over or view.busy or view.to_start) and view.launch.get("runner") == "gone"
    ]
