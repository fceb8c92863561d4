"""Make a baseline from the accepted nodes of a run, without outliers among their parts."""

import operator
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..core import schemas, units
from ..core.errors import SettingError
from ..core.grouping import values_by_key
from ..records import properties
from ..records.documents import Document
from . import peer_statistics
from .baseline import SCHEMA, SETUPS, TORCH, TRAINING_SETUP, spreads_of
from .check import revision_of
from .peer_groups import LEAST, MOST, is_part_of, peers_by_part
from .subjects import kind_of

#: Units of speed; counts, temperatures and losses are judged by limits of their own.
_SPEEDS = ("bytes/s", "TFLOP/s", "seconds", "tokens/s", "samples/s", "images/s", "requests/s")
#: A part beyond both limits (relative, and in deviations) is an outlier and left out.
_FAR, _DEVIATIONS = 0.03, 4.0
_ENDS = ("_bus_bytes_per_second", "_bytes_per_second", "_tflops", "_seconds")


class MeasuredPart(NamedTuple):
    """The figure of one part of a node, and the spread of its repeats if it is known."""

    node: str
    part: str
    value: float
    spread: float | None


_Key = tuple[str, str, str, str, int, str, Any, str, tuple[tuple[str, str], ...]]


def make(report: Document, *, name: str, version: int, created_at: str, spreads_only: bool = False) -> dict[str, Any]:
    """Make the baseline from the report of a judged run. Raises SettingError. ``spreads_only``: only how much parts of
    a node differ, for later runs that are too small to show this; no figures."""
    accepted = sorted((node for node in report["nodes"] if node["verdict"] == "PASS"), key=operator.itemgetter("name"))
    if not accepted:
        raise SettingError(f"no node of run {report['run']['run_id']} was accepted: a baseline is made from good nodes")
    if any("versions" not in node for node in accepted):
        run_id = report["run"]["run_id"]
        raise SettingError(f"the report on run {run_id} is of release 1.0: `make report RUN={run_id}`, then try again")
    parts = values_by_key(pair for node in accepted for stage in node["stages"] for pair in _measured(node, stage))
    figures = [*filter(None, (_figure(key, parts[key]) for key in sorted(parts, key=repr)))]
    if not figures:
        raise SettingError("no figure was reported by three parts or more: a baseline needs more GPUs or nodes")
    spreads = spreads_of(figures) if spreads_only else []
    if spreads_only and not spreads:
        raise SettingError("no node has three parts of a kind: spreads need nodes with more GPUs")
    verdicts = (node["verdict"] for node in report["nodes"])
    document = {
        "schema": SCHEMA,
        "name": name,
        "version": version,
        "created_at": created_at,
        "made_from": {
            **{key: report["run"][key] for key in ("run_id", "profile", "judged_at")},
            "nodes": len(accepted),
            "left_out": dict(sorted(Counter(verdict for verdict in verdicts if verdict != "PASS").items())),
        },
        "figures": [] if spreads_only else figures,
        **({"spreads": spreads} if spreads else {}),
    }
    schemas.validate("baseline", document, what="baseline")
    return document


def _measured(node: Document, stage: Document) -> Iterator[tuple[_Key, MeasuredPart]]:
    """(key of the figure, value on one part) for each speed that a node reports for a stage that succeeded."""
    if stage["state"] != "success":
        return
    reported = {
        TORCH: properties.versions_of(node, stage).get(TORCH),
        TRAINING_SETUP: stage["setup"].get("training_setup"),
    }
    setup = tuple((path, text) for path in SETUPS if (text := reported[path]))
    metrics, gpus = node["metrics"].get(stage["name"], ()), None if node["gpus"] is None else int(node["gpus"])
    spreads = {
        (metric["name"], metric["scope"]): metric["value"]
        for metric in metrics
        if metric["name"].endswith("_spread_ratio") and metric["value"] is not None and metric["value"] >= 0
    }
    times = Counter((metric["name"], metric["scope"]) for metric in metrics)
    for metric in metrics:
        value, unit, part = metric["value"], metric["unit"], metric["scope"]
        # the part's index exceeds the node's GPUs; the number of ranks and links is unknown
        is_foreign = part.startswith("gpu:") and gpus is not None and not is_part_of(part, gpus)
        if times[metric["name"], part] > 1 or is_foreign:
            continue
        if value is None or not LEAST < abs(value) < MOST or not any(units.compatible(unit, one) for one in _SPEEDS):
            continue
        scope, revision = part.split(":")[0], revision_of(metric)
        key = (stage["name"], metric["name"], scope, unit, revision, kind_of(node), gpus, stage["workload"], setup)
        base = next((metric["name"].removesuffix(end) for end in _ENDS if metric["name"].endswith(end)), "")
        spread = spreads.get((f"{base}_spread_ratio", part)) if base else None
        yield key, MeasuredPart(node["name"], part, value, spread)


def _figure(key: _Key, measured: Sequence[MeasuredPart]) -> dict[str, Any] | None:
    """A figure of the baseline; None where too few parts reported it."""
    stage, metric, scope, unit, revision, sku, gpus, workload, setup = key
    # Only nodes with the usual number of parts: a node that reports a thousand links has no thousand votes.
    sizes = Counter(Counter(one.node for one in measured).values())
    most, _ = min(sizes.items(), key=lambda pair: (-pair[1], pair[0]))
    of_nodes = values_by_key((one.node, one) for one in measured)
    by_node = [{one.part: one.value for one in parts} for parts in of_nodes.values() if len(parts) == most]
    nodes = [list(node.values()) for node in by_node]
    spreads = [one.spread for one in measured if one.spread is not None]
    values = [value for node in nodes for value in node]
    group = peer_statistics.Peers.without_the_far(values, _FAR, _DEVIATIONS)
    good = group.near(values, _FAR, _DEVIATIONS) if group else []
    if group is None or len(good) < peer_statistics.MIN_PARTS:
        return None
    middles = [statistics.median(node) for node in nodes]
    deviations = [
        value / statistics.median(node)
        for node in nodes
        if len(node) >= peer_statistics.MIN_PARTS and statistics.median(node)
        for value in node
    ]
    figure = {
        "stage": stage, "metric": metric, "scope": scope, "unit": unit, "sku": sku, "gpus": gpus, "workload": workload,
        "setup": dict(setup), "median": group.median, "deviation": group.deviation, "low": min(good),
        "high": max(good), "nodes": len(by_node), "parts": len(good), "far_off": len(values) - len(good),
        "between_nodes_ratio": _spread(middles), "within_nodes_ratio": _spread(deviations) if scope != "node" else None,
        "repeats_ratio": statistics.median(spreads) if spreads else None,
    }  # fmt: skip
    places = _spread_by_part(by_node) if scope == "gpu" else {}
    return figure | ({"places": places} if places else {}) | ({"revision": revision} if revision > 1 else {})


def _spread_by_part(nodes: Iterable[Mapping[str, float]]) -> dict[str, list[float]]:
    """For each part name (gpu:3) its median and deviation over the nodes; empty if too few nodes have the part."""
    values = values_by_key(pair for node in nodes for pair in node.items())
    of_parts = peers_by_part(dict(sorted(values.items())), _FAR, _DEVIATIONS)
    known = {part: [peers.median, peers.deviation] for part, peers in of_parts.items() if peers is not None}
    return known if len(known) == len(of_parts) else {}


def _spread(values: Sequence[float]) -> float | None:
    group = peer_statistics.Peers.of(values)
    return None if group is None else group.deviation / abs(group.median)
