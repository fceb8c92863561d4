"""Lists, tables and names in messages, and corrections of misspelled names."""

import difflib
import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any


def some_of(elements: Iterable[object], most: int = 8, between: str = ", ") -> str:
    """The first ``most`` elements as text, and the number of the others: ``a, b and 3 more``."""
    words = [str(thing) for thing in elements]
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return between.join(words[:most]) + more


def first_lines(lines: Sequence[str], most: int) -> list[str]:
    """The first ``most`` lines, and a line with the number of the others."""
    return [*lines[:most], *([f"and {len(lines) - most} more"] if len(lines) > most else [])]


def listed(value: Any) -> list[str]:
    """The items of a setting as a list of texts. ``value``: a list, or a text with commas, as from ``-e``."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    return [str(part).strip() for part in parts if str(part).strip()]


def with_remedy(text: str, remedy: str) -> str:
    """A message: what happened (``text``, without a final full stop), a colon, what to do (``remedy``, if any)."""
    if not remedy:
        return text
    return f"{text[:-1] if text.endswith('.') and not text.endswith('..') else text}: {remedy}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line of text for each row of cells, with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def meant(name: object, names: Iterable[str], cutoff: float = 0.6) -> str:
    """``; is it NAME?`` with the entry of ``names`` most similar to ``name``; empty if none is similar. ``cutoff``:
    least similarity, from 0 to 1."""
    near = difflib.get_close_matches(str(name), list(names), n=1, cutoff=cutoff)
    return f"; is it {near[0]}?" if near else ""


def nearest_spelling(word: str, names: Iterable[str], most: int = 2) -> str:
    """The entry of ``names`` nearest to a word, at most ``most`` typing mistakes away; else empty."""
    alike = [name for name in names if abs(len(word) - len(name)) <= most and len({*word} ^ {*name}) <= 2 * most]
    mistakes, nearest = min(((typing_mistakes(word, name), name) for name in alike), default=(most + 1, ""))
    return nearest if mistakes <= most else ""


def typing_mistakes(word: str, name: str) -> int:
    """Least number of typing mistakes (letter wrong, missing or added, two swapped) that turn ``name`` into ``word``:
    the optimal string alignment distance."""
    before, row = [0] * (len(name) + 1), list(range(len(name) + 1))
    for length, letter in enumerate(word, 1):
        earlier, before, row = before, row, [length]
        for column, right in enumerate(name, 1):
            row.append(min(before[column] + 1, row[-1] + 1, before[column - 1] + (letter != right)))
            if length > 1 and column > 1 and word[length - 2 : length] == right + name[column - 2]:
                row[-1] = min(row[-1], earlier[column - 2] + 1)
    return row[-1]


@functools.lru_cache(maxsize=4096)
def pattern_of(name: str) -> re.Pattern[str]:
    """The regular expression for a name in which ``*`` stands for any text."""
    return re.compile(".*".join(map(re.escape, name.split("*"))))


def natural_order(name: str) -> list[tuple[int, int | str]]:
    """Sort key of names with numbers: node-9 comes before node-10."""
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part)) if index % 2 else (1, part) for index, part in enumerate(parts)] + [(1, name)]
