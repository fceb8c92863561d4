"""The runner's command ``clean``: removes all that a run left on the node."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any, Optional

from gpuval_node.engines import engine_of, probe
from gpuval_node.engines._engine import EngineError
from gpuval_node.process_stat import snapshot

from gpuval_runner import descendants, leftovers, lock, scratch
from gpuval_runner import plan as plans
from gpuval_runner import state as states
from gpuval_runner.containers import brought
from gpuval_runner.containers.stage import chown_to_runner
from gpuval_runner.descendants import run_marker
from gpuval_runner.errors import LockHeldError, NodePlanError, RunnerError
from gpuval_runner.files import write_atomically
from gpuval_runner.layout import CACHE_MARK, NodeDirectory
from gpuval_runner.leftovers import RunTraces
from gpuval_runner.plan import NodePlan
from gpuval_runner.start import stop_unit

CANCEL_SECONDS = 20.0
KILL_SECONDS = 10.0
OWN_FILES = ("plan.json", "state.json", "lock", "store.json", "runner.pyz")


def clean(
    directory: NodeDirectory,
    keep_models: bool = False,
    cancel_seconds: float = CANCEL_SECONDS,
    *,
    remove_images: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Stop the run on this node and remove its node directory, also the model cache if gpuval created the cache and no
    other run is on the node. The runner gets `cancel_seconds` to end before KILL. With `remove_images`, also remove the
    images that this run brought. The result lists paths `removed`, processes and containers `killed`, and as `left`
    what could not be removed or ended, and why. With `dry_run`, `killed` names what would be ended, and nothing
    changes. Raises ``RunnerError`` when the directory is not a run's."""
    removed: list[str] = []
    root = directory.root
    if root.is_symlink():
        raise RunnerError(f"{root} is a link and is not followed: give the real directory")
    if root.exists() and not any((root / name).exists() for name in OWN_FILES) and any(root.iterdir()):
        raise RunnerError(f"{root} is not the directory of a run: nothing was removed")
    plan = None
    with contextlib.suppress(NodePlanError):
        plan = plans.load(directory.plan)
    state = states.load(directory.state)
    traces = RunTraces(directory, plan, state)
    at_work = _at_work(traces)
    if dry_run:
        containers = (f"container {identifier[:12]}" for identifier in leftovers.containers(traces))
        return {"removed": removed, "killed": [*at_work.values(), *containers], "left": []}
    killed, problems_left = _end(traces, at_work, cancel_seconds)
    if not root.exists():
        return {"removed": removed, "killed": killed, "left": problems_left}
    try:
        directory_lock = lock.take(directory.lock, 0.5)  # no runner may start while its directory is being removed
    except LockHeldError as error:
        return {"removed": removed, "killed": killed, "left": [*problems_left, str(error)]}
    with directory_lock:
        if remove_images:
            images, problems = brought.remove_images(directory)
            removed += images
            problems_left += problems
        nested = (root.parent.name, root.name) == traces.names
        marks = (path for name in ("plan.json", "state.json", "lock") for path in directory.base.glob(f"*/*/{name}"))
        if nested and not keep_models and all(path.parent == root for path in marks):  # no other run is on this node
            removed += _remove_models(directory.models, problems_left)
        if nested:
            archives = {image.archive.sha256 for image in plan.images.values() if image.archive} if plan else set()
            removed += brought.remove_archives(directory, archives)
        for stage in _stages(directory, plan):
            work, mark = directory.work(stage), state.container
            problems = scratch.remove(work)
            if problems and mark and work.is_dir():  # a container wrote files as another user
                with contextlib.suppress(EngineError):
                    chown_to_runner(probe(engine_of(mark.command)), mark, work)
                problems = scratch.remove(work)
            problems_left += problems
        removed += _remove_directory(directory, problems_left)
        for folder in (root.parent, directory.base) if nested else ():
            with contextlib.suppress(OSError):  # the folder has files of other runs
                folder.rmdir()
                removed.append(str(folder))
    return {"removed": removed, "killed": killed, "left": problems_left}


def _stages(directory: NodeDirectory, plan: Optional[NodePlan]) -> set[str]:
    """Return the names of all stages that may have a scratch directory: a later attempt's plan names only some."""
    work = directory.root / "work"
    names = {stage.name for stage in plan.stages} if plan else set()
    names |= {key.partition("/")[2] for key in directory.result_keys()}
    return names | {entry.name for entry in work.glob("*")}


def _at_work(traces: RunTraces) -> dict[str, str]:
    """Return the run's processes on this node, with its runner: `{pid: "name (pid N)"}`."""
    session = leftovers.live_session(traces.state.current) if traces.state.boot else None
    members = descendants.belonging(snapshot(), run_marker(*traces.names), session=session)
    descriptions = {str(process.pid): f"{process.name} (pid {process.pid})" for process in members}
    pid = (lock.holder(traces.directory.lock) or {}).get("pid")
    if isinstance(pid, int) and pid != os.getpid():
        descriptions[str(pid)] = f"runner (pid {pid})"
    return descriptions


def _end(traces: RunTraces, at_work: dict[str, str], cancel_seconds: float) -> tuple[list[str], list[str]]:
    """Cancel the runner, then kill all that the run started. Returns two lists of texts: the processes
    and containers that ended, and those that did not, with the remedy. `at_work` is the dict of :func:`_at_work`."""
    directory, state = traces.directory, traces.state
    if lock.holder(directory.lock) is not None:
        with contextlib.suppress(OSError):
            write_atomically(directory.cancel, b"\n")
    containers = leftovers.containers(traces)  # the cancel comes first: a hanging engine must not delay it
    lock.wait_until_free(directory.lock, cancel_seconds)
    killed = dict(at_work)
    holder = lock.holder(directory.lock)
    if holder is not None:
        stop_unit(str(holder.get("unit") or ""))
        pid = holder.get("pid")
        if isinstance(pid, int) and lock.holder(directory.lock) is not None and pid != os.getpid():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                killed[str(pid)] = f"runner (pid {pid})"
        lock.wait_until_free(directory.lock, KILL_SECONDS)
    session = leftovers.live_session(state.current) if state.boot else None
    ended, stuck = leftovers.end_processes(run_marker(*traces.names), session=session)
    killed = {**{str(process.pid): f"{process.name} (pid {process.pid})" for process in ended}, **killed}
    complaints = [f"{p.name} (pid {p.pid}, state {p.state}): KILL did not end it, reboot the node" for p in stuck]
    removed, problems = leftovers.end_containers(traces)
    unsure = {name: command for name, command in containers.items() if name not in removed}
    stay = leftovers.remaining(unsure, traces)
    killed.update({name: f"container {name[:12]}" for name in [*containers, *removed] if name not in stay})
    complaints += problems
    complaints += [
        f"container {name[:12]}: {command} did not remove it: `{command} rm --force {name[:12]}`, or reboot the node"
        for name, command in stay.items()
        if not any(name[:12] in problem for problem in problems)
    ]
    for process in stuck:
        killed.pop(str(process.pid), None)
    return list(killed.values()), complaints


def _remove_models(models: Path, complaints: list[str]) -> list[str]:
    if models.is_symlink() or not (models / CACHE_MARK).is_file():
        return []
    if models.is_mount():  # clean empties a mounted cache, and keeps the mount point
        complaints += scratch.empty_directory(models)
        return [f"{models}/*"]
    problems = scratch.remove_tree(models)
    complaints += problems
    return [] if problems else [str(models)]


def _remove_directory(directory: NodeDirectory, complaints: list[str]) -> list[str]:
    """Remove the node directory, the plan last, so that an interrupted clean can be repeated. Returns the directory's
    path if it is gone; adds to `complaints` what stayed, and why."""
    problems: list[str] = []
    removed_last = ("lock", "plan.json", "runner.pyz")
    for entry in sorted(directory.root.iterdir(), key=lambda path: (path.name in removed_last, path.name)):
        problems += scratch.remove_tree(entry) if not entry.is_mount() else [f"{entry}: a file system is mounted here"]
    with contextlib.suppress(OSError):
        directory.root.rmdir()
    complaints += problems
    return [] if directory.root.exists() else [str(directory.root)]
