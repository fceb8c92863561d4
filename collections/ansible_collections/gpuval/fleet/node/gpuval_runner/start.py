"""The runner's command ``start``: starts a runner that outlives the command, and reports how it began."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from gpuval_node.hardware.tools import toolbox

from gpuval_runner import lock, record
from gpuval_runner import plan as plans
from gpuval_runner import state as states
from gpuval_runner.environment import handed_on
from gpuval_runner.errors import NodePlanError, RunnerError
from gpuval_runner.files import to_json, write_atomically
from gpuval_runner.layout import NodeDirectory, own_archive
from gpuval_runner.log import log_end
from gpuval_runner.plan import NodePlan
from gpuval_runner.store import load_store
from gpuval_runner.text import one_line

WAIT_SECONDS = 10.0
SYSTEMD_RUNNING = Path("/run/systemd/system")
LINGERING = Path("/var/lib/systemd/linger")
SYSTEMD_SECONDS = 20.0
START_SECONDS = 60.0  # a busy machine is slow: a runner given up too early would run, reported as never started


def start(directory: NodeDirectory, wait_seconds: float = WAIT_SECONDS) -> dict[str, Any]:
    """Start a runner unless one runs or the plan is finished; wait until the runner works and has tried the store.
    Returns the command's output; `store_reachable` is None without a store. Raises ``NodePlanError`` and
    ``StoreFileError`` for a malformed plan or store file."""
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
    instance = os.urandom(8).hex()
    log_size = directory.runner_log.stat().st_size if directory.runner_log.exists() else 0
    unit = f"gpuval-{plan.run_id}-{plan.node}"[:240]  # names of units are at most 255 characters
    detach(directory, unit, ["--instance", instance], os.environ)
    return _await(directory, plan, instance, has_store=has_store, deadline=deadline, log_size=log_size)


def _answer(message: str, **fields: Any) -> dict[str, Any]:
    nothing = {"started": False, "already_running": False, "finished": False, "pid": None, "store_reachable": None}
    return {**nothing, **fields, "message": one_line(message, 500)}


def _await(
    directory: NodeDirectory, plan: NodePlan, instance: str, *, has_store: bool, deadline: float, log_size: int
) -> dict[str, Any]:
    """Wait until the runner `instance` works and has tried the store, and return the output of ``start``. `deadline` is
    in seconds of the monotonic clock, `log_size` the bytes of runner.log before the start."""
    while True:
        state = states.load(directory.state)
        late = time.monotonic() >= deadline
        if state.instance == instance:
            is_decided = not has_store or state.store_reachable is not None or state.outcome is not None
            if is_decided or late:
                is_silent = has_store and state.store_reachable is None
                message = "the store has not answered yet" if is_silent else state.store_message or "started"
                reachable = bool(state.store_reachable) if has_store else None
                finished = record.is_finished(directory, plan)
                return _answer(message, started=True, finished=finished, pid=state.pid, store_reachable=reachable)
        elif time.monotonic() >= deadline + START_SECONDS - WAIT_SECONDS:
            log = one_line(log_end(directory, log_size)[-1000:], 600)
            holder = lock.holder(directory.lock)
            if holder is not None:
                return _answer("another runner took the lock first", already_running=True, pid=holder.get("pid"))
            raise NodePlanError(f"no runner started within {START_SECONDS:.0f} s: {log or 'runner.log is empty'}")
        time.sleep(0.05)


def systemd_scope(euid: int, user: str, running: Path = SYSTEMD_RUNNING, lingering: Path = LINGERING) -> Optional[str]:
    """Return systemd's option ``--system`` for root, ``--user`` for a user with lingering services, else None."""
    if not running.is_dir() or shutil.which("systemd-run") is None:
        return None
    if euid == 0:
        return "--system"
    return "--user" if user and (lingering / user).exists() else None


def systemd_argv(scope: str, unit: str, argv: Sequence[str], log: Path) -> list[str]:
    """Return the command that starts `argv` as a transient systemd unit, with its output in the file `log`. An OOM kill
    of a stage does not end the unit; systemd restarts a runner that was killed, which then resumes."""
    properties = [
        "KillMode=control-group",
        "OOMPolicy=continue",
        "Restart=on-abnormal",
        "RestartSec=2",
        "TasksMax=infinity",
        f"StandardOutput=append:{log}",
        f"StandardError=append:{log}",
    ]
    if scope == "--system":
        properties += ["LimitNOFILE=1048576", "LimitMEMLOCK=infinity"]
    options = [f"--unit={unit}", *(f"--property={setting}" for setting in properties)]
    return ["systemd-run", scope, "--collect", "--quiet", *options, "--", *argv]


def detach(directory: NodeDirectory, unit: str, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Start the command ``run`` with `arguments` in the background; returns the systemd unit, empty without systemd.
    Raises ``RunnerError`` or ``OSError`` when the runner could not be started."""
    archive = own_archive()
    program = [str(archive)] if archive else ["-m", "gpuval_runner"]
    command = [sys.executable, *program, "run", "--dir", str(directory.root), *arguments]
    scope = systemd_scope(os.geteuid(), environment.get("USER", ""))
    if scope and archive:
        data = to_json(handed_on(environment))  # in a file: proxies may hold passwords, and arguments are public
        write_atomically(directory.runner_environment, data)
        of_unit = [*command, "--unit", unit, "--environment-file", str(directory.runner_environment)]
        if _systemd(systemd_argv(scope, unit, of_unit, directory.runner_log)):
            return unit
    with directory.runner_log.open("ab") as log:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        try:
            subprocess.Popen(command, cwd="/", env=dict(environment), start_new_session=True, **streams)
        except OSError as error:
            raise RunnerError(f"the runner cannot start: {error.strerror}: check the user's process limit") from None
    return ""


def stop_unit(unit: str) -> None:
    """Stop a systemd unit with all its processes, if the unit still exists."""
    scope = systemd_scope(os.geteuid(), os.environ.get("USER", ""))
    if unit and scope:
        _systemd(["systemctl", scope, "stop", f"{unit}.service"])


def _systemd(argv: Sequence[str]) -> bool:
    return toolbox()(*argv, timeout=SYSTEMD_SECONDS).ok
