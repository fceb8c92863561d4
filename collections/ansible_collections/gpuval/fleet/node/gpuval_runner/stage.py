"""One stage from start to final record."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Callable, Optional

from gpuval_node.redaction import SecretRedactor

from gpuval_runner import clock, oom, result, scratch, stage_secrets
from gpuval_runner.containers import command
from gpuval_runner.containers.stage import CHILDREN_SECONDS, ContainerRun, Containers, reap
from gpuval_runner.descendants import stage_marker
from gpuval_runner.documents import RecordCurve, RecordMetric
from gpuval_runner.environment import StagePaths, build, placeholders
from gpuval_runner.errors import StoreFileError
from gpuval_runner.files import read_bounded
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.log import CappedLog
from gpuval_runner.other_work import MOST_NAMED
from gpuval_runner.outcome import StageEvidence, StageStop, judge
from gpuval_runner.patterns import MAX_NAMES, PatternReader
from gpuval_runner.plan import NodePlan, PlannedAccelerator, Stage, expand
from gpuval_runner.program_log import ProgramLog
from gpuval_runner.publish import Note, ResultPublisher, note
from gpuval_runner.record import MAX_WORD, StageRecord
from gpuval_runner.result import ResultFile
from gpuval_runner.supervise import ENVIRONMENT, Hooks, ProcessEnd, ProcessSpec, fault_of, supervise
from gpuval_runner.telemetry.monitor import Telemetry
from gpuval_runner.text import encodable, one_line, seconds

if TYPE_CHECKING:
    from gpuval_node.root_cause import RootCause

#: States that have a root cause.
FAILED = ("failure", "crash", "timeout")
LOG_UPLOAD_SECONDS = 60.0
LAST_OUTPUT_BYTES = 16384
MAX_USERS, MAX_USER = 16, 200
INTERRUPTED = "interrupted"
#: How much later than its stage the runner may see a signal that was sent to both.
SIGNAL_SECONDS = 0.2
CONTAINER_KILLED = 128 + 9
#: In the working folder of a stage whose work is done and whose process stays: the exit code that it would have had.
STAY_FILE = "stays"
#: How the line begins by which the work ends.
STAY_LINE = "== the work is done"
#: A line of these alone, as under a summary, has no words.
RULES = b" \t=-*_#"


@dataclass(frozen=True)
class StageContext:
    """What a stage's run needs from the runner.

    `halt` reports cancel, deadline or the runner's own end; a state of ``interrupted`` leaves the record running,
    so that a later runner resumes. `started` gets the pid of the stage's first process. `stays` is asked once, with
    its final record, whether a stage that is done may keep its process; `superseded`: whether a later plan waits.
    `disturbed` reports what explains a stage's end, given whether it failed; `beside`: who uses the accelerators then.
    """

    plan: NodePlan
    directory: NodeDirectory
    publisher: ResultPublisher
    accelerator: PlannedAccelerator
    places: StagePaths
    halt: Callable[[], Optional[StageStop]]
    containers: Containers
    started: Callable[[int], None] = lambda _pid: None
    tick: Callable[[], None] = lambda: None
    tee: Optional[Callable[[bytes], None]] = None
    note: Note = note
    adopts: bool = True
    stays: Callable[[StageRecord], bool] = lambda _record: False
    superseded: Callable[[], bool] = lambda: False
    disturbed: Callable[[bool], Optional[StageStop]] = lambda _failed: None
    beside: Callable[[], list[str]] = list


class Output:
    """What a stage prints: without its secrets to its log, and the end of it kept for messages; to the patterns as it
    is, since a secret may be part of a figure."""

    def __init__(
        self,
        log: CappedLog,
        patterns: PatternReader,
        tee: Optional[Callable[[bytes], None]],
        redactor: SecretRedactor,
    ) -> None:
        self._log, self._patterns, self._tee, self._redactor = log, patterns, tee, redactor
        self._end = self._tail = b""
        self.bytes = 0
        #: The line by which the work ends was there; what the work left running may print on.
        self.work_is_done = False
        #: No more figures are looked for.
        self.closed = False

    def take(self, data: bytes) -> None:
        self.bytes += len(data)
        text = self._tail + data
        self._tail = text[-len(STAY_LINE) :]
        self.work_is_done = self.work_is_done or STAY_LINE.encode() in text
        if not self.closed:
            self._patterns.feed(data)
        self._show(self._redactor.feed(data))

    def finish(self) -> None:
        """No more comes."""
        self._show(self._redactor.end())

    def _show(self, data: bytes) -> None:
        self._end = (self._end + data)[-LAST_OUTPUT_BYTES:]
        self._log.write(data)
        if self._tee:
            self._tee(data)

    def last_line(self) -> str:
        work = self._end.partition(STAY_LINE.encode())[0]
        lines = work.replace(b"\r", b"\n").split(b"\n")
        return next((line.decode("utf-8", "replace") for line in reversed(lines) if line.strip(RULES)), "")

    def last_words(self) -> str:
        from gpuval_node import root_cause

        return root_cause.last_words(self._end.partition(STAY_LINE.encode())[0].decode("utf-8", "replace"))


@dataclass
class _StageProgress:
    begun: float
    beat: float
    log_sent: float
    log_bytes: int = 0
    stamp: Any = None
    result: Optional[ResultFile] = None
    notes: list[str] = field(default_factory=list)


class StageRun:
    """Runs one stage and keeps its record."""

    def __init__(self, stage: Stage, record: StageRecord, context: StageContext, notes: tuple[str, ...] = ()) -> None:
        """`record` is the stage's pending record; `notes` go to the end of every message."""
        self._stage, self._record, self._context = stage, record, context
        present = time.monotonic()
        self._progress = _StageProgress(begun=present, beat=present, log_sent=present, notes=list(notes))
        self._log = CappedLog(context.directory.log(stage.name), stage.log_max_bytes)
        logs = [ProgramLog(reader, stage.name) for reader in stage.output]
        self._secrets: dict[str, str] = {}
        self._lacks = ""
        try:
            self._secrets = stage_secrets.load(context.directory, context.plan, stage, os.environ)
        except StoreFileError as error:
            self._lacks = str(error)
        self._redactor = stage_secrets.redactor(context.directory, self._secrets)
        self._patterns = PatternReader(stage.patterns, stage.name, logs, self._redactor.known)
        self._output = Output(self._log, self._patterns, context.tee, self._redactor)
        self._contained = context.plan.in_container(stage) and context.plan.runtime != "pod"
        self._memory = ""
        self._telemetry = Telemetry(0, "")
        #: Its record is final, and its process stays for a shell.
        self._stays = False

    def run(self) -> StageRecord:
        """Run the stage; the returned record is final, or running when a signal ended the runner itself."""
        record, stage, plan = self._record, self._stage, self._context.plan
        names = placeholders(plan, self._context.places)
        if self._contained:
            names = placeholders(plan, command.PLACES, stage.container.python)
        argv = [expand(word, names) for word in stage.command]
        record.command = [encodable(word)[:MAX_WORD] for word in argv[: len(record.command)]]
        record.state, record.started_at, record.duration_seconds = "running", clock.now(), 0.0
        record.message = self._message("")
        self._context.publisher.record(record)
        self._log.line(f"{record.started_at} {stage.name} attempt {plan.attempt} starts")
        before = oom.counters()
        self._telemetry = Telemetry(plan.telemetry_seconds, self._context.accelerator.vendor)
        try:
            ended = self._supervise(argv)
        finally:
            self._telemetry.end()
        if self._stays:
            self._close_log()
            return record
        if ended.stop is None and not ended.start_error:
            ended = replace(ended, stop=self._disturbed(ended))
        if ended.stop and ended.stop.state == INTERRUPTED:
            return self._leave_running(ended)
        killed = "SIGKILL" in (ended.signal, *self._output.last_line().split())
        killed = killed or (self._contained and ended.exit_code == CONTAINER_KILLED)
        return self._finish(ended, self._memory or oom.evidence(before, oom.counters(), killed))

    def _disturbed(self, ended: ProcessEnd) -> Optional[StageStop]:
        """Why the end of the stage tells nothing about the node, if so. A failure that the work reports tells."""
        result_file = self._read_result()
        failed = bool(ended.signal or ended.exit_code) and not (result_file and result_file.state == "failure")
        if failed:
            time.sleep(SIGNAL_SECONDS)  # a scheduler signals the runner and its stage at once
        return self._context.disturbed(failed)

    def _supervise(self, argv: list[str]) -> ProcessEnd:
        context, stage = self._context, self._stage
        if self._lacks:
            return ProcessEnd(start_error=self._lacks, fault=ENVIRONMENT)
        absent = [name for name in stage.datasets if not context.places.dataset(name).is_dir()]
        if absent:
            return ProcessEnd(
                start_error=f"dataset {', '.join(absent)} is not on this node: run the stage dataset_{absent[0]} "
                f"(--tags dataset_{absent[0]})",
                fault=ENVIRONMENT,
            )
        hooks = Hooks(
            output=self._output.take,
            tick=self._tick,
            activity=self._result_stamp,
            started=context.started,
            ended=self._telemetry.end,  # before the stage's leftover processes are counted
            limited=lambda: not self._stays,
        )
        if self._contained:
            outcome = ContainerRun(
                plan=context.plan,
                stage=stage,
                directory=context.directory,
                places=context.places,
                accelerator=context.accelerator,
                containers=context.containers,
                say=self._log.line,
                secrets=self._secrets,
            ).run(argv, hooks)
            self._telemetry.end()
            if context.adopts:  # orphans of the engine's client
                reap(CHILDREN_SECONDS)
            self._memory = outcome.memory
            self._progress.notes += outcome.notes
            return outcome.ended
        try:
            scratch.make(context.places.work)
            scratch.write_gang(context.places.work, context.plan.gang, context.places.run)
            stage_secrets.write(context.places.work, self._secrets)
            scratch.make_cache(context.places.models)
        except OSError as error:
            text = f"{error.filename}: {error.strerror}: make room or correct the path"
            return ProcessEnd(start_error=text, fault=fault_of(error))
        return supervise(
            ProcessSpec(
                argv=argv,
                environment=build(context.plan, stage, context.places, context.accelerator, os.environ),
                directory=context.places.work,
                marker=stage_marker(context.plan.run_id, context.plan.node, stage.name, context.plan.attempt),
                timeout_seconds=stage.timeout_seconds,
                inactivity_seconds=stage.inactivity_seconds,
                grace_seconds=stage.grace_seconds,
                adopts=context.adopts,
            ),
            hooks,
        )

    def _tick(self) -> Optional[StageStop]:
        present = time.monotonic()
        progress = self._progress
        if self._stays:
            return self._tick_of_stay(present)
        self._telemetry.tick()
        if present - progress.beat >= self._context.plan.heartbeat_seconds:
            progress.beat = present
            self._beat(present)
        if present - progress.log_sent >= LOG_UPLOAD_SECONDS and self._output.bytes > progress.log_bytes:
            progress.log_sent, progress.log_bytes = present, self._output.bytes
            self._context.publisher.log(self._stage)
        self._context.tick()
        halt = self._context.halt()
        if halt:
            self._telemetry.end()  # while it may still read, for what follows ends all children
            return halt
        return self._stay()

    def _stay(self) -> Optional[StageStop]:
        """The record is final once the process says that its work is done; it may then stay for a shell."""
        try:
            code = int(read_bounded(self._context.places.work / STAY_FILE, 16))
        except (OSError, ValueError):
            return None
        if not self._output.work_is_done:
            return None  # what it printed before has figures
        self._stays = self._output.closed = True
        self._telemetry.end()
        self._finish(ProcessEnd(exit_code=code), "")
        if self._context.stays(self._record):
            return None
        return StageStop("success", "its work is done, and other stages follow")

    def _tick_of_stay(self, present: float) -> Optional[StageStop]:
        self._context.tick()
        if present - self._progress.beat >= self._context.plan.heartbeat_seconds:
            self._progress.beat = present
            if self._context.superseded():
                return StageStop("cancelled", "a later plan waits")
        return self._context.halt()

    def _beat(self, present: float) -> None:
        record = self._record
        record.duration_seconds = round(present - self._progress.begun, 3)
        result_file = self._read_result()
        self._merge(result_file, self._patterns.metrics())
        record.message = self._message(result_file.message if result_file else "")
        self._context.publisher.record(record)

    def _merge(self, result_file: Optional[ResultFile], matched: list[RecordMetric]) -> None:
        self._record.merge(result_file or ResultFile(), matched)
        if self._telemetry.on:
            summary = self._telemetry.summary
            self._record.add_telemetry(summary.metrics(), summary.environment())

    def _result_stamp(self) -> Any:
        try:
            status = self._context.places.result.lstat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read_result(self) -> Optional[ResultFile]:
        stamp = self._result_stamp()
        if stamp != self._progress.stamp:
            self._progress.stamp = stamp
            self._progress.result = result.read(self._context.places.result, self._redactor.document)
        return self._progress.result

    def _leave_running(self, ended: ProcessEnd) -> StageRecord:
        self._output.finish()
        self._beat(time.monotonic())
        self._log.line(f"{clock.now()} {ended.stop.reason if ended.stop else ''}")
        self._close_log()
        return self._record

    def _finish(self, ended: ProcessEnd, memory: str) -> StageRecord:
        record, context = self._record, self._context
        self._output.finish()
        self._patterns.finish()
        self._progress.stamp = None
        result_file = self._read_result()
        metrics = self._patterns.metrics()
        self._merge(result_file, metrics)
        evidence = StageEvidence(
            exit_code=ended.exit_code,
            signal=ended.signal,
            start_error=ended.start_error,
            stop=ended.stop,
            result=result_file,
            patterns=len(self._stage.patterns) + len(self._stage.output),
            matched=sum(metric["value"] is not None for metric in metrics),
            not_numbers=tuple(metric["name"] for metric in metrics if metric["value"] is None),
            unfilled=next((line for line in self._patterns.lines_without_figure() if "{{" in line), ""),
            last_line=self._output.last_line(),
            oom=memory,
            stuck=bool(ended.unkillable),
        )
        state, message = judge(evidence)
        cause = self._find_cause(evidence, state) if state in FAILED else None
        if state in FAILED:
            evidence = replace(evidence, last_line=self._output.last_words())
            if cause and cause.text.removeprefix(f"{state}: ").removeprefix("the gang ends: ") not in message:
                evidence = replace(evidence, cause=cause.sentence(), cause_is_known=cause.is_known)
            state, message = judge(evidence)
        record.duration_seconds = round(time.monotonic() - self._progress.begun, 3)
        record.exit_code, record.signal, record.finished_at = ended.exit_code, ended.signal, clock.now()
        if ended.signal and not ended.stop:  # what the work waited for did not end it
            record.environment = {name: value for name, value in record.environment.items() if name != "fault"}
        if ended.fault:
            record.environment = {**record.environment, "fault": ended.fault}
        if cause:
            record.environment = {**record.environment, "cause": cause.document()}
        if ended.start_error:
            self._log.line(self._redactor.known(message))
        elif ended.stop is None or ended.stop.state == "timeout":
            self._note_others()
        for line in self._telemetry.summary.kernel_lines:
            self._log.line(f"kernel: {line}")
        if self._telemetry.problem:
            self._progress.notes.append(self._telemetry.problem)
        curves = [*self._curves(result_file), *self._telemetry.summary.curves()]
        self._log.line(
            f"{record.finished_at} {self._stage.name} attempt {record.attempt} ended: {state} after "
            f"{seconds(record.duration_seconds)}{_curves(len(curves))}"
        )
        if self._stays:
            context.publisher.log(self._stage)
        else:
            self._close_log()
        self._note_oddities(ended, result_file)
        record.state, record.message = state, self._message(message)
        context.publisher.record(record)
        context.publisher.series(self._stage, curves)
        return record

    def _find_cause(self, evidence: StageEvidence, state: str) -> Optional[RootCause]:
        """The root cause: what the kernel reports of the hardware, else what keeps the stage from starting or ends it,
        else the first failure in its log. A failure that the work reports itself needs a cause of its own kind."""
        from gpuval_node import root_cause  # most stages succeed; it would slow the start of the runner

        cause = root_cause.in_text("\n".join(self._telemetry.summary.kernel_lines))
        if cause is None or cause.name != root_cause.HARDWARE:
            cause = root_cause.in_text(f"{evidence.start_error or ''}\n{evidence.oom}")
        if cause is None:
            begin = f" {self._stage.name} attempt {self._record.attempt} starts\n"
            is_alone = not self._context.plan.gang
            cause = root_cause.in_log(self._log.path, begin, local_is_global=is_alone)
        if cause is None or (state == "failure" and not cause.is_primary):
            return None
        text, package = (
            one_line(self._redactor.known(text), root_cause.MAX_TEXT) for text in (cause.text, cause.package)
        )
        return cause._replace(text=text, package=package)

    def _note_others(self) -> None:
        named = [one_line(user, MAX_USER) for user in self._context.beside()[:MAX_USERS]]
        if named:
            self._record.add_telemetry([], {"accelerator_users": [{"process": user} for user in named]})
            self._progress.notes.append(f"other work on the accelerators: {', '.join(named[:MOST_NAMED])}")

    def _curves(self, result_file: Optional[ResultFile]) -> list[RecordCurve]:
        """The workload's own curves, and those of its output that have other names."""
        result_curves = result_file.series if result_file else []
        names = {(curve["name"], curve["scope"]) for curve in result_curves}
        return [
            *result_curves,
            *(curve for curve in self._patterns.curves() if (curve["name"], curve["scope"]) not in names),
        ]

    def _close_log(self) -> None:
        if self._log.lost_bytes:
            self._progress.notes.append(
                f"its log lacks {self._log.lost_bytes} bytes that the node could not store ({self._log.last_error})"
            )
        self._log.close()
        for problem in scratch.remove(self._context.places.work):  # before the record: this may be what frees the disk
            self._context.note(f"scratch not removed: {problem}")
        self._context.publisher.log(self._stage)

    def _note_oddities(self, ended: ProcessEnd, result_file: Optional[ResultFile]) -> None:
        notes = self._progress.notes
        if ended.left_behind:
            many = ended.left_behind
            notes.append(f"{many} {'process' if many == 1 else 'processes'} outlived it and had to be ended")
        if ended.unkillable:
            stuck = ", ".join(f"{p.name} (pid {p.pid}, state {p.state})" for p in ended.unkillable[:5])
            notes.append(f"KILL did not end {stuck}: a driver or file system hangs, reboot the node")
        if self._patterns.is_cut:
            notes.append(f"its output has more than {MAX_NAMES} metrics: those with further names are left out")
        notes += [f"its output has no figure in `{line}`" for line in self._patterns.lines_without_figure()]
        if result_file:
            notes += result_file.problems

    def _message(self, text: str) -> str:
        return self._redactor.known("; ".join(part for part in (text, *self._progress.notes) if part))


def _curves(count: int) -> str:
    """Announces the series in the log's last line, so that a missing one is noticed."""
    return f", with {count} curve{'s' if count != 1 else ''}" if count else ""
