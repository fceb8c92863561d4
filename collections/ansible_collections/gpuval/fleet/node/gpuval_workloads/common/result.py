"""The result file, ``GPUVAL_RESULT_FILE``, in which a workload reports its findings to the runner: the fields of
:class:`WorkloadResult` as JSON, replaced in one step. Figures of the state ``running`` are preliminary."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Callable, Optional, Union

RESULT_FILE_VARIABLE = "GPUVAL_RESULT_FILE"
#: Variable with the packages that later stages in the same image need, and the result's key for missing ones.
NEEDED_VARIABLE, MISSING = "GPUVAL_NEEDED_PACKAGES", "missing_packages"
IMPORT_SECONDS = 100
STATES = ("running", "success", "failure")
X_UNITS = ("step", "seconds", "bytes")
MAX_SERIES_POINTS = 20000
EXIT_SUCCESS, EXIT_FAILURE, EXIT_CRASH = 0, 1, 2

_NAME = re.compile(r"[a-z][a-z0-9_]{0,95}")
_SCOPE = re.compile(r"node|gpu:\d{1,4}|rank:\d{1,6}|link:[A-Za-z0-9._:>-]{1,64}")
_NOT_IN_A_SCOPE = re.compile(r"[^A-Za-z0-9._:>-]")

Number = Union[int, float]


class WorkloadFailure(Exception):  # noqa: N818 - a verdict of the work about the node, not a defect of the program
    """The workload ran and rejects the node. The message is for the operator and says what to do next. ``ranks``: the
    ranks at fault, if others raise the failure as well; empty for the raising rank. ``fault``: the failure class of a
    cause outside the node (failures/*.yml), for the result's environment; else empty."""

    fault = ""

    def __init__(self, message: str = "", ranks: Iterable[int] = (), fault: str = "") -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
        self.fault = fault or self.fault


class WorkloadCrash(Exception):  # noqa: N818 - as above
    """The workload ended without a verdict. The message says why, as the last line on standard error."""


@dataclass
class WorkloadResult:
    """The result that a workload reports. ``state``: ``running``, ``success`` or ``failure``. ``environment`` describes
    hardware and software, ``fingerprints`` are short texts that are compared between nodes, ``artifacts`` paths below
    the stage's scratch directory."""

    state: str = "running"
    message: str = ""
    metrics: list[dict] = field(default_factory=list)
    series: list[dict] = field(default_factory=list)
    fingerprints: dict[str, str] = field(default_factory=dict)
    environment: dict = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)

    def add_metric(self, name: str, value: Optional[Number], unit: str, scope: str = "node", revision: int = 1) -> None:
        """Add one figure; it replaces an earlier one of the same name and scope. ``revision`` is that of the figure's
        definition: only figures of one revision are compared. A value that is not finite becomes null: measured, but no
        number. Raises ``ValueError`` for a malformed name or scope."""
        _check(name, scope)
        metric = {"name": name, "value": finite_or_none(value), "unit": unit, "scope": scope}
        metric.update({"revision": revision} if revision > 1 else {})
        self.metrics = [m for m in self.metrics if (m["name"], m["scope"]) != (name, scope)]
        self.metrics.append(metric)

    def add_series(
        self,
        name: str,
        unit: str,
        x: Iterable[Number],
        y: Iterable[Optional[Number]],
        *,
        x_unit: str = "step",
        scope: str = "node",
    ) -> None:
        """Add one curve; it replaces an earlier one of the same name and scope. Values of ``y`` that are not finite
        become null. Raises ``ValueError`` when ``x`` and ``y`` differ in length, hold more than 20,000 points, ``x`` is
        not finite, or a name is malformed."""
        _check(name, scope)
        x, y = list(x), [finite_or_none(value) for value in y]
        if x_unit not in X_UNITS:
            raise ValueError(f"x_unit {x_unit!r} is none of {', '.join(X_UNITS)}")
        if len(x) != len(y) or len(x) > MAX_SERIES_POINTS:
            raise ValueError(f"series {name}: {len(x)} x, {len(y)} y values; want equal, at most {MAX_SERIES_POINTS}")
        if not all(math.isfinite(value) for value in x):
            raise ValueError(f"series {name}: x holds a value that is not finite")
        self.series = [s for s in self.series if (s["name"], s["scope"]) != (name, scope)]
        self.series.append({"name": name, "unit": unit, "scope": scope, "x_unit": x_unit, "x": x, "y": y})

    def metric(self, name: str, scope: str = "node") -> Optional[Number]:
        """Return the value of a metric added before. Raises ``KeyError`` when there is none."""
        for metric in self.metrics:
            if (metric["name"], metric["scope"]) == (name, scope):
                return metric["value"]
        raise KeyError(f"{name} [{scope}]")

    def report(self, message: str) -> None:
        """Print the progress, and write it with the figures so far as a running result."""
        print(message, flush=True)
        self.message = message
        if os.environ.get(RESULT_FILE_VARIABLE):
            self.write()

    def to_json(self) -> str:
        """Return the result as strict JSON: NaN and infinities become null."""
        if self.state not in STATES:
            raise ValueError(f"state {self.state!r} is none of {', '.join(STATES)}")
        return json.dumps(json.loads(json.dumps(asdict(self)), parse_constant=lambda _nan: None))

    def write(self, path: Union[str, os.PathLike, None] = None) -> None:
        """Replace the result file; without ``path`` and without ``GPUVAL_RESULT_FILE``, print the JSON."""
        path = path or os.environ.get(RESULT_FILE_VARIABLE)
        if path:
            write_atomically(Path(path), self.to_json() + "\n")
        else:
            print(self.to_json(), flush=True)

    @classmethod
    def from_json(cls, text: str) -> WorkloadResult:
        """Return the result in JSON of :meth:`to_json`. Raises ``ValueError`` or ``TypeError`` for any other text."""
        return cls(**json.loads(text))


def finite_or_none(value: Optional[Number]) -> Optional[Number]:
    """Return a number, or None for NaN, infinity or None."""
    return value if value is not None and math.isfinite(value) else None


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's text in one step, after the new text is synced to disk."""
    from gpuval_node.atomic_file import replace_file  # the controller imports this module for constants

    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode(), 0o600, is_durable=True)


def run_workload(main: Callable[[WorkloadResult], None]) -> int:
    """Run a workload, write its final result and return the exit code.

    ``main`` fills the result; its return means success unless it set another final state.
    ``WorkloadFailure`` becomes a result of state ``failure`` with the metrics gathered so far, exit code 1.
    ``WorkloadCrash`` and any other exception leave no final result: the message, or a traceback, is printed on standard
    error, exit code 2. The caller handles signals.
    """
    result = WorkloadResult()
    try:
        main(result)
        if result.state == "running":
            result.state = "success"
        missing = [name for name in os.environ.get(NEEDED_VARIABLE, "").split() if not is_importable(name)]
        result.environment.update({MISSING: " ".join(missing)} if missing else {})
        result.write()
    except WorkloadFailure as failure:
        result.state, result.message = "failure", str(failure)
        result.environment.update({"fault": failure.fault} if failure.fault else {})
        result.write()
    except WorkloadCrash as crash:
        print(f"crash: {crash}", file=sys.stderr, flush=True)
        return EXIT_CRASH
    except Exception:  # the program's outermost handler: every other error is a crash
        traceback.print_exc()
        return EXIT_CRASH
    if result.state == "failure":
        print(f"failure: {result.message}", file=sys.stderr, flush=True)
        return EXIT_FAILURE
    return EXIT_SUCCESS


def is_importable(name: str) -> bool:
    """Whether a new Python can import the package; a GPU fault that its import reports does not count."""
    command = [sys.executable, "-c", "import importlib, sys; importlib.import_module(sys.argv[1])", name]
    try:
        trial = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False)
    except subprocess.TimeoutExpired:  # the stage that needs the package shows why the import hangs
        return True
    return not re.search(r"^(?:ImportError|ModuleNotFoundError|OSError)\b", trial.stderr, re.MULTILINE)


def link_scope(name: str) -> str:
    """Return the metric scope of a link for a name with any characters."""
    return f"link:{_NOT_IN_A_SCOPE.sub('-', name)[:64]}"


def _check(name: str, scope: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a metric name: lower-case letters, digits and underscores, at most 96")
    if not _SCOPE.fullmatch(scope):
        raise ValueError(f"{scope!r} is not a scope: node, gpu:<index>, rank:<n> or link:<name>")
