"""Metrics and curves read from a stage's output: by patterns, and by labels that programs print: ``lm loss: 2.31E+00``.
Output is untrusted: the work on a line is bounded by its length, the memory by ``MAX_CURVES`` times ``MAX_POINTS``."""

from __future__ import annotations

import math
import re
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Optional, Union

from gpuval_runner.plan import OutputPattern, OutputReader, OutputStep, OutputValue
from gpuval_runner.result import METRIC_NAME, RecordCurve, RecordMetric, number
from gpuval_runner.text import one_line

MAX_LINE = 4096
MAX_NAMES = 256
MAX_SHOWN = 80

#: A number as tools print it: sign, thousands in groups of three, fraction, exponent, or a word for what is no number.
NUMBER = re.compile(
    r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?)(?![A-Za-z])",
    re.IGNORECASE | re.ASCII,
)
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_CONTINUED = re.compile(r"[.,]\d")  # 1,5 and 1.2.3 are ambiguous: not read as numbers
_LINE_END = re.compile(rb"[\r\n]+")


MAX_CURVES = 256
MAX_POINTS = 2048
MAX_STEP = 10**12
#: Warm-up (compilation, allocation, caches) is the first fifth of all values, but at most this number of values.
WARM_UP = 10
#: Number of last steps in a log among which a repeated number is another rank's line for the step. A number from before
#: these steps means that the training went back to a checkpoint, and trains the step again.
RECENT_STEPS = 8
MAX_PREFIX = 200
MAX_OCCURRENCES = 16

_BETWEEN = re.compile(r"['\"]?[ \t]{0,64}[:=]?[ \t]{0,64}['\"]?")
_CONTINUED_OR_TIME = re.compile(r"[.,:]\d")  # also times such as 0:01:23, which are no numbers
#: Prefix of a line that names the printing rank, as by torchrun, DeepSpeed, Primus, mpirun, srun and vLLM.
_RANK = re.compile(
    r"\[(?:rank|default|Rank )-?(\d{1,6})(?:/\d{1,6})?\]|^\[\d{1,6},(\d{1,6})\]<std(?:out|err)>|^ {0,8}(\d{1,6}): "
    r"|\bEngine (\d{3,6}):"
)


@dataclass(frozen=True)
class Unit:
    """A base unit: the ending of a metric's name, the unit's name, and the factor that converts to the base unit."""

    ending: str
    unit: str
    factor: float


def _units() -> dict[str, Unit]:
    table: dict[str, Unit] = {}

    def add(names: str, ending: str, unit: str, factor: float = 1.0) -> None:
        for name in names.split():
            table[name.lower()] = Unit(ending, unit, factor)

    add("s sec secs second seconds", "seconds", "seconds")
    add("ms msec millisecond milliseconds", "seconds", "seconds", 1e-3)
    add("us µs usec microsecond microseconds", "seconds", "seconds", 1e-6)
    add("min minute minutes", "seconds", "seconds", 60)
    for per in ("/s", "/sec", "/second", "_per_second"):
        for noun, ending in (("token", "tokens"), ("tok", "tokens")):
            add(f"{noun}{per} {noun}s{per}", f"{ending}_per_second", f"{ending}/s")
        for noun in ("sample", "example", "image", "img", "sequence", "record"):
            add(f"{noun}{per} {noun}s{per}", "samples_per_second", "samples/s")
    for prefix, factor in (("", 1.0), ("k", 1e3), ("m", 1e6), ("g", 1e9), ("t", 1e12)):
        for per in ("/s", "/sec", "ps"):
            add(f"{prefix}bit{per} {prefix}bits{per}", "bytes_per_second", "bytes/s", factor / 8)
        add(f"{prefix}byte/s {prefix}bytes/s {prefix}bytes/sec", "bytes_per_second", "bytes/s", factor)
    for power, letter in enumerate("kmgt", start=1):
        add(f"{letter}byte {letter}bytes", "bytes", "bytes", 1e3**power)
        add(f"{letter}ib", "bytes", "bytes", 1024.0**power)
        add(f"{letter}ib/s {letter}ib/sec", "bytes_per_second", "bytes/s", 1024.0**power)
        add(f"{letter}hz", "hertz", "Hz", 1e3**power)
    add("bytes byte", "bytes", "bytes")
    for power, letter in ((0, "t"), (-1, "g"), (1, "p")):
        add(f"{letter}flops {letter}flop/s {letter}flops/s", "tflops", "TFLOP/s", 1e3**power)
    add("%", "ratio", "ratio", 0.01)
    add("ratio", "ratio", "ratio")
    add("c °c celsius", "celsius", "C")
    add("w watt watts", "watts", "W")
    add("kw", "watts", "W", 1e3)
    add("hz hertz", "hertz", "Hz")
    return table


#: Base units by unit names in lower case, of units that mean the same in upper and lower case.
UNITS = _units()

#: Base units by unit names in which b is a bit and B is a byte.
CASED_UNITS = {
    f"{prefix}{letter}{per}": Unit(ending, unit, factor * share)
    for prefix, factor in (("", 1.0), ("k", 1e3), ("K", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
    for letter, share in (("B", 1.0), ("b", 0.125))
    for per, ending, unit in (
        ("", "bytes", "bytes"),
        ("/s", "bytes_per_second", "bytes/s"),
        ("/sec", "bytes_per_second", "bytes/s"),
        ("ps", "bytes_per_second", "bytes/s"),
    )
    if per or letter == "B"
}


class PatternReader:
    """Reads a stage's output by patterns and keeps the last value of every metric, in bounded memory."""

    def __init__(
        self,
        patterns: Iterable[OutputPattern],
        stage: str,
        logs: Sequence[ProgramLog] = (),
        hide: Callable[[str], str] = lambda text: text,
    ) -> None:
        """`logs`, readers of program logs, get the same lines; of two metrics with one name, that of a pattern counts.
        `hide` replaces secrets in a text: no metric's name or unit contains a part of a secret."""
        self._patterns = [(pattern, re.compile(pattern.pattern)) for pattern in patterns]
        self._stage = stage
        self._logs = logs
        self._hide = hide
        self._rest = b""
        self._found: dict[str, RecordMetric] = {}
        #: Last line without a number that a pattern matched, by pattern; None once a matching line had a number.
        self._unread: dict[str, Optional[str]] = {}
        self.is_cut = False

    def feed(self, data: bytes) -> None:
        """Read the next piece of output."""
        if not self._patterns and not self._logs:
            return
        *lines, incomplete_line = _LINE_END.split(self._rest + data)
        self._rest = incomplete_line[:MAX_LINE]
        for line in lines:
            self._line(line, complete=len(line) < MAX_LINE)

    def finish(self) -> None:
        """Read what follows the last line break of the output as its last line."""
        self._line(self._rest, complete=False)
        self._rest = b""

    def metrics(self) -> list[RecordMetric]:
        """Return the metrics found so far: for each name the last match."""
        by_name = {
            (metric["name"], metric["scope"]): metric for log in reversed(self._logs) for metric in log.metrics()
        }
        by_name.update({(metric["name"], metric["scope"]): metric for metric in self._found.values()})
        return list(by_name.values())

    def lines_without_figure(self) -> list[str]:
        """Return, for each pattern that only matched lines without a number, the last of these lines."""
        return [line for line in self._unread.values() if line]

    def curves(self) -> list[RecordCurve]:
        """Return the curves that the program logs hold."""
        by_name = {(curve["name"], curve["scope"]): curve for log in reversed(self._logs) for curve in log.curves()}
        return list(by_name.values())

    def _line(self, line: bytes, complete: bool) -> None:
        if not line:
            return
        text = _ESCAPE.sub("", line[:MAX_LINE].decode("utf-8", "replace"))
        for pattern, expression in self._patterns:
            match = expression.search(text)
            metric = match and _metric_of_match(match, pattern, self._stage, self._hide)
            if match and self._unread.get(pattern.pattern, "") is not None:
                self._unread[pattern.pattern] = None if metric else one_line(self._hide(match.group()), MAX_SHOWN)
            if metric and (metric["name"] in self._found or len(self._found) < MAX_NAMES):
                self._found[metric["name"]] = metric
            elif metric:
                self.is_cut = True
        for log in self._logs:
            log.take(text, complete)


def read_number(text: str) -> Optional[float]:
    """Return the number that a text consists of; NaN for a word such as nan, None for any other text. A comma is
    accepted only between groups of three digits: ``1,234.5`` is read, ``1,5`` (1.5 or 15?) is not."""
    if not NUMBER.fullmatch(text):
        return None
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def base_unit(unit: str) -> Optional[Unit]:
    """Return the base unit for a unit as tools print it, None for an unknown unit."""
    return CASED_UNITS.get(unit) or UNITS.get(unit.lower())


def _metric_of_match(
    match: re.Match[str], pattern: OutputPattern, stage: str, hide: Callable[[str], str]
) -> Optional[RecordMetric]:
    value = _read_value(match)
    if value is None:
        return None
    groups = {name: _text_of_group(match, name, hide) for name in match.groupdict() if name != "value"}
    written = (groups.get("unit") or pattern.unit or "").strip().rstrip(".,;:)") + (groups.get("per") or "")
    name = _metric_name(groups.get("name") or pattern.name or f"{stage}_performance")
    base = base_unit(written)
    if base:
        value *= base.factor
        if name != base.ending and not name.endswith("_" + base.ending):
            name = f"{name[: 95 - len(base.ending)]}_{base.ending}"
    return {
        "name": name,
        "value": value if math.isfinite(value) else None,
        "unit": base.unit if base else written[:32],
        "scope": "node",
    }


def _text_of_group(match: re.Match[str], group: str, hide: Callable[[str], str]) -> str:
    """Return the text of a group in a match; empty if a part of the text is a secret that `hide` replaces."""
    text, (start, end), line = match[group] or "", match.span(group), match.string
    return text if not text or hide(line) == hide(line[:start]) + text + hide(line[end:]) else ""


def _read_value(match: re.Match[str]) -> Optional[float]:
    """Return the whole number that begins in the group ``value``, even if the group ends within (at the e of 1.5e3)."""
    text = match.group("value")
    if text is None:
        return None
    start = match.start("value") + len(text) - len(text.lstrip())
    printed = NUMBER.match(match.string, start)
    if printed and printed.end() >= start + len(text.strip()):
        return None if _CONTINUED.match(match.string, printed.end()) else read_number(printed.group())
    return read_number(text.strip().rstrip(",."))


def _metric_name(text: str) -> str:
    """Return a text as a valid name of a metric: lower case, ``_`` for all but letters and digits, 96 characters."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    name = name if name[:1].isalpha() else f"value_{name}"
    return name[:96] if METRIC_NAME.fullmatch(name[:96]) else "value"


@dataclass
class _Values:
    """The values that one rank prints under one label. Beyond ``MAX_POINTS``, `x` and `y` keep every second value, then
    every fourth. `first`, `last`, `max`, `sum` and `nonfinite` (count) are of all values."""

    x: array[float] = field(default_factory=lambda: array("d"))
    y: array[float] = field(default_factory=lambda: array("d"))
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    stride: int = 1
    count: int = 0
    nonfinite: float = 0.0
    sum: float = 0.0
    max: float = -math.inf
    first: float = math.nan
    last: float = math.nan

    def add(self, x: float, value: float) -> None:
        self.recent.append(x)
        if self.count == 0:
            self.first = value
        self.last = value
        if math.isfinite(value):
            self.sum += value
            self.max = max(self.max, value)
        else:
            self.nonfinite += 1
        if self.count % self.stride == 0:
            if len(self.y) == MAX_POINTS:
                self.x, self.y, self.stride = self.x[::2], self.y[::2], self.stride * 2
            self.x.append(x)
            self.y.append(value)
        self.count += 1

    def figure(self, statistic: str, positive: bool) -> Optional[float]:
        """Return a statistic such as ``median`` of the values, None if it is not finite. A `positive` median is that of
        values above 0."""
        if statistic != "median":
            return number(getattr(self, statistic))
        warm_up = min(WARM_UP, (self.count + 4) // 5) if self.count > 1 else 0
        warm = self.y[-(-warm_up // self.stride) :]
        good = sorted(value for value in warm if math.isfinite(value) and (value > 0 or not positive))
        # Without the module `statistics`, whose import would slow the runner's start by 10 ms.
        return good[(len(good) - 1) // 2] / 2 + good[len(good) // 2] / 2 if good else None


class ProgramLog:
    """Reads the metrics and curves of one program from the lines of a stage's output."""

    def __init__(self, reader: OutputReader, stage: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader, self._stage, self._clock = reader, stage, clock
        self._bases = [base_unit(value.unit) or Unit("", value.unit, 1.0) for value in reader.values]
        self._begun = clock()
        self._values: dict[tuple[int, Optional[int]], _Values] = {}
        self._step: Optional[float] = None
        self._last_step: Optional[float] = None

    def take(self, line: str, complete: bool = True) -> None:
        """Read a line. In an incomplete line, a number at the end is left out: digits may be missing."""
        step = _find_labelled(line, self._reader.step, complete) if self._reader.step else None
        if step is not None and step.is_integer() and 0 <= step <= MAX_STEP:
            self._step = step
            self._last_step = max(step, self._last_step or 0)
        for index, value in enumerate(self._reader.values):
            figure = _find_labelled(line, value, complete)
            if figure is not None:
                self._add(index, _read_rank(line), figure)

    def metrics(self) -> list[RecordMetric]:
        """Return the metrics of the lines read so far."""
        metrics: list[RecordMetric] = []
        for (index, rank), values in self._values.items():
            value = self._reader.values[index]
            scope = self._scope(index, rank)
            for name, statistic in value.figures.items():
                unit = "count" if statistic == "nonfinite" else self._bases[index].unit
                figure = values.figure(statistic, value.positive)
                metrics.append({"name": f"{self._stage}_{name}", "value": figure, "unit": unit, "scope": scope})
        if self._last_step is not None and metrics:
            name = f"{self._stage}_steps_count"
            metrics.append({"name": name, "value": self._last_step, "unit": "count", "scope": "node"})
        return metrics

    def curves(self) -> list[RecordCurve]:
        """Return the curves of the lines read so far."""
        return [
            {
                "name": f"{self._stage}_{value.curve}",
                "unit": self._bases[index].unit,
                "scope": self._scope(index, rank),
                "x_unit": self._reader.x_unit,
                "x": list(values.x),
                "y": [number(y) for y in values.y],
            }
            for (index, rank), values in self._values.items()
            for value in (self._reader.values[index],)
            if value.curve
        ]

    def _add(self, index: int, rank: Optional[int], figure: float) -> None:
        """Add a figure that a rank (None: unknown) printed, to the values number `index` of the reader."""
        values = self._values.get((index, rank))
        if values is None:
            if len(self._values) >= MAX_CURVES:
                return
            values = self._values[index, rank] = _Values()
        if self._reader.x_unit == "seconds":
            x = round(self._clock() - self._begun, 3)
        elif self._step is None:
            x = float(values.count + 1)
        elif self._step in values.recent:
            return
        else:
            x = self._step
        values.add(x, figure * self._bases[index].factor)

    def _scope(self, index: int, rank: Optional[int]) -> str:
        """Return the scope of a metric: ``rank:<n>`` if several ranks report the value, else ``node``."""
        several = sum(other_index == index for other_index, _ in self._values) > 1
        return f"rank:{rank}" if several and rank is not None else "node"


def _find_labelled(line: str, sought: Union[OutputStep, OutputValue], complete: bool) -> Optional[float]:
    """Return the first number in a line that follows one of the labels of `sought`."""
    if sought.contains not in line or (sought.without and sought.without in line):
        return None
    for label in sought.labels:
        start = -1
        for _ in range(MAX_OCCURRENCES):
            start = line.find(label, start + 1)
            if start < 0:
                break
            figure = _read_figure(line, start, start + len(label), complete)
            if figure is not None:
                return figure
    return None


def _read_figure(line: str, start: int, end: int, complete: bool) -> Optional[float]:
    """Return the number after the label in ``line[start:end]``; None if other text follows. In a line that is not
    `complete`, a number at the end does not count: digits may be missing."""
    before = line[start - 1 : start]
    if before.isalnum() or before == "_":
        return None  # the label ends another word: train_loss is not loss
    between = _BETWEEN.match(line, end)
    position = between.end() if between else end
    match = NUMBER.match(line, position)
    if match is None or (position == end and line[end - 1].isalnum()) or _CONTINUED_OR_TIME.match(line, match.end()):
        return None
    if not complete and match.end() == len(line):
        return None
    return read_number(match.group())


def _read_rank(line: str) -> Optional[int]:
    match = _RANK.search(line[:MAX_PREFIX])
    return int(next(group for group in match.groups() if group)) if match else None
