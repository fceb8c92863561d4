"""A fleet of which one node breaks one criterion, whatever its kind."""

from __future__ import annotations

import dataclasses

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.stages import DEPTHS
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit.builders import facts_record, judge, make_record, make_run, metric

NODES = tuple(f"node-{number:02}" for number in range(16))
BAD = NODES[5]
PARTS = {
    "node": ["node"],
    "gpu": [f"gpu:{index}" for index in range(8)],
    "rank": [f"rank:{index}" for index in range(8)],
}
LINKS = [f"link:gpu{first}>gpu{second}" for first in range(8) for second in range(8) if first != second]


def report_with_one_broken(check):
    """The report on the fleet by that criterion alone: its first part, on one node, is beyond the limit.

    It waits for no other criterion, and all nodes are of one group.
    """
    check = dataclasses.replace(check, requires=(), group_by=(), alike=(), spread_from=None)
    vendor = next((name for name in check.applies.accelerator if name != "gpu"), "nvidia")
    skus = (check.catalogue_sku, *check.applies.sku, "cpu" if vendor == "cpu" else "auto")
    gpus = 0 if vendor == "cpu" else check.applies.gpu_count[0] if check.applies.gpu_count else 8
    run = make_run(
        NODES,
        stages=list(dict.fromkeys(["facts", check.stage])),
        sku=next(filter(None, skus)),
        gpu_count=gpus or None,
        profile=(*check.applies.profile, max("standard", check.applies.depth, key=DEPTHS.index))[0],
        workloads={check.stage: (*check.applies.workload, check.stage)[0]},
    )
    for name in NODES:
        run["nodes"][name]["declared"] = {"gpu_temperature_max_celsius": 80}
    records = {name: _records(check, name, number, vendor, gpus) for number, name in enumerate(NODES)}
    return judge(run, _evidence(run, records), [check])


def _evidence(run, records):
    return RunEvidence(records=records, launches={name: {"state": "started", "message": ""} for name in run["nodes"]})


def _records(check, name, number, vendor, gpus):
    facts = facts_record(name, vendor=vendor, gpus=gpus)
    record = facts if check.stage == "facts" else make_record(name, check.stage)
    record["workload"] = (*check.applies.workload, check.stage)[0]
    record["fingerprints"].update({key: values[0] for key, values in check.applies.fingerprints})
    if check.name.endswith("_links_counted"):
        check = dataclasses.replace(check, value=len(LINKS))
    parts = LINKS if check.scope == "link" else PARTS[check.scope][: gpus or 8]
    good, bad = figures(check)
    if isinstance(good, str):
        record["fingerprints"][check.metric] = bad if name == BAD else good
    metrics = [entry for entry in record["metrics"] if entry["name"] != check.metric]
    for index, part in enumerate(parts if not isinstance(good, str) else ()):
        value = bad if name == BAD and not index else good
        if isinstance(value, float):
            value *= 1 + 0.001 * ((number * 7 + index * 3) % 5)
        metrics.append(metric(check.metric, value, check.unit or "count", part))
        if check.kind == "trend":
            metrics.append(metric(check.baseline_metric, 8.0, check.unit or "count", part))
    if check.parts_from:
        metrics = [entry for entry in metrics if entry["name"] != check.parts_from]
        metrics.append(metric(check.parts_from, len(parts)))
    if not isinstance(good, str):
        record["metrics"] = metrics
    return {"facts": facts, check.stage: record}


def figures(check):
    """A figure that passes the criterion, and one that does not."""
    limit = check.value if check.value is not None else 80 if check.value_from else 100
    if isinstance(limit, str):
        return limit, "other"
    return {
        "max": (limit / 2, limit * 2 + 1),
        "min": (limit * 2.0, limit / 2 if limit else -1.0),
        "equal": (8 if check.value is None else limit, 7),
        "within": (check.low, (check.high or 0) * 2 + 1),
        "trend": (2.0, 16.0) if check.direction == "falling" else (16.0, 2.0),
        "outlier": (100.0, 50.0 if check.max_below else 200.0),
        "same": ("sha-good", "sha-bad"),
        "baseline": (100.0, 50.0),
    }[check.kind]
