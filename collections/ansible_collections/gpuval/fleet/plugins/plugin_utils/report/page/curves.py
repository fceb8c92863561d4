"""Curves of every node for report.html: telemetry over the time since the node's first stage, training loss over
steps. Files may be large and nodes a thousand: each file is read once, and thinned to its share of the page. A
malformed file has no curves; the report lists it as a problem."""

import math
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from ...records.evidence import MAX_SERIES_BYTES
from .encode import GREATEST, SharedValues, pairs, short

#: Maximum points of all nodes together; each takes two characters.
MAX_POINTS = 450_000
MAX_POINTS_OF_A_NODE = 24_000
MAX_BINS = 400
MIN_BINS = 24
#: With fewer points per curve the GPUs of a node are shown as min, median and max.
MIN_BINS_OF_A_GPU = 60
#: Up to this many nodes, small curves over message sizes are kept in full.
MAX_NODES_WITH_SIZES = 100
MAX_SIZES = 32
BAND: dict[str, Callable[[list[float]], float]] = {"least": min, "median": statistics.median, "greatest": max}
_NUMBERS = frozenset({int, float})
_NUMBERS_AND_NONE = frozenset({int, float, type(None)})
_SCOPES = ("node", "gpu:", "rank:")


class Piece(NamedTuple):
    """A curve of one stage; x in seconds since the node's first stage, or in steps."""

    x: list[float]
    y: list[float | None]


@dataclass
class NodeCurves:
    """The curves of a node: over time by (name, unit), over steps or sizes by (stage, name, unit); then by scope."""

    timed: dict[tuple[str, str], dict[str, list[Piece]]] = field(default_factory=lambda: defaultdict(dict))
    stepped: dict[tuple[str, str, str], dict[str, Piece]] = field(default_factory=lambda: defaultdict(dict))
    sized: dict[tuple[str, str, str], dict[str, Piece]] = field(default_factory=lambda: defaultdict(dict))


def shared(curves: Iterable[list[Any]], texts: SharedValues) -> list[list[Any]]:
    """Curves as ``as_data`` returns them, but with name, unit and stage replaced by their numbers in ``texts``."""
    return [[curve[0], *map(texts.number, curve[1:4]), *curve[4:]] for curve in curves]


def of_node(directory: Path, node: Mapping[str, Any], names: frozenset[str]) -> NodeCurves:
    """Read a node's curves in its folder ``directory``, of the last attempt of each stage. ``names``: files there."""
    curves = NodeCurves()
    started = {stage["name"]: seconds(stage["started_at"]) for stage in node["stages"]}
    first = min((start for start in started.values() if start is not None), default=None)
    for stage in node["stages"]:
        file, start = f"{stage['name']}.series.json", started[stage["name"]]
        if file not in names or start is None or first is None:
            continue
        since: dict[int, list[float]] = {}
        for curve in read(directory / file, node["name"], stage):
            name, unit, scope, x, y = (curve[key] for key in ("name", "unit", "scope", "x", "y"))
            if curve["x_unit"] == "seconds":
                x = since.get(id(x)) or since.setdefault(id(x), [start - first + second for second in x])
                curves.timed[name, unit].setdefault(scope, []).append(Piece(x, y))
            elif curve["x_unit"] == "step":
                curves.stepped[stage["name"], name, unit][scope] = Piece(x, y)
            elif len(x) <= MAX_SIZES:
                curves.sized[stage["name"], name, unit][scope] = Piece(x, y)
    return curves


def seconds(time: str | None) -> float | None:
    """An RFC 3339 time as seconds since 1970; None for any other text."""
    try:
        return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp() if time else None
    except (ValueError, OverflowError):
        return None


def read(path: Path, node: str, stage: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The well-formed curves in a series file; none if too large, or of another node or attempt."""
    try:
        if path.stat().st_size > MAX_SERIES_BYTES:
            return []
        document = orjson.loads(path.read_bytes())
        identity = (document["node"], document["stage"], document["attempt"])
        if identity != (node, stage["name"], stage["attempt"]):
            return []
        x, rises = None, False
        for curve in document["series"]:
            if curve["x"] != x:
                x = curve["x"]
                rises = isinstance(x, list) and _NUMBERS.issuperset(map(type, x)) and x == sorted(x)
            curve["x"] = x if rises and x and -GREATEST < x[0] <= x[-1] < GREATEST else []
        return [curve for curve in document["series"] if _is_curve(curve)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def _is_curve(curve: Any) -> bool:
    """Whether a curve of a series file can be drawn: it has a name, and as many y as x values, all numbers or null."""
    texts = [curve.get(key) for key in ("name", "unit", "scope", "x_unit")]
    if not all(isinstance(text, str) and len(text) <= 100 for text in texts) or not texts[2].startswith(_SCOPES):
        return False
    y = curve["y"]
    if not isinstance(y, list) or not y or len(y) != len(curve["x"]):
        return False
    kinds = set(map(type, y))
    if not kinds <= _NUMBERS_AND_NONE:
        return False
    values = [value for value in y if value is not None] if type(None) in kinds else y
    return bool(values) and min(values) > -GREATEST and max(values) < GREATEST


def as_data(curves: NodeCurves, node_count: int, points_factor: int = 1) -> list[list[Any]]:
    """A node's curves, thinned and packed: [kind, name, unit, stage, x from, x to, low, high, {scope: pairs}]. Kind t:
    over seconds, s: over steps; b: over sizes in bytes, with {scope: [[x, y], ...]}. ``node_count``: nodes that share
    the page's points; ``points_factor``: how many shares this node gets."""
    budget = min(MAX_POINTS_OF_A_NODE, points_factor * MAX_POINTS // max(1, node_count))
    data = []
    counts = [len(scopes) for scopes in curves.timed.values()]
    share = budget // max(1, sum(counts) + sum(map(len, curves.stepped.values())))
    per_gpu = share >= MIN_BINS_OF_A_GPU
    if not per_gpu:
        share = budget // max(1, sum(min(len(BAND), count) for count in counts) + len(curves.stepped))
    bins = min(MAX_BINS, max(MIN_BINS, share))
    pieces_of_all = [piece for scopes in curves.timed.values() for pieces in scopes.values() for piece in pieces]
    end = max((piece.x[-1] for piece in pieces_of_all), default=0.0)
    for (name, unit), scopes in sorted(curves.timed.items()):
        thin = {scope: _join_pieces(pieces, end, bins) for scope, pieces in scopes.items()}
        if not per_gpu and len(thin) > len(BAND):  # min, median and max of all GPUs at each step
            columns = [[value for value in step if value is not None] for step in zip(*thin.values(), strict=True)]
            thin = {band: [make(step) if step else None for step in columns] for band, make in BAND.items()}
        data.append(_pack("t", name, unit, "", (0, end), thin))
    for (stage, name, unit), curves_of in curves.stepped.items():
        drawn_scopes = list(curves_of.items())[: None if per_gpu else 1]
        x = drawn_scopes[0][1].x
        count = min(bins, len(x))
        thin = {scope: thinned(piece.x, piece.y, x[0], x[-1], count) for scope, piece in drawn_scopes}
        data.append(_pack("s", name, unit, stage, (x[0], x[-1]), thin))
    if node_count <= MAX_NODES_WITH_SIZES:
        for (stage, name, unit), curves_of in curves.sized.items():
            points = {
                scope: [[short(x), short(y)] for x, y in zip(piece.x, piece.y, strict=True) if y is not None]
                for scope, piece in curves_of.items()
            }
            data.append(["b", name, unit, stage, 0, 0, 0, 0, points])
    return data


def thinned(x: Sequence[float], y: Sequence[float | None], first: float, last: float, bins: int) -> list[float | None]:
    """Means of a curve over ``bins`` equal steps from x = ``first`` to ``last``. A step without a sample repeats the
    previous mean; a step outside the curve is None."""
    if bins < 2 or last <= first:
        values = [value for value in y if value is not None]
        return [math.fsum(values) / len(values)] if values else [None]
    step = (last - first) / bins
    begin = max(0, min(bins - 1, int((x[0] - first) / step)))
    end = max(0, min(bins - 1, int((x[-1] - first) / step)))
    means: list[float | None] = [None] * bins
    start, last_mean = 0, None
    for index in range(begin, end + 1):
        right = len(x) if index == end else bisect_left(x, first + (index + 1) * step, start)
        part = y[start:right]
        start = right
        try:
            last_mean = sum(part) / len(part) if part else last_mean  # type: ignore[arg-type]
        except TypeError:  # some samples are None
            values = [value for value in part if value is not None]
            last_mean = sum(values) / len(values) if values else last_mean
        means[index] = last_mean
    return means


def _join_pieces(pieces: Sequence[Piece], end_seconds: float, bins: int) -> list[float | None]:
    means: list[float | None] = [None] * bins
    for piece in pieces:
        for index, value in enumerate(thinned(piece.x, piece.y, 0.0, end_seconds, bins)):
            if value is not None:
                means[index] = value
    return means


def _pack(
    kind: str, name: str, unit: str, stage: str, x_range: tuple[float, float], curves: Mapping[str, list[float | None]]
) -> list[Any]:
    numbers = [value for values in curves.values() for value in values if value is not None]
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
    packed = {scope: pairs(values, low, high) for scope, values in curves.items()}
    return [kind, name, unit, stage, *(short(float(end)) for end in (*x_range, low, high)), packed]
