"""perf.csv of MAD models: a row for each figure and each failure, in exactly the columns that MAD's tools read."""

import collections
import contextlib
import csv
import io
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..core.escape import clean_text, csv_cell, one_line
from ..core.text import some_of
from ..records.environment import texts
from .documents import MadError, shown

#: Variable in a stage's environment with the columns of perf.csv about its model, as a JSON object.
VARIABLE = "MAD_PERF_COLUMNS"
COLUMNS = (
    *("model", "n_gpus", "nnodes", "gpus_per_node", "training_precision", "pipeline", "args", "tags", "docker_file"),
    *("base_docker", "docker_sha", "docker_image", "git_commit", "machine_name", "deployment_type", "launcher"),
    *("gpu_architecture", "performance", "metric", "relative_change", "status", "build_duration", "test_duration"),
    *("dataname", "data_provider_type", "data_size", "data_download_duration", "build_number"),
    "additional_docker_run_options",
)
#: Key with the names of a model's data sets, beside its columns of perf.csv.
DATASETS = "datasets"
#: Line that run_model.sh prints about data that the model's script downloaded.
_FETCHED = re.compile(r"^gpuval data: (?P<seconds>\d+) s, (?P<bytes>\d+) bytes$", re.MULTILINE | re.ASCII)
SUCCESS, FAILURE, SKIPPED = "SUCCESS", "FAILURE", "SKIPPED"
MAX_BYTES, MAX_ROWS, MAX_CELL = 64 << 20, 200_000, 1000
#: Build numbers in files of older tools that do not distinguish runs.
NO_BUILD = ("", "0")
#: Lines around the CSV of a model; run_model.sh prints them.
BEGIN, END = "gpuval results begin\n", "\ngpuval results end"
#: A model's line with its performance, in the same form as the runner reads it.
_PERFORMANCE = re.compile(
    r"performance:[ \t]*(?P<value>[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"(?P<per>/s(?:ec(?:ond)?)?)?,?[ \t]+(?P<metric>\S+)",
    re.ASCII,
)
Row = dict[str, str]


def models(
    plans: Iterable[Mapping[str, Any]], built: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, dict[str, str]]:
    """{stage: columns of perf.csv about its model that are known before it runs, with DATASETS}, from the nodes' plans.
    `built`: {image reference: entry of the catalogue}."""
    by_stage = {}
    for plan in plans:
        for stage in plan["stages"]:
            if VARIABLE in stage["environment"]:
                image = plan.get("images", {}).get(stage["image"]) or {}
                columns = json.loads(stage["environment"][VARIABLE])
                identity = image.get("id") or (stage["image"] or "").partition("@")[2]
                seconds = (built or {}).get(stage["image"] or "", {}).get("build_seconds")
                by_stage[stage["name"]] = {
                    **columns,
                    "docker_sha": identity,
                    "build_duration": _text(seconds),
                    DATASETS: ",".join(stage.get("datasets", ())),
                }
    return by_stage


def rows(
    columns: Mapping[str, str],
    stage: Mapping[str, Any],
    log: str,
    facts: Mapping[str, Any],
    node: str,
    run_id: str,
    metrics: Sequence[Mapping[str, Any]] = (),
) -> list[Row]:
    """The rows of perf.csv for one model on one node. `columns`: from `models`; `stage`, `metrics`: from the report;
    `log`: text of the stage's log; `facts`: environment in the node's record of stage facts."""
    accelerator = facts.get("accelerator")
    count = accelerator.get("count") if isinstance(accelerator, Mapping) else None
    gpus_set, nodes = int(columns["n_gpus"]), int(columns.get("nnodes", 1))
    gpus = (min(gpus_set, count) if count and gpus_set > 0 else count) if isinstance(count, int) else None
    architecture = next(iter([*texts(facts, "gpus[].architecture"), *texts(facts, "gpus[].name")]), "")
    fetched = _FETCHED.search(log)
    common = {
        **columns,
        **({"data_size": fetched["bytes"], "data_download_duration": fetched["seconds"]} if fetched else {}),
        "n_gpus": columns["n_gpus"] if gpus is None else gpus * nodes,
        "nnodes": nodes,
        "gpus_per_node": gpus,
        "machine_name": node,
        "gpu_architecture": architecture,
        "test_duration": stage["duration_seconds"],
        "build_number": run_id,
    }
    results = _results(columns["model"], stage, log, metrics)
    return [{name: _text({**common, **result}.get(name)) for name in COLUMNS} for result in results]


def _results(
    model_name: str, stage: Mapping[str, Any], log_text: str, metrics: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    if stage["state"] != "success":
        return [{"status": FAILURE}]
    if stage["message"].startswith("skipped:"):
        return [{"status": SKIPPED}]
    if BEGIN in log_text:
        return _of_csv(model_name, _csv_in(log_text))
    match = next(iter(collections.deque(_PERFORMANCE.finditer(log_text), maxlen=1)), None)
    if match is None:  # the log leaves out the part with the performance
        for metric in metrics:
            if metric["name"].startswith(stage["name"]) and metric["value"] is not None:
                return [{"performance": repr(metric["value"]), "metric": metric["unit"], "status": SUCCESS}]
        return [{"status": FAILURE}]
    unit = match["metric"].rstrip(",.;:)'\"") + (match["per"] or "")
    return [{"performance": match["value"].replace(",", ""), "metric": unit, "status": SUCCESS}]


def _of_csv(model: str, text: str) -> list[dict[str, str]]:
    """A result for each row of a model's own CSV, named MODEL_row; a row without a number is a failure."""
    results = []
    with contextlib.suppress(csv.Error):  # rows before a malformed row count
        for raw in itertools.islice(csv.DictReader(io.StringIO(text), skipinitialspace=True), MAX_ROWS):
            named = ((str(name).strip(), cell or "") for name, cell in raw.items() if name is not None)
            cells = {name: one_line(cell, MAX_CELL) for name, cell in named}
            performance, status = cells.get("performance", ""), SUCCESS
            if _number(performance) is None:
                performance, status = "", FAILURE
            name = f"{model}_{cells.get('model') or cells.get('models') or ''}"
            metric = cells.get("metric", "")
            results.append({"model": name, "performance": performance, "metric": metric, "status": status})
    return results or [{"status": FAILURE}]


def _csv_in(log: str) -> str:
    return log.rpartition(BEGIN)[2].partition(END)[0]


def table(log: str) -> str:
    """The model's own CSV from its log with all columns, safe for spreadsheets; empty if the log has none."""
    stream = io.StringIO()
    with contextlib.suppress(csv.Error):
        reader = csv.reader(io.StringIO(_csv_in(log) if BEGIN in log else ""))
        for row in itertools.islice(reader, MAX_ROWS):
            csv.writer(stream, lineterminator="\n").writerow([_cell(one_line(cell, MAX_CELL).strip()) for cell in row])
    return stream.getvalue()


def written(rows: Iterable[Mapping[str, str]]) -> str:
    """The text of a perf.csv with its header and these rows."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_cell(row[name]) for name in COLUMNS] for row in rows)
    return stream.getvalue()


def read(text: str, *, subject: str) -> list[Row]:
    """The rows of an earlier perf.csv; files of older tools have fewer columns. Raises MadError."""
    if len(text) > MAX_BYTES:
        raise MadError(f"{subject}: longer than {MAX_BYTES} characters: move it away to begin a new one")
    reader = csv.reader(io.StringIO(text))
    header = [name.strip() for name in next(reader, [])]
    unknown = [name for name in header if name not in COLUMNS]
    if not header or unknown or "model" not in header or len(set(header)) < len(header):
        columns = some_of(map(shown, unknown), 4)
        problem = f"has columns that perf.csv has not: {columns}" if unknown else "is no perf.csv"
        raise MadError(f"{subject}: {problem}: move it away to begin a new one")
    rows = []
    try:
        for cells in reader:
            if len(cells) != len(header):
                raise MadError(
                    f"{subject}: line {reader.line_num} has {len(cells)} cells, the header {len(header)}: correct it"
                )
            values = {name: _unescaped(cell) for name, cell in zip(header, cells, strict=True)}
            rows.append({name: values.get(name, "") for name in COLUMNS})
            if len(rows) > MAX_ROWS:
                raise MadError(f"{subject}: more than {MAX_ROWS} rows: move it away to begin a new one")
    except csv.Error as error:
        raise MadError(f"{subject}: line {reader.line_num}: malformed CSV: {error}") from error
    return rows


def compared(earlier: Sequence[Row], new: Iterable[Row]) -> list[Row]:
    """The new rows of perf.csv, each with its change, (new - old) / old, since the last success of the same model and
    metric, preferably with the same arguments, then on the same machine. If a run has several such rows, as for batch
    sizes, the first is compared with the first."""
    last: dict[tuple[object, ...], float] = {}
    for row, keys in _keyed(earlier):
        value = _number(row["performance"])
        if row["status"] == SUCCESS and value is not None:
            last.update(dict.fromkeys(keys, value))
    rows = []
    for row, keys in _keyed(new):
        before, value = next((last[key] for key in keys if key in last), None), _number(row["performance"])
        change = f"{(value - before) / before:.6g}" if value is not None and before else ""
        rows.append({**row, "relative_change": change})
    return rows


def _keyed(rows: Iterable[Row]) -> Iterator[tuple[Row, list[tuple[object, ...]]]]:
    """Each row of perf.csv with the keys by which `compared` finds earlier ones, the most specific first."""
    counts: collections.Counter[tuple[str, ...]] = collections.Counter()
    for row in rows:
        figure, work, machine = (row["model"], row["metric"]), (row["args"], row["docker_file"]), row["machine_name"]
        of_run = (*figure, *work, machine, row["build_number"])
        index = counts[of_run] if row["build_number"] not in NO_BUILD else 0
        counts[of_run] += 1
        keys = ((*work, machine), (*work, None), (None, None, machine), (None, None, None))
        yield row, [(*figure, index, *key) for key in keys]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else clean_text(str(value)).replace("\n", " ")


def _cell(text: str) -> str:
    """A cell that no spreadsheet reads as a formula. Options such as `--batch 8` get a leading blank."""
    return f" {text}" if text.startswith("--") else csv_cell(text)


def _unescaped(cell: str) -> str:
    """The text of a cell in perf.csv without the protection against formulas that `_cell` adds."""
    if cell.startswith(" --"):
        return cell[1:]
    return cell[1:] if cell.startswith("'") and csv_cell(cell[1:]) == cell else cell
