"""Runs a plan: restores the records of an earlier runner, runs what is due, reports, and ends on a signal."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Optional

from gpuval_node.node_directory import BOOT_ID_FILE
from gpuval_node.process_stat import adopt_orphans, look

from gpuval_runner import clock, leftovers, lock, machine, oom, other_work, record, scratch
from gpuval_runner import plan as plans
from gpuval_runner import state as states
from gpuval_runner.clock import elapsed, instant
from gpuval_runner.containers.stage import RELEASE_SECONDS, Containers
from gpuval_runner.descendants import run_marker
from gpuval_runner.environment import StagePaths, detected
from gpuval_runner.errors import LockHeldError, NodePlanError
from gpuval_runner.files import write_atomically
from gpuval_runner.layout import NodeDirectory, own_archive
from gpuval_runner.log import note
from gpuval_runner.outcome import StageStop
from gpuval_runner.plan import NodePlan, Stage
from gpuval_runner.record import ResultPublisher, StageRecord
from gpuval_runner.stage import INTERRUPTED, StageContext, StageRun
from gpuval_runner.telemetry import monitor as telemetry
from gpuval_runner.text import seconds
from gpuval_runner.upload import Ledger, Uploader

FLUSH_SECONDS = 60.0
AWAY_FLUSH_SECONDS = 5.0
FACTS = "facts"


@dataclass
class Interrupt:
    """Holds the name of the signal that asked the runner to end; empty without a signal."""

    signal: str = ""


@dataclass(frozen=True)
class RunnerOptions:
    """Where a runner finds its files, on a host or in a pod. `instance` identifies this start of the runner, `unit` is
    its systemd unit. With `private_store`, a store file that others may read is refused. `tee` also gets the output."""

    directory: NodeDirectory
    instance: str = ""
    unit: str = ""
    boot_id_file: Path = BOOT_ID_FILE
    private_store: bool = True
    tee: Optional[Callable[[bytes], None]] = None


def run(options: RunnerOptions) -> int:
    """Run the plan in a node directory. Returns 0 when every stage succeeded, 1 when not, 143 after a signal to end.
    Raises ``LockHeldError`` when another runner holds the directory, ``NodePlanError`` and ``StoreFileError`` for a
    malformed plan or store file."""
    directory = options.directory
    plans.load(directory.plan)  # refuse a bad plan before anything is changed
    adopt_orphans()
    with lock.take(directory.lock, instance=options.instance, unit=options.unit), catch_signals() as interrupt:
        directory.make()
        with uploading(options) as uploader:
            while True:
                plan = plans.load(directory.plan)
                note(f"run {plan.run_id} node {plan.node} attempt {plan.attempt}: runner pid {os.getpid()} starts")
                runner = Runner(options, plan, uploader, interrupt)
                outcome = runner.run_plan()
                finish_uploads(uploader, interrupt)
                runner.note_store()
                if interrupt.signal:
                    note(f"ended by {interrupt.signal}; the next runner resumes at the first unfinished stage")
                    return 143
                if not newer_plan(directory.plan, plan):
                    note(f"the plan's outcome: {outcome}")
                    return 0 if outcome == "success" else 1


def cancel(options: RunnerOptions, wait_seconds: float) -> dict[str, Any]:
    """Cancel a run and wait until its runner has ended; without a runner, end the records as cancelled here. Raises
    ``NodePlanError``, and ``OSError`` when the cancel request cannot be written."""
    directory = options.directory
    plan = plans.load(directory.plan)
    if lock.holder(directory.lock) is None and record.is_finished(directory, plan):
        return {"cancelled": False, "running": False, "message": "nothing is left to cancel"}
    write_atomically(directory.cancel, f"{plan.attempt}\n".encode())
    lock.wait_until_free(directory.lock, wait_seconds)
    if lock.holder(directory.lock) is None and not record.is_finished(directory, plan):
        with contextlib.suppress(LockHeldError):  # a runner that has just begun sees the cancel file
            run(options)
    running = lock.holder(directory.lock) is not None
    message = f"the runner still ends its stage after {wait_seconds:.0f} s" if running else "cancelled"
    return {"cancelled": True, "running": running, "message": message}


@contextlib.contextmanager
def uploading(options: RunnerOptions) -> Iterator[Optional[Uploader]]:
    """Yield an uploader, None without a store file; closes it and the telemetry helper. Raises ``StoreFileError``."""
    directory, uploader = options.directory, None
    if directory.store.exists():
        uploader = Uploader(directory.store, Ledger(directory.uploaded), private=options.private_store)
    try:
        yield uploader
    finally:
        telemetry.PROCESS.close()
        if uploader:
            uploader.close()


def finish_uploads(uploader: Optional[Uploader], interrupt: Interrupt) -> bool:
    """Upload the remaining results in bounded time. Returns whether the store has all results now."""
    if uploader is None:
        return False
    waiting = uploader.flush(AWAY_FLUSH_SECONDS if interrupt.signal else FLUSH_SECONDS, AWAY_FLUSH_SECONDS)
    problems = uploader.problems()
    for problem in problems:
        note(problem)
    if waiting:
        note(f"not uploaded: {', '.join(sorted(waiting))}: fetch them over the management connection")
    return not (waiting or problems)


def newer_plan(path: Path, plan: NodePlan) -> bool:
    """Whether the plan file at `path` now holds a later attempt than `plan`."""
    try:
        return plans.load(path).attempt > plan.attempt
    except NodePlanError:
        return False


@contextlib.contextmanager
def catch_signals() -> Iterator[Interrupt]:
    """Record TERM and INT in the yielded `Interrupt` instead of exiting, and ignore a lost terminal."""
    interrupt = Interrupt()

    def note_signal(number: int, _frame: Any) -> None:
        interrupt.signal = signal.Signals(number).name

    earlier = {number: signal.signal(number, note_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    earlier[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: None)  # no SIG_IGN: stages would inherit it
    try:
        yield interrupt
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


class Runner:
    """Runs the stages of one plan, once."""

    def __init__(
        self, options: RunnerOptions, plan: NodePlan, uploader: Optional[Uploader], interrupt: Interrupt
    ) -> None:
        self.options, self.plan, self.interrupt = options, plan, interrupt
        self.directory = options.directory
        self._uploader = uploader
        self._publisher = ResultPublisher(options.directory, plan, uploader)
        self.state = states.load(options.directory.state)
        self.records: dict[str, StageRecord] = {}
        self._notes: dict[str, str] = {}
        self._containers = Containers(plan, self._container_used)
        self._other_work = other_work.watch(plan)

    def run_plan(self) -> str:
        """Run all stages that are due; returns the plan's outcome, ``running`` when a signal ended the runner."""
        self.open()
        while not self.interrupt.signal and self.take_step(self.plan.stages):
            pass
        outcome = self.outcome()
        self.state.outcome = None if outcome == "running" else outcome
        self.state.current = None
        self._save_state()
        return outcome

    def take_step(self, stages: Sequence[Stage]) -> bool:
        """Run or close the next stage of `stages`; returns False if all have ended."""
        halt = self.halt()
        step = machine.next_step(stages, self.stage_states(), halt.reason if halt else None)
        if isinstance(step, machine.Close):
            self.close_stage(step)
        elif step is not None:
            self.run_stage(step)
        return step is not None

    def open(self) -> None:
        """End leftover processes and containers of an earlier runner, and update every stage's record to this plan."""
        present = instant(self.options.boot_id_file)
        state, plan = self.state, self.plan
        rebooted = bool(state.boot) and state.boot != present.boot
        memory = oom.of_runner(state.pid, state.oom_kills) if state.pid and not rebooted and not state.outcome else ""
        self._end_leftovers(rebooted)
        if state.plan_created_at != plan.created_at or state.started is None:
            state.plan_created_at, state.started = plan.created_at, present
        state.run_id, state.node, state.attempt = plan.run_id, plan.node, plan.attempt
        state.boot, state.pid = present.boot, os.getpid()
        state.instance, state.unit = self.options.instance, self.options.unit
        state.outcome, state.current, state.store_reachable, state.store_message = None, None, None, ""
        state.oom_kills = oom.counters().machine
        ended = f"the end of its runner ({memory})" if memory else "the end of its runner"
        self._restore_records("a reboot of the node" if rebooted else ended)
        self._save_state()

    def opening(self, stage: Stage, document: Optional[dict[str, Any]], interruptions: int) -> str:
        """Return what to do with a stage's record, as in :func:`machine.opening`."""
        return machine.opening(self.plan.attempt, document, interruptions)

    def given_up(self, record: StageRecord, cause: str) -> str:
        """Return why a stage that was cut off is not run again."""
        return f"interrupted by {cause} for the second time (last seen {record.updated_at}) and not run again"

    def stage_states(self) -> dict[str, str]:
        """Return the state of every stage that has a record, those of other plans of this run too."""
        return {name: stage_record.state for name, stage_record in self.records.items()}

    def outcome(self) -> str:
        return machine.outcome(self.stage_states().get(stage.name, "pending") for stage in self.plan.stages)

    def halt(self) -> Optional[StageStop]:
        """Return why the running stage must stop (cancel, deadline, signal, others' work), None if it may go on."""
        if self.interrupt.signal:
            return StageStop(INTERRUPTED, f"the runner received {self.interrupt.signal}")
        if self._containers.stays:
            return StageStop("cancelled", f"not run: {self._containers.stays}")
        if cancelled(self.directory, self.plan):
            return StageStop("cancelled", "cancelled on request")
        if self._other_work.found:
            return self._gave_way()
        if self._seconds_left() <= 0:
            deadline = f"the plan's deadline of {seconds(self.plan.deadline_seconds)} after its first start"
            return StageStop("timeout", f"{deadline} passed (deadline_seconds)")
        return None

    def disturbed(self, failed: bool) -> Optional[StageStop]:
        """Return what may explain the end of a stage: others' work on the accelerators, or a signal if it failed."""
        if self.interrupt.signal:
            return self.halt() if failed else None
        return self._gave_way() if self.plan.gives_way and self._other_work.look() else None

    def _gave_way(self) -> StageStop:
        return StageStop("cancelled", f"gave way: {other_work.IN_THE_WAY} {self._other_work.found}")

    def _seconds_left(self) -> float:
        """Return the seconds until the plan's deadline."""
        spent = elapsed(self.state.started, instant(self.options.boot_id_file)) if self.state.started else 0.0
        return self.plan.deadline_seconds - spent

    def close_stage(self, step: machine.Close) -> None:
        """Write the final record of a stage that is not run."""
        stage_record = self.records[step.stage]
        stage_record.state, stage_record.finished_at = step.state, clock.now()
        stage_record.message = "; ".join(filter(None, [step.message, self._notes.get(step.stage, "")]))
        self._publisher.record(stage_record)
        note(f"{step.stage}: {step.state}: {step.message}")

    def run_stage(self, name: str) -> None:
        """Run a stage to its final record, or until a signal ends the runner."""
        stage = self.plan.stage(name)
        time_left = {"GPUVAL_SECONDS_LEFT": f"{max(0.0, self._seconds_left()):.0f}"}
        stage = replace(stage, environment={**time_left, **stage.environment})
        note(f"{name}: starts")
        notes = (self._notes[name],) if name in self._notes else ()
        finished = StageRun(stage, self.records[name], self._context(name), notes).run()
        self.state.current = None
        self.note_store()
        self._save_state()
        note(f"{name}: {finished.state}: {finished.message or 'no message'}")

    def _context(self, name: str) -> StageContext:
        work, source, archive = self.directory.work(name), self.directory.source, own_archive()
        # Mounted paths stay unresolved: in a pod they are links to folders named after the time of the mount.
        runner, workloads = self.directory.runner, self.directory.workloads
        if archive and not workloads.exists():
            workloads = archive.with_name(workloads.name)
        facts = self.records.get(FACTS)
        facts_found = facts.environment if facts and facts.state == "success" else None
        is_undisturbed = self.plan.gives_way or self.plan.stage(name).gpus == "none"
        return StageContext(
            plan=self.plan,
            directory=self.directory,
            publisher=self._publisher,
            accelerator=detected(self.plan.accelerator, facts_found),
            places=StagePaths(
                work=work,
                temporary=scratch.temporary_directory(work),
                models=Path(self.plan.models_dir) if self.plan.models_dir else self.directory.models,
                runner=runner if runner.exists() or not archive else archive,
                workloads=workloads,
                rclone_config=source / "rclone.conf",
                run=source,
            ),
            halt=self.halt,
            disturbed=self.disturbed,
            beside=lambda: [] if is_undisturbed else self._other_work.beside(),
            containers=self._containers,
            started=self._started,
            tick=self.note_store,
            tee=self.options.tee,
            stays=self.stays,
            superseded=lambda: newer_plan(self.directory.plan, self.plan),
        )

    def stays(self, stage_record: StageRecord) -> bool:
        """Whether a stage whose work is done may keep its process: only the plan's last stage may."""
        return stage_record.stage == self.plan.stages[-1].name

    def _started(self, pid: int) -> None:
        process = look(pid)
        self.state.current = {"pid": pid, "start_ticks": process.start_ticks} if process else None
        self._save_state()

    def _container_used(self, mark: states.ContainerMark) -> None:
        if mark != self.state.container:
            self.state.container = mark
            self._save_state()

    def note_store(self) -> None:
        """Save in the state whether the store answers, for the commands ``start`` and ``status``."""
        if self._uploader and self._uploader.reachable != self.state.store_reachable:
            self.state.store_reachable = self._uploader.reachable
            self.state.store_message = "; ".join(self._uploader.problems())
            if self.state.store_message:
                note(self.state.store_message)
            self._save_state()

    def _save_state(self) -> None:
        try:
            self.state.save(self.directory.state)
        except OSError as error:
            note(f"cannot write {self.directory.state.name}: {error.strerror}: free space on the node")

    def _end_leftovers(self, rebooted: bool) -> None:
        session = None if rebooted else leftovers.live_session(self.state.current)
        ended, stuck = leftovers.end_processes(run_marker(self.plan.run_id, self.plan.node), session=session)
        containers: list[str] = []
        problems: list[str] = []
        if self.state.started:  # a fresh start has no leftovers, and an engine that hangs must not delay it
            patience = 0.0 if rebooted else RELEASE_SECONDS
            traces = leftovers.RunTraces(self.directory, self.plan, self.state)
            containers, problems = leftovers.end_containers(traces, patience)
            if problems and not rebooted:  # such a container would spoil all figures
                self._containers.stays = (
                    f"containers of an earlier runner may still hold the accelerators: {'; '.join(problems)}"
                )
        if ended or containers:
            note(f"ended what an earlier runner left: {len(ended)} processes, {len(containers)} containers")
        problems += [f"KILL did not end {process.name} (pid {process.pid}, state {process.state})" for process in stuck]
        for problem in problems:
            note(problem)

    def _restore_records(self, cause: str) -> None:
        on_disk = {}
        for key in self.directory.result_keys("records"):
            if document := record.load(self.directory.result(key), self.plan):
                on_disk[key.partition("/")[2]] = document
            else:
                note(f"{key} is not a record of this run: ignored")
        planned = {stage.name for stage in self.plan.stages}
        self.records = {name: record.restore(d) for name, d in on_disk.items() if name not in planned}
        for stage in self.plan.stages:
            self._restore_record(stage, on_disk.get(stage.name), cause)

    def _restore_record(self, stage: Stage, document: Optional[dict[str, Any]], cause: str) -> None:
        name = stage.name
        count_key = f"{name}/{self.plan.attempt}"
        interruptions = self.state.interruptions.get(count_key, 0)
        decision = self.opening(stage, document, interruptions)
        if document is None:
            stage_record = StageRecord.pending(self.plan, stage)
        elif decision == "newer":
            raise NodePlanError(
                f"the plan is of attempt {self.plan.attempt}, but {name} has a record of attempt "
                f"{document['attempt']}: put the latest plan in place"
            )
        elif decision == "keep":
            stage_record = record.restore(document)
            if stage_record.state == "pending":
                stage_record.nonce = self.plan.nonce
        elif decision == "give_up":
            stage_record = record.restore(document)
            stage_record.state, stage_record.finished_at = "crash", clock.now()
            stage_record.message = self.given_up(stage_record, cause)
        else:
            attempts = document["attempts"]
            if document["state"] != "pending":
                attempts = record.archived(_closed(document))  # an attempt that was cut off is evidence, too
            if decision == "resume":
                self.state.interruptions[count_key] = interruptions + 1
                self._notes[name] = f"interrupted by {cause} (last seen {document['updated_at']}) and run again"
                self._save_state()  # before the record: a runner that dies here must neither repeat nor lose the count
            stage_record = StageRecord.pending(self.plan, stage, attempts)
            stage_record.message = self._notes.get(name, "")
        if decision != "keep" or stage_record.state == "pending":
            self._publisher.record(stage_record)
        self.records[name] = stage_record


def cancelled(directory: NodeDirectory, plan: NodePlan) -> bool:
    """Whether a cancel was requested for this attempt of the plan; a request for an earlier attempt does not count."""
    try:
        text = directory.cancel.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return False
    return not text.isdigit() or int(text) >= plan.attempt


def _closed(document: dict[str, Any]) -> dict[str, Any]:
    """Return the record of an earlier attempt as final, even if that attempt was cut off."""
    if document["state"] != "running":
        return document
    return {
        **document,
        "state": "crash",
        "message": f"cut off (last seen {document['updated_at']}); {document['message']}"[:4096],
        "finished_at": clock.now(),
    }
