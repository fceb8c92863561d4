"""ctrf-report.json: a run in the Common Test Report Format (https://ctrf.io) for CI systems, with a test per check.
A check without evidence has the status ``other``, neither passed nor failed. ``rawStatus`` is gpuval's verdict."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from ..core.escape import one_line
from ..core.paths import version
from .junit import case_name, suites_of
from .problems import action_text, part_of

SPECIFICATION = "0.0.0"
_STATUS = {"pass": "passed", "warn": "passed", "fail": "failed", "missing": "other", "skipped": "skipped"}
#: All statuses of CTRF; the summary counts each of them.
STATUSES = ("passed", "failed", "skipped", "pending", "other")
_dump = json.JSONEncoder(allow_nan=False).encode


def ctrf_json(report: Mapping[str, Any]) -> Iterator[str]:
    """The text of ctrf-report.json in pieces, one line for each test: a thousand nodes have 200,000 tests."""
    run, suites = report["run"], list(suites_of(report))
    counted = Counter(_STATUS[check["verdict"]] for suite in suites for check in suite["checks"])
    times = (run["created_at"], run["finished_at"] or run["judged_at"])
    start, stop = (round(1000 * datetime.fromisoformat(time).timestamp()) for time in times)
    head = {
        "reportFormat": "CTRF",
        "specVersion": SPECIFICATION,
        "runId": run["run_id"],
        "timestamp": run["judged_at"],
        "generatedBy": "gpuval",
    }
    environment = {
        "reportName": f"gpuval {run['run_id']}",
        "testEnvironment": run["profile"],
        "healthy": report["verdict"] == "PASS",
        "extra": {"verdict": report["verdict"], "counts": report["counts"], "narrowed_by": run["narrowed_by"]},
    }
    summary = {
        "tests": counted.total(),
        **{status: counted[status] for status in STATUSES},
        "flaky": sum(stage["flaky"] for node in report["nodes"] for stage in node["stages"]),
        "suites": len(suites),
        "start": start,
        "stop": max(start, stop),
    }
    yield f'{_dump(head)[:-1]}, "results": {{"tool": {_dump({"name": "gpuval", "version": version()})},\n'
    yield f'"summary": {_dump(summary)},\n"environment": {_dump(environment)},\n"tests": ['
    separator = "\n"
    for suite in suites:
        for test in _tests(suite):
            yield f"{separator}{_dump(test)}"
            separator = ",\n"
    yield "\n]}}\n"


def _tests(node: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    stages = {stage["name"]: stage for stage in node["stages"]}
    name = one_line(node["name"], 253)
    for check in node["checks"]:
        stage = stages.get(check["stage"]) if check["kind"] == "state" else None
        test = {
            "name": one_line(case_name(check), 300),
            "status": _STATUS[check["verdict"]],
            "duration": round(1000 * (stage["duration_seconds"] or 0)) if stage else 0,
            "suite": [name, check["stage"] or "launch"],
        }
        if stage and stage["flaky"]:
            test |= {"flaky": True, "retries": max(0, (stage["attempt"] or 1) - 1)}
        yield test if check["verdict"] == "pass" else {**test, **_details(node, check)}


def _details(node: Mapping[str, Any], check: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a CTRF test that explain why a check did not pass: message, trace, labels and measured value."""
    part = part_of(node, check)
    lines = [check["reason"] + (f" ({part})" if part else "")]
    lines += [f"{word}: {check[word]}" for word in ("expected", "source", "remedy") if check[word]]
    if check["verdict"] in ("fail", "missing") and check["severity"] == "required" and node.get("action"):
        lines.append(f"action: {action_text(node)}")
    details: dict[str, Any] = {
        "rawStatus": check["verdict"],
        "message": one_line(lines[0], 1000),
        "trace": "\n".join(one_line(line, 1400) for line in lines),
        "labels": {"severity": check["severity"], "kind": check["kind"]},
    }
    if (value := check["value"]) is not None:
        text = one_line(value, 300) if isinstance(value, str) else value
        details["extra"] = {"value": text, "unit": one_line(check["unit"], 64)}
    return details
