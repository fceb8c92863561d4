"""The states of a run and which controllers work on it, as run.json keeps them. Every command reads them here."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

OPENED, PREPARING, WORKING, COLLECTING = "opened", "preparing", "working", "collecting"
JUDGED, FAILED = "judged", "failed"
#: What a controller may do next. Gangs work after a collection.
NEXT: Mapping[str, tuple[str, ...]] = {
    OPENED: (PREPARING, WORKING, FAILED),
    PREPARING: (WORKING, FAILED),
    WORKING: (COLLECTING, FAILED),
    COLLECTING: (WORKING, JUDGED, FAILED),
    JUDGED: (),
    FAILED: (),
}
#: States of which no node knows yet.
BEFORE_WORK = (OPENED, PREPARING)

#: Why a run failed that a clean ended after its controller was gone.
CLEANED = "it was ended by `make clean`"
#: What resumes a run whose controller is gone.
RESUME = "`make validate` resumes it"

#: A controller on another host counts as lost so many seconds after its last heartbeat; while it prepares or judges it
#: sends fewer.
LOST_SECONDS, QUIET_SECONDS = 150.0, 900.0
#: A process of the same id that began at another time is another one; clocks that are set make some difference.
SAME_START_SECONDS = 60.0


@dataclass(frozen=True)
class Seen:
    """A run's state as it is now. `attended`: a controller works on it, None where that is not known; `overdue`: none
    does, and none resumes it, since its deadline has passed; `resume`: what resumes one whose controller is gone."""

    name: str
    reason: str
    since: str
    attended: bool | None
    workers: tuple[Mapping[str, Any], ...]
    started: bool
    overdue: bool = False
    resume: str = ""

    @property
    def never_started(self) -> bool:
        """It failed before any node began."""
        return self.name == FAILED and not self.started

    def line(self) -> str:
        """The state, its reason and its controllers, in one line."""
        text = f"{self.name} since {self.since}" + (f": {self.reason}" if self.reason else "")
        if self.attended and self.name not in (JUDGED, FAILED):
            text += f", controller {self.who()}"
        return text

    def who(self) -> str:
        return ", ".join(f"{worker['host']} (pid {worker['pid']}, since {worker['since']})" for worker in self.workers)


def this_process(pid: int, at: str) -> dict[str, Any]:
    """The controller as run.json names it: `pid` is that of ansible-playbook."""
    return {"host": socket.gethostname(), "pid": pid, "began": round(psutil.Process(pid).create_time(), 1), "since": at}


def is_running(worker: Mapping[str, Any]) -> bool:
    """Whether a controller of this host is still there."""
    try:
        process = psutil.Process(worker["pid"])
        is_same = abs(process.create_time() - worker["began"]) < SAME_START_SECONDS
        return bool(is_same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def of(run: Mapping[str, Any]) -> dict[str, Any]:
    """The state as it is kept; of a run that keeps none, as far as it shows."""
    name = WORKING if run["finished_at"] is None else JUDGED
    at = run["created_at"]
    return run.get("state") or {"name": name, "since": at, "opened_at": at, "started_at": at, "workers": []}


def opened_at(run: Mapping[str, Any]) -> str:
    """When a controller opened it last; empty for a run.json that cannot be read."""
    return (run.get("state") or {}).get("opened_at") or run.get("created_at") or ""


def opened(run: Mapping[str, Any], worker: Mapping[str, Any], at: str) -> dict[str, Any]:
    """The state of a run that a controller opens, resumes or attaches to: what works, or is collected, still does."""
    before = run.get("state") or {"name": OPENED, "since": at}
    stays = before["name"] in (WORKING, COLLECTING)
    times = {key: before[key] for key in ("started_at", "cleaned_at") if key in before}
    name, since = (before["name"], before["since"]) if stays else (OPENED, at)
    workers = [*_others(before, worker), dict(worker)]
    return {"name": name, "since": since, "opened_at": at, **times, "workers": workers}


def _others(state: Mapping[str, Any], worker: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The controllers but this one, without those of this host that are gone."""
    return [
        other
        for other in state.get("workers", ())
        if (other["host"], other["pid"]) != (worker["host"], worker["pid"])
        and (other["host"] != worker["host"] or is_running(other))
    ]


def only_opened(run: Mapping[str, Any], pid: int) -> bool:
    """Whether the run never started, and the controller `pid` of this host works on it, and no other does."""
    state, controller = of(run), {"host": socket.gethostname(), "pid": pid}
    works = any((one["host"], one["pid"]) == (controller["host"], pid) for one in state["workers"])
    return works and not state.get("started_at") and not _others(state, controller)


def advanced(run: Mapping[str, Any], name: str, at: str, pid: int, reason: str = "") -> dict[str, Any] | None:
    """The state after a step of the controller `pid` of this host; None where that is no step, or not its run."""
    state = run.get("state")
    host = socket.gethostname()
    if not state or name not in NEXT[state["name"]]:
        return None
    if not any((worker["host"], worker["pid"]) == (host, pid) for worker in state["workers"]):
        return None
    new = {**state, "name": name, "since": at, "reason": reason}
    if not reason:
        del new["reason"]
    if name == WORKING:
        new["started_at"] = state.get("started_at") or at
    return new


def seen(run: Mapping[str, Any], sign_age: float | None, *, in_time: bool = True, resume: str = RESUME) -> Seen:
    """The state as it is now; a run whose controller ended before a node began has failed. `sign_age`: seconds since
    the last heartbeat of a controller, None where none is known; `in_time`: its deadline has not passed, so that a
    controller resumes it; `resume`: what does."""
    state = of(run)
    name, reason = state["name"], state.get("reason", "")
    attended = _attended(state, sign_age)
    workers = tuple(state["workers"])
    if name in BEFORE_WORK and attended is False:
        name, reason = FAILED, f"its controller ended while it was {state['name']}"
    if run["finished_at"] is not None and name == WORKING and attended is False:
        name, reason = FAILED, "it was ended without a verdict"
    orphan = name in (WORKING, COLLECTING) and attended is False
    overdue, resume = orphan and not in_time, resume if orphan and in_time else ""
    if orphan:
        reason = f"its controller is gone, {resume or 'its deadline has passed: judge it with `make report`'}"
    return Seen(name, reason, state["since"], attended, workers, bool(state.get("started_at")), overdue, resume)


def _attended(state: Mapping[str, Any], sign_age: float | None) -> bool | None:
    """One of its controllers works on it."""
    if not state["workers"]:
        return None
    host = socket.gethostname()
    if any(worker["host"] == host and is_running(worker) for worker in state["workers"]):
        return True
    if all(worker["host"] == host for worker in state["workers"]):
        return False
    limit = LOST_SECONDS if state["name"] == WORKING else QUIET_SECONDS
    return None if sign_age is None else sign_age < limit


def to_clean(run: Mapping[str, Any]) -> bool:
    """Whether something may be left of it on nodes or a cluster: it was not cleaned since it was last opened."""
    state = of(run)
    return not state.get("cleaned_at") or state["cleaned_at"] < state["opened_at"]
