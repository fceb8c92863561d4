"""Runs AGFHC, AMD's GPU field health check, and reads its console output and results.json.

``PASS: test-1-1 [..]`` or (``--simple-output``) ``test  passed`` for every test, a summary ``Tests: 5 Total, 5
Executed, 0 Skipped``, and at the end ``Program exiting with return code AGFHC_SUCCESS [0]``, without which nothing
counts as a pass. Formats: AMD's system acceptance pages for MI350X; ROCm/cvs, cvs/tests/health/csp_qual_agfhc.py.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..common.tool_output import json_objects, plain, shortened, whole
from .answer import FAIL, NODE, PASS, SKIPPED, ToolAnswer, ToolFault, ToolFigure, ToolTask, scope_of, settle

BINARY = "agfhc"
#: AGFHC's recipe for the whole node by level, and its duration in seconds: AMD's figure, plus a tenth and the start.
RECIPES = {1: ("all_lvl1", 360.0), 2: ("all_lvl2", 700.0), 3: ("all_lvl3", 2040.0), 4: ("all_lvl4", 4020.0)}

_RETURN = re.compile(r"\breturn code (AGFHC_\w+) \[(-?\d+)\]")
_SUMMARY = re.compile(r"\bTests:\s*(\d+)\s+Total,\s*(\d+)\s+Executed,\s*(\d+)\s+Skipped\b")
_TESTED = re.compile(r"^\s*(PASS|FAIL|ERROR|ABORT|SKIP)(?:ED)?:\s+(\S+)", re.IGNORECASE)
_SIMPLE = re.compile(r"^\W*([a-z][a-z0-9_-]{1,47})\W{1,60}(passed|failed|skipped|aborted|error)\b\W*$", re.IGNORECASE)
#: A count of 0 is no complaint.
_COMPLAINT = re.compile(r"(?<!\b0 )\b(?:FAIL|FAILED|ERROR|ABORT|ABORTED)\b")
_FAILURE_OF_GPU = re.compile(r"(?<!\b0 )fail", re.IGNORECASE)
_OUTCOMES = {"pass": "pass", "skip": "skip", "fail": "fail", "erro": "fail", "abor": "fail"}


def judge(text: str) -> ToolAnswer:
    """Return the answer that AGFHC's console output proves. Never raises."""
    text = plain(text)
    tests: dict[str, str] = {}
    failures: list[str] = []
    for line in text.splitlines():
        tested, simple = _TESTED.match(line), _SIMPLE.match(line)
        word, test = (tested[1], tested[2]) if tested else (simple[2], simple[1]) if simple else ("", "")
        if word:
            outcome = _OUTCOMES[word.lower()[:4]]
            name = re.sub(r"-\d+-\d+$", "", test)[:48]
            if tests.get(name) != "fail":  # a failed iteration counts, even if others pass
                tests[name] = outcome
        names_gpu = scope_of(line) != NODE and _FAILURE_OF_GPU.search(line)
        if (word and outcome == "fail") or (not word and (_COMPLAINT.search(line) or names_gpu)):
            failures.append(shortened(line, 160))
    failed = sum(outcome == "fail" for outcome in tests.values())
    figures = [ToolFigure("agfhc_tests_count", len(tests), "count"), ToolFigure("agfhc_failed_count", failed, "count")]
    summary, code = _SUMMARY.search(text), _RETURN.search(text)
    if failed or (code and failures):
        return ToolAnswer(FAIL, faults=[ToolFault(scope_of(line), line) for line in failures[:8]], figures=figures)
    if code is None:
        return ToolAnswer.none("its return code is missing: its output is cut short")
    if "FAIL" in code[1]:
        return ToolAnswer(FAIL, faults=[ToolFault(NODE, code[0])], figures=figures)
    if code[0] != "return code AGFHC_SUCCESS [0]":
        return ToolAnswer.none(code[0])
    if summary and int(summary[1]) and (not int(summary[2]) or {*tests.values()} == {"skip"}):
        return ToolAnswer(SKIPPED, reason="it skipped all tests", figures=figures)
    if summary is None or not int(summary[2]):
        return ToolAnswer.none("it executed no test")
    return ToolAnswer(PASS, summary=f"{summary[2]} tests passed", figures=figures)


def failed_tests(text: str) -> int | None:
    """Return the number of failed tests in the text of AGFHC's results.json, None without one."""
    waiting: list[object] = list(json_objects(plain(text)))
    for _ in range(10_000):
        if not waiting:
            return None
        item = waiting.pop()
        if isinstance(item, dict):
            if whole(item.get("total_failed")) is not None:
                return whole(item["total_failed"])
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return None


def run(job: ToolTask) -> ToolAnswer:
    """Run AGFHC's recipe of the task's level, or the longest recipe of a lower level that the time allows."""
    fitting = [level for level, (_, seconds) in RECIPES.items() if level <= job.level and seconds <= job.seconds_left()]
    if not fitting:
        return ToolAnswer.left_out(f"its shortest recipe takes 5 minutes, {max(job.seconds_left(), 0):.0f} s are left")
    recipe, _ = RECIPES[max(fitting)]
    folder = job.folder / "agfhc"
    arguments: list[str | Path] = [job.executable(BINARY), "-r", recipe, "--simple-output", "-o", folder]
    ended = job.call(arguments, job.seconds_left())
    answer = judge(ended.output)
    settled, failed = settle(ended, answer), failed_tests(job.read("agfhc/results.json"))
    if failed and settled.verdict != FAIL:
        faults = [ToolFault(NODE, f"{failed} tests failed by its results.json")]
        return ToolAnswer(FAIL, faults=faults, figures=answer.figures)
    return settled
