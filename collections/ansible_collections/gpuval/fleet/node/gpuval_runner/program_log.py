"""Curves and figures from the log of a known program, by the labels that it prints: ``lm loss: 2.31E+00``.

A log is untrusted: a label is plain text, the work on a line is bounded by its length, and the memory by
``MAX_CURVES`` times ``MAX_POINTS`` however long the program runs.
"""

from __future__ import annotations

import math
import re
import time
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Callable, Optional, Union

from gpuval_runner.patterns import NUMBER, base_unit, read_number
from gpuval_runner.plan import OutputReader, OutputStep, OutputValue
from gpuval_runner.result import RecordCurve, RecordMetric, number

MAX_CURVES = 256
MAX_POINTS = 2048
MAX_STEP = 10**12
#: The first fifth of the values, at most so many, is warm-up: compilation, allocation, caches.
WARM_UP = 10
#: Several ranks print a step at nearly the same time. Further back, a repeated step is one that was trained again.
RECENT_STEPS = 8
MAX_PREFIX = 200
MAX_OCCURRENCES = 16

_BETWEEN = re.compile(r"['\"]?[ \t]{0,64}[:=]?[ \t]{0,64}['\"]?")
_CONTINUED = re.compile(r"[.,:]\d")  # 1,5 and 0:01:23 are no numbers that one could be sure of
#: Which rank prints a line, as torchrun, DeepSpeed, Primus, mpirun, srun and vLLM prefix it.
_RANK = re.compile(
    r"\[(?:rank|default|Rank )-?(\d{1,6})(?:/\d{1,6})?\]|^\[\d{1,6},(\d{1,6})\]<std(?:out|err)>|^ {0,8}(\d{1,6}): "
    r"|\bEngine (\d{3,6}):"
)


@dataclass
class _Values:
    """What one rank reports under one label. Beyond ``MAX_POINTS``, every second value is kept, then every fourth.
    `first`, `last`, `max`, `sum` and `nonfinite` are figures of all values."""

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
        """Return one figure of the values, None where it is not finite."""
        if statistic != "median":
            return number(getattr(self, statistic))
        warm_up = min(WARM_UP, (self.count + 4) // 5) if self.count > 1 else 0
        warm = self.y[-(-warm_up // self.stride) :]
        good = sorted(value for value in warm if math.isfinite(value) and (value > 0 or not positive))
        # Not by `statistics`, which takes the runner's start 10 ms to import.
        return good[(len(good) - 1) // 2] / 2 + good[len(good) // 2] / 2 if good else None


class ProgramLog:
    """Reads the lines of one stage's output as one program prints them."""

    def __init__(self, reader: OutputReader, stage: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader, self._stage, self._clock = reader, stage, clock
        self._begun = clock()
        self._values: dict[tuple[int, Optional[int]], _Values] = {}
        self._step: Optional[float] = None
        self._last_step: Optional[float] = None

    def take(self, line: str, complete: bool = True) -> None:
        """Read a line. Of one that is not complete, a number at its end is left out: digits may lack."""
        step = _labelled(line, self._reader.step, complete) if self._reader.step else None
        if step is not None and step.is_integer() and 0 <= step <= MAX_STEP:
            self._step = step
            self._last_step = max(step, self._last_step or 0)
        for index, value in enumerate(self._reader.values):
            figure = _labelled(line, value, complete)
            if figure is not None:
                self._add(index, _rank(line), figure)

    def metrics(self) -> list[RecordMetric]:
        """Return the figures of what was read so far."""
        metrics: list[RecordMetric] = []
        for (index, rank), values in self._values.items():
            value = self._reader.values[index]
            scope = self._scope(index, rank)
            for name, statistic in value.figures.items():
                unit = "count" if statistic == "nonfinite" else _unit(value)[1]
                figure = values.figure(statistic, value.positive)
                metrics.append({"name": f"{self._stage}_{name}", "value": figure, "unit": unit, "scope": scope})
        if self._last_step is not None and metrics:
            name = f"{self._stage}_steps_count"
            metrics.append({"name": name, "value": self._last_step, "unit": "count", "scope": "node"})
        return metrics

    def curves(self) -> list[RecordCurve]:
        """Return the series of what was read."""
        return [
            {
                "name": f"{self._stage}_{value.curve}",
                "unit": _unit(value)[1],
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
        values.add(x, figure * _unit(self._reader.values[index])[0])

    def _scope(self, index: int, rank: Optional[int]) -> str:
        """The node, unless several ranks report the value."""
        several = sum(other_index == index for other_index, _ in self._values) > 1
        return f"rank:{rank}" if several and rank is not None else "node"


def _labelled(line: str, sought: Union[OutputStep, OutputValue], complete: bool) -> Optional[float]:
    """Return the first number that follows one of the labels."""
    if sought.contains not in line or (sought.without and sought.without in line):
        return None
    for label in sought.labels:
        start = -1
        for _ in range(MAX_OCCURRENCES):
            start = line.find(label, start + 1)
            if start < 0:
                break
            figure = _figure(line, start, start + len(label), complete)
            if figure is not None:
                return figure
    return None


def _figure(line: str, start: int, end: int, complete: bool) -> Optional[float]:
    before = line[start - 1 : start]
    if before.isalnum() or before == "_":
        return None  # the end of another word: train_loss is not loss
    between = _BETWEEN.match(line, end)
    position = between.end() if between else end
    match = NUMBER.match(line, position)
    if match is None or (position == end and line[end - 1].isalnum()) or _CONTINUED.match(line, match.end()):
        return None
    if not complete and match.end() == len(line):
        return None
    return read_number(match.group())


def _rank(line: str) -> Optional[int]:
    match = _RANK.search(line[:MAX_PREFIX])
    return int(next(group for group in match.groups() if group)) if match else None


def _unit(value: OutputValue) -> tuple[float, str]:
    """Return the factor to the base unit, and what that is called."""
    base = base_unit(value.unit)
    return (base.factor, base.unit) if base else (1.0, value.unit)
