"""The root cause of a stage that failed: the first failure in its log, and what the text proves about it.

The meaning of lines is data (``root_causes.json``), which is sent with the runner. A line in it is plain text as a
program prints it, with placeholders: ``*`` any text, ``{a|b}`` either, ``{package}``, ``{command}``, ``{file}``,
``{rank}``, ``{local}``, ``{code}``, ``{number}``; ``^`` and ``$`` stand for the line's start and end. The first
matching line counts. The rules: of the failures that explain most, the first by time is the cause; of a chain of
exceptions the first, unless programs expect that; the rank is that in the line's prefix, or in a launcher's summary
if that is certain.

A log is untrusted and may be large: memory and work are bounded.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Optional

#: The failure class of a stage whose log does not show whose fault the failure is.
UNPROVEN = "crash"
TIME = r"\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d"

_LEVEL = "ERROR|WARN|WARNING|INFO|DEBUG|CRITICAL|FATAL"
#: Words in a log line that sound like a failure, except in counts such as "0 errors".
_GUESS = r"\b(?:{words})\b(?!\w*\s*[:=]\s*[\d.])(?<!0 error)(?<!0 failed)(?<!no error)"
_PLACES = {
    "*": ".{0,200}?",
    "{package}": r"(?P<package>[\w.+@-]{1,100})",
    "{command}": r"(?P<package>[\w+-]{1,60})",
    "{file}": r"(?P<package>[^\s:'\"`\\]{1,200})",
    "{rank}": r"(?P<rank>\d{1,6})",
    "{local}": r"(?P<local>\d{1,6})",
    "{code}": r"(?P<code>-?\d{1,6})",
    "{number}": r"\d+",
    "'": r"\\?['\"`\u2018\u2019]?",
}
_PLACE = re.compile(r"(\*+|\{[^}]*\}|')")

HARDWARE = "hardware"
#: Characters that are read of a long log line: at its start, and at its end.
LINE_HEAD, LINE_TAIL = 1000, 400

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_PROCESS = ("rank", "local", "task")
MAX_TEXT = 300
HEAD_BYTES, TAIL_BYTES = 1 << 20, 3 << 20
MAX_FAILURES = 256
MAX_SHAPES = 20_000
MAX_STREAMS = 4096
#: Maximum lines of a log that are compared with the known failures, beside lines of exceptions.
MAX_COMPARED = 40_000
#: Lines of progress after an error which show that the program survived the error.
SURVIVED = 20
#: Weights of log lines, beginning with that of lines that explain a failure best.
WEIGHTS = ("first", "error", "hint", "weak", "effect", "summary", "guess", "echo")
FIRST, ERROR, HINT, WEAK, EFFECT, SUMMARY, GUESS, ECHO = WEIGHTS
#: Further weights in root_causes.json: no failure; a launcher's report of a process, whose exit code gives the weight;
#: a launcher's report that it ends the other processes.
NONE, EXIT, STOP = "none", "exit", "stop"

_CLASS = re.compile(r"[a-z][a-z0-9_]{0,47}")
_RULE = " \t=-*_#"
_DIGITS = re.compile(r"\d+")
_PROGRESS = re.compile(r"\b(?:step|iter(?:ation)?|epoch|loss)\b.{0,40}\d|\d(?:it/s|s/it)\b", re.IGNORECASE)
#: The first line of a traceback, or a frame of a traceback whose start is lost.
_TRACEBACK = re.compile(
    r"(?:(?P<source>[\w.:-]+): (?=Traceback|  File)|.*?) *"
    r"(?:Traceback \(most recent|(?P<frame>(?<!\S)File \".*, line \d+, in ))"
)
_EXCEPTION = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:\([\w.]*\))?(?P<message> ?: .*|:|)$")
_ERROR_NAME = re.compile(r"(?:(?!^)Error|Exception|Exit|Interrupt|Failure|\.(?:exc|errors?|exceptions?)\.\w+)$")
_FIGURE = re.compile(r" ?:\s*[-+]?[\d.,]+(?:e[-+]?\d+)?\s*%?", re.IGNORECASE)
#: Line between two exceptions of a chain; and the line before an exception that is ignored, which explains nothing.
_HANDLING, _IGNORED = "During handling of the above exception", "Exception ignored in"
_CHAINS = ("The above exception was the direct cause of the following exception", _HANDLING, _IGNORED)
_SPAWNED = re.compile(r"-- Process (\d{1,6}) terminated with the following error")
_LAST_ERROR = "Last error:"
#: Fields of each process in torchrun's summary.
_FIELD = re.compile(
    rf"time *: (?P<time>{TIME})|rank *: (?P<rank>\d{{1,6}}) \(local_rank: (?P<local>\d{{1,6}})\)"
    r"|exitcode *: (?P<code>-?\d{1,6})|traceback *: (?P<words>.*)|(?P<heading>Root Cause \(first|Failures:)"
)
#: Launchers that start several ranks in a task of srun or MPI, so that the task's number is no rank.
_LAUNCHER = re.compile(
    r"torchrun|elastic|distributed[./](?:run|launch)|accelerate[./]|deepspeed[./]launcher|\[launch\.py|local_rank: "
)


#: Weights of lines in which launchers, shells and gpuval report the end of the work.
_ABOUT_THE_END = (NONE, EXIT, STOP, EFFECT, SUMMARY, ECHO)
_STEP = "== step "


class CausePatterns:
    """The compiled root_causes.json. Each line of a failure contains one of `words`. `prefix` matches what precedes a
    line's text, `guess` unknown lines that sound like a failure. `exceptions` has the failure classes of exceptions
    whose text matches no line; `handled` are exceptions that programs expect and handle."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.words: tuple[str, ...] = tuple(document["words"])
        self.prefix = re.compile("|".join(document["prefixes"]).replace("{time}", TIME).replace("{level}", _LEVEL))
        self.guess = re.compile(_GUESS.replace("{words}", "|".join(document["guesses"])), re.IGNORECASE)
        self.exceptions = {kind: name for name, kinds in document["exceptions"].items() for kind in kinds}
        self.handled = frozenset(document["handled"])
        self._lines: list[tuple[re.Pattern[str], str, str]] = []
        #: Indices of known lines by a text that they contain: a log line has few of the texts, and a text few lines.
        self._by_part: dict[str, list[int]] = {}
        for group in document["lines"]:
            for line in group["lines"]:
                parts, pattern = _compile_line(line)
                for part in parts:
                    self._by_part.setdefault(part, []).append(len(self._lines))
                self._lines.append((pattern, group["weight"], group.get("class", UNPROVEN)))

    def look_up(self, text: str) -> tuple[Optional[re.Match[str]], str, str]:
        """Return the match of a log line's text with the first known line that fits, its weight and failure class."""
        for index in sorted({index for part, indices in self._by_part.items() if part in text for index in indices}):
            pattern, weight, name = self._lines[index]
            match = pattern.search(text)
            if match:
                return match, weight, name
        return None, "", UNPROVEN


def data() -> dict[str, Any]:
    """Return root_causes.json, which describes the log lines of known failures."""
    loader: Any = __spec__.loader  # the runner is a zip file
    document: dict[str, Any] = json.loads(loader.get_data(str(Path(__file__).with_name("root_causes.json"))))
    return document


@cache
def patterns() -> CausePatterns:
    return CausePatterns(data())


def _compile_line(line: str) -> tuple[list[str], re.Pattern[str]]:
    """Return texts of which each match contains one, and the regular expression, of a line of root_causes.json."""
    begins, ends = line.startswith("^"), line.endswith("$")
    pieces = _PLACE.split(line[begins : len(line) - ends])
    choices = [[piece] for piece in pieces[::2]]
    expression = "^" if begins else r"(?<![^\W_])" if pieces[0][:1].isalnum() else ""
    for index, piece in enumerate(pieces):
        regex = _PLACES.get(piece[0] if piece.startswith("*") else piece) if index % 2 else re.escape(piece)
        if regex is None:
            choices.append(piece[1:-1].split("|"))
            regex = f"(?:{'|'.join(map(re.escape, choices[-1]))})"
        elif regex.startswith("(?P<") and regex in expression:  # a group's name may occur once
            regex = re.sub(r"\?P<\w+>", "?:", regex)
        expression += regex
    return max(choices, key=lambda choice: min(map(len, choice))), re.compile(expression + "$" * ends)


@dataclass
class LineHead:
    """The prefix of a log line: which process printed the line, when, and at which log level."""

    source: str = ""
    rank: Optional[int] = None
    #: Local rank of the process on its node, and its task of MPI or srun.
    local: Optional[int] = None
    task: Optional[int] = None
    level: str = ""
    #: Format of the time (a group's name in `prefix`), and the time as text, which sorts within that format.
    stamp: tuple[str, str] = ("", "")


def text_lines(text: str) -> Iterator[str]:
    """Yield the lines of a log. A progress bar ends where the next process prints."""
    for end in ("\r", "it/s]", "/it]"):
        text = text.replace(end, f"{end}\n")
    for piece in text.split("\n"):
        is_long = len(piece) > LINE_HEAD + LINE_TAIL
        line = f"{piece[:LINE_HEAD]} ... {piece[-LINE_TAIL:]}" if is_long else piece
        for part in _unwrapped(line) if line.startswith('{"') else (line,):
            if part.strip():
                yield (_ESCAPES.sub("", part) if "\x1b" in part else part).rstrip()


def _unwrapped(line: str) -> list[str]:
    """Return the text in a log line that is JSON, as container engines write, split into lines."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return [line]
    texts = [document[key] for key in ("log", "message", "msg", "data") if isinstance(document.get(key), str)]
    return texts[0].splitlines() if texts else [line]


def split_head(line: str, sources: Collection[str] = ()) -> tuple[LineHead, str]:
    """Return the prefix of a log line, and its text. `sources`: hosts whose names prefix lines."""
    head, position = LineHead(), 0
    for _ in range(8):
        match = patterns().prefix.match(line, position)
        if match is None or match.end() == position:
            source = line[position:].partition(": ")[0]
            if source not in sources or head.source:
                break
            head.source = source
            position += len(source) + 2
            continue
        position = match.end()
        fields = {name: text for name, text in match.groupdict().items() if text}
        for name, text in fields.items():
            kind = name.partition("_")[0]
            if kind in _PROCESS:
                setattr(head, kind, int(text))
            elif kind == "level":
                head.level = head.level or text.upper()
            elif not head.stamp[0]:
                head.stamp = (name, re.sub("[T_]", " ", text).replace(",", "."))
        if match[0].startswith("(") or any(name.startswith(_PROCESS) for name in fields):
            head.source += match[0].strip()
    return head, line[position:]


class RootCause(NamedTuple):
    """What made a stage fail: failure class, one line of text, and the rank and package that the line names."""

    name: str
    text: str
    rank: Optional[int] = None
    package: str = ""
    weight: str = ERROR

    @property
    def is_primary(self) -> bool:
        """Whether the cause is from a program or the machine, not from a launcher or a process that lost its peer."""
        return self.weight in (FIRST, ERROR)

    @property
    def is_known(self) -> bool:
        return self.weight != GUESS

    def document(self) -> dict[str, Any]:
        """Return the root cause as a JSON object for a record's environment."""
        package = {"package": self.package} if self.package else {}
        return {"class": self.name, "text": self.text, "rank": self.rank, **package}

    def sentence(self) -> str:
        kind = "cause" if self.is_known else "probable cause"
        return f"{kind}: {self.text}" if self.rank is None else f"{kind}: rank {self.rank}: {self.text}"


@dataclass
class _LoggedFailure:
    weight: str
    name: str
    text: str
    head: LineHead
    package: str = ""

    @property
    def kind(self) -> str:
        return _DIGITS.sub("#", self.text.partition(":")[0])


@dataclass
class _ProcessStream:
    """The state of the log parser for the output of one process."""

    in_traceback: bool = False
    #: Whether the last line is indented; whether it names a file, so that the next line is source code.
    in_frame: bool = False
    is_frame: bool = False
    #: The exception before this line; the last failure, and whether this line continues the failure's text.
    before: Optional[_LoggedFailure] = None
    last: Optional[_LoggedFailure] = None
    continues: bool = False
    #: For the next exception: how it is chained to the exception before, the indent of its traceback, and its rank.
    chain: str = ""
    indent: int = 0
    rank: Optional[int] = None


def last_words(text: str) -> str:
    """Return the last line that the work itself wrote, without later lines of launchers and their tracebacks. Empty if
    the last step of a job wrote nothing; the last line if all are of launchers."""
    lines = list(text_lines(text))
    rules = [index for index, line in enumerate(lines) if not line.strip(_RULE)]
    framed: set[int] = set()
    for begin, end in zip(rules, rules[1:]):
        if any(_is_about_the_end(line) for line in lines[begin + 1 : end]):
            framed.update(range(begin, end))
    work = [line for index, line in enumerate(lines) if index not in framed and index not in rules]
    for line in reversed(work):
        if line.startswith(_STEP):
            return ""
        if not (_is_about_the_end(line) or line.startswith("  ")):
            return line
    return work[-1] if work else ""


def _is_about_the_end(line: str) -> bool:
    return patterns().look_up(split_head(line)[1])[1] in _ABOUT_THE_END


def in_log(path: Path, attempt: str = "", local_is_global: bool = True) -> Optional[RootCause]:
    """Return the root cause in a log file; None without a cause, or if the file cannot be read. `attempt`: text of the
    last line before the stage's own output. `local_is_global`: whether all ranks are on this node."""
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
    if marker:  # if the marker is in neither, the head is of an earlier attempt
        text = text[text.rindex(marker) + len(marker) :] if marker in text else tail or head
    return in_text(text.decode("utf-8", "replace"), local_is_global)


def in_text(text: str, local_is_global: bool = True) -> Optional[RootCause]:
    """Return the root cause in the output of a stage; None if no line reports a failure."""
    reader = _CauseReader()
    for line in text_lines(text):
        reader.read(line)
    return reader.cause(local_is_global)


def read_cause(document: Any) -> Optional[RootCause]:
    """Return the root cause in a record's environment, which is from a node and untrusted; None for anything else."""
    if not isinstance(document, dict):
        return None
    name, text, rank, package = (document.get(key) for key in ("class", "text", "rank", "package"))
    if not isinstance(name, str) or not _CLASS.fullmatch(name) or not isinstance(text, str):
        return None
    rank = rank if type(rank) is int and 0 <= rank < 10**6 else None
    return RootCause(name, _plain(text), rank, _plain(package) if isinstance(package, str) else "")


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:MAX_TEXT])


def _shortened(text: str, start: int = 0) -> str:
    """Return a text, cut to MAX_TEXT characters; a cut text begins at position `start` if that is far from 0."""
    text = text if len(text) <= MAX_TEXT or start < MAX_TEXT // 3 else text[start:]
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 105]} ... {text[-100:]}"


class _CauseReader:
    """Reads a log line by line and keeps its failures, by weight."""

    def __init__(self) -> None:
        self._patterns = patterns()
        self._failures: dict[str, list[_LoggedFailure]] = {weight: [] for weight in WEIGHTS}
        self._streams: dict[str, _ProcessStream] = {}
        #: Sources of process output whose next line is read, whatever its words are.
        self._open: set[str] = set()
        #: Names of hosts that prefix lines, as with pdsh.
        self._sources: set[str] = set()
        #: Log lines known to be harmless, with `#` in place of digits.
        self._innocent: set[str] = set()
        self._shape = ""
        self._compared = self._progress = 0
        #: The last line of a program before a launcher reports the program's end: perhaps the reason.
        self._words = ""
        #: The failed processes in torchrun's summary: value by field.
        self._ended: list[dict[str, str]] = []
        self._is_root = self._has_launcher = self._is_stopping = False

    def read(self, line: str) -> None:
        is_inside = bool(self._open)
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
        head, text = split_head(line, self._sources)
        stream = self._stream(head.source)
        is_part = self._read_summary(stream, text, head) or self._read_traceback(stream, text, head)
        if not is_part and head.level[:1] not in ("I", "D"):
            self._note(text, head, stream)

    def _stream(self, source: str) -> _ProcessStream:
        if source not in self._streams and len(self._streams) >= MAX_STREAMS:
            self._streams.clear()
            self._open.clear()
        return self._streams.setdefault(source, _ProcessStream())

    def _read_traceback(self, stream: _ProcessStream, text: str, head: LineHead) -> bool:
        """Return whether a log line is part of a traceback; the line that ends a traceback is kept as a failure."""
        may_begin = text.startswith("Traceback") or not stream.continues
        begin = _TRACEBACK.match(text) if may_begin and ("Traceback (most" in text or 'File "' in text) else None
        chain = next((chain for chain in _CHAINS if chain in text), "")
        spawned = _SPAWNED.match(text)
        if begin:
            if begin["source"] and len(self._sources) < MAX_STREAMS:
                self._sources.add(begin["source"])
                head.source = begin["source"]
                stream = self._stream(head.source)
            stream.in_traceback = True
            stream.is_frame = begin["frame"] is not None
            stream.indent = max(len(text) - len(text.lstrip()) - 2 * stream.is_frame, 0)
            self._open.add(head.source)
        elif chain:
            stream.chain = chain
        elif spawned:
            stream.rank = int(spawned[1])
        if begin or chain or spawned:
            return True
        if self._take_detail(stream, text.strip(), head.source):
            return True
        if text[:1] == "^":  # marks in the traceback of another process that prints at the same time
            text = text.replace("^", "").lstrip()
        text = text[min(stream.indent, len(text) - len(text.lstrip())) :]
        was_frame, stream.in_frame, stream.is_frame = stream.in_frame or stream.is_frame, text[:1] in " │|╭╰~", False
        if stream.in_frame or not text:
            return stream.in_traceback
        exception = _EXCEPTION.match(text)
        if not exception or not (_ERROR_NAME.search(exception["type"]) or (stream.in_traceback and was_frame)):
            return False
        if not stream.in_traceback and _FIGURE.fullmatch(exception["message"]):  # MeanAbsoluteError: 0.25
            return False
        self._open.discard(head.source)
        stream.in_traceback = False
        self._note(text, head, stream, exception["type"].rpartition(".")[2])
        return True

    def _take_detail(self, stream: _ProcessStream, text: str, source: str) -> bool:
        """Return whether a log line completes the last failure's text: it follows a colon, or NCCL's "Last error:"."""
        is_last = text.startswith(_LAST_ERROR)
        expected, stream.continues = stream.continues, text == _LAST_ERROR
        detail = text[len(_LAST_ERROR) :].strip() if is_last else text
        if stream.last is None or not (is_last or expected):
            return False
        if detail:
            self._open.discard(source)
            stream.last.text = _shortened(f"{stream.last.text[:150].rstrip(':')}: {detail}")
            stream.last = None
        else:
            self._open.add(source)
        return True

    def _note(self, text: str, head: LineHead, stream: _ProcessStream, exception: str = "") -> None:
        """Keep a log line that reports a failure, by its weight. `exception`: name of the exception in the line."""
        is_loud, text = head.level[:1] in ("E", "F", "C") and not text[:1].isspace(), text.strip()
        self._compared += not exception
        if self._compared > MAX_COMPARED and not exception:
            return
        is_warning = head.level[:1] == "W"
        match, weight, name = self._patterns.look_up(text)
        groups, start = (match.groupdict(), match.start()) if match else ({}, 0)
        if weight == EXIT:
            weight, text, start = _of_exit_code(int(groups["code"]), groups.get("local"), text)
        elif weight == STOP or (weight in (HINT, WEAK) and self._is_stopping):
            weight, self._is_stopping = ECHO, True
        if exception and weight in ("", NONE, HINT, WEAK, SUMMARY):
            weight, name, groups = ERROR, self._patterns.exceptions.get(exception, UNPROVEN), {}
        elif not weight and text and is_loud:
            weight = WEAK
        elif not weight and self._patterns.guess.search(text):
            weight = GUESS
        if is_warning and weight in (FIRST, ERROR):
            weight, name, groups = GUESS, UNPROVEN, {}
        elif weight not in WEIGHTS or (is_warning and weight not in (EFFECT, ECHO)):
            if len(self._innocent) < MAX_SHAPES and not exception:
                self._innocent.add(self._shape)
            return
        for key in ("rank", "local"):
            if groups.get(key) and getattr(head, key) is None:
                setattr(head, key, int(groups[key]))
        if exception and stream.rank is not None:
            head.rank = stream.rank
        package = (groups.get("package") or "").rstrip(".,:")
        failure = _LoggedFailure(weight, name, _shortened(text, start), head, package)
        if exception:
            self._chain(stream, failure)
            stream.rank, stream.indent = None, 0
            stream.continues = failure.weight == ERROR and text.endswith(":")
            if stream.continues:
                self._open.add(head.source)
        stream.last = failure
        self._keep(failure)

    def _chain(self, stream: _ProcessStream, failure: _LoggedFailure) -> None:
        """Chain a logged failure to the exception before, which explains it, unless programs expect that exception."""
        before, chain = stream.before, stream.chain
        stream.before, stream.chain = failure, ""
        if chain == _IGNORED:
            failure.weight = ECHO
        elif before is None or not chain or before.weight != ERROR:
            return
        elif chain == _HANDLING and before.text.partition(":")[0].rpartition(".")[2] in self._patterns.handled:
            self._failures[ERROR] = [kept for kept in self._failures[ERROR] if kept is not before]
        elif failure.weight == ERROR:
            failure.weight = EFFECT

    def _keep(self, failure: _LoggedFailure) -> None:
        if failure.weight in (FIRST, ERROR):
            if self._progress >= SURVIVED:
                for weight in (ERROR, HINT, WEAK):
                    self._failures[weight].clear()
            self._progress = 0
        if len(self._failures[failure.weight]) < MAX_FAILURES:
            self._failures[failure.weight].append(failure)

    def _read_summary(self, stream: _ProcessStream, text: str, head: LineHead) -> bool:
        """Return whether a log line is part of torchrun's summary, and keep its field. After a process's last field,
        keep how the process ended as a failure, and set its rank in `head`. False if the traceback itself follows."""
        match = _FIELD.match(text.strip())
        if match is None:
            return False
        fields = {name: words for name, words in match.groupdict().items() if words is not None}
        if "heading" in fields:
            self._is_root = fields["heading"].startswith("Root")
            return True
        if not self._ended or "words" in self._ended[-1] or fields.keys() & self._ended[-1].keys():
            self._ended = [*self._ended, {"root": "yes"} if self._is_root else {}][-MAX_FAILURES:]
        ended = self._ended[-1]
        ended.update(fields)
        words, rank = fields.get("words", ""), int(ended["rank"]) if "rank" in ended else None
        if "Traceback" in words:  # the program's traceback follows
            stream.indent, stream.rank = len(text) - len(text.lstrip()), rank
            return False
        if words and rank is not None and "code" in ended:
            weight, words, _ = _of_exit_code(int(ended["code"]), ended["local"], words)
            head.rank, head.local = rank, int(ended["local"])
            self._keep(_LoggedFailure(weight, UNPROVEN, words, head))
        return True

    def cause(self, local_is_global: bool) -> Optional[RootCause]:
        """Return the root cause: the first failure of the greatest weight in the log; None without a failure.
        `local_is_global`: whether all ranks are on this node."""
        failures = next((self._failures[weight] for weight in WEIGHTS if self._failures[weight]), None)
        if not failures:
            return None
        first = failures[0]
        for later in failures[1:]:
            form, time = first.head.stamp
            if form and later.head.stamp[0] == form and later.head.stamp[1] < time:
                first = later
        root, globals_of = self._root_rank()
        ranks = {self._rank(failure, globals_of, local_is_global): failure for failure in reversed(failures)}
        if root in ranks and ranks[root].kind == first.kind:
            first = ranks[root]  # all ranks failed alike: torchrun saw this rank fail first
        rank = self._rank(first, globals_of, local_is_global)
        if rank is None and first.weight not in (EFFECT, ECHO) and first.head.local is None:
            is_same = all(failure.kind == first.kind for failure in failures if failure.head.rank is None)
            if is_same or len(self._ended) == 1:
                rank = root if self._ended else self._only_rank()
        guess = self._failures[GUESS][0].text if self._failures[GUESS] else split_head(self._words)[1].strip()
        words = guess if first.weight == SUMMARY else ""
        text = _shortened(f"{words}; {first.text}") if words else first.text
        return RootCause(first.name, text, rank, first.package, first.weight)

    def _root_rank(self) -> tuple[Optional[int], dict[int, int]]:
        """Return the rank that torchrun names as the first to fail, and rank by local rank if that is certain."""
        ended = [(fields, int(fields["rank"]), int(fields["local"])) for fields in self._ended if "rank" in fields]
        pairs = {(local, rank) for _, rank, local in ended}
        certain = {local: rank for local, rank in pairs if [first for first, _ in pairs].count(local) == 1}
        roots = sorted((fields.get("time", ""), rank) for fields, rank, _ in ended if "root" in fields)
        earliest = {rank for time, rank in roots if time == roots[0][0]}
        return (earliest.pop() if len(earliest) == 1 else None), certain

    def _rank(self, failure: _LoggedFailure, globals_of: dict[int, int], local_is_global: bool) -> Optional[int]:
        head = failure.head
        if head.rank is not None:
            return head.rank
        if head.local is None:
            return None if self._has_launcher else head.task
        return globals_of.get(head.local, head.local if local_is_global else None)

    def _only_rank(self) -> Optional[int]:
        """Return the only rank that mpirun or srun names, if each of their processes is a rank; else None."""
        failures = (failure for weight in (ERROR, HINT, SUMMARY) for failure in self._failures[weight])
        ranks = {failure.head.rank for failure in failures} - {None}
        return ranks.pop() if len(ranks) == 1 and not self._has_launcher else None


def _of_exit_code(code: int, local: Optional[str], text: str) -> tuple[str, str, int]:
    """Return weight, text, and where the text begins if cut, for a launcher's report of a process's exit code."""
    number = -code if code < 0 else code - 128
    name = f"Signal {number} ({signal.Signals(number).name})" if number in set(signal.Signals) else ""
    weight = ECHO if number == signal.SIGTERM else HINT if name else SUMMARY
    if local is not None:
        text = f"exit code {code}: {text}" if text.startswith("Signal") else f"exit code {code}"
    text = f"{text}: {name}" if name and "Signal" not in text else text
    return weight, text, max(text.rfind(str(code)) - MAX_TEXT // 3, 0)
