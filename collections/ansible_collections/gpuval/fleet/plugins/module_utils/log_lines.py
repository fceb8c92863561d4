"""The lines of a log, and what stands before each line's own text: a time, a level, the process that prints it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Optional

from .cause_patterns import patterns

#: Of a line: its beginning, and its end.
LINE_HEAD, LINE_TAIL = 1000, 400

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_PROCESS = ("rank", "local", "task")


@dataclass
class LineHead:
    """What stands before a line's own text: which process prints it, when and how loudly."""

    source: str = ""
    rank: Optional[int] = None
    #: On its node; of MPI or srun.
    local: Optional[int] = None
    task: Optional[int] = None
    level: str = ""
    #: The form of the time, and the time.
    stamp: tuple[str, str] = ("", "")

    @property
    def is_warning(self) -> bool:
        return self.level[:1] == "W"


def text_lines(text: str) -> Iterator[str]:
    """The lines of a log. A bar of progress ends where the next process prints."""
    for end in ("\r", "it/s]", "/it]"):
        text = text.replace(end, f"{end}\n")
    for piece in text.split("\n"):
        is_long = len(piece) > LINE_HEAD + LINE_TAIL
        line = f"{piece[:LINE_HEAD]} ... {piece[-LINE_TAIL:]}" if is_long else piece
        for part in _unwrapped(line) if line.startswith('{"') else (line,):
            if part.strip():
                yield (_ESCAPES.sub("", part) if "\x1b" in part else part).rstrip()


def _unwrapped(line: str) -> list[str]:
    """The text in a line of a log whose lines are JSON, as container engines write them."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return [line]
    texts = [document[key] for key in ("log", "message", "msg", "data") if isinstance(document.get(key), str)]
    return texts[0].splitlines() if texts else [line]


def split_head(line: str, sources: Collection[str] = ()) -> tuple[LineHead, str]:
    """What stands before a line's own text, and the text. `sources`: hosts that prefix their lines."""
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
