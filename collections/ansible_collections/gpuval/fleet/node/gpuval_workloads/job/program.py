"""Runs the steps of a job, which the controller packed, one after the other; the first that fails ends the stage.
Figures come from the steps' results, their output, or a CSV file with the columns ``model`` (or ``models``),
``performance`` and ``metric``."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from gpuval_node.process_stat import snapshot

from ..common.processes import end, end_group, signal_group
from ..common.result import EXIT_CRASH, EXIT_FAILURE, EXIT_SUCCESS, RESULT_FILE_VARIABLE, write_atomically

VARIABLE = "GPUVAL_JOB"
MAX_JOB_BYTES = 4 << 20
MASTER_PORT = "6002"
MAX_RESULT_BYTES = 4 << 20
#: Seconds between TERM and KILL of a step that exceeds its limit, and for KILL.
GRACE_SECONDS, KILL_SECONDS = 10.0, 1.0
EXIT_TIMEOUT = 124
#: File and output line by which the runner knows that a job's steps are done while it stays alive for a shell.
STAY_FILE = "stays"
STAY_LINE = "== the work is done"
#: File in the stage's work folder in which the runner passes the job's secrets.
SECRETS_FILE = "secrets.json"
MAX_STATE = 40
MAX_CSV_BYTES, MAX_CSV_ROWS = 4 << 20, 200
MODEL_COLUMNS = ("model", "models")
#: Lists in the results of steps that are joined; of entries with equal names, that of the later step counts.
LISTS = ("metrics", "series", "artifacts")
MAPPINGS = ("fingerprints", "environment")


@dataclass(frozen=True)
class JobStep:
    name: str
    command: tuple[str, ...]
    timeout_seconds: float
    environment: Mapping[str, str]
    creates: str
    skip: bool
    force: bool
    once: bool = False
    launcher: str = "none"


@dataclass(frozen=True)
class JobSteps:
    """A job. ``files``: texts by name; ``figures``: whether its output must have figures; ``csv``: the file that must
    have them; ``gang``: how several nodes run the job together, empty for a job on each node alone."""

    name: str
    files: Mapping[str, str]
    steps: tuple[JobStep, ...]
    figures: bool
    csv: str
    gang: Mapping[str, Any] = field(default_factory=dict)
    stay_alive_seconds: float = 0.0


def unpack(text: str) -> JobSteps:
    """Return the job packed in a text. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for any other text."""
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(base64.b64decode(text), MAX_JOB_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not reader.eof:
        raise ValueError("it is cut off, or larger than 4 MiB")
    document = json.loads(data)
    steps = tuple(JobStep(**{**step, "command": tuple(step["command"])}) for step in document.pop("steps"))
    return JobSteps(steps=steps, **document)


def environment(
    job: JobSteps, variables: Mapping[str, str], folder: str, together: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment variables of a job's steps. Those that multi-node scripts read describe this node alone
    unless ``together`` has others."""
    gpus = variables.get("GPUVAL_GPU_COUNT", "")
    processes = gpus if gpus.isdigit() and int(gpus) > 0 else "1"
    node = variables.get("GPUVAL_NODE", "localhost")
    identifier = identifier_of(job, variables)
    alone = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": MASTER_PORT,
        "WORLD_SIZE": processes,
        "NNODES": "1",
        "NODE_RANK": "0",
        "GPUS_PER_NODE": processes,
        "JOB_COMPLETION_INDEX": "0",
        "JOB_IDENTIFIER": identifier,
        "JOB_UUID": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{identifier}/{node}")),
        "JOB_TIMESTAMP": str(int(time.time())),
        "HOSTNAME_PREFIX": node,
        "RANK_0_FQDN": "127.0.0.1",
    }
    stage_variables = {name: value for name, value in variables.items() if name != VARIABLE}
    own = {"GPUVAL_PYTHON": sys.executable, "GPUVAL_JOB_NAME": job.name, "GPUVAL_JOB_DIR": folder}
    return {**alone, **(together or {}), **stage_variables, **own}


def identifier_of(job: JobSteps, variables: Mapping[str, str]) -> str:
    return f"{variables.get('GPUVAL_RUN_ID', 'run')}-{job.name}"


def main() -> int:
    """Run the job in this process's environment; returns the exit code of the stage."""
    try:
        job = unpack(os.environ[VARIABLE])
    except (KeyError, TypeError, ValueError) as error:
        print(f"crash: {VARIABLE} holds no job: {error}", file=sys.stderr, flush=True)
        return EXIT_CRASH
    folder = Path(os.environ.get("GPUVAL_WORK_DIR", ".")) / "job"
    folder.mkdir(parents=True, exist_ok=True)
    secrets = folder.parent / SECRETS_FILE
    with suppress(FileNotFoundError):  # secrets become variables of the steps, and the file is removed
        os.environ.update(json.loads(secrets.read_text(encoding="utf-8")))
        secrets.unlink()
    for name, text in job.files.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    result = Path(os.environ[RESULT_FILE_VARIABLE])
    if job.gang:
        from .gang_run import GangRun

        code = GangRun(job, folder, result).run()
    else:
        code = JobRun(job, folder, result).run()
    if job.stay_alive_seconds:
        print(f"{STAY_LINE} (exit code {code}); stays for a shell, {job.stay_alive_seconds:.0f} s", flush=True)
        write_atomically(folder.parent / STAY_FILE, str(code))
        time.sleep(job.stay_alive_seconds)  # a signal ends it
    return code


class JobRun:
    def __init__(self, job: JobSteps, folder: Path, result: Path) -> None:
        self._job, self._folder, self._file = job, folder, result
        self._variables = environment(job, os.environ, str(folder))
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._collected: dict[str, Any] = {**{key: [] for key in LISTS}, **{key: {} for key in MAPPINGS}}
        self._handed_over = False
        self._message = ""
        self._inapplicable = ""

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        return self._work()

    def _work(self) -> int:
        skipped = []
        for index, step in enumerate(self._job.steps, start=1):
            reason = "chosen by gpuval_job_skip or a SKIP_ variable" if step.skip else self._skip_reason(step)
            if reason:
                skipped.append(step.name)
                print(f"== step {step.name} skipped: {reason}", flush=True)
            else:
                code = self._step(step, f"step {step.name} ({index} of {len(self._job.steps)})")
                if code:
                    return code
            if not step.skip:
                self._after(step, ran=not reason)
            if self._inapplicable:
                self._write("success", f"skipped: {self._inapplicable}")
                return EXIT_SUCCESS
        return self._finish(skipped)

    def _after(self, step: JobStep, *, ran: bool) -> None:
        """Called when a step is done on this node."""

    def _skip_reason(self, step: JobStep) -> str:
        if step.creates and not step.force and (self._folder / step.creates).exists():
            return f"{step.creates} exists; gpuval_job_force runs it all the same"
        return ""

    def _step(self, step: JobStep, title: str) -> int:
        """Run one step; returns the stage's exit code after a failure, 0 to go on."""
        print(f"== {title}", flush=True)
        self._write("running", title)
        before = self._stamp()
        code, late = self._wait(step)
        print(flush=True)  # the step's last line may lack its line end
        step_result = self._read() if self._stamp() != before else {}
        if step_result is None:
            return self._fail(f"{title}: its result file is not JSON")
        self._collect(step_result)
        state, message = step_result.get("state"), step_result.get("message")
        message = f"{title}: {message}" if isinstance(message, str) and message else title
        if late:
            self._write("running", f"{title} exceeded its limit of {step.timeout_seconds:g} s")
            return EXIT_TIMEOUT
        if state == "failure":
            return self._fail(message)
        if code:
            self._write("running", message)
            return code
        if state == "skipped":
            self._inapplicable = message
            return 0
        if step_result and state != "success":
            problem = f"its state is {str(state)[:MAX_STATE]}, not success or failure"
            return self._fail(f"{title}: its result file never became final: {problem}")
        self._handed_over = self._handed_over or state == "success"
        return 0

    def _wait(self, step: JobStep) -> tuple[int, bool]:
        """Wait for a step; returns its exit code as in a shell, and whether the step exceeded its limit."""
        variables = {**self._variables, "GPUVAL_STEP": step.name, **step.environment}
        if step.force:
            variables["GPUVAL_JOB_FORCE"] = "1"
        try:
            process = self._start(step, variables)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            print(f"{step.command[0]}: {reason}: does the image have it?", file=sys.stderr, flush=True)
            return 127, False
        self._process = process
        late = False
        try:
            self._await(process, step.timeout_seconds or None)
        except subprocess.TimeoutExpired:
            late = True
            self._stop(process)
        self._process = None
        signal_group(process.pid, signal.SIGKILL)  # what it left running
        code = process.returncode
        return (128 - code if code < 0 else code), late

    def _start(self, step: JobStep, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return self._popen(command_of(step), variables)

    def _popen(self, command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, cwd=self._folder, env=dict(variables), stdin=subprocess.DEVNULL, start_new_session=True
        )

    def _await(self, process: subprocess.Popen[bytes], seconds: Optional[float]) -> None:
        """Wait for the end of a step. Raises ``TimeoutExpired``."""
        process.wait(seconds)

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        end_group(process, GRACE_SECONDS, None)

    def _end(self, number: int, _frame: object) -> None:
        """Handle a signal that ends the stage: end the step, then exit."""
        self._end_step()
        os._exit(128 + number)

    def _end_step(self) -> None:
        if self._process is not None:
            group = self._process.pid  # it is its session's leader, too
            end(lambda: {p.pid for p in snapshot().values() if p.session == group}, GRACE_SECONDS, KILL_SECONDS)

    def _finish(self, skipped: list[str]) -> int:
        job = self._job
        message = f"{len(job.steps) - len(skipped)} of {len(job.steps)} steps"
        message += f"; skipped: {', '.join(skipped)}" if skipped else ""
        if job.csv:
            try:
                figures, cut = read_csv(self._folder / job.csv)
            except CsvError as error:
                return self._fail(f"{error}: write model,performance,metric")
            for name, value, unit in figures:
                print(f"gpuval figure {name}: {value} {unit}", flush=True)
            message += f"; {cut}" if cut else ""
        # The runner reads figures from the output: without these the stage is no success.
        needs_output = job.figures and not self._handed_over and not job.csv
        self._write("running" if needs_output else "success", message)
        return EXIT_SUCCESS

    def _fail(self, message: str) -> int:
        self._write("failure", message)
        print(f"failure: {message}", file=sys.stderr, flush=True)
        return EXIT_FAILURE

    def _write(self, state: str, message: str) -> None:
        self._message = message
        write_atomically(self._file, json.dumps({**self._collected, "state": state, "message": message}) + "\n")

    def _stamp(self) -> tuple[int, ...]:
        try:
            status = self._file.stat()
        except OSError:
            return ()
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> Optional[dict[str, Any]]:
        """Return the result that a step wrote, empty if it wrote none; None if it is malformed."""
        try:
            if self._file.stat().st_size > MAX_RESULT_BYTES:
                return None
            document = json.loads(self._file.read_text(encoding="utf-8", errors="replace"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError):
            return None
        return document if isinstance(document, dict) else None

    def _collect(self, step_result: dict[str, Any]) -> None:
        """Add a step's result to the job's; the runner checks its form."""
        for key in LISTS:
            entries = step_result.get(key)
            if isinstance(entries, list):
                renewed = {_identity(entry) for entry in entries}
                kept = [entry for entry in self._collected[key] if _identity(entry) not in renewed]
                self._collected[key] = kept + entries
        for key in MAPPINGS:
            if isinstance(step_result.get(key), dict):
                self._collected[key].update(step_result[key])


def _identity(item: Any) -> str:
    if isinstance(item, dict):
        return json.dumps([item.get("name"), item.get("scope", "node")])
    return json.dumps(item)


def command_of(step: JobStep) -> list[str]:
    """Return the command of a step, or of each of its processes; a Python file is run by Python."""
    return [*([sys.executable] if step.command[0].endswith(".py") else []), *step.command]


class CsvError(ValueError):
    """A CSV file without figures; the message says what it lacks."""


def read_csv(path: Path) -> tuple[list[tuple[str, str, str]], str]:
    """Return name, value and unit of each row, and a note on ignored rows, whose performance is no number, as after a
    failure. If a model has several rows, the name includes the metric. Raises ``CsvError``."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_CSV_BYTES + 1)
    except OSError as error:
        raise CsvError(f"{path.name}: {error.strerror}") from error
    if len(data) > MAX_CSV_BYTES:
        raise CsvError(f"{path.name}: larger than 4 MiB")
    try:
        rows = list(csv.DictReader(io.StringIO(data.decode("utf-8-sig", "replace")), skipinitialspace=True))
    except csv.Error as error:
        raise CsvError(f"{path.name}: not CSV: {error}") from error
    columns = {(name or "").strip() for name in (rows[0] if rows else {})}
    lacking = [name for name in ("performance", "metric") if name not in columns]
    lacking += [] if columns & set(MODEL_COLUMNS) else ["model"]
    if not rows or lacking:
        raise CsvError(f"{path.name}: no rows" if not rows else f"{path.name}: no column {', '.join(lacking)}")
    rows_read = [_figure({(key or "").strip(): value for key, value in row.items()}) for row in rows[:MAX_CSV_ROWS]]
    figures = [figure for figure in rows_read if figure[0] and _is_number(figure[1]) and figure[2]]
    if not figures:
        raise CsvError(f"{path.name}: no row has a number as performance")
    several = Counter(name for name, _value, _unit in figures)
    first = f"{path.name} has {len(rows)} rows, of which the first {MAX_CSV_ROWS} count"
    cut = [first] if len(rows) > MAX_CSV_ROWS else []
    empty = len(rows_read) - len(figures)
    lacks = f"{path.name}: {empty} of {len(rows_read)} rows lack model, metric or a number as performance"
    cut += [lacks] if empty else []
    named = [(f"{name}_{unit}" if several[name] > 1 else name, value, unit) for name, value, unit in figures]
    return named, "; ".join(cut)


def _figure(row: dict[str, object]) -> tuple[str, str, str]:
    name = next((_word(row[column]) for column in MODEL_COLUMNS if row.get(column)), "")
    return name, _word(row.get("performance")), _word(row.get("metric"))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text.replace(",", "")))
    except ValueError:
        return False


def _word(value: object) -> str:
    """Return a cell of a CSV file as one word, with ``_`` for blanks; empty without a text."""
    return "_".join(value.split()) if isinstance(value, str) else ""
