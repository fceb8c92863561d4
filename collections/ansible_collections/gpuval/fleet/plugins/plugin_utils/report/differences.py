"""Finds where the kept report on a run differs from a report judged again: by file, node and check."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.escape import one_line
from ..records import report_file

#: Verdicts that implicate no node. A check with one of them that only one report has is no changed verdict.
_HARMLESS = ("pass", "skipped")
_REPORT = "report.json"
_HEAD = ("verdict", "counts", "run", "summary", "racks", "fleet")


@dataclass(frozen=True)
class ReportDifference:
    """One difference between the kept report on a run and the new one. ``file``: path below the run's folder; ``node``,
    ``check``: empty for the whole run or node; ``kept``, ``judged``: the text in each report."""

    file: str
    node: str
    check: str
    kept: str
    judged: str

    def text(self) -> str:
        where = " ".join(filter(None, (self.node, self.check)))
        return f"{self.file}: {where}: kept {self.kept}; judged again {self.judged}"


def differences(kept: Path, judged: Path, *, only_verdicts: bool = False) -> Iterator[ReportDifference]:
    """Yield the differences of two report.json files, as `compared` does; a damaged file is one difference."""
    try:
        yield from compared(_whole(kept), _whole(judged), only_verdicts=only_verdicts)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        text = f"no report: {one_line(str(error), 200)}"
        yield ReportDifference(_REPORT, "", "", text, "a report")


def changed_verdicts(path: Path, report: Mapping[str, Any]) -> list[str]:
    """A line for each verdict that differs between ``report`` and the run's previous report.json at ``path``; none if
    that file is damaged."""
    try:
        changes = compared(_whole(path), iter([report, *report["nodes"]]), only_verdicts=True)
        return [change.text() for change in changes]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def _whole(path: Path) -> Iterator[dict[str, Any]]:
    """Read a report.json: yield all but its nodes as the head, then each node with every check and metric."""
    parts = report_file.walk(path)
    head = next(parts)
    yield head
    yield from (report_file.unpack_node(node, head) for node in parts)


def compared(
    kept: Iterator[Mapping[str, Any]], judged: Iterator[Mapping[str, Any]], *, only_verdicts: bool = False
) -> Iterator[ReportDifference]:
    """Compare two reports, each given as its head, then its nodes in order. Yields at least one difference; with
    ``only_verdicts`` nothing but changed verdicts, perhaps none."""
    heads, is_found = (next(kept), next(judged)), False
    for key in _HEAD[:1] if only_verdicts else _HEAD:
        if heads[0].get(key) != heads[1].get(key):
            is_found = True
            yield ReportDifference(_REPORT, "", key, *_first_texts(heads[0].get(key), heads[1].get(key)))
    for before, after in itertools.zip_longest(kept, judged):
        if before is None or after is None or before["name"] != after["name"]:
            names = [one_line(str(node["name"]), 300) if node else "no further node" for node in (before, after)]
            yield ReportDifference(_REPORT, names[1] if after else names[0], "", *names)
            return
        for difference in _of_node(before, after, only_verdicts=only_verdicts):
            is_found = True
            yield difference
    if not is_found and not only_verdicts:
        yield ReportDifference(_REPORT, "", "", "other bytes with the same content", "the usual form")


def _of_node(kept: Mapping[str, Any], judged: Mapping[str, Any], *, only_verdicts: bool) -> Iterator[ReportDifference]:
    """Yield the checks of one node that differ between two reports, required ones first; if none, other fields."""
    name, is_found = str(judged["name"]), False
    if only_verdicts and kept["verdict"] != judged["verdict"]:
        now = f"{judged['verdict']} ({judged['class']})" if judged["class"] else str(judged["verdict"])
        yield ReportDifference(_REPORT, name, "verdict", kept["verdict"], now)
    checks = [{(one["stage"], one["name"], one["part"]): one for one in node["checks"]} for node in (kept, judged)]
    keys = dict.fromkeys(itertools.chain(*checks))
    for key in sorted(keys, key=lambda key: (checks[1].get(key) or checks[0][key])["severity"] != "required"):
        before, after = (of_node.get(key) for of_node in checks)
        if _is_same_verdict(before, after) if only_verdicts else before == after:
            continue
        texts = [f"{one['verdict']} ({one['reason']})" if one else "no such check" for one in (before, after)]
        if texts[0] == texts[1]:
            texts = list(_first_texts(before, after))
        is_found = True
        file = f"nodes/{name}/{key[0]}.json" if key[0] else _REPORT
        yield ReportDifference(file, name, key[1], *(one_line(text, 300) for text in texts))
    fields = dict.fromkeys(itertools.chain(kept, judged)) if not (is_found or only_verdicts) else ()
    for field in (field for field in fields if kept.get(field) != judged.get(field)):
        yield ReportDifference(_REPORT, name, field, *_first_texts(kept.get(field), judged.get(field)))


def _is_same_verdict(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    if before and after:
        return bool(before["verdict"] == after["verdict"])
    return (before or after or {}).get("verdict") in _HARMLESS


def _first_texts(kept: Any, judged: Any) -> tuple[str, str]:
    """Two JSON values as short texts, reduced to the first key or list item in which they differ."""
    if isinstance(kept, dict) and isinstance(judged, dict):
        key = next(key for key in dict.fromkeys([*kept, *judged]) if kept.get(key, ...) != judged.get(key, ...))
        return _first_texts(kept.get(key, "nothing"), judged.get(key, "nothing"))
    if isinstance(kept, list) and isinstance(judged, list):
        pairs = itertools.zip_longest(kept, judged, fillvalue="nothing")
        return _first_texts(*next(pair for pair in pairs if pair[0] != pair[1]))
    return one_line(str(kept), 300), one_line(str(judged), 300)
