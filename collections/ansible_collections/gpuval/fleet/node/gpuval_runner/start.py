"""``start``: a detached runner, and how it began."""

from __future__ import annotations

import os
import secrets
import time
from typing import Any

from gpuval_runner import lock, record
from gpuval_runner import plan as plans
from gpuval_runner import state as states
from gpuval_runner.detach import detach, unit_name
from gpuval_runner.errors import NodePlanError
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.plan import NodePlan
from gpuval_runner.store import load_store
from gpuval_runner.text import one_line

WAIT_SECONDS = 10.0
START_SECONDS = 60.0  # on a busy machine: a runner given up too early would run on, reported as never started


def start(directory: NodeDirectory, wait_seconds: float = WAIT_SECONDS) -> dict[str, Any]:
    """Start a runner unless one runs or nothing is left to do; waits until it works and has tried the store. Returns
    what the command prints; `store_reachable` is None without a store. Raises ``NodePlanError`` and ``StoreFileError``
    for what it was given."""
    plan = plans.load(directory.plan)
    has_store = load_store(directory.store) is not None
    deadline = time.monotonic() + wait_seconds
    while True:
        holder = lock.holder(directory.lock)
        state = states.load(directory.state)
        if holder is None or state.attempt >= plan.attempt or time.monotonic() >= deadline:
            break
        time.sleep(0.1)  # the runner of an earlier attempt ends, or starts this plan
    reachable = state.store_reachable if has_store else None
    if holder is not None:
        message = "works" if state.attempt >= plan.attempt else "ends an earlier attempt, then starts this one"
        return _answer(f"a runner {message}", already_running=True, pid=holder.get("pid"), store_reachable=reachable)
    if record.is_finished(directory, plan):
        return _answer("nothing is left to run", finished=True, store_reachable=reachable)
    instance = secrets.token_hex(8)
    log_end = directory.runner_log.stat().st_size if directory.runner_log.exists() else 0
    detach(directory, unit_name(plan.run_id, plan.node), ["--instance", instance], os.environ)
    return _await(directory, plan, instance, has_store=has_store, deadline=deadline, log_end=log_end)


def _answer(message: str, **fields: Any) -> dict[str, Any]:
    nothing = {"started": False, "already_running": False, "finished": False, "pid": None, "store_reachable": None}
    return {**nothing, **fields, "message": one_line(message, 500)}


def _await(
    directory: NodeDirectory, plan: NodePlan, instance: str, *, has_store: bool, deadline: float, log_end: int
) -> dict[str, Any]:
    while True:
        state = states.load(directory.state)
        late = time.monotonic() >= deadline
        if state.instance == instance:
            is_decided = not has_store or state.store_reachable is not None or state.outcome is not None
            if is_decided or late:
                reachable = state.store_reachable if has_store else None
                if has_store and reachable is None:
                    reachable = False
                    state.store_message = "the store has not answered yet"
                message = state.store_message or "started"
                finished = record.is_finished(directory, plan)
                return _answer(message, started=True, finished=finished, pid=state.pid, store_reachable=reachable)
        elif time.monotonic() >= deadline + START_SECONDS - WAIT_SECONDS:
            log = _log_since(directory, log_end)
            holder = lock.holder(directory.lock)
            if holder is not None:
                return _answer("another runner took the lock first", already_running=True, pid=holder.get("pid"))
            raise NodePlanError(
                f"the runner did not start within {START_SECONDS:.0f} s: {log or 'runner.log is empty'}"
            )
        time.sleep(0.05)


def _log_since(directory: NodeDirectory, position: int) -> str:
    try:
        with directory.runner_log.open("rb") as stream:
            stream.seek(position)
            return one_line(stream.read(1 << 16)[-1000:].decode("utf-8", "replace"), 600)
    except OSError:
        return ""
