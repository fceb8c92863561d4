"""Runs one stage from its start to its final record."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Optional

from gpuval_node.redaction import SecretRedactor
from gpuval_node.volumes import fault_in_error

from gpuval_runner import clock, oom, result, scratch
from gpuval_runner.containers import command
from gpuval_runner.containers.stage import CHILDREN_SECONDS, ContainerRun, Containers, reap
from gpuval_runner.descendants import stage_marker
from gpuval_runner.environment import StagePaths, build, placeholders
from gpuval_runner.errors import StoreFileError
from gpuval_runner.files import file_stamp, read_bounded
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.log import CappedLog, note
from gpuval_runner.other_work import MOST_NAMED
from gpuval_runner.outcome import StageEvidence, StageStop, judge
from gpuval_runner.patterns import MAX_NAMES, PatternReader, ProgramLog
from gpuval_runner.plan import NodePlan, PlannedAccelerator, Stage, expand
from gpuval_runner.record import MAX_WORD, ResultPublisher, StageRecord
from gpuval_runner.result import RecordMetric, ResultFile
from gpuval_runner.supervise import ENVIRONMENT, Hooks, ProcessEnd, ProcessSpec, supervise, unusable_folder
from gpuval_runner.telemetry.monitor import Telemetry
from gpuval_runner.text import encodable, one_line, seconds

if TYPE_CHECKING:
    from gpuval_node.root_cause import RootCause

FAILED = ("failure", "crash", "timeout")
LOG_UPLOAD_SECONDS = 60.0
LAST_OUTPUT_BYTES = 16384
MAX_USERS, MAX_USER = 16, 200
INTERRUPTED = "interrupted"
#: Seconds by which the runner may see a signal later than its stage, if it was sent to both.
SIGNAL_SECONDS = 0.2
CONTAINER_KILLED = 128 + 9
#: File in the scratch directory of a stage that is done and keeps its process: the exit code of the work.
STAY_FILE = "stays"
#: Start of the output line that reports the end of the work.
STAY_LINE = "== the work is done"
#: An output line of these characters alone, such as a rule under a heading, is no use in a message.
RULES = b" \t=-*_#"


@dataclass(frozen=True)
class StageContext:
    """What a stage's run needs from the runner. `halt` returns why the stage must stop; the state ``interrupted``
    leaves the record running, so that a later runner resumes the stage. `started` gets the pid of the stage's first
    process. `stays`, called once with the final record, returns whether a stage that is done may keep its process;
    `superseded` whether a later plan waits. `disturbed` returns what explains a stage's end, given whether the stage
    failed; `beside` the other users of the accelerators at the end."""

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
    adopts: bool = True
    stays: Callable[[StageRecord], bool] = lambda _record: False
    superseded: Callable[[], bool] = lambda: False
    disturbed: Callable[[bool], Optional[StageStop]] = lambda _failed: None
    beside: Callable[[], list[str]] = list


class Output:
    """Receives a stage's output: writes it without secrets to the log and keeps its end for messages. The patterns get
    the unchanged output, since a secret may be part of a figure."""

    def __init__(
        self, log: CappedLog, patterns: PatternReader, tee: Optional[Callable[[bytes], None]], redactor: SecretRedactor
    ) -> None:
        self._log, self._patterns, self._tee, self._redactor = log, patterns, tee, redactor
        self._end = self._tail = b""
        self.bytes = 0
        #: Whether the line that reports the end of the work was printed; leftover processes may print further lines.
        self.work_is_done = False
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
        """Write what the redactor held back: the output has ended."""
        self._show(self._redactor.end())

    def _show(self, data: bytes) -> None:
        self._end = (self._end + data)[-LAST_OUTPUT_BYTES:]
        self._log.write(data)
        if self._tee:
            self._tee(data)

    def last_line(self) -> str:
        work = self._end.partition(STAY_LINE.encode())[0]
        lines = work.replace(b"\r", b"\n").split(b"\n")
        return self._hidden(next((line for line in reversed(lines) if line.strip(RULES)), b""))

    def last_words(self) -> str:
        from gpuval_node import root_cause

        return root_cause.last_words(self._hidden(self._end.partition(STAY_LINE.encode())[0]))

    def _hidden(self, output: bytes) -> str:
        """Return output as text for a message, without secrets and without what only looks like a secret."""
        return self._redactor(output.decode("utf-8", "replace"))


class StageRun:
    """Runs one stage and keeps its record up to date."""

    def __init__(self, stage: Stage, record: StageRecord, context: StageContext, notes: tuple[str, ...] = ()) -> None:
        """`record` is the stage's pending record; `notes` are appended to every message of the record."""
        self._stage, self._record, self._context = stage, record, context
        self._begun = self._last_beat = self._log_sent = time.monotonic()
        self._log_bytes = 0
        self._notes = list(notes)
        #: The content of the result file, and the file's stamp, by which a change is noticed.
        self._result_file: Optional[ResultFile] = None
        self._stamp: Any = None
        self._log = CappedLog(context.directory.result(f"logs/{stage.name}"), stage.log_max_bytes)
        logs = [ProgramLog(reader, stage.name) for reader in stage.output]
        self._secrets: dict[str, str] = {}
        self._lacks = ""
        try:
            self._secrets = scratch.load_secrets(context.directory, context.plan, stage, os.environ)
        except StoreFileError as error:
            self._lacks = str(error)
        self._redactor = scratch.secret_redactor(context.directory, self._secrets)
        self._patterns = PatternReader(stage.patterns, stage.name, logs, self._redactor.known)
        self._output = Output(self._log, self._patterns, context.tee, self._redactor)
        self._contained = context.plan.in_container(stage) and context.plan.runtime != "pod"
        self._telemetry = Telemetry(0, "")
        #: Whether the record is final and the process stays for a shell.
        self._stays = False

    def run(self) -> StageRecord:
        """Run the stage; the returned record is final, or still ``running`` when a signal ended the runner."""
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
            result_file = self._read_result()
            has_failed = bool(ended.signal or ended.exit_code)
            has_failed = has_failed and not (result_file and result_file.state == "failure")  # not a verdict
            time.sleep(SIGNAL_SECONDS if has_failed else 0)  # a scheduler signals the runner and its stage at once
            ended.stop = self._context.disturbed(has_failed)
        if ended.stop and ended.stop.state == INTERRUPTED:
            self._output.finish()
            self._beat(time.monotonic())
            self._log.line(f"{clock.now()} {ended.stop.reason}")
            self._close_log()
            return record
        killed = "SIGKILL" in (ended.signal, *self._output.last_line().split())
        killed = killed or (self._contained and ended.exit_code == CONTAINER_KILLED)
        return self._finish(ended, ended.memory or oom.evidence(before, oom.counters(), killed))

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
            activity=lambda: file_stamp(context.places.result),
            started=context.started,
            ended=self._telemetry.end,  # the helper reads before leftover processes are ended
            limited=lambda: not self._stays,
        )
        if self._contained:
            ended = ContainerRun(
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
            if context.adopts:  # reap orphans of the engine's client
                reap(CHILDREN_SECONDS)
            self._notes += ended.notes
            return ended
        try:
            scratch.prepare(context.places, context.plan.gang, self._secrets)
        except OSError as error:
            return unusable_folder(error)
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
        is_due = present - self._last_beat >= self._context.plan.heartbeat_seconds
        self._last_beat = present if is_due else self._last_beat
        if self._stays:
            self._context.tick()
            superseded = StageStop("cancelled", "a later plan waits") if is_due and self._context.superseded() else None
            return superseded or self._context.halt()
        self._telemetry.tick()
        if is_due:
            self._beat(present)
        if present - self._log_sent >= LOG_UPLOAD_SECONDS and self._output.bytes > self._log_bytes:
            self._log_sent, self._log_bytes = present, self._output.bytes
            self._context.publisher.log(self._stage)
        self._context.tick()
        halt = self._context.halt()
        if halt:
            self._telemetry.end()  # now, as the caller then ends all children, the telemetry helper too
            return halt
        return self._stay()

    def _stay(self) -> Optional[StageStop]:
        """Make the record final once the process reports the end of its work; the process may then stay for a shell.
        Returns why it must end, if so."""
        try:
            code = int(read_bounded(self._context.places.work / STAY_FILE, 16))
        except (OSError, ValueError):
            return None
        if not self._output.work_is_done:
            return None  # output from before that line may have figures
        self._stays = self._output.closed = True
        self._telemetry.end()
        self._finish(ProcessEnd(exit_code=code), "")
        done = StageStop("success", "its work is done, and other stages follow")
        return None if self._context.stays(self._record) else done

    def _beat(self, present: float) -> None:
        record = self._record
        record.duration_seconds = round(present - self._begun, 3)
        result_file = self._read_result()
        self._merge(result_file, self._patterns.metrics())
        record.message = self._message(result_file.message if result_file else "")
        self._context.publisher.record(record)

    def _merge(self, result_file: Optional[ResultFile], matched: list[RecordMetric]) -> None:
        self._record.merge(result_file or ResultFile(), matched)
        if self._telemetry.on:
            summary = self._telemetry.summary
            self._record.add_telemetry(summary.metrics(), summary.environment())

    def _read_result(self) -> Optional[ResultFile]:
        stamp = file_stamp(self._context.places.result)
        if stamp != self._stamp:
            self._stamp = stamp
            self._result_file = result.read(self._context.places.result, self._redactor.document)
            if self._result_file:
                self._result_file.message = self._redactor(self._result_file.message)
        return self._result_file

    def _finish(self, ended: ProcessEnd, memory: str) -> StageRecord:
        """Make the record final; `memory` is the message about a lack of memory, empty for none."""
        record, context = self._record, self._context
        self._output.finish()
        self._patterns.finish()
        self._stamp = None
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
        record.duration_seconds = round(time.monotonic() - self._begun, 3)
        record.exit_code, record.signal, record.finished_at = ended.exit_code, ended.signal, clock.now()
        environment = dict(record.environment)
        if ended.signal and not ended.stop:  # the signal ended the work, not the fault that the work reported
            environment.pop("fault", None)
        environment |= {"fault": ended.fault} if ended.fault else {}
        record.environment = {**environment, "cause": cause.document()} if cause else environment
        if ended.start_error:
            self._log.line(self._redactor(message))
        elif ended.stop is None or ended.stop.state == "timeout":
            users = [one_line(user, MAX_USER) for user in context.beside()[:MAX_USERS]]
            if users:
                record.add_telemetry([], {"accelerator_users": [{"process": user} for user in users]})
                self._notes.append(f"other work on the accelerators: {', '.join(users[:MOST_NAMED])}")
        for line in self._telemetry.summary.kernel_lines:
            self._log.line(f"kernel: {line}")
        self._notes += filter(None, [self._telemetry.summary.problem])
        own_curves = result_file.series if result_file else []
        names = {(curve["name"], curve["scope"]) for curve in own_curves}
        more = (curve for curve in self._patterns.curves() if (curve["name"], curve["scope"]) not in names)
        curves = [*own_curves, *more, *self._telemetry.summary.curves()]
        count = f", with {len(curves)} curve{'s' if len(curves) != 1 else ''}" if curves else ""
        self._log.line(
            f"{record.finished_at} {self._stage.name} attempt {record.attempt} ended: {state} after "
            f"{seconds(record.duration_seconds)}{count}"
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
        """Return the root cause: hardware events in the kernel's log, else what kept the stage from starting or ended
        it, else the first failure in its log. For a failure that the workload reports, only a primary cause counts."""
        from gpuval_node import root_cause  # most stages succeed, and the import would slow the runner's start

        cause = root_cause.in_text("\n".join(self._telemetry.summary.kernel_lines))
        if cause is None or cause.name != root_cause.HARDWARE:
            cause = root_cause.in_text(f"{evidence.start_error or ''}\n{evidence.oom}")
        if cause is None:
            begin = f" {self._stage.name} attempt {self._record.attempt} starts\n"
            cause = root_cause.in_log(self._log.path, begin, local_is_global=not self._context.plan.gang)
        if cause is None or (state == "failure" and not cause.is_primary):
            return None
        binds = self._stage.container.volumes if self._contained else None
        fault = "" if cause.name == root_cause.HARDWARE else fault_in_error(cause.text, binds)
        cause = cause._replace(name=fault or cause.name)
        text, package = (self._redactor(part) for part in (cause.text, cause.package))
        limit = root_cause.MAX_TEXT
        return cause._replace(text=one_line(text, limit), package=one_line(package, limit))

    def _close_log(self) -> None:
        if self._log.lost_bytes:
            self._notes.append(
                f"its log lacks {self._log.lost_bytes} bytes that the node could not store ({self._log.last_error})"
            )
        self._log.close()
        for problem in scratch.remove(self._context.places.work):  # first: this may free the disk for the record
            note(f"scratch not removed: {problem}")
        self._context.publisher.log(self._stage)

    def _note_oddities(self, ended: ProcessEnd, result_file: Optional[ResultFile]) -> None:
        notes, count = self._notes, ended.left_behind
        if count:
            notes.append(f"{count} {'process' if count == 1 else 'processes'} outlived it and had to be ended")
        if ended.unkillable:
            stuck = ", ".join(f"{p.name} (pid {p.pid}, state {p.state})" for p in ended.unkillable[:5])
            notes.append(f"KILL did not end {stuck}: a driver or file system hangs, reboot the node")
        if self._patterns.is_cut:
            notes.append(f"its output has more than {MAX_NAMES} metrics: those with further names are left out")
        notes += [f"its output has no figure in `{line}`" for line in self._patterns.lines_without_figure()]
        if result_file:
            notes += result_file.problems

    def _message(self, text: str) -> str:
        return self._redactor("; ".join(part for part in (text, *self._notes) if part))
