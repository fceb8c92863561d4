"""The root cause of a stage that failed: the first failure in its log, and what the text proves about it.

Which lines mean what is data (``root_causes.json``), which travels with the runner. A line there is plain text as a
program prints it, with placeholders: ``*`` any text, ``{a|b}`` either, ``{package}``, ``{command}``, ``{file}``,
``{rank}``, ``{number}``; ``^`` and ``$`` stand for the line's start and end. The first matching line counts.

A log is untrusted and may be large: memory and work are bounded.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Optional

#: What a text is called that proves nothing about whose fault the failure is.
UNPROVEN = "crash"
HARDWARE = "hardware"
MAX_TEXT = 300
#: Of a line: its beginning, and its end.
LINE_HEAD, LINE_TAIL = 1000, 400
#: Of a log.
HEAD_BYTES, TAIL_BYTES = 1 << 20, 3 << 20
MAX_FAILURES = 256
MAX_SHAPES = 20_000
MAX_STREAMS = 4096
#: So many lines are compared with the data, beside those of exceptions.
MAX_COMPARED = 40_000
#: So many lines of progress after an error show that the program survived it.
SURVIVED = 20
#: In the order in which they explain a failure.
WEIGHTS = ("first", "error", "hint", "weak", "effect", "summary", "guess", "echo")
FIRST, ERROR, HINT, WEAK, EFFECT, SUMMARY, GUESS, ECHO = WEIGHTS
NONE = "none"

_PLACES = {
    "*": ".{0,200}?",
    "{package}": r"(?P<package>[\w.+@-]{1,100})",
    "{command}": r"(?P<package>[\w+-]{1,60})",
    "{file}": r"(?P<package>[^\s:'\"`\\]{1,200})",
    "{rank}": r"(?P<rank>\d{1,6})",
    "{number}": r"\d+",
    "'": r"\\?['\"`\u2018\u2019]?",
}
_PLACE = re.compile(r"\*+|\{[^}]*\}|'")
_CLASS = re.compile(r"[a-z][a-z0-9_]{0,47}")
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
#: A bar of progress ends where the next process prints.
_LINE_END = re.compile(r"[\r\n]+|(?<=/it\])|(?<=it/s\])")
_RULE = " \t=-*_#"
_DIGITS = re.compile(r"\d+")
_PROGRESS = re.compile(r"\b(?:step|iter(?:ation)?|epoch|loss)\b.{0,40}\d|\d(?:it/s|s/it)\b", re.IGNORECASE)
#: What denies that a line which sounds like a failure is one: it counts.
_GUESS = r"\b(?:{words})\b(?!\w*\s*[:=]\s*[\d.])(?<!0 error)(?<!0 failed)(?<!no error)"
_TIME = r"\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d"
_LEVEL = "ERROR|WARN|WARNING|INFO|DEBUG|CRITICAL|FATAL"
_QUIET = ("INFO", "DEBUG", "I", "WARN", "WARNING", "W")
_TRACEBACK = re.compile(r"(?:(?P<source>[\w.:-]+): |.*?)Traceback \(most recent call last\)")
_EXCEPTION = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:\([\w.]*\))?(?P<message> ?: .*|:|)$")
_ERROR_NAME = re.compile(r"(?:Error|Exception|Exit|Interrupt|Failure)$")
_FIGURE = re.compile(r" ?:\s*[-+]?[\d.,]+(?:e[-+]?\d+)?\s*%?", re.IGNORECASE)
_CAUSED = "The above exception was the direct cause of the following exception"
_HANDLING = "During handling of the above exception, another exception occurred"
_SPAWNED = re.compile(r"-- Process (\d{1,6}) terminated with the following error")
_LAST_ERROR = re.compile(r"Last error:\s*(.*)")
_FIELD = re.compile(r"(rank|exitcode|time|traceback) *: (.*)")
_RANK_FIELD = re.compile(r"(\d{1,6}) \(local_rank: (\d{1,6})\)")
_EXITED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d{1,6})")
#: Where a launcher starts several ranks, a task of srun or MPI is none of them.
_LAUNCHER = re.compile(
    r"torchrun|elastic|distributed[./](?:run|launch)|accelerate[./]|deepspeed[./]launcher|\[launch\.py|local_rank: "
)


class RootCause(NamedTuple):
    """What made a stage fail: a class of failures, one line of text, and the rank and package that it names."""

    name: str
    text: str
    rank: Optional[int] = None
    package: str = ""
    weight: str = ERROR

    @property
    def is_primary(self) -> bool:
        """Whether a program or the machine says it, not a launcher or another process that lost its peer."""
        return self.weight in (FIRST, ERROR)

    @property
    def is_known(self) -> bool:
        return self.weight != GUESS

    def document(self) -> dict[str, Any]:
        """The cause as a record's environment has it."""
        package = {"package": self.package} if self.package else {}
        return {"class": self.name, "text": self.text, "rank": self.rank, **package}

    def sentence(self) -> str:
        kind = "cause" if self.is_known else "probable cause"
        return f"{kind}: {self.text}" if self.rank is None else f"{kind}: rank {self.rank}: {self.text}"


class CausePatterns(NamedTuple):
    """The data: a line of a failure has one of `words`; `prefix` stands before a line's own text; `guess` is in unknown
    lines that sound like a failure; `parts` names the lines of the data that a text may match, `exceptions` the classes
    by their names; programs expect and handle those of `handled`."""

    words: tuple[str, ...]
    prefix: re.Pattern[str]
    guess: re.Pattern[str]
    lines: list[tuple[re.Pattern[str], str, str]]
    parts: list[tuple[str, list[int]]]
    exceptions: dict[str, str]
    handled: frozenset[str]


@dataclass
class _LoggedFailure:
    weight: str
    name: str
    text: str
    rank: Optional[int]
    local: Optional[int]
    task: Optional[int]
    stamp: tuple[str, str]
    package: str = ""

    @property
    def kind(self) -> str:
        return _DIGITS.sub("#", self.text.partition(":")[0])


@dataclass
class _ProcessStream:
    """Where the output of one process stands."""

    in_traceback: bool = False
    in_frame: bool = False
    #: Whether the last line names a file and the next one is its source.
    is_frame: bool = False
    #: The exception before this one, and how the two belong together.
    before: Optional[_LoggedFailure] = None
    joined: str = ""
    #: Of the next exception: how far its traceback is indented, and its rank.
    indent: int = 0
    rank: Optional[int] = None


@dataclass
class _LineHead:
    """What stands before a line's own text."""

    source: str = ""
    rank: Optional[int] = None
    #: On its node; of MPI or srun.
    local: Optional[int] = None
    task: Optional[int] = None
    level: str = ""
    stamp: tuple[str, str] = ("", "")


def in_log(path: Path, attempt: str = "", local_is_global: bool = True) -> Optional[RootCause]:
    """The root cause in a log; None without one, or where it cannot be read. `attempt`: the text of the last line
    before the stage's own output. `local_is_global`: whether all ranks are on this node."""
    tail, marker = b"", attempt.encode()
    try:
        with path.open("rb") as stream:
            text = head = stream.read(HEAD_BYTES)
            size = stream.seek(0, 2)
            if size > HEAD_BYTES:
                stream.seek(max(HEAD_BYTES, size - TAIL_BYTES))
                tail = stream.read(TAIL_BYTES)
                text = head + b"\n" + tail
    except OSError:
        return None
    if marker:  # where it is in neither, the head is that of an earlier attempt
        text = text[text.rindex(marker) + len(marker) :] if marker in text else tail or head
    return in_text(text.decode("utf-8", "replace"), local_is_global)


def in_text(text: str, local_is_global: bool = True) -> Optional[RootCause]:
    """The root cause in the output of a stage; None where no line of it reports a failure."""
    reader = _CauseReader()
    for line in _lines(text):
        reader.read(line)
    return reader.cause(local_is_global)


def read_cause(document: Any) -> Optional[RootCause]:
    """The cause that a record's environment has, which comes from a node; None for what is none."""
    if not isinstance(document, dict):
        return None
    name, text, rank, package = (document.get(key) for key in ("class", "text", "rank", "package"))
    if not isinstance(name, str) or not _CLASS.fullmatch(name) or not isinstance(text, str):
        return None
    rank = rank if type(rank) is int and 0 <= rank < 10**6 else None
    return RootCause(name, _plain(text), rank, _plain(package) if isinstance(package, str) else "")


def data() -> dict[str, Any]:
    """What the lines of known failures mean."""
    loader: Any = __spec__.loader  # the runner is a zip
    document: dict[str, Any] = json.loads(loader.get_data(str(Path(__file__).with_name("root_causes.json"))))
    return document


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:MAX_TEXT])


@cache
def _patterns() -> CausePatterns:
    document = data()
    lines: list[tuple[re.Pattern[str], str, str]] = []
    by_part: dict[str, list[int]] = {}
    for group in document["lines"]:
        for text in group["lines"]:
            parts, pattern = _compiled(text)
            for part in parts:
                by_part.setdefault(part, []).append(len(lines))
            lines.append((pattern, group["weight"], group.get("class", UNPROVEN)))
    return CausePatterns(
        tuple(document["words"]),
        re.compile("|".join(document["prefixes"]).replace("{time}", _TIME).replace("{level}", _LEVEL)),
        re.compile(_GUESS.replace("{words}", "|".join(document["guesses"])), re.IGNORECASE),
        lines,
        list(by_part.items()),
        {kind: name for name, kinds in document["exceptions"].items() for kind in kinds},
        frozenset(document["handled"]),
    )


def _compiled(text: str) -> tuple[tuple[str, ...], re.Pattern[str]]:
    """Of a line of the data the texts of which one must be there, and the expression for the whole of it."""
    begins, ends = text.startswith("^"), text.endswith("$")
    text = text[begins : len(text) - ends]
    expression: list[str] = []
    choices: list[tuple[str, ...]] = []
    position = 0
    for place in _PLACE.finditer(text):
        plain = text[position : place.start()]
        written = "*" if place[0].startswith("*") else place[0]
        pattern = _PLACES.get(written)
        choices.append((plain,))
        if pattern is None:
            choices.append(tuple(written[1:-1].split("|")))
            pattern = f"(?:{'|'.join(map(re.escape, choices[-1]))})"
        elif pattern in expression:  # a group has its name once
            pattern = re.sub(r"\?P<\w+>", "?:", pattern)
        expression += [re.escape(plain), pattern]
        position = place.end()
    choices.append((text[position:],))
    whole = "".join([*expression, re.escape(text[position:])])
    start = "^" if begins else r"(?<![^\W_])" if text[:1].isalnum() else ""
    parts = max(choices, key=lambda choice: min(map(len, choice)))
    return parts, re.compile(start + whole + ("$" if ends else ""))


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 105]} ... {text[-100:]}"


def _lines(text: str) -> Iterator[str]:
    for piece in _LINE_END.split(text):
        is_long = len(piece) > LINE_HEAD + LINE_TAIL
        line = f"{piece[:LINE_HEAD]} ... {piece[-LINE_TAIL:]}" if is_long else piece
        if line.strip():
            yield (_ESCAPES.sub("", line) if "\x1b" in line else line).rstrip()


class _CauseReader:
    """Reads a log line by line and keeps its failures, by weight."""

    def __init__(self) -> None:
        self._patterns = _patterns()
        self._failures: dict[str, list[_LoggedFailure]] = {weight: [] for weight in WEIGHTS}
        self._streams: dict[str, _ProcessStream] = {}
        self._open = 0
        #: What prefixes the lines of hosts, as pdsh does.
        self._sources: set[str] = set()
        #: Lines that mean nothing, without their digits; that of the present line.
        self._innocent: set[str] = set()
        self._shape = ""
        self._compared = 0
        self._progress = 0
        #: The last line of a program before a launcher reports its end: maybe its reason.
        self._words = ""
        #: What torchrun's summary says about failed processes: the one that is being read, and all.
        self._table: Optional[dict[str, str]] = None
        self._tables: list[dict[str, str]] = []
        self._is_root = False
        self._expects_detail = False
        self._has_launcher = False

    def read(self, line: str) -> None:
        is_inside = self._open or self._table or self._expects_detail
        lowered = line.lower()
        if is_inside or any(word in lowered for word in self._patterns.words):
            self._shape = _DIGITS.sub("#", line)
            if is_inside or self._shape not in self._innocent:
                self._read_suspect(line)
                return
        if _PROGRESS.search(line):
            self._progress += 1
            self._failures[GUESS].clear()
        elif not self._failures[SUMMARY] and line.strip(_RULE):
            self._words = line

    def _read_suspect(self, line: str) -> None:
        self._has_launcher = self._has_launcher or _LAUNCHER.search(line) is not None
        head, text = self._split(line)
        if self._take_detail(text) or self._read_table(text, head):
            return
        stream = self._stream(head)
        if self._read_traceback(stream, text, head):
            return
        was_frame, stream.is_frame = stream.is_frame, text.startswith("  File ")
        if head.level[:1] not in ("I", "D") and not stream.is_frame and not was_frame:
            self._note(text.strip(), head, stream)

    def _split(self, line: str) -> tuple[_LineHead, str]:
        head, position = _LineHead(), 0
        for _ in range(8):
            match = self._patterns.prefix.match(line, position)
            if match is None or match.end() == position:
                source = line[position:].partition(": ")[0]
                if source not in self._sources or head.source:
                    break
                head.source = source
                position += len(source) + 2
                continue
            position = match.end()
            groups = {name: text for name, text in match.groupdict().items() if text}
            fields = {name.partition("_")[0]: text for name, text in groups.items()}
            numbers = {name: int(fields[name]) for name in ("rank", "local", "task") if name in fields}
            for name, number in numbers.items():
                setattr(head, name, number)
            head.level = fields.get("level", head.level)
            if "time" in fields and not head.stamp[0]:
                form = next(name for name in groups if name.startswith("time"))
                head.stamp = (form, fields["time"].replace("T", " ").replace("_", " ").replace(",", "."))
            if numbers or match[0].startswith("("):
                head.source += match[0].strip()
        return head, line[position:]

    def _stream(self, head: _LineHead) -> _ProcessStream:
        if head.source not in self._streams and len(self._streams) >= MAX_STREAMS:
            self._streams.clear()
            self._open = 0
        return self._streams.setdefault(head.source, _ProcessStream())

    def _read_traceback(self, stream: _ProcessStream, text: str, head: _LineHead) -> bool:
        """Whether the line is a part of a traceback; the line that ends one is a failure."""
        begin = _TRACEBACK.match(text) if "Traceback (most" in text else None
        if begin:
            if begin["source"] and len(self._sources) < MAX_STREAMS:
                self._sources.add(begin["source"])
                stream = self._stream(_LineHead(begin["source"]))
            self._open += not stream.in_traceback
            stream.in_traceback = True
            return True
        if _CAUSED in text or _HANDLING in text:
            stream.joined = _CAUSED if _CAUSED in text else _HANDLING
            return True
        spawned = _SPAWNED.match(text)
        if spawned:
            stream.rank = int(spawned[1])
            return True
        if text[:1] == "^":  # the marks of another process, whose traceback is printed at the same time
            text = text.replace("^", "").lstrip()
        text = text[min(stream.indent, len(text) - len(text.lstrip())) :]
        was_frame, stream.in_frame = stream.in_frame, text[:1] in " │|╭╰~" or not text
        if stream.in_frame:
            return stream.in_traceback
        exception = _EXCEPTION.match(text)
        if not exception or not (_ERROR_NAME.search(exception["type"]) or (stream.in_traceback and was_frame)):
            return False
        if not stream.in_traceback and _FIGURE.fullmatch(exception["message"]):  # MeanAbsoluteError: 0.25
            return False
        self._open -= stream.in_traceback
        stream.in_traceback = False
        self._note(text, head, stream, exception["type"].rpartition(".")[2])
        return True

    def _note(self, text: str, head: _LineHead, stream: _ProcessStream, exception: str = "") -> None:
        """Keep a line that reports a failure, by its weight. `exception`: the name of the one that it ends with."""
        weight, name, package, rank = "", UNPROVEN, "", None
        self._compared += not exception
        if self._compared > MAX_COMPARED and not exception:
            return
        for index in sorted({index for part, indices in self._patterns.parts if part in text for index in indices}):
            pattern, *meaning = self._patterns.lines[index]
            match = pattern.search(text)
            if match:
                groups = match.groupdict()
                (weight, name), package = meaning, (groups.get("package") or "").rstrip(".,:")
                rank = int(groups["rank"]) if groups.get("rank") else None
                break
        if exception and weight in ("", NONE, HINT, WEAK, SUMMARY):
            weight, name, package = ERROR, self._patterns.exceptions.get(exception, UNPROVEN), ""
        elif not weight and self._patterns.guess.search(text):
            weight = GUESS
        if weight not in WEIGHTS or (head.level in _QUIET and weight not in (EFFECT, ECHO)):
            if len(self._innocent) < MAX_SHAPES and not exception:
                self._innocent.add(self._shape)
            return
        rank = stream.rank if exception and stream.rank is not None else rank
        rank = rank if head.rank is None else head.rank
        failure = _LoggedFailure(weight, name, _shortened(text), rank, head.local, head.task, head.stamp, package)
        if exception:
            self._join(stream, failure)
            stream.rank, stream.indent = None, 0
        self._keep(failure)
        self._expects_detail = bool(exception) and weight == ERROR and text.endswith(":")

    def _join(self, stream: _ProcessStream, failure: _LoggedFailure) -> None:
        """Of two exceptions of a chain the first explains the second, unless a program expects such a first one."""
        before, joined, stream.joined, stream.before = stream.before, stream.joined, "", failure
        if before is None or not joined or before.weight != ERROR:
            return
        if joined == _HANDLING and before.text.partition(":")[0].rpartition(".")[2] in self._patterns.handled:
            self._failures[ERROR] = [kept for kept in self._failures[ERROR] if kept is not before]
        elif failure.weight == ERROR:
            failure.weight = EFFECT

    def _keep(self, failure: _LoggedFailure) -> None:
        if failure.weight in (FIRST, ERROR):
            if self._progress >= SURVIVED:
                for weight in (ERROR, HINT, WEAK):
                    self._failures[weight].clear()
            self._progress = 0
        kept = self._failures[failure.weight]
        if len(kept) < MAX_FAILURES:
            kept.append(failure)

    def _take_detail(self, text: str) -> bool:
        """The line behind NCCL's "Last error:" belongs to the exception before."""
        expected, self._expects_detail = self._expects_detail, False
        match = _LAST_ERROR.match(text.strip())
        if match and not match[1]:
            self._expects_detail = True
            return True
        detail = match[1] if match else text.strip() if expected else ""
        last = self._failures[ERROR][-1] if self._failures[ERROR] else None
        if detail and last and len(last.text) + len(detail) < 2 * MAX_TEXT:
            last.text = f"{last.text.rstrip(':')}: {detail}"
        return bool(detail)

    def _read_table(self, text: str, head: _LineHead) -> bool:
        """Whether the line is a part of the summary."""
        stripped = text.strip()
        exited = _EXITED.search(stripped) if "exitcode: " in stripped else None
        if exited:
            self._note_exit(int(exited[1]), None, int(exited[2]), head)
            return True
        if stripped.startswith(("Root Cause (first observed failure)", "Failures:")):
            self._is_root = stripped.startswith("Root")
            return True
        match = _FIELD.match(stripped)
        if match is None:
            return False
        begins = (
            re.match(_TIME, match[2]) if match[1] == "time" else self._table is None and _RANK_FIELD.match(match[2])
        )
        if begins:
            self._table = {"root": "yes"} if self._is_root else {}
            self._tables = [*self._tables, self._table][-MAX_FAILURES:]
        if self._table is None:
            return False
        self._table[match[1]] = match[2]
        if match[1] != "traceback":
            return True
        table, self._table = self._table, None
        ranks, code = _RANK_FIELD.match(table.get("rank", "")), re.match(r"-?\d+", table.get("exitcode", ""))
        if "Traceback" in match[2]:  # that of the program, which follows
            stream = self._stream(head)
            stream.indent, stream.rank = len(text) - len(stripped), int(ranks[1]) if ranks else None
            return False
        if ranks and code:
            self._note_exit(int(code[0]), int(ranks[1]), int(ranks[2]), head, match[2])
        return True

    def _note_exit(self, code: int, rank: Optional[int], local: int, head: _LineHead, words: str = "") -> None:
        weight = SUMMARY if code >= 0 else ECHO if code == -15 else HINT
        if not words.startswith("Signal"):
            words = f"Signal {-code} ({signal.Signals(-code).name})" if -code in set(signal.Signals) else ""
        text = f"exit code {code}: {words}" if words else f"exit code {code}"
        self._keep(_LoggedFailure(weight, UNPROVEN, text, rank, local, None, head.stamp))

    def cause(self, local_is_global: bool) -> Optional[RootCause]:
        failures = next((self._failures[weight] for weight in WEIGHTS if self._failures[weight]), None)
        if not failures:
            return None
        first = failures[0]
        for later in failures[1:]:
            if later.stamp[0] and later.stamp[0] == first.stamp[0] and later.stamp[1] < first.stamp[1]:
                first = later
        root, globals_of = self._root_rank()
        ranks = {self._rank(failure, globals_of, local_is_global): failure for failure in reversed(failures)}
        if root in ranks and ranks[root].kind == first.kind:
            first = ranks[root]  # all ranks failed alike, and torchrun has seen this one first
        rank = self._rank(first, globals_of, local_is_global)
        is_same = all(failure.kind == first.kind for failure in failures if failure.rank is None)
        if (
            rank is None
            and first.weight not in (EFFECT, ECHO)
            and first.local is None
            and (is_same or len(self._tables) == 1)
        ):
            rank = root if self._tables else self._only_rank()
        guess = self._failures[GUESS][0].text if self._failures[GUESS] else self._split(self._words)[1].strip()
        words = guess if first.weight == SUMMARY else ""
        text = _shortened(f"{words}; {first.text}") if words else first.text
        return RootCause(first.name, text, rank, first.package, first.weight)

    def _root_rank(self) -> tuple[Optional[int], dict[int, int]]:
        """The rank that torchrun names as the first, and the rank of each local rank where that is certain."""
        ranks = [(table, _RANK_FIELD.match(table.get("rank", ""))) for table in self._tables]
        pairs = {(int(match[2]), int(match[1])) for _, match in ranks if match}
        certain = {local: rank for local, rank in pairs if [first for first, _ in pairs].count(local) == 1}
        roots = sorted({(table.get("time", ""), int(match[1])) for table, match in ranks if match and "root" in table})
        earliest = {rank for time, rank in roots if time == roots[0][0]}
        return (earliest.pop() if len(earliest) == 1 else None), certain

    def _rank(self, failure: _LoggedFailure, globals_of: dict[int, int], local_is_global: bool) -> Optional[int]:
        if failure.rank is not None:
            return failure.rank
        if failure.local is None:
            return None if self._has_launcher else failure.task
        return globals_of.get(failure.local, failure.local if local_is_global else None)

    def _only_rank(self) -> Optional[int]:
        """The one rank that mpirun or srun names, where each of their processes is a rank."""
        ranks = {failure.rank for weight in (ERROR, HINT, SUMMARY) for failure in self._failures[weight]} - {None}
        return ranks.pop() if len(ranks) == 1 and not self._has_launcher else None
