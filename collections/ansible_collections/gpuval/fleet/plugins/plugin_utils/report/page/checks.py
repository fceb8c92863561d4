"""The checks of a report as a table of nodes by checks, and why checks did not pass. Pure functions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.escape import one_line
from ...core.grouping import values_by_key
from ..problems import part_of
from .encode import SharedValues, mostly, short
from .results import EvidencePlace, Files

#: Letters of verdicts in the table of checks, the worst first: F and M are required checks only.
LETTERS = "FMwmpsn"
NOT_THERE = "n"
#: {verdict: (letter of a required check, letter of an advisory check)}
_LETTER = {"fail": ("F", "w"), "missing": ("M", "m"), "warn": ("w", "w"), "pass": ("p", "p"), "skipped": ("s", "s")}
_RANK = {letter: rank for rank, letter in enumerate(LETTERS)}
WRONG = frozenset("FMwm")
#: Maximum reasons shown of all nodes together: the page must open even if every check of a fleet failed.
MAX_REMARKS = 12_000
MAX_REMARKS_OF_A_NODE = 40
MAX_PEER_GROUPS = 6


def letter(check: Mapping[str, Any]) -> str:
    """The letter of a check in the table of nodes by checks, from LETTERS."""
    required, advice = _LETTER[check["verdict"]]
    return required if check["severity"] == "required" else advice


@dataclass
class Column:
    """One check over all nodes, as a column of the table of nodes by checks."""

    stage: str
    name: str
    kind: str
    severity: str
    source: str
    counts: Counter[str] = field(default_factory=Counter)
    expected: Counter[str] = field(default_factory=Counter)
    #: For a check against peers, a line for each kind of node: who the peers are, their number and range.
    beside: list[str] = field(default_factory=list)

    @property
    def limit(self) -> str:
        """The check's limit as text; if kinds of nodes have different limits, the most common one first."""
        return " / ".join(text for text, _ in self.expected.most_common(4) if text)


class ChecksTable:
    """Every check of every node. ``columns`` in the order of stages; ``cells``: for each node the worst entry of each
    check, by index of the column; ``letters``: for each node a letter for each column."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        by_key: dict[tuple[str, str], Column] = {}
        for check in (check for node in report["nodes"] for check in node["checks"]):
            if (check["stage"], check["name"]) not in by_key:
                column = Column(*(check[field] for field in ("stage", "name", "kind", "severity", "source")))
                by_key[column.stage, column.name] = column
        names = ["", *(stage["name"] for node in report["nodes"] for stage in node["stages"])]
        stages = {name: index for index, name in enumerate(dict.fromkeys(names))}
        columns = sorted(by_key.values(), key=lambda column: stages.get(column.stage, 99))
        numbers = {(column.stage, column.name): number for number, column in enumerate(columns)}
        cells = []
        for node in report["nodes"]:
            worst: dict[int, Mapping[str, Any]] = {}
            for check in node["checks"]:
                number = numbers[check["stage"], check["name"]]
                if number not in worst or _RANK[letter(check)] < _RANK[letter(worst[number])]:
                    worst[number] = check
            for number, check in worst.items():
                column, sign = columns[number], letter(check)
                column.counts[sign] += 1
                column.severity = "required" if check["severity"] == "required" else column.severity
                if sign != "s":
                    column.expected[check["expected"]] += 1
            cells.append(worst)
        _add_peers(report, columns, cells)
        self.columns, self.cells = columns, cells
        listed = ([row.get(index) for index in range(len(columns))] for row in cells)
        self.letters = ["".join(letter(check) if check else NOT_THERE for check in row) for row in listed]


def _add_peers(
    report: Mapping[str, Any], columns: Sequence[Column], cells: Sequence[Mapping[int, Mapping[str, Any]]]
) -> None:
    """Fill each column's ``beside``: the fleet's text for a check between nodes, or one node's reason as an example."""
    of_fleet = values_by_key(((check["stage"], check["name"]), check["reason"]) for check in report["fleet"]["checks"])
    for number, column in enumerate(columns):
        statements = list(dict.fromkeys(of_fleet.get((column.stage, column.name), ())))
        if column.kind == "baseline" or (not statements and column.kind in ("outlier", "same")):
            entries = [(node["name"], row[number]) for node, row in zip(report["nodes"], cells) if number in row]
            examples = [f"{name}: {entry['reason']}" for name, entry in entries if entry["verdict"] != "skipped"]
            skipped = dict.fromkeys(entry["reason"] for _, entry in entries if entry["verdict"] == "skipped")
            statements = examples[:1] or list(skipped)
        column.beside = [one_line(text, 360) for text in statements[:MAX_PEER_GROUPS]]


def as_data(report: Mapping[str, Any], tabled: ChecksTable, texts: SharedValues) -> dict[str, Any]:
    """The table of checks as the page's script reads it: columns with value and part of each node, and the reasons of
    checks that did not pass. ``texts``: stores each text of the page once; the table refers to them by number."""
    columns = []
    for index, column in enumerate(tabled.columns):
        entries = [row.get(index) for row in tabled.cells]

        def numbers(key: str, entries: Sequence[Mapping[str, Any] | None] = entries) -> Any:
            return mostly([texts.number(entry[key] if entry else "") for entry in entries])

        columns.append(
            {
                "s": column.stage, "n": column.name, "k": column.kind, "r": column.severity == "required",
                "o": texts.number(column.source), "u": numbers("unit"), "e": numbers("expected"),
                "v": mostly([_value(entry, texts) for entry in entries]), "p": numbers("part"),
            }
        )  # fmt: skip
    most = max(2, min(MAX_REMARKS_OF_A_NODE, MAX_REMARKS // max(1, len(report["nodes"]))))
    indexes = {(column.stage, column.name): index for index, column in enumerate(tabled.columns)}
    return {"columns": columns, "remarks": [_remarks(node, indexes, texts, most) for node in report["nodes"]]}


def _value(entry: Mapping[str, Any] | None, texts: SharedValues) -> Any:
    """A check's value as the page's script reads it: a number, [index in ``texts``] for a text, None without one."""
    if entry is None or entry["value"] is None:
        return None
    value = entry["value"]
    return [texts.number(one_line(value, 80))] if isinstance(value, str) else short(value)


def _remarks(
    node: Mapping[str, Any], indexes: Mapping[tuple[str, str], int], texts: SharedValues, max_remarks: int
) -> list[list[Any]]:
    """[column index, letter, part, reason, remedy] for each check of a node that did not pass, the worst first."""
    wrong = sorted((check for check in node["checks"] if letter(check) in WRONG), key=lambda one: _RANK[letter(one)])
    return [
        [
            indexes[check["stage"], check["name"]], letter(check), texts.number(part_of(node, check) or "node"),
            one_line(check["reason"], 360), texts.number(check["remedy"]),
        ]
        for check in wrong[:max_remarks]
    ]  # fmt: skip


def evidence_links(node: Mapping[str, Any], files: Files, evidence: EvidencePlace) -> list[tuple[str, str]]:
    """(path relative to the report, name) of each evidence file of the node in the results."""
    names = files.get(node["name"], frozenset())
    return [
        (f"{evidence.of(node['name'], stage['name'])}.{suffix}", f"{stage['name']}.{suffix}")
        for stage in node["stages"]
        for suffix in ("log", "json")
        if f"{stage['name']}.{suffix}" in names
    ]
