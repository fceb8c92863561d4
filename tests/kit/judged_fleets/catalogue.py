"""All made-up fleets, and what is written of each."""

import itertools
import json
import tempfile
from collections import Counter
from pathlib import Path

from tests.kit.judged_fleets import comparisons, ends, hardware, identities, kinds, launches, rounds, settings  # noqa: F401  (they register their fleets)
from tests.kit.judged_fleets.fleet import FLEETS

#: How many checks of a verdict a node's line of a snapshot names.
MOST_SHOWN = {"fail": 8, "missing": 3, "warn": 4}


def judge_fleet(name):
    """The documents of one fleet."""
    with tempfile.TemporaryDirectory() as folder:
        return FLEETS[name](Path(folder))


def canonical_text(documents):
    """The documents as JSON of one form, with a line for each value."""
    return json.dumps(documents, sort_keys=True, indent=1, ensure_ascii=False, default=_plain) + "\n"


def _plain(value):
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} in the documents of a fleet")


def snapshot(name, documents):
    """What a fleet's documents come to, in lines that people compare: verdicts, classes, actions, open checks."""
    return "".join(f"{line}\n" for line in (FLEETS[name].__doc__, *_lines(documents, "")))


def _lines(documents, place):
    if "report" in documents:
        yield from _of_report(documents["report"], place)
        yield from _retries(documents.get("by_itself", {}))
    elif "nodes" in documents and "counts" in documents:
        yield from _of_report(documents, place)
    for key, document in documents.items():
        if isinstance(document, dict) and key not in ("report", "by_itself"):
            yield from _lines(document, f"{place}/{key}")
        elif isinstance(document, str) and not place:
            yield f"{key}: {document[:160]}"


def _of_report(report, place):
    counts = report["counts"]
    yield ""
    yield (
        f"{place or '/'} {report['verdict']}: {counts['PASS']} PASS, {counts['FAIL']} FAIL, "
        f"{counts['INCOMPLETE']} INCOMPLETE, {counts['flaky']} flaky"
    )
    for entry in report["fleet"]["checks"]:
        if entry["verdict"] != "pass":
            yield f"  fleet {entry['verdict']} {entry['name']}"
    for node, busy in report["run"].get("busy", {}).items():
        yield f"  {node}: busy {busy['class']}"
    outcomes = [(node["name"], _outcome(node)) for node in report["nodes"]]
    for outcome, group in itertools.groupby(outcomes, key=lambda pair: pair[1]):
        yield f"  {_names([node for node, _ in group])}: {outcome}"


def _names(nodes):
    """Names that follow each other in the report; of numbered ones the first and the last."""
    if len(nodes) > 2 and all(node[-1].isdecimal() for node in nodes):
        return f"{nodes[0]} to {nodes[-1]} ({len(nodes)})"
    return ", ".join(nodes)


def _outcome(node):
    """One line for a node without its name."""
    words = [node["verdict"], node["class"], (node.get("action") or {}).get("name"), "flaky" if node["flaky"] else None]
    parts = [" ".join(word for word in words if word)]
    for verdict in ("fail", "missing", "warn"):
        named = Counter(check["name"] for check in node["checks"] if check["verdict"] == verdict)
        shown = [name if count == 1 else f"{name} x {count}" for name, count in sorted(named.items())]
        most = MOST_SHOWN[verdict]
        if shown and not (verdict == "missing" and node["verdict"] == "FAIL"):
            parts.append(f"{verdict} {', '.join(shown[:most])}{f' and {len(shown) - most}' if shown[most:] else ''}")
    return "; ".join(parts)


def _retries(by_itself):
    for node, told in by_itself.items():
        if told["retried"]:
            yield f"  {node} is measured again: {', '.join(told['retried'])}"
