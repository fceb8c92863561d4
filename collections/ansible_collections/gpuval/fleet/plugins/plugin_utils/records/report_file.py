"""Write and read report.json: a line for each node, and tables of what nodes have in common.

A thousand nodes of eight GPUs have 200,000 checks and 2,000,000 figures. So the file of more than 32 nodes has three
tables before its nodes:

* ``criteria``: by ``stage/name`` of a check its most common texts. A check of a node leaves out those that are the
  same, a value that is none, and its stage where no other stage has a check of that name; one that fails, or lacks
  required evidence, leaves out nothing. ``{value}`` in a reason stands for the value of the check, as people read it.
* ``figures``: lists of ``{name, unit, scopes}``. A stage of a node names its list and has a value for each of its rows,
  or a list of values where the scopes differ. Floats have seven digits; records have them all.
* ``properties``: versions and setups. A node or a stage has the number of its own. A stage leaves out an empty message,
  and that it was not retried.

``parts`` and ``unpacked`` convert between the file and the report in memory, with every check and metric whole.
"""

import itertools
import json
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from ..core import files, schemas, units
from ..core.grouping import values_by_key
from .documents import Document, NodeMetric
from .metrics import CompactMetrics, MetricForm, metric_row

NODES = '"nodes": ['
#: A report of more nodes than this is packed into tables.
MAX_WHOLE_NODES = 32
_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_dump_node = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
#: Fields of a check that may be left out.
TEXTS = ("metric", "kind", "severity", "part", "unit", "expected", "reason", "source", "remedy")
_WHOLE = frozenset(TEXTS)
_VALUE = "{value}"
_TABLES = ("criteria", "figures", "properties")
#: Fields of a node or stage that are kept in the table ``properties``.
_SHARED = ("versions", "setup")
#: First fields of a stage in their order, and what a stage leaves out of those.
_STAGE_FIELDS = ("name", "workload", "state", "message", "flaky", "retried_for")
_STAGE_DEFAULTS: dict[str, Any] = {"message": "", "flaky": False, "retried_for": None}
_NO_FLEET: dict[str, Any] = {"checks": [], "problems": []}
_Row = dict[str, Any]


def lines(report: Document, *, what: str = "") -> Iterator[str]:
    """The text of a report's file in pieces: each node on a line of its own, for grep. If ``what`` names the report, it
    is checked against its schema. Raises schemas.Invalid with that name."""
    head, nodes = parts(report)
    if what:
        schemas.validate("report", head, what=what)
    yield "{\n"
    for key, value in head.items():
        if key not in ("nodes", "fleet"):
            yield f"{_dump(key)}: {_dump(value)},\n"
    frame = {**head, **{table: type(head[table])() for table in _TABLES if table in head}, "fleet": _NO_FLEET}
    for number, node in enumerate(nodes):
        if what:
            schemas.validate("report", {**frame, "nodes": [node]}, what=what)
        yield f",\n{_dump_node(node)}" if number else f"{NODES}\n{_dump_node(node)}"
    yield "\n],\n" if report["nodes"] else '"nodes": [],\n'
    yield f'"fleet": {_dump_node(head["fleet"])}\n}}\n'


def read(path: Path) -> Any:
    """The JSON document of a file. Raises OSError, and ValueError for a file that is no JSON."""
    return orjson.loads(files.read(path))


def parts(report: Document) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """The report in the form of its file: the head without nodes, and an iterator over packed nodes. A report of few
    nodes, or one that is packed already, stays as it is."""
    if "criteria" in report or len(report["nodes"]) <= MAX_WHOLE_NODES:
        return {**report, "nodes": []}, map(_whole, report["nodes"])
    criteria = _common_texts(report["nodes"])
    stages = _stages(criteria)
    figures: dict[MetricForm, tuple[int, list[_Row]]] = {}
    properties: dict[str, int] = {}
    for node in report["nodes"]:
        for entry in (node, *node["stages"]):
            _pack_shared(entry, properties)
        for metrics in node["metrics"].values():
            form = CompactMetrics.of(metrics).form
            figures.setdefault(form, (len(figures), _rows_of(form)))
    nodes = (
        {
            **_pack_shared(node, properties),
            "stages": [_pack_stage(stage, properties) for stage in node["stages"]],
            "checks": [_pack_check(check, criteria, stages) for check in node["checks"]],
            "metrics": {stage: _pack_metrics(metrics, figures) for stage, metrics in node["metrics"].items()},
        }
        for node in report["nodes"]
    )
    tables: dict[str, Any] = {"criteria": criteria, "figures": [rows for _, rows in figures.values()]}
    tables["properties"] = [json.loads(shared) for shared in properties]
    head = {key: value for key, value in report.items() if key not in ("nodes", "fleet")}
    return {**head, **tables, "nodes": [], "fleet": report["fleet"]}, nodes


def _whole(node: Document) -> dict[str, Any]:
    """The report's node with its metrics as plain lists, for JSON."""
    metrics = {stage: list(one) if isinstance(one, CompactMetrics) else one for stage, one in node["metrics"].items()}
    return {**node, "metrics": metrics}


def unpacked(document: dict[str, Any]) -> dict[str, Any]:
    """The report from a file's document, whose nodes change in place. Raises ValueError if its tables do not fit."""
    for node in document["nodes"]:
        unpack_node(node, document)
    return {key: value for key, value in document.items() if key not in _TABLES}


def unpack_node(node: dict[str, Any], head: Document) -> dict[str, Any]:
    """Restore the node's checks and metrics in place from ``head``'s tables. Raises ValueError if they do not fit."""
    criteria, figures = head.get("criteria", {}), head.get("figures", ())
    stages = _stages(criteria)
    checks = [{"stage": stages.get(check["name"], ""), **check} for check in node["checks"]]
    node["checks"] = [_unpack_check(check, criteria.get(_check_key(check), {})) for check in checks]
    for check in node["checks"]:
        if not check.keys() >= _WHOLE:
            raise ValueError(f"{node['name']}: its check {check['name']} is not among the criteria")
    try:
        node["metrics"] = {stage: _unpack_metrics(one, figures) for stage, one in node["metrics"].items()}
        unpack_shared(node, head)
    except LookupError:
        raise ValueError(
            f"{node['name']}: its metrics are not among the figures, or its versions not among the properties"
        ) from None
    return node


def unpack_shared(node: dict[str, Any], head: Document) -> None:
    """Restore versions, setups and stages in place. Raises LookupError if ``head`` lacks them."""
    if "criteria" in head:
        heads = [{key: {**_STAGE_DEFAULTS, **stage}.get(key) for key in _STAGE_FIELDS} for stage in node["stages"]]
        node["stages"] = [{**fields, **stage} for fields, stage in zip(heads, node["stages"], strict=True)]
    for entry in (node, *node["stages"]):
        numbers = {key: entry[key] for key in _SHARED if type(entry.get(key)) is int}
        entry.update({key: head["properties"][number] for key, number in numbers.items()})


def _pack_shared(entry: Document, properties: dict[str, int]) -> dict[str, Any]:
    numbers = {key: properties.setdefault(_dump_node(entry[key]), len(properties)) for key in _SHARED if key in entry}
    return {**entry, **numbers}


def _pack_stage(stage: Document, properties: dict[str, int]) -> dict[str, Any]:
    fields = _pack_shared(stage, properties).items()
    return {key: value for key, value in fields if key not in _STAGE_DEFAULTS or value != _STAGE_DEFAULTS[key]}


def _check_key(check: Document) -> str:
    return f"{check['stage']}/{check['name']}"


def _stages(criteria: Iterable[str]) -> dict[str, str]:
    """``{check: stage}`` for checks whose name only one stage has. ``criteria``: keys ``stage/check``."""
    stages = [key.partition("/")[::2] for key in criteria]
    counts = Counter(name for _, name in stages)
    return {name: stage for stage, name in stages if counts[name] == 1}


def _common_texts(nodes: Sequence[Document]) -> dict[str, dict[str, Any]]:
    checks = values_by_key((_check_key(check), check) for node in nodes for check in node["checks"])
    criteria = {}
    for key, listed in checks.items():
        getters = {text: operator.itemgetter(text) for text in TEXTS} | {"reason": _template}
        criteria[key] = {text: Counter(map(get, listed)).most_common(1)[0][0] for text, get in getters.items()}
    return criteria


def _pack_check(check: Document, criteria: Mapping[str, Document], stages: Mapping[str, str]) -> dict[str, Any]:
    value = _rounded(check["value"])
    packed = {**check, "value": value}
    if check["verdict"] == "fail" or (check["verdict"] == "missing" and check["severity"] == "required"):
        return packed
    common = {
        **_texts_for_value(criteria[_check_key(check)], value, check["unit"]),
        "value": None,
        "stage": stages.get(check["name"]),
    }
    return {key: text for key, text in packed.items() if key not in common or text != common[key]}


def _unpack_check(check: Document, common: Document) -> dict[str, Any]:
    """The check with all texts; equal texts are the same object as in ``common``, to save memory."""
    if "reason" not in check and "reason" in common:
        common = _texts_for_value(common, check.get("value"), check.get("unit", common["unit"]))
    fields = {key: value for key, value in check.items() if key not in common or value != common[key]}
    return {"value": None, **common, **fields}


def _template(check: Document) -> str:
    """The check's reason with ``{value}`` in place of its value."""
    value, reason = _rounded(check["value"]), str(check["reason"])
    return reason.replace(units.human(value, check["unit"]), _VALUE, 1) if isinstance(value, float) else reason


def _texts_for_value(common: Document, value: Any, unit: str) -> Document:
    if not isinstance(value, float) or _VALUE not in common["reason"]:
        return common
    return {**common, "reason": common["reason"].replace(_VALUE, units.human(value, unit), 1)}


def _rounded(value: Any) -> Any:
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _rows_of(form: MetricForm) -> list[_Row]:
    keyed = itertools.groupby(form.rows, lambda row: (row[0], row[1], row[3] or 1))
    return [
        {"name": name, "unit": unit, "scopes": [scope for _, _, scope, _ in rows]}
        | ({"revision": revision} if revision > 1 else {})
        for (name, unit, revision), rows in keyed
    ]


def _pack_metrics(metrics: Sequence[Any], figures: Mapping[MetricForm, tuple[int, list[_Row]]]) -> dict[str, Any]:
    """A stage's metrics as the number of their rows in the table ``figures``, and the values of these rows."""
    compact = CompactMetrics.of(metrics)
    number, rows = figures[compact.form]
    numbers = map(_rounded, compact.values)
    values = [list(itertools.islice(numbers, len(row["scopes"]))) for row in rows]
    return {"figures": number, "values": [one[0] if one.count(one[0]) == len(one) else one for one in values]}


def _unpack_metrics(packed_metrics: Any, figures: Sequence[Any]) -> Sequence[NodeMetric]:
    if not isinstance(packed_metrics, dict):
        whole: Sequence[NodeMetric] = packed_metrics
        return whole
    rows, values = figures[packed_metrics["figures"]], packed_metrics["values"]
    reported = [
        (metric_row(row["name"], row["unit"], scope, row.get("revision")), number)
        for row, value in zip(rows, values, strict=True)
        for numbers in [value if isinstance(value, list) else [value] * len(row["scopes"])]
        for scope, number in zip(row["scopes"], numbers, strict=True)
    ]
    return CompactMetrics(tuple(row for row, _ in reported), [number for _, number in reported])


def walk(path: Path, *, max_bytes: int = 64 << 20) -> Iterator[dict[str, Any]]:
    """The report's head without nodes, then one node at a time as the file has it. Raises OSError, and ValueError for a
    file that is no report; a file in another layout is read as a whole, up to ``max_bytes``."""
    head: list[str] = []
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            if line.rstrip("\n") == NODES:
                break
            head.append(line)
        else:
            if path.stat().st_size > max_bytes:
                raise ValueError("its nodes do not stand on a line each")
            report = json.loads("".join(head))
            if not isinstance(report, dict) or not isinstance(report.get("nodes"), list):
                raise ValueError("it has no nodes")  # noqa: TRY004 - of a file, not of an argument
            yield {**report, "nodes": []}
            yield from report["nodes"]
            return
        yield json.loads("".join([*head, '"nodes": []}']))
        for line in stream:
            text = line.strip()
            if not text.startswith("{"):
                return
            yield json.loads(text.removesuffix(","))
        raise ValueError("it ends within its nodes")
