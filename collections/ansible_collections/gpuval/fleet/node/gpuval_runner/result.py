"""Reads a workload's result file. The file is untrusted: malformed parts are dropped and named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, TypedDict, TypeVar

from gpuval_runner.files import read_bounded
from gpuval_runner.text import encodable, one_line

STATES = ("running", "success", "failure")
MAX_RESULT_BYTES = 4 << 20
MAX_MESSAGE = 4096
MAX_METRICS = 20_000
MAX_SERIES = 1024
MAX_POINTS = 20_000
MAX_FINGERPRINTS = 1024
MAX_ENVIRONMENT = 256
MAX_ARTIFACTS = 256
MAX_DEPTH = 16
MAX_REVISION = 99
MAX_PROBLEMS = 8

METRIC_NAME = re.compile(r"[a-z][a-z0-9_]{0,95}")
SCOPE = re.compile(r"node|gpu:[0-9]{1,4}|rank:[0-9]{1,6}|link:[A-Za-z0-9._:>-]{1,64}")
X_UNITS = ("step", "seconds", "bytes")

_Item = TypeVar("_Item")


class RecordMetric(TypedDict, total=False):
    """A figure in its base unit; scope ``node``, ``gpu:<index>``, ``rank:<n>`` or ``link:<name>``; ``revision`` is that
    of the metric's definition, if not the first."""

    name: str
    value: Optional[float]
    unit: str
    scope: str
    revision: int


class RecordCurve(TypedDict):
    """One curve of a stage: values y over x (step or seconds)."""

    name: str
    unit: str
    scope: str
    x_unit: str
    x: list[float]
    y: list[Optional[float]]


@dataclass
class ResultFile:
    """The accepted fields of a result file; `problems` names those that were not accepted."""

    state: str = "running"
    message: str = ""
    metrics: list[RecordMetric] = field(default_factory=list)
    series: list[RecordCurve] = field(default_factory=list)
    fingerprints: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read(path: Path, hide: Callable[[Any], Any] = lambda document: document) -> Optional[ResultFile]:
    """Read a workload's result file, with secrets replaced by `hide`; None without a file. A malformed file is read as
    state ``running`` with an entry in `problems`."""
    try:
        data = read_bounded(path, MAX_RESULT_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        return ResultFile(problems=[f"result file refused: {error.strerror or 'larger than 4 MiB'}"])
    return parse(data, hide)


def parse(data: bytes, hide: Callable[[Any], Any] = lambda document: document) -> ResultFile:
    """Return the valid parts of a result file's content. Never raises for malformed content."""
    try:
        document = json.loads(data.decode("utf-8", "replace"), parse_constant=lambda _: None)
        if isinstance(document, dict):
            document = {key: _hide_field(key, value, hide) for key, value in document.items()}
    except (ValueError, RecursionError) as error:
        return ResultFile(problems=[f"result file is not JSON: {one_line(str(error), 120)}"])
    if not isinstance(document, dict):
        return ResultFile(problems=["result file does not hold a JSON object"])
    problems: list[str] = []
    state = document.get("state")
    if state not in STATES:
        problems.append(f"state is none of {', '.join(STATES)}")
        state = "running"
    message = document.get("message", "")
    accepted = ResultFile(
        state=state,
        message=one_line(message, MAX_MESSAGE) if isinstance(message, str) else "",
        metrics=_accept_items(document, "metrics", _read_metric, MAX_METRICS, problems),
        series=_accept_items(document, "series", _read_curve, MAX_SERIES, problems),
    )
    fingerprints = _object_items(document, "fingerprints", problems)
    texts = {encodable(k): encodable(v) for k, v in fingerprints if isinstance(v, str) and len(v) <= 256}
    if len(texts) < len(fingerprints):
        problems.append("fingerprints hold values that are not texts of at most 256 characters")
    environment = _object_items(document, "environment", problems)
    accepted.fingerprints = dict(list(texts.items())[:MAX_FINGERPRINTS])
    accepted.environment = dict([(encodable(k), _plain_json(v, MAX_DEPTH)) for k, v in environment][:MAX_ENVIRONMENT])
    accepted.artifacts = _accept_items(document, "artifacts", _read_artifact, MAX_ARTIFACTS, problems)
    accepted.problems = [f"result file: {one_line(problem, 200)}" for problem in problems[:MAX_PROBLEMS]]
    return accepted


def _hide_field(key: str, value: Any, hide: Callable[[Any], Any]) -> Any:
    """Return one field of a result without secrets; the format's own words stay, even if a secret equals one."""
    if key in ("state", "scope", "x_unit") and isinstance(value, str) and not value.startswith("link:"):
        return value
    if key in ("metrics", "series") and isinstance(value, list):
        return [
            {name: _hide_field(name, of_item, hide) for name, of_item in item.items()}
            if isinstance(item, dict)
            else item
            for item in value
        ]
    return hide(value)


def number(value: Any) -> Optional[float]:
    """Return a value that is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) < 1e300 else None  # NaN compares false


def _accept_items(
    document: dict[str, Any], name: str, reader: Callable[[Any], Optional[_Item]], limit: int, problems: list[str]
) -> list[_Item]:
    """Return the valid items of a document's list, at most `limit`; `problems` gets what is left out."""
    items = document.get(name)
    if items is None:
        return []
    if not isinstance(items, list):
        problems.append(f"{name} is not a list")
        return []
    good = [item for item in map(reader, items) if item is not None]
    if len(good) < len(items):
        problems.append(f"{len(items) - len(good)} of {len(items)} {name} are malformed and left out")
    if len(good) > limit:
        problems.append(f"{len(good)} {name}, of which the first {limit} are kept")
    return good[:limit]


def _read_metric(item: Any) -> Optional[RecordMetric]:
    if not isinstance(item, dict) or not _has_identity(item):
        return None
    value, revision = item.get("value"), item.get("revision", 1)
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        return None
    if type(revision) is not int or not 1 <= revision <= MAX_REVISION:
        return None
    metric: RecordMetric = {
        "name": item["name"],
        "value": number(value),
        "unit": one_line(item["unit"], 32),
        "scope": item.get("scope", "node"),
    }
    return {**metric, "revision": revision} if revision > 1 else metric


def _read_curve(item: Any) -> Optional[RecordCurve]:
    if not isinstance(item, dict) or not _has_identity(item) or item.get("x_unit", "step") not in X_UNITS:
        return None
    x, y = item.get("x"), item.get("y")
    if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y) or len(x) > MAX_POINTS:
        return None
    numbers = [point for point in map(number, x) if point is not None]
    if len(numbers) < len(x):
        return None
    return {
        "name": item["name"],
        "unit": one_line(item["unit"], 32),
        "scope": item.get("scope", "node"),
        "x_unit": item.get("x_unit", "step"),
        "x": numbers,
        "y": [number(value) for value in y],
    }


def _has_identity(item: dict[str, Any]) -> bool:
    name, scope, unit = item.get("name"), item.get("scope", "node"), item.get("unit")
    return (
        isinstance(name, str)
        and isinstance(scope, str)
        and isinstance(unit, str)
        and METRIC_NAME.fullmatch(name) is not None
        and SCOPE.fullmatch(scope) is not None
    )


def _read_artifact(item: Any) -> Optional[str]:
    return encodable(item) if isinstance(item, str) and 0 < len(item) <= 512 and item.isprintable() else None


def _object_items(document: dict[str, Any], name: str, problems: list[str]) -> Collection[tuple[str, Any]]:
    value = document.get(name)
    if value is not None and not isinstance(value, dict):
        problems.append(f"{name} is not an object")
    return value.items() if isinstance(value, dict) else ()


def _plain_json(value: Any, depth: int) -> Any:
    """Return a JSON value with finite numbers and encodable texts, cut off below `depth` levels."""
    if isinstance(value, str):
        return encodable(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return number(value)
    if depth == 0:
        return None
    if isinstance(value, dict):
        return {encodable(k): _plain_json(v, depth - 1) for k, v in value.items()}
    return [_plain_json(v, depth - 1) for v in value]
