"""The history as lines for a terminal. Pure; texts of nodes were cleaned on intake."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..core import units
from ..core.escape import one_line
from ..core.text import some_of, table
from .trend import MIN_TOTAL

MAX_ROWS = 60
MAX_LISTED, MAX_NAMED = 20, 3
#: Number of runs with a column in the table of figures.
MAX_COLUMNS = 6
MAX_CELL = 48


def lines(document: Mapping[str, Any]) -> list[str]:
    """The history document as lines of text: runs, figures, flaky machines, drifts, and refused records."""
    query = document["asked"]
    subject = "the fleet" if query["subject"] == "fleet" else f"{query['subject']} {one_line(query['value'], 128)}"
    since = f" since {query['since'][:10]}" if query["since"] else ""
    if not (rows := document["rows"]):
        return [f"history of {subject}{since}: no run in the bucket; `make validate` starts one"]
    runs = len({row["run_id"] for row in rows})
    first = f"history of {subject}{since}: {_count(runs, 'run')}, {rows[0]['time'][:10]} to {rows[-1]['time'][:10]}"
    parts = (_run_lines, _figures, _flaky, _drifts, _refused)
    return [first, "", *(line for part in parts for line in part(document))]


def _run_lines(document: Mapping[str, Any]) -> list[str]:
    rows = document["rows"][-MAX_ROWS:]
    hidden = len(document["rows"]) - len(rows)
    earlier = [f"({_count(hidden, 'earlier row')} left out: OUTPUT=history.json has all)"] if hidden else []
    if document["asked"]["subject"] in ("node", "serial"):
        header = ["time", "run", "profile", "node", "part", "machine", "verdict", "failed checks", "driver", "firmware"]
        cells = [
            [
                row["time"][:16], row["run_id"], row["profile"], row["node"], row["part"] or "", row["machine"],
                row["verdict"] + (" (flaky)" if row["flaky"] else ""), some_of(row["failed_checks"], MAX_NAMED),
                row["driver"] or "", row["firmware"] or "",
            ]
            for row in rows
        ]  # fmt: skip
    else:
        header = ["time", "run", "profile", "nodes", "PASS", "FAIL", "INCOMPLETE", "not judged", "flaky", "SKU",
                  "driver", "firmware"]  # fmt: skip
        cells = [
            [
                row["time"][:16], row["run_id"], row["profile"],
                *(str(row[key]) for key in ("nodes", "PASS", "FAIL", "INCOMPLETE", "not_judged", "flaky")),
                *(some_of(row[key], MAX_NAMED) for key in ("skus", "driver", "firmware")),
            ]
            for row in rows
        ]  # fmt: skip
    return [*earlier, *grid(header, cells), ""]


def _figures(document: Mapping[str, Any]) -> list[str]:
    """The medians of the last runs, a row for each setup of a figure."""
    if not document["figures"]:
        return []
    run_ids = {run["run_id"] for figure in document["figures"] for run in figure["runs"]}
    columns = [run for run in dict.fromkeys(row["run_id"] for row in document["rows"]) if run in run_ids][-MAX_COLUMNS:]
    header = ["median of its parts", "per", "of", *columns]
    cells = []
    for figure in document["figures"]:
        by_run = {run["run_id"]: run for run in figure["runs"]}
        if by_run.keys() & set(columns):
            kind = " ".join(str(figure[key]) for key in ("sku", "setup") if figure[key])
            figures = [_figure(by_run[run], figure["unit"]) if run in by_run else "-" for run in columns]
            cells.append([figure["metric"], figure["scope"], kind, *figures])
    rest = len(cells) - MAX_ROWS
    more = [f"({_count(rest, 'more figure')}: METRIC= asks for some, OUTPUT=history.json has all)"] if rest > 0 else []
    return [*grid(header, cells[:MAX_ROWS]), *more, ""]


def _figure(run: Mapping[str, Any], unit: str) -> str:
    """A run's median of a figure as text, with its lowest and highest part if these are far from the median."""
    far = MIN_TOTAL * abs(run["median"])
    ends = {"min": run["low"], "max": run["high"]}
    ends_shown = [f"{end} {_human(value, unit)}" for end, value in ends.items() if abs(value - run["median"]) > far]
    return _human(run["median"], unit) + (f" ({', '.join(ends_shown)})" if ends_shown else "")


def _flaky(document: Mapping[str, Any]) -> list[str]:
    if not (machines := document["flaky"]):
        return ["flaky: none"]
    texts = [f"flaky: {_count(document['flaky_count'], 'machine')}"]
    for entry in machines[:MAX_LISTED]:
        reasons = []
        if entry["retried"]:
            where = some_of(entry["retried_runs"], MAX_NAMED)
            of_runs = _count(entry["judged"], "run")
            reasons.append(f"passed only on a further attempt in {entry['retried']} of {of_runs} ({where})")
        if entry["changes"] > 1:
            pattern = entry["pattern"] if len(entry["pattern"]) <= 40 else f"...{entry['pattern'][-37:]}"
            reasons.append(f"{pattern}: {entry['changes']} changes between PASS and FAIL on the same hardware")
        texts.append(f"  {entry['node']} ({entry['machine']}) {'; '.join(reasons)}")
    return texts + _more(document["flaky_count"])


def _drifts(document: Mapping[str, Any]) -> list[str]:
    rules = document["rules"]
    method = (
        f"{rules['min_runs']} runs or more, over {units.number_text(100 * rules['min_total_ratio'])} % and beyond "
        f"their noise with {units.number_text(100 * rules['confidence'])} % confidence"
    )
    if not (drifts := document["drifts"]):
        return [f"drift: none of {_count(document['held_count'], 'series', 'series')} ({method})"]
    texts = [f"drift: {document['drift_count']:,} of {_count(document['held_count'], 'series', 'series')} ({method})"]
    for drift in drifts[:MAX_LISTED]:
        texts.append(f"  {drift_subject(drift)} {drift['metric']} {drift_text(drift)}")
        if drift["changes"]:
            texts.append("    " + "; ".join(change_text(change) for change in drift["changes"][:4]))
    return texts + _more(document["drift_count"])


def drift_subject(drift: Mapping[str, Any]) -> str:
    """The subject of a drift: a part, or the median of all nodes of a SKU."""
    if drift["of"] == "fleet":
        return f"{drift['sku']} (median per {drift['scope']} of {drift['nodes']} nodes)"
    part = "" if drift["part"] == "node" else f" {drift['part']}"
    return f"{drift['node']}{part}" + (f" (serial {drift['gpu']})" if drift["gpu"] else "")


def drift_text(drift: Mapping[str, Any]) -> str:
    first, last = (_human(drift["values"][end], drift["unit"]) for end in (0, -1))
    total, per_run, low, high = (_percent(drift[f"{name}_ratio"]) for name in ("total", "per_run", "low", "high"))
    runs = f"over {len(drift['values'])} runs ({per_run} per run; {low} to {high})"
    return f"{total} {runs}{_direction(drift)}: {first} to {last}"


def change_text(change: Mapping[str, Any]) -> str:
    return f"{change['run_id']}: {change['what']} {change['before']} -> {change['after']}"


def _direction(drift: Mapping[str, Any]) -> str:
    if units.compatible(drift["unit"], "seconds"):
        return " slower" if drift["total_ratio"] > 0 else " faster"
    per_second = "/s" in drift["unit"] or drift["unit"].endswith("_per_second")
    if per_second or any(units.compatible(drift["unit"], unit) for unit in ("bytes/s", "TFLOP/s")):
        return " faster" if drift["total_ratio"] > 0 else " slower"
    return ""


def _refused(document: Mapping[str, Any]) -> list[str]:
    if not (records := document["refused"]):
        return []
    texts = [f"  {row['run_id']} {row['node']} {row['stage']}: {row['reason']}" for row in records[:MAX_LISTED]]
    count = document["refused_count"]
    return ["", f"refused as evidence: {_count(count, 'record')}", *texts, *_more(count)]


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table as lines: columns as wide as their cells, without empty columns."""
    cells = [[one_line(cell, MAX_CELL) for cell in row] for row in rows]
    filled = [column for column in range(len(header)) if any(row[column] for row in cells)]
    return table([[row[column] for column in filled] for row in [list(header), *cells]])


def _human(value: float, unit: str) -> str:
    return units.human(value, unit).split(" (")[0]


def _percent(ratio: float) -> str:
    return f"{ratio * 100:+.2f} %"


def _count(number: int, noun: str, many: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def _more(count: int) -> list[str]:
    return [f"  and {count - MAX_LISTED:,} more: OUTPUT=history.json has them"] if count > MAX_LISTED else []
