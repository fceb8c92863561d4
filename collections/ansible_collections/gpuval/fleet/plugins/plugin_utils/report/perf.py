"""perf.csv: every figure of the run as a row, in the columns that MAD's tools read, and then ours."""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Iterator, Mapping
from typing import Any

from ..core.escape import csv_cell

COLUMNS = ("model", "performance", "metric", "node", "stage", "scope", "unit")


def perf_csv(report: Mapping[str, Any]) -> str:
    """The CSV text. A stage that did not succeed has a row without performance, whose metric is its state."""
    stream = io.StringIO()
    stream.write(",".join(COLUMNS) + "\n")
    for node in report["nodes"]:
        stream.writelines(_rows(node))
    return stream.getvalue()


def _rows(node: Mapping[str, Any]) -> Iterator[str]:
    of_node = _cell(node["name"])
    for stage in node["stages"]:
        of_stage = _cell(stage["name"])
        model = _cell(stage.get("workload") or stage["name"])
        if stage["state"] != "success":
            yield f"{model},,{_cell(stage['state'])},{of_node},{of_stage},node,\n"
        for metric in node["metrics"].get(stage["name"], ()):
            value, scope, unit = metric["value"], _cell(metric["scope"]), _cell(metric["unit"])
            number = "" if value is None else repr(value)
            yield f"{model},{number},{_cell(metric['name'])},{of_node},{of_stage},{scope},{unit}\n"


@functools.lru_cache(maxsize=1 << 14)
def _cell(text: str) -> str:
    """A text as it stands in CSV; names, scopes and units stand in a million rows."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow((csv_cell(text),))
    return stream.getvalue() if text else ""
