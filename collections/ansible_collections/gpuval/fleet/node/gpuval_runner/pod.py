"""The runner as a pod container's entry point: runs one stage and shows its record to the cluster."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Optional

from gpuval_node.process_stat import adopt_orphans

from gpuval_runner import lock, machine, scratch
from gpuval_runner import plan as plans
from gpuval_runner.fetch import fetch
from gpuval_runner.files import read_bounded, to_json, write_atomically
from gpuval_runner.layout import STAGE_NAME, NodeDirectory
from gpuval_runner.log import note
from gpuval_runner.outcome import StageStop
from gpuval_runner.plan import Stage
from gpuval_runner.record import MAX_RECORD_BYTES, StageRecord
from gpuval_runner.runner import Interrupt, Runner, RunnerOptions, catch_signals, finish_uploads, uploading
from gpuval_runner.text import one_line

TERMINATION_LOG = "/dev/termination-log"
TERMINATION_VARIABLE = "GPUVAL_TERMINATION_LOG"
MAX_TERMINATION_BYTES = 2048
#: Bytes that Kubernetes keeps of all termination messages of a pod. Each container has an equal share.
POD_TERMINATION_BYTES = 12 << 10
#: Containers that a cluster may add to a pod, such as a mesh's sidecar.
ADDED_CONTAINERS = 2
LOCK_SECONDS = 60.0
#: Files beside the plan with records of earlier attempts, whose pods no longer exist.
EARLIER_RECORD = "record-{}.json"


def run_pod(options: RunnerOptions, stage: str, is_last: bool, clear: Optional[Path] = None) -> int:
    """Run one stage in a pod's container. Returns 0 once its record is written; with `is_last`, 1 unless all stages
    succeeded. First empties the folder `clear` (shared memory of earlier containers). Raises ``NodePlanError`` and
    ``StoreFileError`` for its input, ``LockHeldError`` when another container holds the node directory."""
    plan = plans.load(options.directory.plan)
    pod_stage = plan.stage(stage)
    if pod_stage.image:  # the stage's commands name the image's interpreter
        plan = replace(plan, python=pod_stage.container.python)
    adopt_orphans()
    options = replace(options, private_store=False, tee=_tee)
    directory = options.directory
    directory.make()
    with lock.take(directory.lock, LOCK_SECONDS), catch_signals() as interrupt:
        for problem in scratch.empty_directory(clear) if clear and clear.is_dir() else ():
            note(f"not removed: {problem}")
        restore_earlier_records(directory.source, directory)
        with uploading(options) as uploader:
            runner = _PodRunner(options, plan, uploader, interrupt)
            record = runner.run_own_stage(stage)
            uploaded = finish_uploads(uploader, Interrupt())
        if not uploaded:
            print_record(record)
        stated = fetch(directory, dict.fromkeys(directory.result_keys(), "*"), 0)["digests"]
        digests = {key: values for key, values in stated.items() if key.endswith(f"/{stage}")}
        path = Path(os.environ.get(TERMINATION_VARIABLE, TERMINATION_LOG))
        write_termination(record, digests, path, len(plan.stages))
    return 1 if is_last and runner.outcome() != "success" else 0


def restore_earlier_records(source: Path, directory: NodeDirectory) -> None:
    """Copy records of earlier attempts from `source`, where the controller put them, to the results that lack them."""
    before, after = EARLIER_RECORD.split("{}")
    for path in sorted(source.glob(EARLIER_RECORD.format("*"))):
        stage = path.name[len(before) : -len(after)].replace("-", "_")
        if STAGE_NAME.fullmatch(stage) and not directory.record(stage).exists():
            write_atomically(directory.record(stage), read_bounded(path.resolve(), MAX_RECORD_BYTES))


def print_record(record: StageRecord) -> None:
    """Print a record between marker lines to standard output: the controller reads it from the pod's log."""
    name, data = f"GPUVAL RECORD {record.stage}", record.encode().decode("ascii")
    print(f"\n-----BEGIN {name}-----\n{data}-----END {name}-----", flush=True)


def write_termination(record: StageRecord, digests: dict[str, list[str]], path: Path, containers: int) -> None:
    """Write state, cause, message and exit code of a record, and the digests of its stage's results (`{key:
    [SHA-256]}`), as the container's termination message. It fits the share of each of so many `containers`."""
    longest = min(MAX_TERMINATION_BYTES, POD_TERMINATION_BYTES // (containers + ADDED_CONTAINERS))
    short: dict[str, Any] = {name: getattr(record, name) for name in ("stage", "state", "exit_code", "signal")}
    cause = {name: value for name, value in record.environment.items() if name == "cause"}
    short |= cause if len(to_json(cause)) <= longest // 2 else {}
    stated = {**short, "digests": digests}
    short, limit = stated if len(to_json(stated)) < longest * 3 // 4 else short, longest
    while len(data := to_json({**short, "message": one_line(record.message, limit)})) > longest and limit:
        limit = limit * 3 // 4
    try:
        path.write_bytes(data)
    except OSError as error:
        print(f"cannot write {path}: {error.strerror}", file=sys.stderr)


def _tee(data: bytes) -> None:
    with contextlib.suppress(OSError):  # the container's output is closed: the log file has all of it
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


class _PodRunner(Runner):
    """Runs one stage of a plan whose other stages run in containers of their own."""

    def run_own_stage(self, name: str) -> StageRecord:
        """Run this container's stage, or end it with a reason without running it; returns its final record."""
        self._own = name
        self.open()
        if self.records[name].state not in machine.FINISHED:
            earlier = takewhile(lambda stage: stage.name != name, self.plan.stages)  # ended stages may stop this one
            deciding = [stage for stage in earlier if self.records[stage.name].state in machine.FINISHED]
            self.take_step([*deciding, self.plan.stage(name)])
        self._save_state()
        return self.records[name]

    def stays(self, stage_record: StageRecord) -> bool:
        """Whether a stage whose work is done may keep its process; if so, prints a record that the store lacks."""
        may_stay = super().stays(stage_record)
        if may_stay and not finish_uploads(self._uploader, self.interrupt):
            print_record(stage_record)
        return may_stay

    def halt(self) -> Optional[StageStop]:
        """Return why the stage must stop, as on a host; but a signal ends it for good: its container ends, too."""
        stop = super().halt()
        if stop and self.interrupt.signal:
            return StageStop("cancelled", f"the pod's container received {self.interrupt.signal}")
        return stop

    def opening(self, stage: Stage, document: Optional[dict[str, Any]], interruptions: int) -> str:
        """Return what to do with a record, as on a host; but an unfinished stage of another container was killed."""
        is_cut_off = document and document["state"] == "running" and document["attempt"] == self.plan.attempt
        if is_cut_off and stage.name != self._own:
            return "give_up"
        return super().opening(stage, document, interruptions)

    def given_up(self, record: StageRecord, cause: str) -> str:
        if record.stage == self._own:
            return super().given_up(record, cause)
        return (
            "its container ended without a final record (killed, evicted or out of memory; "
            f"last seen {record.updated_at}): see the pod's events"
        )
