"""What the lines of failed programs mean: the data of ``root_causes.json``, compiled.

A line there is plain text as a program prints it, with placeholders: ``*`` any text, ``{a|b}`` either, ``{package}``,
``{command}``, ``{file}``, ``{rank}``, ``{local}``, ``{code}``, ``{number}``; ``^`` and ``$`` stand for the line's start
and end. The first matching line counts.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Optional

#: The class of a text that proves nothing about whose fault the failure is.
UNPROVEN = "crash"
TIME = r"\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d"

_LEVEL = "ERROR|WARN|WARNING|INFO|DEBUG|CRITICAL|FATAL"
#: What denies that a line which sounds like a failure is one: it counts.
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


class CausePatterns:
    """The compiled data. A line of a failure has one of `words`; `prefix` stands before a line's own text; `guess` is
    in unknown lines that sound like a failure; `exceptions` gives the classes of those whose text matches no line;
    programs expect and handle those of `handled`."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.words: tuple[str, ...] = tuple(document["words"])
        self.prefix = re.compile("|".join(document["prefixes"]).replace("{time}", TIME).replace("{level}", _LEVEL))
        self.guess = re.compile(_GUESS.replace("{words}", "|".join(document["guesses"])), re.IGNORECASE)
        self.exceptions = {kind: name for name, kinds in document["exceptions"].items() for kind in kinds}
        self.handled = frozenset(document["handled"])
        self._lines: list[tuple[re.Pattern[str], str, str]] = []
        #: Which lines a text with a certain part may match: few parts are in a text, and few lines have each.
        self._by_part: dict[str, list[int]] = {}
        for group in document["lines"]:
            for line in group["lines"]:
                parts, pattern = _compiled(line)
                for part in parts:
                    self._by_part.setdefault(part, []).append(len(self._lines))
                self._lines.append((pattern, group["weight"], group.get("class", UNPROVEN)))

    def look_up(self, text: str) -> tuple[Optional[re.Match[str]], str, str]:
        """The first line of the data that the text matches, with its weight and class."""
        for index in sorted({index for part, indices in self._by_part.items() if part in text for index in indices}):
            pattern, weight, name = self._lines[index]
            match = pattern.search(text)
            if match:
                return match, weight, name
        return None, "", UNPROVEN


def data() -> dict[str, Any]:
    """What the lines of known failures mean."""
    loader: Any = __spec__.loader  # the runner is a zip
    document: dict[str, Any] = json.loads(loader.get_data(str(Path(__file__).with_name("root_causes.json"))))
    return document


@cache
def patterns() -> CausePatterns:
    return CausePatterns(data())


def _compiled(line: str) -> tuple[list[str], re.Pattern[str]]:
    """Of a line of the data the texts of which one must be there, and the expression for the whole of it."""
    begins, ends = line.startswith("^"), line.endswith("$")
    pieces = _PLACE.split(line[begins : len(line) - ends])
    choices = [[piece] for piece in pieces[::2]]
    expression = "^" if begins else r"(?<![^\W_])" if pieces[0][:1].isalnum() else ""
    for index, piece in enumerate(pieces):
        regex = _PLACES.get(piece[0] if piece.startswith("*") else piece) if index % 2 else re.escape(piece)
        if regex is None:
            choices.append(piece[1:-1].split("|"))
            regex = f"(?:{'|'.join(map(re.escape, choices[-1]))})"
        elif regex.startswith("(?P<") and regex in expression:  # a group has its name once
            regex = re.sub(r"\?P<\w+>", "?:", regex)
        expression += regex
    return max(choices, key=lambda choice: min(map(len, choice))), re.compile(expression + "$" * ends)
