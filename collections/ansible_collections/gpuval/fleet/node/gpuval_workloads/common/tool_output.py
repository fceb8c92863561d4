"""Helpers to parse tools' output: plain lines, JSON among other text, numbers. Nothing here ever raises."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

#: Maximum number of braces at which a JSON object is tried: tools print a few lines before their JSON, not thousands.
MAX_TRIES = 200

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?", re.ASCII)
_TRAILING_COMMA = re.compile(r",(?=\s*[\]}])")


#: Texts that report a hardware fault, whatever else a tool prints.
_HARDWARE = re.compile(
    r"fallen off the bus"
    r"|\b(?:uncorrect(?:able|ed)|double[- ]bit)\b(?=.{0,60}\berrors?\b)"
    r"|\bXid\b(?:\s*\([^)]*\))?(?:\s+errors?)?[\s:]*(?:48|62|64|74|79|94|95)\b"
    r"|\bHW Exception by GPU\b",
    re.IGNORECASE,
)
#: Texts that report an aborted test. They contradict complete results.
_BROKEN_OFF = re.compile(
    r"\bTest (?:(?:NCCL|RCCL|CUDA|HIP) )?failure\b"
    r"|\bunhandled (?:cuda|hip|system) error\b"
    r"|\b(?:CUDA|HIP|NCCL|RCCL) (?:runtime )?(?:error|failure)\b(?!s)"
    r"|\b(?:cuda|hip)Error[A-Z]\w+"
    r"|\bMemory access fault by GPU\b"
    r"|\bSegmentation fault\b",
    re.IGNORECASE,
)
#: Words that negate the report of a fault: "no uncorrectable ECC errors", "Uncorrectable ECC errors: 0", but not "GPU
#: 0".
_DENIED_BEFORE = re.compile(
    r"(?<!GPU )(?<!device )(?<!rank )(?<!node )\b(?:no|without|0|zero)\b(?:\s+\w+){0,3}\s*$", re.IGNORECASE
)
_DENIED_AFTER = re.compile(
    r"^(?:\s+(?!GPU|device|rank|node)\w+){0,5}(?:\(s\))?(?:\s*[:=]|\s+count:?)\s*(?:0|none|no|n/a)\b", re.IGNORECASE
)
MAX_ERROR_LINES = 8


def plain(text: str) -> str:
    """Return a text without colours and other escapes, with one newline at the end of every line."""
    return _ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


def error_lines(text: str, *, complete: bool, also: re.Pattern[str] | None = None) -> list[str]:
    """Return the lines of a tool's output that report a hardware fault. With ``complete`` results, also lines that
    report an aborted test or match ``also``, the tool's own form of an error."""
    patterns = [_HARDWARE, *([_BROKEN_OFF] if complete else []), *([also] if complete and also else [])]
    lines: dict[str, None] = {}
    for line in plain(text).splitlines():
        for match in (match for pattern in patterns for match in pattern.finditer(line)):
            if not _DENIED_BEFORE.search(line[: match.start()]) and not _DENIED_AFTER.match(line[match.end() :]):
                lines[shortened(line, 160)] = None
    return list(lines)[:MAX_ERROR_LINES]


def number(text: object) -> float | None:
    """Return a text or number as a finite number, None for anything else: N/A, nan, empty."""
    if isinstance(text, str):
        text = float(text) if _NUMBER.fullmatch(text.strip()) else None
    if isinstance(text, bool) or not isinstance(text, (int, float)):
        return None
    try:
        return float(text) if math.isfinite(text) else None
    except OverflowError:
        return None


def whole(text: object) -> int | None:
    """Return a text as an integer (1.04858e+06 is one), else None."""
    value = number(text)
    return int(value) if value is not None and value == int(value) else None


def json_objects(text: str) -> Iterator[dict]:
    """Yield the complete JSON objects in a text; of an object that is cut off, the complete objects inside it."""
    decoder = json.JSONDecoder()
    position = tries = 0
    while tries < MAX_TRIES:
        position = text.find("{", position)
        if position < 0:
            return
        tries += 1
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            position += 1
            continue
        yield value
        position = end


def json_object(text: str, *, key: str) -> dict | None:
    """Return the first complete JSON object in a text that has this key, None without one."""
    return next((document for document in json_objects(text) if key in document), None)


def without_trailing_commas(text: str) -> str:
    """Return a JSON text without the comma that some tools print after the last item of a list or an object."""
    return _TRAILING_COMMA.sub("", text)


def dicts(value: object) -> list[dict]:
    """Return the objects in a value that should be a list of objects; other items are left out."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def texts(value: object) -> list[str]:
    """Return the texts in a value that should be a text or a list of texts."""
    if isinstance(value, str):
        return [value]
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def metric_part(text: str, length: int = 48) -> str:
    """Return a text as a part of a metric's name: lower-case letters, digits, underscores."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:length].strip("_") or "unnamed"


def shortened(text: str, length: int = 240) -> str:
    """Return a text as one printable line of at most ``length`` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= length else line[: length - 1] + "…"
