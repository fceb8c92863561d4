"""The runner's commands ``fetch``, for a controller that pulls results over SSH, and ``status``: how far the run is."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuval_node.node_directory import boot_id

from gpuval_runner import lock, machine, oom
from gpuval_runner import state as states
from gpuval_runner.files import digest, read_bounded, read_object
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.log import log_end
from gpuval_runner.plan import MAX_PLAN_BYTES
from gpuval_runner.record import MAX_RECORD_BYTES
from gpuval_runner.text import one_line
from gpuval_runner.upload import MAX_OBJECT_BYTES, read_ledger


def fetch(
    directory: NodeDirectory, since: Mapping[str, Any], limit_bytes: int, not_uploaded: bool = False
) -> dict[str, Any]:
    """Return the results whose SHA-256 differs from that in `since` (`{result key: SHA-256}`, `*` for any), records
    first: at least one file, at most `limit_bytes` of content. With `not_uploaded`, return only results whose latest
    version the store lacks. In the answer, `digests` has for each result the SHA-256 of its file, and that of its last
    upload if it differs; `more` says that further results did not fit, `ended` why an unfinished plan has no runner."""
    running = lock.holder(directory.lock) is not None  # first: if the runner ends meanwhile, the caller asks again
    uploaded = read_ledger(directory.uploaded)
    files: dict[str, dict[str, str]] = {}
    digests = {key: [sha256] for key, sha256 in uploaded.items()}
    total, more = 0, False
    for key, data, sha256 in _read_results(directory):
        digests[key] = sorted({sha256, uploaded.get(key, sha256)})
        if more or since.get(key) in (sha256, "*") or (not_uploaded and uploaded.get(key) == sha256):
            continue
        if files and total + len(data) > limit_bytes:
            more = True
            continue
        total += len(data)
        files[key] = {"digest": sha256, "base64": base64.b64encode(data).decode("ascii")}
    ended = "" if running else runner_end(directory)
    return {"files": files, "digests": digests, "more": more, "running": running, "ended": ended}


def runner_end(directory: NodeDirectory) -> str:
    """Return why no runner works on an unfinished plan: a reboot, or the kernel's OOM kill and the end of runner.log.
    Empty if the plan is finished or no runner has started."""
    state = states.load(directory.state)
    if not state.pid or state.outcome is not None:
        return ""
    if state.boot != boot_id():
        return "the node rebooted"
    memory = oom.of_runner(state.pid, state.oom_kills)
    lines = log_end(directory).splitlines()
    last_line = f"its log ends with: {lines[-1]}" if lines else "its log is empty"
    return one_line("; ".join(filter(None, [memory or "the runner ended", last_line])), 500)


def status(directory: NodeDirectory) -> dict[str, Any]:
    """Return whether a runner is at work here, how far its stages are, and which results the store does not have yet.
    The run's `outcome` on this node is None while stages are unfinished."""
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
        "not_uploaded": [key for key, _, sha256 in _read_results(directory) if uploaded.get(key) != sha256],
        "store_reachable": state.store_reachable,
        "message": state.store_message,
    }


def stage_states(directory: NodeDirectory) -> dict[str, str]:
    """Return the state of every stage with a record, by name: stages of earlier plans, then the plan's in its order."""
    keys = directory.result_keys("records")
    states_read = {
        Path(key).name: read_object(directory.result(key), 2 * MAX_RECORD_BYTES).get("state") for key in keys
    }
    state_by_stage = {name: state for name, state in states_read.items() if state in machine.STATES}
    positions: dict[str, int] = {}
    with contextlib.suppress(KeyError, TypeError):
        stages = read_object(directory.plan, MAX_PLAN_BYTES)["stages"]
        positions = {stage["name"]: position for position, stage in enumerate(stages)}
    return dict(sorted(state_by_stage.items(), key=lambda pair: (positions.get(pair[0], -1), pair[0])))


def _read_results(directory: NodeDirectory) -> Iterator[tuple[str, bytes, str]]:
    """Yield key, content and SHA-256 of all results, records first. Files that have vanished are left out, and what is
    no regular file: a stage may have planted a link."""
    for key in directory.result_keys():
        with contextlib.suppress(OSError):
            data = read_bounded(directory.result(key), MAX_OBJECT_BYTES)
            yield key, data, digest(data)
