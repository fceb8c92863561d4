"""The states of a run, and the controllers that work on it, from the field `state` of run.json."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

OPENED, PREPARING, WORKING, COLLECTING = "opened", "preparing", "working", "collecting"
JUDGED, FAILED = "judged", "failed"
#: {state: states that may follow}. Multi-node tests work after the collection of single-node evidence.
NEXT: Mapping[str, tuple[str, ...]] = {
    OPENED: (PREPARING, WORKING, FAILED),
    PREPARING: (WORKING, FAILED),
    WORKING: (COLLECTING, FAILED),
    COLLECTING: (WORKING, JUDGED, FAILED),
    JUDGED: (),
    FAILED: (),
}
#: States in which no node has begun.
BEFORE_WORK = (OPENED, PREPARING)

#: Reason of a failed run that `make clean` ended after its controller was gone.
CLEANED = "it was ended by `make clean`"
#: Text of the command that resumes a run whose controller is gone.
RESUME = "`make validate` resumes it"

#: Seconds without heartbeat after which a controller on another host counts as lost: while nodes work, and while it
#: prepares or judges, with fewer heartbeats.
LOST_SECONDS, QUIET_SECONDS = 150.0, 900.0
#: Max difference between two start times of one process, since clocks are adjusted. Process ids are reused.
SAME_START_SECONDS = 60.0


@dataclass(frozen=True)
class Seen:
    """A run's present state. `attended`: whether a controller works on it, None if unknown; `started`: a node has
    begun; `overdue`: no controller works on it and the deadline has passed; `resume`: command that resumes it then."""

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
        """Whether the run failed before any node began."""
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
    """A controller on this host as an entry of run.json. `pid`: of ansible-playbook; `at`: time (RFC 3339)."""
    return {"host": socket.gethostname(), "pid": pid, "began": round(psutil.Process(pid).create_time(), 1), "since": at}


def is_running(worker: Mapping[str, Any]) -> bool:
    """Whether the process of a controller on this host, an entry of run.json, still runs."""
    try:
        process = psutil.Process(worker["pid"])
        is_same = abs(process.create_time() - worker["began"]) < SAME_START_SECONDS
        return bool(is_same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def of(run: Mapping[str, Any]) -> dict[str, Any]:
    """The field `state` of run.json; for a run of release 1.0, which lacks it, as far as other fields show it."""
    name = WORKING if run["finished_at"] is None else JUDGED
    at = run["created_at"]
    return run.get("state") or {"name": name, "since": at, "opened_at": at, "started_at": at, "workers": []}


def opened_at(run: Mapping[str, Any]) -> str:
    """Time (RFC 3339) when a controller last opened the run; empty if run.json was unreadable."""
    return (run.get("state") or {}).get("opened_at") or run.get("created_at") or ""


def opened(run: Mapping[str, Any], worker: Mapping[str, Any], at: str) -> dict[str, Any]:
    """The state after the controller `worker` opened, resumed or joined a run at the time `at`. A run whose nodes work,
    or whose evidence is collected, stays in that state."""
    before = run.get("state") or {"name": OPENED, "since": at}
    stays = before["name"] in (WORKING, COLLECTING)
    times = {key: before[key] for key in ("started_at", "cleaned_at") if key in before}
    name, since = (before["name"], before["since"]) if stays else (OPENED, at)
    workers = [*_others(before, worker), dict(worker)]
    return {"name": name, "since": since, "opened_at": at, **times, "workers": workers}


def _others(state: Mapping[str, Any], worker: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Controllers of a run other than `worker`, without those on its host whose process has ended."""
    return [
        other
        for other in state.get("workers", ())
        if (other["host"], other["pid"]) != (worker["host"], worker["pid"])
        and (other["host"] != worker["host"] or is_running(other))
    ]


def only_opened(run: Mapping[str, Any], pid: int) -> bool:
    """Whether no node of a run began, and only the controller with process id `pid` on this host works on it."""
    state, controller = of(run), {"host": socket.gethostname(), "pid": pid}
    works = any((one["host"], one["pid"]) == (controller["host"], pid) for one in state["workers"])
    return works and not state.get("started_at") and not _others(state, controller)


def advanced(run: Mapping[str, Any], name: str, at: str, pid: int, reason: str = "") -> dict[str, Any] | None:
    """The run's state after the controller `pid` of this host set it to `name` at the time `at`. None if `name` may not
    follow, or that controller does not work on the run."""
    state, host = run.get("state"), socket.gethostname()
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
    """The run's present state. A run whose controller ended before a node began has failed. `sign_age`: seconds since
    the last heartbeat of a controller, None if unknown; `in_time`: whether the deadline has not passed, so that a
    command can resume the run; `resume`: text of that command."""
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
    """Whether a controller works on the run; None if unknown. `sign_age`: seconds since its last heartbeat."""
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
    """Whether a run may have left something on nodes or a cluster, since it was not cleaned after its last opening."""
    state = of(run)
    return not state.get("cleaned_at") or state["cleaned_at"] < state["opened_at"]
