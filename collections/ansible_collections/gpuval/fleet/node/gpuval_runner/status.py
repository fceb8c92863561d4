"""``status``: what a node directory says about its run."""

from __future__ import annotations

import contextlib
from typing import Any

from gpuval_runner import lock, machine
from gpuval_runner import state as states
from gpuval_runner.fetch import digests
from gpuval_runner.files import read_object
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.plan import MAX_PLAN_BYTES
from gpuval_runner.record import MAX_RECORD_BYTES
from gpuval_runner.upload import read_ledger


def status(directory: NodeDirectory) -> dict[str, Any]:
    """Return whether a runner works, how far it is, what the store lacks. `outcome` is None while work is left."""
    holder = lock.holder(directory.lock)
    state = states.load(directory.state)
    stages = stage_states(directory)
    uploaded = read_ledger(directory.uploaded)
    outcome = machine.outcome(stages.values()) if stages else "running"
    return {
        "running": holder is not None,
        "pid": holder.get("pid") if holder is not None else None,
        "outcome": None if outcome == "running" else outcome,
        "attempt": state.attempt,
        "stages": stages,
        "not_uploaded": [key for key, digest in digests(directory).items() if uploaded.get(key) != digest],
        "store_reachable": state.store_reachable,
        "message": state.store_message,
    }


def stage_states(directory: NodeDirectory) -> dict[str, str]:
    """Return the state of every stage that has a record, in the plan's order as far as the plan names them."""
    state_by_stage: dict[str, str] = {}
    for key in directory.result_keys():
        kind, _, name = key.partition("/")
        state = read_object(directory.result(key), 2 * MAX_RECORD_BYTES).get("state") if kind == "records" else None
        if state in machine.STATES:
            state_by_stage[name] = state
    places: dict[str, int] = {}
    with contextlib.suppress(KeyError, TypeError):
        stages = read_object(directory.plan, MAX_PLAN_BYTES)["stages"]
        places = {stage["name"]: position for position, stage in enumerate(stages)}
    return {
        name: state_by_stage[name] for name in sorted(state_by_stage, key=lambda name: (places.get(name, -1), name))
    }
