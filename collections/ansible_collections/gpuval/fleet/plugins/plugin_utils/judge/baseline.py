"""Baselines: where the figures of accepted nodes lay in one run, and later runs held against that.

Only nodes that were accepted go in, and of their parts not those that are far off; a baseline of a run with bad nodes
is that of its good ones. How well it can be repeated stands with each figure: what nodes differed by, parts within a
node, and the repeats of one measurement.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas, units
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import GpuvalError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import peer_statistics
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.checks import (
    UNFINISHED,
    Entry,
    Judged,
    Subject,
    describe,
    entries_of,
    entry_of,
    excused,
    lacking,
    not_applicable,
    not_to_judge,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.criteria import BASELINE_SETUPS, Check
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.fleet_outliers import (
    LEAST,
    MEDIAN_ERROR,
    MOST,
    as_wide_as_all,
    figures_of,
    group_of,
    one_of,
    values_of,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import Evidence

SCHEMA = "gpuval.baseline/1"
MAX_BYTES = 64 << 20
#: What fewer nodes say of how nodes differ fails nobody: it is advice.
LEAST_NODES = 8
#: Figures of speed; counts, temperatures and losses are judged by limits of their own.
_SPEEDS = ("bytes/s", "TFLOP/s", "seconds", "tokens/s", "samples/s", "images/s", "requests/s")
#: Beyond both a part is not of the kind that a baseline describes.
_FAR, _DEVIATIONS = 0.03, 4.0
_ENDS = ("_bus_bytes_per_second", "_bytes_per_second", "_tflops", "_seconds")


class BaselineError(GpuvalError, ValueError):
    """A baseline that cannot be made or used; the message says why."""


@dataclass(frozen=True)
class Baseline:
    """A document of ``gpuval.baseline/1``, with its figures by stage, metric and kind of part."""

    document: Mapping[str, Any]
    figures: Mapping[tuple[str, str, str], Sequence[Mapping[str, Any]]]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Baseline:
        figures: dict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
        for one in document["figures"]:
            figures[one["stage"], one["metric"], one["scope"]].append(one)
        return cls(document, figures)

    @property
    def title(self) -> str:
        return f"{self.document['name']} version {self.document['version']}"

    def find(self, check: Check, sku: str, gpus: Any, workload: str, setup: Mapping[str, str]) -> Mapping | None:
        """The figure that the check's node is held against; of several that with the most nodes."""
        fitting = [
            one
            for one in self.figures.get((check.stage, check.metric, check.scope), ())
            if (one["sku"], one["gpus"], one["workload"]) == (sku, gpus, workload)
            and all(one["setup"].get(path) == value for path, value in setup.items())
        ]
        return max(fitting, key=lambda one: (one["nodes"], sorted(one["setup"].items())), default=None)


@dataclass
class _Gathered:
    """All parts of one figure: by node and part its value, and the spreads of their repeats."""

    nodes: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    spreads: list[float] = field(default_factory=list)


_Key = tuple[str, str, str, str, str, Any, str, tuple[tuple[str, str], ...]]


def make(
    subjects: Mapping[str, Subject], report: Mapping[str, Any], *, name: str, version: int, created_at: str
) -> dict[str, Any]:
    """The baseline of a judged run; ``subjects`` are its nodes (verdict.subject_of). Raises BaselineError."""
    verdicts = {node["name"]: node["verdict"] for node in report["nodes"]}
    accepted = [subjects[node] for node in sorted(subjects) if verdicts.get(node) == "PASS"]
    if not accepted:
        raise BaselineError(
            f"no node of run {report['run']['run_id']} was accepted: a baseline is made from good nodes"
        )
    gathered: dict[_Key, _Gathered] = defaultdict(_Gathered)
    for subject in accepted:
        for stage, record in subject.records.items():
            _gather(subject, stage, record, gathered)
    figures = [one for key in sorted(gathered, key=repr) for one in _figures(key, gathered[key])]
    if not figures:
        raise BaselineError("no figure was reported by three parts or more: a baseline needs more GPUs or nodes")
    document = {
        "schema": SCHEMA,
        "name": name,
        "version": version,
        "created_at": created_at,
        "made_from": {
            "run_id": report["run"]["run_id"],
            "profile": report["run"]["profile"],
            "judged_at": report["run"]["judged_at"],
            "nodes": len(accepted),
            "left_out": dict(sorted(Counter(one for one in verdicts.values() if one != "PASS").items())),
        },
        "figures": figures,
    }
    schemas.validate("baseline", document, what="baseline")
    return document


def subjects_of(run: Mapping[str, Any], evidence: Evidence, subject_of: Any) -> dict[str, Subject]:
    return {name: subject_of(run, name, evidence) for name in run["nodes"]}


def _gather(subject: Subject, stage: str, record: Mapping[str, Any], gathered: dict[_Key, _Gathered]) -> None:
    if record["state"] != "success":
        return
    told = [(path, values_of(record, [path])[0][0]) for path in BASELINE_SETUPS]
    setup = tuple((path, value) for path, value in told if value)
    spreads = {
        (metric["name"], metric["scope"]): metric["value"]
        for metric in record["metrics"]
        if metric["name"].endswith("_spread_ratio") and metric["value"] is not None and metric["value"] >= 0
    }
    times = Counter((metric["name"], metric["scope"]) for metric in record["metrics"])
    for metric in record["metrics"]:
        value, unit, part = metric["value"], metric["unit"], metric["scope"]
        if times[metric["name"], part] > 1 or not _has(subject, part):
            continue
        if value is None or not LEAST < abs(value) < MOST or not any(units.compatible(unit, one) for one in _SPEEDS):
            continue
        gpus = None if subject.gpus is None else int(subject.gpus)
        scope = part.split(":")[0]
        key = (stage, metric["name"], scope, unit, subject.kind, gpus, record["workload"], setup)
        figure = gathered[key]
        figure.nodes[subject.name][part] = value
        spread = spreads.get((_spread_name(metric["name"]), part))
        if spread is not None:
            figure.spreads.append(spread)


def _has(subject: Subject, part: str) -> bool:
    """Whether the node can have the part; of ranks and links it does not say how many."""
    return not part.startswith("gpu:") or subject.gpus is None or one_of(part, int(subject.gpus))


def _spread_name(name: str) -> str:
    return next((f"{name.removesuffix(end)}_spread_ratio" for end in _ENDS if name.endswith(end)), "")


def _figures(key: _Key, gathered: _Gathered) -> Iterator[dict[str, Any]]:
    stage, metric, scope, unit, sku, gpus, workload, setup = key
    gathered = _of_one_size(gathered)
    nodes = [list(node.values()) for node in gathered.nodes.values()]
    values = [value for node in nodes for value in node]
    group = peer_statistics.Peers.without_the_far(values, _FAR, _DEVIATIONS)
    if group is None:
        return
    good = [value for value in values if not group.accuses(value, _FAR, _FAR, _DEVIATIONS)]
    middles = [statistics.median(node) for node in nodes]
    beside = [
        value / statistics.median(node)
        for node in nodes
        if len(node) >= peer_statistics.MIN_PARTS and statistics.median(node)
        for value in node
    ]
    figure = {
        "stage": stage, "metric": metric, "scope": scope, "unit": unit, "sku": sku, "gpus": gpus, "workload": workload,
        "setup": dict(setup), "median": group.median, "deviation": group.deviation, "low": min(good),
        "high": max(good), "nodes": len(gathered.nodes), "parts": len(good), "far_off": len(values) - len(good),
        "between_nodes_ratio": _ratio(middles), "within_nodes_ratio": _ratio(beside) if scope != "node" else None,
        "repeats_ratio": statistics.median(gathered.spreads) if gathered.spreads else None,
    }  # fmt: skip
    places = _places(gathered) if scope == "gpu" else {}
    yield {**figure, "places": places} if places else figure


def _places(gathered: _Gathered) -> dict[str, list[float]]:
    """By part of that name (gpu:3) its median and deviation over the nodes; empty where there are too few of them."""
    values: dict[str, list[float]] = defaultdict(list)
    for node in gathered.nodes.values():
        for part, value in node.items():
            values[part].append(value)
    groups = {
        part: peer_statistics.Peers.without_the_far(its, _FAR, _DEVIATIONS) for part, its in sorted(values.items())
    }
    if any(group is None for group in groups.values()):
        return {}
    wide = as_wide_as_all(groups, values, _FAR, _DEVIATIONS)
    return {part: [group.median, group.deviation] for part, group in wide.items() if group is not None}


def _of_one_size(gathered: _Gathered) -> _Gathered:
    """The nodes that told of as many parts as most: one that tells of a thousand links has no thousand voices."""
    most, _ = min(Counter(len(node) for node in gathered.nodes.values()).items(), key=lambda one: (-one[1], one[0]))
    return _Gathered({name: node for name, node in gathered.nodes.items() if len(node) == most}, gathered.spreads)


def _ratio(values: Sequence[float]) -> float | None:
    group = peer_statistics.Peers.of(values)
    return None if group is None else group.deviation / abs(group.median)


def read(path: Path) -> Baseline:
    """The baseline in a file. Raises BaselineError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BaselineError(f"{path}: over {MAX_BYTES:,} bytes: not a baseline")
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_number, parse_float=_number)
        schemas.validate("baseline", document, what=str(path))
    except OSError as error:
        raise BaselineError(f"{path}: cannot be read: {error}; `make baseline` makes one") from error
    except (schemas.Invalid, ValueError, RecursionError) as error:
        raise BaselineError(f"{path}: not a baseline: {error}") from error
    return Baseline.of(document)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is no finite number")
    return value


def next_version(folder: Path, name: str) -> int:
    """One more than the greatest version of that name in the folder."""
    found = (path.stem.removeprefix(f"{name}-v") for path in folder.glob(f"{name}-v*.json"))
    return max((int(text) for text in found if text.isdecimal()), default=0) + 1


def file_name(document: Mapping[str, Any]) -> str:
    return f"{document['name']}-v{document['version']}.json"


def hold(check: Check, subject: Subject, baseline: Baseline | None) -> list[Entry]:
    """The entries of a check of kind ``baseline``."""
    expected = describe(check, None)
    outside = not_applicable(check, subject)
    if outside is not None:
        verdict, reason = outside
        return [entry_of(check, verdict, "node", reason=reason)]
    if baseline is None:
        return [entry_of(check, "skipped", "node", reason="gpuval_baseline names no baseline")]
    open_entries = not_to_judge(check, subject, expected)
    if open_entries:
        return open_entries
    record = subject.records[check.stage]
    (sku, _, workload, *values), untold = group_of(check, subject, record, check.group_by)
    if untold:
        reason = f"{check.stage} does not say its {untold[0]}"
        return [entry_of(check, "missing", "node", reason=reason, expected=expected)]
    kept = dict(zip(check.group_by, values, strict=True))
    figure = baseline.find(check, sku, subject.gpus, workload, kept)
    if figure is None:
        kind = " ".join([sku, f"{subject.gpus} GPUs", workload, *kept.values()])
        reason = f"the baseline {baseline.title} has no {check.metric} of {kind}"
        return [entry_of(check, "skipped", "node", reason=reason, expected=expected)]
    if check.same_part and "places" not in figure:
        reason = (
            f"the baseline {baseline.title} does not tell the {check.scope}s of {check.metric} apart: it is of an "
            f"earlier version, or of fewer than {peer_statistics.MIN_PARTS} nodes"
        )
        return [entry_of(check, "skipped", "node", reason=reason, expected=expected)]
    judged, parts = _against(check, subject, record, figure, baseline)
    earlier = [
        one
        for attempt in record["attempts"]
        if check.required and not check.retry and attempt["state"] not in UNFINISHED
        for one in _against(check, subject, attempt, figure, baseline)[0]
        if one.passed is False
    ]
    entries = entries_of(check, [*earlier, *judged], lacking(check, subject, record, parts), expected)
    if figure["nodes"] < LEAST_NODES:
        for entry in entries:
            if entry["verdict"] == "fail":
                entry.update(verdict="warn", severity="advisory")
                entry["reason"] += f"; advice, since it is of {figure['nodes']} nodes, fewer than {LEAST_NODES}"
    return excused(check, entries, record)


def _against(
    check: Check, subject: Subject, record: Mapping[str, Any], figure: Mapping[str, Any], baseline: Baseline
) -> tuple[list[Judged], set[str]]:
    """Every part held against the figure of the baseline, and the parts there are."""
    figures, judged = figures_of(check, subject, record)
    parts = {part for part, _ in figures} | {one.part for one in judged}
    unit = check.unit or ""
    places = figure["places"] if check.same_part else {"": [figure["median"], figure["deviation"]]}
    try:
        groups = {
            place: peer_statistics.Peers(
                *(units.to_float(units.convert(value, figure["unit"], unit)) for value in its), figure["nodes"]
            )
            for place, its in places.items()
        }
    except units.UnitError as error:
        reason = f"{check.metric} of the baseline: {error}"
        return [*judged, *(Judged(part, None, value, unit, reason) for part, value in figures)], parts
    # Few nodes know little of how nodes differ, nor of where the middle is: the standard error of their median.
    deviations = (
        peer_statistics.widened(check.deviations, figure["nodes"]) * (1 + MEDIAN_ERROR**2 / figure["nodes"]) ** 0.5
    )
    for part, value in figures:
        group = groups.get(part if check.same_part else "")
        if group is None:
            reason = f"the baseline {baseline.title} has no {check.metric} of {part}"
            judged.append(Judged(part, None, value, unit, reason))
            continue
        passed = not group.accuses(value, check.max_below, check.max_above, deviations)
        said = functools.partial(_said, check, value, group, baseline)
        judged.append(Judged(part, passed, value, unit, said, -group.badness(value, check.max_below, check.max_above)))
    return judged, parts


def _said(check: Check, value: float, group: peer_statistics.Peers, baseline: Baseline) -> str:
    change = group.change(value)
    way = "under" if change < 0 else "over"
    unit = check.unit or ""
    return (
        f"{check.metric} {units.human(value, unit)}, {units.number_text(abs(change) * 100)} % {way} "
        f"{units.human(group.median, unit)} of the baseline {baseline.title}"
    )


@dataclass(frozen=True)
class Change:
    """One figure in two baselines; None where only one of them has it. ``clear`` is more than their own noise."""

    what: str
    unit: str
    before: float | None
    after: float | None
    clear: bool

    @property
    def text(self) -> str:
        if self.before is None or self.after is None:
            value = self.after if self.before is None else self.before
            return f"{'new' if self.before is None else 'gone'}: {self.what} ({units.human(value, self.unit)})"
        change = (self.after - self.before) / abs(self.before)
        way = "rose" if change > 0 else "fell"
        moved = f"{way} by {units.number_text(abs(change) * 100)} %"
        return f"{self.what} {moved}: {units.human(self.before, self.unit)} to {units.human(self.after, self.unit)}"


def diff(before: Baseline, after: Baseline, *, least: float = 0.005) -> list[Change]:
    """What changed, gone and new ones first; figures that moved by less than ``least``, relatively, are left out.

    A change is clear when it is more than three standard errors of the two medians: those of as many nodes as they
    were made from, since parts of a node do not differ on their own.
    """
    old, new = (_by_identity(it) for it in (before, after))
    changes = []
    for key in sorted(old.keys() | new.keys()):
        one, other = old.get(key), new.get(key)
        if one is None or other is None:
            figure = one or other or {}
            changes.append(
                Change(
                    _title(figure),
                    figure["unit"],
                    one["median"] if one else None,
                    other["median"] if other else None,
                    True,
                )
            )
            continue
        moved = other["median"] - one["median"]
        if abs(moved) >= least * abs(one["median"]):
            changes.append(
                Change(_title(one), one["unit"], one["median"], other["median"], abs(moved) > 3 * _error(one, other))
            )
    return sorted(changes, key=lambda one: (one.before is not None and one.after is not None, not one.clear, one.what))


def _by_identity(baseline: Baseline) -> dict[tuple[str, ...], Mapping[str, Any]]:
    """Of figures that differ by torch alone, the one with the most nodes."""
    ordered = sorted(baseline.document["figures"], key=lambda one: (one["nodes"], sorted(one["setup"].items())))
    return {_identity(one): one for one in ordered}


def _error(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The standard error of the difference of two medians."""
    return 1.2533 * sum(figure["deviation"] ** 2 / figure["nodes"] for figure in (one, other)) ** 0.5


def _identity(figure: Mapping[str, Any]) -> tuple[str, ...]:
    """What a figure is; torch is left out, so that a new one shows."""
    setup = tuple(value for path, value in sorted(figure["setup"].items()) if path != "torch")
    keys = ("stage", "metric", "scope", "unit", "sku", "gpus", "workload")
    return tuple(str(figure[key]) for key in keys) + setup


def _title(figure: Mapping[str, Any]) -> str:
    kind = " ".join(str(figure[key]) for key in ("sku", "gpus") if figure[key] is not None)
    setup = figure["setup"].get("fingerprints.training_setup", "")
    return " ".join(f"{figure['stage']} {figure['metric']} per {figure['scope']} ({kind} {setup}".split()) + ")"


def told(changes: Sequence[Change]) -> list[str]:
    """A line for each change; what is within the noise of both says so."""
    return [one.text + ("" if one.clear else " (within their noise)") for one in changes] or ["nothing moved by 0.5 %"]


def repeatability(document: Mapping[str, Any]) -> list[str]:
    """A line for each figure: its median, and what nodes, parts of a node and repeats differ by."""
    kinds = {
        "between_nodes_ratio": "nodes",
        "within_nodes_ratio": "parts of a node",
        "repeats_ratio": "repeats",
    }
    lines = []
    for one in document["figures"]:
        said = ", ".join(
            f"{what} {units.number_text(one[key] * 100)} %" for key, what in kinds.items() if one[key] is not None
        )
        far = f"; {one['far_off']} far off and left out" if one["far_off"] else ""
        lines.append(
            f"{_title(one)} {units.human(one['median'], one['unit'])}, {one['parts']} parts of {one['nodes']} nodes; "
            f"{'differ: ' + said if said else 'too few to say how they differ'}{far}"
        )
    return lines
