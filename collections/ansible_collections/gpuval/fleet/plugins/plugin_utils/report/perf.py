"""perf.csv: a row for each figure of a run, first in the columns that MAD's tools read, then in gpuval's own. A metric
of several parts (GPUs, links, ranks) is one row with its median, minimum and maximum. Large fleets leave out counts
that are 0, which would be 40 % of the rows."""

import csv
import functools
import io
import itertools
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from ..core.escape import csv_cell
from ..records.report_file import MAX_WHOLE_NODES

COLUMNS = ("model", "performance", "metric", "node", "stage", "scope", "unit", "min", "max")


def perf_csv(report: Mapping[str, Any]) -> str:
    """The text of perf.csv. A failed stage has a row with its state as metric, a failed launch one with its class."""
    stream = io.StringIO()
    stream.write(",".join(COLUMNS) + "\n")
    zeros = len(report["nodes"]) <= MAX_WHOLE_NODES
    for node in report["nodes"]:
        stream.writelines(_rows(node, zeros=zeros))
    return stream.getvalue()


def _rows(node: Mapping[str, Any], *, zeros: bool) -> Iterator[str]:
    of_node = _cell(node["name"])
    launch = node["checks"][0]
    if launch["kind"] == "launch" and launch["verdict"] == "missing" and not node["metrics"]:
        yield f"launch,,{_cell(str(launch['value']))},{of_node},launch,node,,,\n"
        return
    for stage in node["stages"]:
        of_stage = _cell(stage["name"])
        model = _cell(stage.get("workload") or stage["name"])
        if stage["state"] != "success":
            yield f"{model},,{_cell(stage['state'])},{of_node},{of_stage},node,,,\n"
        for (name, kind, unit), metrics in itertools.groupby(node["metrics"].get(stage["name"], ()), _figure):
            parts = list(metrics)
            if not zeros and unit == "count" and all(part["value"] == 0 for part in parts):
                continue
            scope, number, ends = parts[0]["scope"], parts[0]["value"], ","
            if len(parts) > 1:
                values = [part["value"] for part in parts if part["value"] is not None]
                scope, number = kind, statistics.median(values) if values else None
                ends = f"{_number(min(values))},{_number(max(values))}" if values else ","
            row = f"{model},{_number(number)},{_cell(name)},{of_node},{of_stage},{_cell(scope)},{_cell(unit)}"
            yield f"{row},{ends}\n"


def _figure(metric: Mapping[str, Any]) -> tuple[str, str, str]:
    """(name, kind of part such as node or gpu, unit): metrics that share these share a row of perf.csv."""
    return metric["name"], metric["scope"].partition(":")[0], metric["unit"]


def _number(value: float | None) -> str:
    """A number as text, empty for None. Floats get seven digits, more than any measurement has."""
    if value is None:
        return ""
    return f"{value:.7g}" if isinstance(value, float) else repr(value)


@functools.lru_cache(maxsize=1 << 14)
def _cell(text: str) -> str:
    """The text as a CSV cell; cached, since names, scopes and units occur in a million rows."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow((csv_cell(text),))
    return stream.getvalue() if text else ""
