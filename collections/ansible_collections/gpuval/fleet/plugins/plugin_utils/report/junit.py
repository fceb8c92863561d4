"""junit.xml: a test suite for each node (also if never reached) and each rack, with a test case for each check."""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree as ET

from ..core.escape import one_line, xml_text
from .problems import action_text, part_of

_TAGS = {"fail": "failure", "missing": "error", "skipped": "skipped"}


def junit_xml(report: Mapping[str, Any]) -> str:
    """The text of junit.xml. A failed check is a failure, missing required evidence an error, a warning is output."""
    root = ET.Element("testsuites", name=_text(f"gpuval {report['run']['run_id']}"))
    totals: Counter[str] = Counter()
    for suite in suites_of(report):
        totals.update(_suite(root, suite, report["run"]["created_at"]))
    _count(root, totals)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def suites_of(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The report's entries that become test suites: each node, and each rack and the fleet if these have checks."""
    yield from report["nodes"]
    together = [(f"rack {rack['name']}", rack["checks"]) for rack in report.get("racks", ())]
    for name, checks in [*together, ("fleet", report["fleet"]["checks"])]:
        if checks:
            yield {"name": name, "checks": checks, "identity": {}, "stages": []}


def case_name(check: Mapping[str, Any]) -> str:
    return str(check["name"]) if check["part"] == "node" else f"{check['name']} [{check['part']}]"


def _suite(root: ET.Element, node: Mapping[str, Any], timestamp: str) -> Counter[str]:
    suite = ET.SubElement(root, "testsuite", name=_text(node["name"]), timestamp=_text(timestamp))
    if node.get("action"):
        properties = ET.SubElement(suite, "properties")
        for name, value in (("action", node["action"]["name"]), ("action_text", action_text(node))):
            ET.SubElement(properties, "property", name=name, value=_text(value))
    seconds = {stage["name"]: stage["duration_seconds"] or 0 for stage in node["stages"]}
    counted: Counter[str] = Counter()
    for check in node["checks"]:
        counted.update([_case(suite, node, check, seconds), "tests"])
    _count(suite, counted)
    suite.set("time", f"{sum(seconds.values()):.3f}")
    return counted


def _case(suite: ET.Element, node: Mapping[str, Any], check: Mapping[str, Any], seconds: Mapping[str, float]) -> str:
    """Add the test case of a check to ``suite``; ``seconds``: the duration of each stage. Returns what the case counts
    as: passed, failure, error or skipped."""
    stage = check["stage"] or "launch"
    time = seconds.get(stage, 0) if check["kind"] == "state" else 0
    case = ET.SubElement(
        suite, "testcase", name=_text(case_name(check)), classname=_text(f"{node['name']}.{stage}"), time=f"{time:.3f}"
    )
    part = part_of(node, check)
    reason = _text(check["reason"]) + (f" ({_text(part)})" if part else "")
    tag = _TAGS.get(check["verdict"])
    if tag == "error" and check["severity"] != "required":
        tag = None
    if tag is None:
        if check["verdict"] != "pass":
            ET.SubElement(case, "system-out").text = f"{check['verdict']}: {_details(check, reason)}"
        return "passed"
    element = ET.SubElement(case, tag, message=reason)
    if tag != "skipped":
        element.set("type", _text(str(check["value"])) if check["kind"] == "launch" else check["kind"])
        element.text = _details(check, reason)
    return tag


def _details(check: Mapping[str, Any], reason: str) -> str:
    remedy = f"\nremedy: {_text(check['remedy'])}" if check["remedy"] else ""
    return f"{reason}\nexpected: {_text(check['expected'])}\nsource: {_text(check['source'])}{remedy}"


def _count(element: ET.Element, counted: Counter[str]) -> None:
    for attribute, kind in (("tests", "tests"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(attribute, str(counted[kind]))


@functools.lru_cache(maxsize=1 << 14)
def _text(text: str) -> str:
    """The text as one line without characters that XML forbids. The cache pays off: names repeat in every suite."""
    return xml_text(one_line(text, 1000))
