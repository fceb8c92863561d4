"""Check evidence, the documents that nodes report, as untrusted input.

A record is read only when it is small enough, strict JSON, follows its schema and names the run, node and stage of the
key it was found under. Its text is cleaned once, here. What is refused is kept as a problem that says why: it is never
evidence, and never silent.
"""

import functools
import hashlib
import hmac
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from ..core import files, schemas, units
from ..core.errors import GpuvalError
from ..core.escape import NODE_NAME, clean_text, one_line
from . import launch_errors
from .documents import FAILED_STATES, FINAL_STATES, EvidenceProblem, Record

MAX_RECORD_BYTES = 1 << 20
MAX_SERIES_BYTES = 8 << 20
MAX_LOG_BYTES = 64 << 20
MAX_BYTES = {"records": MAX_RECORD_BYTES, "series": MAX_SERIES_BYTES, "logs": MAX_LOG_BYTES}
#: Bytes that one node may write for one run in total.
MAX_NODE_BYTES = 256 << 20
MAX_DEPTH = 32
MAX_INTEGER_DIGITS = 32
MAX_WORD = 96
#: Seconds that nodes' clocks may be wrong, as much as the store's certificates tolerate.
CLOCK_SLACK_SECONDS = 2 * 86400.0
#: Seconds that the controller's own clock may be off after it was set during a run.
AGE_SLACK_SECONDS = 120.0
#: Stages that never run in a container.
ON_HOST = frozenset({"facts", "image"})
#: The runner's limits for a command in a record, and its note in a record that would be too large otherwise.
MAX_COMMAND_WORDS, MAX_COMMAND_WORD = 256, 8192
SHRUNK = "left out to keep the record within"

#: Problem of a record that arrived, or changed, after its run was judged.
LATE = "a record that came after the verdict does not count: to judge it, validate again with gpuval_run_id"
CHANGED = "the record was changed after the verdict: only the one that was judged counts"
#: Start of the reason why a run was judged without its store.
UNREAD = "the store cannot be read"
#: Start of the reason why an object of the store is no evidence.
ALTERED = "the store's copy is not what the node uploaded"
#: Start of the reason why evidence of a run, a round or a node may be incomplete.
NOT_COLLECTED = "evidence was not collected"
#: Start of the reason why no node could be launched.
NOT_PREPARED = "the run cannot be prepared"
#: Starts of the problems that each collection records again.
NOTED_ANEW = (LATE, CHANGED, UNREAD, ALTERED, NOT_COLLECTED, NOT_PREPARED)

_KINDS = {"records": ".json", "series": ".json", "logs": ".log"}
#: Matches a placeholder in a word of a plan's command after re.escape.
_PLACEHOLDER = re.compile(r"\\\{[a-z_]+\\\}")
_STAGE = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_BARE = frozenset((int, float, bool, type(None)))


class EvidenceRefused(GpuvalError, ValueError):  # noqa: N818  (what happened to the document)
    """A document is refused as evidence; the message has the reason."""


@dataclass
class RunEvidence:
    """The evidence of a run's nodes.

    records: ``{node: {stage: record}}``. launches: ``{node: {"state", "message"}}``, state being started, finished,
    unreachable, refused, failed or unknown. problems: documents that were refused. contacts: ``{node: {multi-node
    stage: why the node could not be asked in its last round}}`` (None: it could). unstarted: ``{node: {multi-node
    stage: the launch that failed in its last round}}``. changed: ``{node: (stages whose records changed since the
    verdict, that verdict)}``. cleaned: whether a clean ended the run. resume: the command that resumes an unfinished
    run without controller. channels: ``{node: {stage: channel besides the store that confirms it}}``. earlier_gpus:
    ``{node: UUIDs of its GPUs in earlier runs, in lower case}``. is_settled: records need no launch with a nonce.
    """

    records: dict[str, dict[str, Record]] = field(default_factory=dict)
    launches: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[EvidenceProblem] = field(default_factory=list)
    contacts: dict[str, dict[str, Mapping[str, Any] | None]] = field(default_factory=dict)
    unstarted: dict[str, dict[str, Mapping[str, Any]]] = field(default_factory=dict)
    changed: dict[str, tuple[list[str], str]] = field(default_factory=dict)
    cleaned: bool = False
    resume: str = ""
    channels: dict[str, dict[str, str]] = field(default_factory=dict)
    earlier_gpus: dict[str, frozenset[str]] = field(default_factory=dict)
    is_settled: bool = False

    def contact_of(self, node: str, stage: str) -> Mapping[str, Any] | None:
        """Why the node could not be asked for a stage's record, in the last round of a multi-node stage; None if it
        could."""
        of_rounds = self.contacts.get(node, {})
        if stage in of_rounds:
            return of_rounds[stage]
        return launch_errors.contact_of(self.launches.get(node) or {})

    def lost_again(self, node: str, stage: str) -> Mapping[str, Any] | None:
        """How the node was lost while repeating a stage that had passed, before the new attempt left a record."""
        return launch_errors.loss_of(self.launches[node]) if self.is_asked_again(node, stage) else None

    def is_asked_again(self, node: str, stage: str) -> bool:
        """Whether the node was asked to repeat a stage that had passed, and has no record of the new attempt."""
        launch, record = self.launches.get(node) or {}, self.records.get(node, {}).get(stage)
        if record is None or record["state"] != "success" or stage in self.contacts.get(node, {}):
            return False
        return stage in (launch.get("stages") or (stage,)) and launch.get("attempt", 1) > record["attempt"]

    def add_problem(self, reason: str, *, node: str | None = None, stage: str | None = None) -> None:
        problem: EvidenceProblem = {"node": node, "stage": stage, "reason": one_line(reason)}
        if problem not in self.problems:
            self.problems.append(problem)


def parse_key(folder: str, key: str) -> tuple[str, str, str] | None:
    """(kind, stage, node) of a key in the store, ``FOLDER/records/STAGE/NODE.json``; None for other keys."""
    prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
    parts = key.removeprefix(prefix).split("/")
    is_of_kind = len(parts) == 3 and parts[0] in _KINDS and parts[2].endswith(_KINDS[parts[0]])
    if not key.startswith(prefix) or not is_of_kind:
        return None
    kind, stage, file = parts
    node = file[: -len(_KINDS[kind])]
    return (kind, stage, node) if _STAGE.fullmatch(stage) and NODE_NAME.fullmatch(node) else None


def object_key(folder: str, kind: str, stage: str, node: str) -> str:
    """The key of an object of a run, as `parse_key` reads it: kind is records, logs or series."""
    suffix = "log" if kind == "logs" else "json"
    return f"{folder}/{kind}/{stage}/{node}.{suffix}"


def accept_record(raw: bytes, *, run_id: str, node: str, stage: str) -> Record:
    """Parse and check a record, and clean its text. Raises EvidenceRefused."""
    record = _load(raw, MAX_RECORD_BYTES, "record")
    _check_identity(record, run_id=run_id, node=node, stage=stage)
    for earlier in record["attempts"]:
        _check_identity(earlier, run_id=run_id, node=node, stage=stage)
        if earlier["attempts"]:
            raise EvidenceRefused("an earlier attempt carries attempts of its own")
        if earlier["attempt"] > record["attempt"]:  # equal if a stage was cut off and run again
            raise EvidenceRefused(f"attempt {earlier['attempt']} is listed as earlier than attempt {record['attempt']}")
    for attempt in (record, *record["attempts"]):
        _check_attempt(attempt)
    return _cleaned_record(record)


def _check_attempt(record: Mapping[str, Any]) -> None:
    """Check that a record is possible: a stage that succeeded has started, ended and exited with 0, and a part has one
    figure of each name (of two, the better would count). Raises EvidenceRefused."""
    if record["state"] == "success" and (record["exit_code"] != 0 or record["signal"] is not None):
        ended = f"signal {record['signal']}" if record["signal"] else f"exit code {record['exit_code']}"
        raise EvidenceRefused(f"it reports success with {one_line(ended, 40)}")
    for key in ("started_at", "finished_at", "duration_seconds") if record["state"] == "success" else ():
        if record[key] is None:
            raise EvidenceRefused(f"it reports success without {key}")
    values: dict[tuple[str, str], float | None] = {}
    for metric in record["metrics"]:
        name, scope, value = metric["name"], metric["scope"], metric["value"]
        if (name, scope) in values:
            raise EvidenceRefused(f"{name} of {scope} stands twice: {values[name, scope]} and {value}")
        values[name, scope] = value


def _check_binding(record: Record, run: Mapping[str, Any], launch: Mapping[str, Any], at: float) -> None:
    """Check that a record belongs to this run and launch: its workload, which decides the checks that apply, its nonce,
    and its times by the node's clock, up to the end of the run, else up to ``at``. Raises EvidenceRefused."""
    workload = run.get("workloads", {}).get(record["stage"])
    for reported in (attempt["workload"] for attempt in (record, *record["attempts"])):
        if workload not in (None, reported):
            text = f"its workload is {one_line(reported, 64)!r}, but the run asks for {workload!r}"
            raise EvidenceRefused(f"{text}: set it alike for all hosts")
    opened_at = _epoch_seconds(run["created_at"])
    ended_at = _epoch_seconds(run["finished_at"]) if run["finished_at"] else at
    begun, until = opened_at - CLOCK_SLACK_SECONDS, max(opened_at, ended_at) + CLOCK_SLACK_SECONDS
    age = ended_at - opened_at
    for tried in (record, *record["attempts"]):
        nonce = nonce_of(launch.get("nonce") or "", tried["attempt"])
        if nonce and not hmac.compare_digest(nonce.encode(), tried.get("nonce", "").encode()):
            raise EvidenceRefused(
                f"attempt {tried['attempt']} does not show the nonce of its launch: it is from another run or node"
            )
        if 0 <= age < (tried["duration_seconds"] or 0) - AGE_SLACK_SECONDS:  # below 0 this clock was set back
            raise EvidenceRefused(f"it took {tried['duration_seconds']:.0f} s, but the run {age:.0f} s")
        for text in filter(None, (tried["started_at"], tried["updated_at"], tried["finished_at"])):
            if not begun <= _epoch_seconds(text) <= until:
                raise EvidenceRefused(
                    f"its time {text} is not within the run, opened at {run['created_at']}: check the node's clock"
                )


def check_launch(record: Record, launch: Mapping[str, Any], planned: Mapping[str, Any] | None) -> None:
    """Check that the controller launched a record's work: its launch, attempts, command and image. ``planned``: the
    stage in the node's plan, None if no plan is kept. Raises EvidenceRefused. Call it once the run has ended: before,
    a record may come earlier than its launch is known."""
    if not launch.get("nonce"):
        raise EvidenceRefused("the controller knows no launch of the node with a nonce that it could show")
    launched = launch.get("attempt", 1)
    if record["attempt"] > launched:
        raise EvidenceRefused(f"attempt {record['attempt']}, but the controller launched {launched}")
    if record["attempt"] > 1 and record["stage"] in launch.get("stages", ()) and not record["attempts"]:
        raise EvidenceRefused(f"attempt {record['attempt']} without the attempt that it repeats")
    if planned is None:
        return
    if not _runs(record, planned["command"]):
        raise EvidenceRefused(
            f"its command is {one_line(' '.join(record['command']), 200)!r}, but the plan's is "
            f"{one_line(' '.join(planned['command']), 200)!r}"
        )
    on_host = planned["runtime"] == "host" or record["stage"] in ON_HOST or not planned["image"]
    image = None if on_host else planned["image"][:512]
    if record["image"] != image:
        raise EvidenceRefused(
            f"its image is {one_line(record['image'] or 'none', 120)}, but the plan's is {image or 'none'}"
        )


def _runs(record: Record, planned: Sequence[str]) -> bool:
    """Whether the command is the planned one with placeholders filled. A too large record keeps only the first word."""
    command, words = record["command"], planned[:MAX_COMMAND_WORDS]
    if SHRUNK in record["message"] and len(command) == 1:
        words = words[:1]
    patterns = [_PLACEHOLDER.sub(".*", re.escape(clean_text(word[:MAX_COMMAND_WORD]))) for word in words]
    fits = (re.fullmatch(pattern, word, re.DOTALL) for pattern, word in zip(patterns, command, strict=False))
    return len(command) == len(words) and all(fits)


def check_attempts(record: Record, before: Mapping[str, Any] | None) -> None:
    """Check that a record of a further attempt lists the failed one that the controller saw. Raises EvidenceRefused."""
    if before is None or before["state"] not in FAILED_STATES or before["attempt"] >= record["attempt"]:
        return
    listed = {(earlier["attempt"], earlier["state"]) for earlier in record["attempts"]}
    if (before["attempt"], before["state"]) not in listed and "recorded_by" not in before["environment"]:
        raise EvidenceRefused(f"attempt {before['attempt']} ended as {before['state']}, which it leaves out")


def is_stale(record: Record, before: Mapping[str, Any]) -> bool:
    """Whether an unfinished record is older than the record ``before``, which has the end of the same attempt."""
    ended = before["state"] in FINAL_STATES and record["state"] not in FINAL_STATES
    return ended and bool(record["attempt"] <= before["attempt"] and record["updated_at"] < before["updated_at"])


def _epoch_seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError) as error:
        raise EvidenceRefused(f"{one_line(text, 40)!r} is not a time: {error}") from error


def accept_series(raw: bytes, *, run_id: str, node: str, stage: str) -> dict[str, Any]:
    """Parse and check a series document, and clean its text. Raises EvidenceRefused."""
    document = _load(raw, MAX_SERIES_BYTES, "series")
    _check_identity(document, run_id=run_id, node=node, stage=stage)
    for curve in document["series"]:
        if len(curve["x"]) != len(curve["y"]):
            raise EvidenceRefused(f"series {curve['name']}: {len(curve['x'])} x values and {len(curve['y'])} y values")
    cleaned: dict[str, Any] = _cleaned(document)
    return cleaned


def read_object(path: Path, max_bytes: int) -> dict[str, Any] | None:
    """Read a JSON object that a node may have written; None if it is missing, too large, malformed or a link."""
    try:
        if path.is_symlink() or path.stat().st_size > max_bytes:
            return None
        document = orjson.loads(files.read(path))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def is_whole(path: Path, kind: str, run_id: str) -> bool:
    """Whether an evidence file in results/ is readable and belongs to the run; otherwise it is collected again."""
    if kind == "logs":
        return path.is_file() and os.access(path, os.R_OK) and path.stat().st_size > 0
    return (read_object(path, MAX_BYTES[kind]) or {}).get("run_id") == run_id


def digest_of(record: Mapping[str, Any]) -> str:
    """SHA-256, hexadecimal, of an accepted record's content as its node wrote it, whatever the layout of its JSON."""
    return hashlib.sha256(orjson.dumps(as_written(record), default=list, option=orjson.OPT_SORT_KEYS)).hexdigest()


def as_written(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record with its units as the node wrote them."""
    written = {**record, "attempts": [as_written(attempt) for attempt in record["attempts"]]}
    units_as_written = written.pop("units_as_written", None)
    if units_as_written:
        pairs = zip(record["metrics"], units_as_written, strict=True)
        written["metrics"] = [{**metric, "unit": unit} for metric, unit in pairs]
    return written


def claimed_end(raw: bytes) -> int:
    """The number of the attempt whose end a refused record claims; 0 if it claims none or is no JSON."""
    try:
        document = orjson.loads(raw)
        return int(document["attempt"]) if document["state"] in FINAL_STATES else 0
    except (ValueError, KeyError, TypeError):
        return 0


#: Starts of the reasons for which `take_record` refuses a record, to tell these from other problems of a run.
REFUSED = ("record refused", "a record of", "the key")


def take_record(
    evidence: RunEvidence, run: Mapping[str, Any], key: str, raw: bytes, at: float | None = None
) -> Record | None:
    """Put the record found under ``key`` into ``evidence`` and return it. A refused record becomes a problem, and None
    is returned. Instead of a stale record the known one is kept and returned. ``at``: when an unfinished run is judged,
    in seconds since the epoch; None for a record that arrives now."""
    parts = parse_key(run["folder"], key)
    if parts is None or parts[0] != "records":
        evidence.add_problem(f"the key {key!r} is not that of a record of this run")
        return None
    _, stage, node = parts
    expected = run["nodes"].get(node)
    if expected is None:
        evidence.add_problem(f"a record of the node {node!r}, which is not part of the run")
        return None
    if stage not in expected["stages"]:
        evidence.add_problem("a record of a stage that the node was not asked to run", node=node, stage=stage)
        return None
    before = evidence.records.get(node, {}).get(stage)
    try:
        record = accept_record(raw, run_id=run["run_id"], node=node, stage=stage)
        _check_binding(record, run, evidence.launches.get(node) or {}, time.time() if at is None else at)
        check_attempts(record, before)
    except EvidenceRefused as refusal:
        evidence.add_problem(f"record refused: {refusal}", node=node, stage=stage)
        return None
    if before is not None and is_stale(record, before):
        return before
    evidence.records.setdefault(node, {})[stage] = record
    return record


def _load(raw: bytes, max_bytes: int, schema: str) -> dict[str, Any]:
    """Parse a document and check it against its schema. Raises EvidenceRefused."""
    if len(raw) > max_bytes:
        raise EvidenceRefused(f"{len(raw):,} bytes, over the limit of {max_bytes:,}")
    try:
        text = raw.decode("utf-8")
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_int=_integer)
    except EvidenceRefused:
        raise
    except RecursionError as error:
        raise EvidenceRefused("nested too deeply") from error
    except ValueError as error:
        raise EvidenceRefused(f"not JSON in UTF-8: {one_line(str(error), 120)}") from error
    if not isinstance(document, dict):
        raise EvidenceRefused("not a JSON object")
    _check_values(document)
    try:
        schemas.validate(schema, document, what=schema)
    except schemas.Invalid as error:
        raise EvidenceRefused(one_line(str(error))) from error
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise EvidenceRefused(f"the key {one_line(twice, 60)!r} stands twice in one object")
    return result


def _refuse_constant(name: str) -> None:
    raise EvidenceRefused(f"{name} is not a JSON number: null stands for it")


def _check_values(document: dict[str, Any]) -> None:
    """Check depth and ranges of a document's values, level by level. Lists of numbers need no loop in Python."""
    level: list[Any] = [document]
    for _ in range(MAX_DEPTH):
        children: list[Any] = []
        for container in level:
            values = container.values() if type(container) is dict else container
            kinds = set(map(type, values))
            if float in kinds and (math.inf in values or -math.inf in values):
                raise EvidenceRefused("a number is out of range")
            if dict in kinds or list in kinds:
                children.extend(value for value in values if type(value) in (dict, list))
        if not children:
            return
        level = children
    raise EvidenceRefused(f"nested deeper than {MAX_DEPTH} levels")


def _integer(text: str) -> float:
    """The integer as float if it exceeds 64 bits, which JSON libraries do not support; no such figure is plausible."""
    if len(text) > MAX_INTEGER_DIGITS:
        raise EvidenceRefused(f"an integer of {len(text)} digits")
    number = int(text)
    return number if abs(number) < 1 << 63 else float(number)


def _check_identity(document: Mapping[str, Any], *, run_id: str, node: str, stage: str) -> None:
    for key, expected in (("run_id", run_id), ("node", node), ("stage", stage)):
        if document[key] != expected:
            raise EvidenceRefused(f"{key} is {one_line(document[key], 80)!r}, but it was found under {expected!r}")


def _cleaned_record(record: dict[str, Any]) -> Record:
    """Clean all texts of a record. Metrics, most of it, are cleaned in place. Units get one notation."""
    written = [_cleaned_word(metric["unit"]) for metric in record["metrics"]]
    for metric, unit in zip(record["metrics"], written, strict=True):
        metric["name"] = _cleaned_word(metric["name"])
        metric["unit"] = units.notation(unit)
        metric["scope"] = _cleaned_word(metric["scope"])
        if "revision" in metric:
            metric["revision"] = int(metric["revision"])  # a schema takes 2.0 for an integer
    cleaned: Record = _cleaned({**record, "metrics": [], "attempts": []})
    if written != [metric["unit"] for metric in record["metrics"]]:
        cleaned["units_as_written"] = written
    return {**cleaned, "metrics": record["metrics"], "attempts": [_cleaned_record(one) for one in record["attempts"]]}


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return _cleaned_word(value) if len(value) <= MAX_WORD else clean_text(value)
    if isinstance(value, list):
        return value if _BARE.issuperset(map(type, value)) else [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {
            _cleaned_word(key) if len(key) <= MAX_WORD else clean_text(key): item
            if type(item) in _BARE
            else _cleaned(item)
            for key, item in value.items()
        }
    return value


@functools.lru_cache(maxsize=1 << 15)
def _cleaned_word(word: str) -> str:
    """Cached: names, units and scopes occur millions of times in a fleet's records."""
    return clean_text(word)


def nonce_of(nonce: str, attempt: int) -> str:
    """The nonce that binds a record to an attempt of its node's launch, made from the first attempt's ``nonce``: only
    the node's plan has it. It is the same if another controller repeats the launch; empty without a first one."""
    if attempt <= 1 or not nonce:
        return nonce
    return hmac.new(nonce.encode(), f"attempt {attempt}".encode(), hashlib.sha256).hexdigest()[:32]


def accept_answer(schema: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a node's answer to a task that the schema knows; others, such as facts, are dropped. Raises
    EvidenceRefused, whose message is about this node alone."""
    fields = {key: answer[key] for key in schemas.schema(schema)["properties"] if key in answer}
    try:
        schemas.validate(schema, fields, what="it")
    except (schemas.Invalid, RecursionError) as error:
        problem = one_line(str(error), 300)
        raise EvidenceRefused(f"the node's {schema.replace('_', ' ')} is invalid: {problem}") from error
    return fields
