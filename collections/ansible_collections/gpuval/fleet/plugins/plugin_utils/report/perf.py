"""perf.csv: every figure of the run as a row, in the columns that MAD's tools read, and then ours."""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.escape import csv_cell

COLUMNS = ("model", "performance", "metric", "node", "stage", "scope", "unit")


#: Names, scopes and units stand in a million rows.
_cell = functools.lru_cache(maxsize=1 << 14)(csv_cell)


def perf_csv(report: Mapping[str, Any]) -> str:
    """The CSV text. A stage that did not succeed has a row without performance, whose metric is its state."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for node in report["nodes"]:
        for row in _rows(node):
            writer.writerow(map(_cell, row))
    return stream.getvalue()


def _rows(node: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    for stage in node["stages"]:
        name = stage["name"]
        model = stage.get("workload") or name
        if stage["state"] != "success":
            yield model, "", stage["state"], node["name"], name, "node", ""
        for metric in node["metrics"].get(name, []):
            value = "" if metric["value"] is None else repr(metric["value"])
            yield model, value, metric["name"], node["name"], name, metric["scope"], metric["unit"]
