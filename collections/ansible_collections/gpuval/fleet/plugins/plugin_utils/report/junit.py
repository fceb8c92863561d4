"""junit.xml: a suite for each node, with its action as property, and a case for each check; nodes that were never
reached are in it too."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from ..core.escape import one_line, xml_text
from .problems import action_text, part_text

_TAGS = {"fail": "failure", "missing": "error", "skipped": "skipped"}


def junit_xml(report: Mapping[str, Any]) -> str:
    """The XML text: fail is a failure, missing required evidence an error, warn and missing advice are output."""
    totals: Counter[str] = Counter()
    suites = [_suite(suite, report["run"]["created_at"], totals) for suite in suites_of(report)]
    about = {"name": _text(f"gpuval {report['run']['run_id']}"), **_counts(totals)}
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _element(0, "testsuites", about, suites)


def suites_of(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What has tests: each node, and the fleet, where it has checks."""
    yield from report["nodes"]
    if report["fleet"]["checks"]:
        yield {"name": "fleet", "checks": report["fleet"]["checks"], "identity": {}, "stages": []}


def case_name(check: Mapping[str, Any]) -> str:
    return str(check["name"]) if check["part"] == "node" else f"{check['name']} [{check['part']}]"


def _suite(node: Mapping[str, Any], timestamp: str, totals: Counter[str]) -> str:
    """The suite of a node, whose tests are added to ``totals``."""
    inner = []
    if node.get("action"):
        properties = {"action": node["action"]["name"], "action_text": action_text(node)}
        rows = [_element(3, "property", {"name": name, "value": _text(value)}) for name, value in properties.items()]
        inner.append(_element(2, "properties", {}, rows))
    seconds = {stage["name"]: stage["duration_seconds"] or 0 for stage in node["stages"]}
    cases = [_case(node, check, seconds) for check in node["checks"]]
    counted = Counter(kind for kind, _ in cases)
    counted["tests"] = len(cases)
    totals.update(counted)
    about = {"name": _text(node["name"]), "timestamp": _text(timestamp), **_counts(counted)}
    about["time"] = f"{sum(seconds.values()):.3f}"
    return _element(1, "testsuite", about, [*inner, *(case for _, case in cases)])


def _case(node: Mapping[str, Any], check: Mapping[str, Any], seconds: Mapping[str, float]) -> tuple[str, str]:
    """The kind that the test case counts as, and its element."""
    stage = check["stage"] or "launch"
    time = seconds.get(stage, 0) if check["kind"] == "state" else 0
    about = {"name": _text(case_name(check)), "classname": _text(f"{node['name']}.{stage}"), "time": f"{time:.3f}"}
    if check["verdict"] == "pass":
        return "passed", _element(2, "testcase", about)
    part = part_text(node, check["part"])
    reason = _text(check["reason"]) + (f" ({_text(part)})" if part else "")
    tag = _TAGS.get(check["verdict"])
    if tag is None or (tag == "error" and check["severity"] != "required"):
        tag, inner = "passed", _element(3, "system-out", {}, f"{check['verdict']}: {_details(check, reason)}")
    elif tag == "skipped":
        inner = _element(3, tag, {"message": reason})
    else:
        kind = _text(str(check["value"])) if check["kind"] == "launch" else check["kind"]
        inner = _element(3, tag, {"message": reason, "type": kind}, _details(check, reason))
    return tag, _element(2, "testcase", about, [inner])


def _details(check: Mapping[str, Any], reason: str) -> str:
    lines = [reason, f"expected: {_text(check['expected'])}", f"source: {_text(check['source'])}"]
    if check["remedy"]:
        lines.append(f"remedy: {_text(check['remedy'])}")
    return "\n".join(lines)


def _counts(counted: Mapping[str, int]) -> dict[str, str]:
    kinds = {"tests": "tests", "failures": "failure", "errors": "error", "skipped": "skipped"}
    return {name: str(counted.get(kind, 0)) for name, kind in kinds.items()}


def _element(depth: int, tag: str, attributes: Mapping[str, str], inner: str | Sequence[str] = "") -> str:
    """An element on lines of its own, with a text or the elements in it; a tree of 200,000 is slow to make."""
    indent = depth * "  "
    start = f"{indent}<{tag}" + "".join([f' {name}="{_attribute(value)}"' for name, value in attributes.items()])
    if not inner:
        return f"{start} />\n"
    content = escape(inner) if isinstance(inner, str) else f"\n{''.join(inner)}{indent}"
    return f"{start}>{content}</{tag}>\n"


@functools.lru_cache(maxsize=1 << 14)
def _attribute(text: str) -> str:
    return escape(text, {'"': "&quot;"})


@functools.lru_cache(maxsize=1 << 14)
def _text(text: str) -> str:
    """A text as XML can carry it; names of checks and stages stand in every suite."""
    return xml_text(one_line(text, 1000))
