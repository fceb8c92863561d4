"""Runs the ROCm Validation Suite, ``rvs -r LEVEL``, and reads its log, the summary table at the end, its JSON log.

Log lines: ``[RESULT] [seconds.micros] [action] [GPU:: id] ... met: TRUE`` or ``pass: FALSE`` (before 1.2: ``[action]
module id ...``). The summary names the GPUs (id, index, PCI address) and every action's result. Only a whole summary
counts as a pass. Formats: ROCm/ROCmValidationSuite, docs/ug1main.md, rvs/src/rvsexec.cpp, src/rvsliblogger.cpp.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from ..common.tool_output import dicts, json_objects, metric_part, number, plain, shortened, without_trailing_commas
from .answer import FAIL, NODE, PASS, SKIPPED, ToolAnswer, ToolFault, ToolFigure, ToolTask, settle

BINARY = "rvs"

_LINE = re.compile(r"^\[(RESULT|ERROR|INFO|DEBUG|TRACE)\s*\]\s*\[\s*[\d.]+\s*\]\s*(.*)$")
_ACTION = re.compile(r"^\[([^\[\]]{1,128})\]\s*(.*)$")
_GPU = re.compile(r"\[?GPU::\s*(?:\d+\s*-\s*)?(\d{1,6})\b|^(?:[a-z]{2,8})\s+(\d{1,6})\b")
_VERDICT = re.compile(r"\b(?:pass|met):\s*(TRUE|FALSE)\b", re.IGNORECASE)
_OLD_VERDICT = re.compile(r"\btarget stress\s*:\s*[\d.]+\s+(PASS|FAIL)\b")
_GFLOPS = re.compile(r"\bG(?:FLOPS|flops)\s+([\d.]+)")
_POWER = re.compile(r"\bPower\(W\)\s+([\d.]+)")
_NAME_CELL = re.compile(r"^.+\S\s+-\s+(\d{1,6})$")
_PLACE_CELL = re.compile(r"^(\d{1,3})\s+-\s+\d{1,4}\s+-\s+([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d)$")
_PASSED, _FAILED = ("PASS", "PASSED", "TRUE"), ("FAIL", "FAILED", "FALSE")
_NOT_RUN = ("SKIP", "SKIPPED", "NOT RUN", "NOTRUN", "N/A", "NA")


@dataclass
class RvsReport:
    """The parsed output of RVS. ``gpus``: (index, PCI address) by RVS's GPU id; ``actions``: (name, module, result) in
    the summary; ``verdicts``: (action, GPU id or None, passed, the line); figures by (action, GPU id)."""

    actions: list[tuple[str, str, str]] = field(default_factory=list)
    gpus: dict[str, tuple[int, str]] = field(default_factory=dict)
    verdicts: list[tuple[str, str | None, bool, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    gflops: dict[tuple[str, str], float] = field(default_factory=dict)
    watts: dict[tuple[str, str], float] = field(default_factory=dict)
    complete: bool = False

    def scope(self, gpu: str | None) -> str:
        return f"gpu:{self.gpus[gpu][0]}" if gpu in self.gpus else NODE

    def named(self, gpu: str | None) -> str:
        """Return a GPU's name for messages, with its PCI address if the summary has it."""
        return "" if gpu is None else f"GPU id {gpu} at {self.gpus[gpu][1]}" if gpu in self.gpus else f"GPU id {gpu}"


def parse(text: str) -> RvsReport:
    """Return the parsed console output or log of RVS. Never raises."""
    report = RvsReport()
    cells: list[str] = []
    in_actions = False
    for raw in plain(text).splitlines():
        line = raw.strip()
        if line.startswith("|"):
            row = [cell.strip() for cell in line.strip("|").split("|")]
            if not line.endswith("|"):
                continue  # cut short
            if [cell.lower() for cell in row[:3]] == ["action name", "module", "result"]:
                in_actions = True
            elif in_actions and len(row) == 3:
                report.actions.append((row[0], row[1], row[2].upper()))
            elif not in_actions:
                cells = _gpus(report, cells, row)
        elif re.fullmatch(r"\+-+\+", line) and in_actions and report.actions:
            report.complete = True
        else:
            _log_line(report, line)
    return report


def _gpus(report: RvsReport, above: list[str], row: list[str]) -> list[str]:
    """Add the GPUs in two rows of RVS's overview: names and ids in ``above``, indices and PCI addresses in ``row``."""
    for name, cell in zip(above, row):
        gpu, where = _NAME_CELL.match(name), _PLACE_CELL.match(cell)
        if gpu and where:
            report.gpus[gpu[1]] = (int(where[1]), where[2])
    return row


def _log_line(report: RvsReport, line: str) -> None:
    match = _LINE.match(line)
    if not match:
        if line.startswith("RVS-ERROR"):
            report.errors.append(shortened(line))
        return
    level, remainder = match[1], match[2]
    action = _ACTION.match(remainder)
    name, remainder = (action[1], action[2]) if action else ("", remainder)
    gpu_match = _GPU.search(remainder)
    gpu = (gpu_match[1] or gpu_match[2]) if gpu_match else None
    if level == "ERROR":
        report.errors.append(shortened(f"{name} {remainder}".strip()))
        return
    verdict = _VERDICT.search(remainder) or _OLD_VERDICT.search(remainder)
    if verdict:
        passed = verdict[1].upper() in _PASSED
        report.verdicts.append((name, gpu, passed, shortened(remainder, 160)))
    for pattern, best in ((_GFLOPS, report.gflops), (_POWER, report.watts)):
        value_match = pattern.search(remainder)
        value = number(value_match[1]) if value_match else None
        if value is not None and gpu:
            best[name, gpu] = max(value, best.get((name, gpu), 0.0))


def failures_in_json(text: str) -> list[tuple[str, str | None, bool, str]]:
    """Return the verdicts in RVS's JSON log that are not a pass: by module and action, it has records with ``gpu_id``
    and ``pass``. Some versions print a comma after the last action. The log never proves a pass: it has no summary."""
    failures = []
    documents = json_objects(without_trailing_commas(plain(text)))
    for module in (module for document in documents for module in document.values()):
        for name, records in module.items() if isinstance(module, dict) else ():
            for record in dicts(records):
                if "pass" in record and str(record["pass"]).upper() not in _PASSED:
                    gpu = str(record["gpu_id"]) if "gpu_id" in record else None
                    failures.append((shortened(str(name), 128), gpu, False, "pass: false in its JSON"))
    return failures


def judge(report: RvsReport, gpus: int | None) -> ToolAnswer:
    """Return the answer that RVS's report proves; ``gpus`` is the expected number."""
    failed = [verdict for verdict in report.verdicts if not verdict[2]]
    faults = [
        ToolFault(report.scope(gpu), ": ".join(filter(None, (name, report.named(gpu), text))))
        for name, gpu, _, text in failed
    ]
    named = {name for name, *_ in failed}
    bad = [action for action in report.actions if action[2] in _FAILED]
    faults += [ToolFault(NODE, f"{name} ({module}): {result}") for name, module, result in bad if name not in named]
    figures = _figures(report, len(bad))
    if faults:
        return ToolAnswer(FAIL, faults=faults, figures=figures)
    if report.errors:
        return ToolAnswer.none(report.errors[0])
    if not report.complete:
        return ToolAnswer.none("its summary is missing or cut short")
    if all(action[2] in _NOT_RUN for action in report.actions):
        return ToolAnswer(SKIPPED, reason="it ran none of its actions", figures=figures)
    odd = [action for action in report.actions if action[2] not in _PASSED]
    if odd:
        return ToolAnswer.none(f"it says {shortened(odd[0][2], 24)!r} of {odd[0][0]}")
    if gpus and report.gpus and len(report.gpus) != gpus:
        return ToolAnswer.none(f"it saw {len(report.gpus)} GPUs of {gpus}")
    return ToolAnswer(PASS, summary=f"{len(report.actions)} actions passed", figures=figures)


def _figures(report: RvsReport, failed: int) -> list[ToolFigure]:
    counts = {"rvs_actions_count": len(report.actions), "rvs_failed_count": failed}
    figures = [ToolFigure(name, count, "count") for name, count in counts.items()]
    measured = ((report.gflops, "tflops", "TFLOP/s", 1e-3), (report.watts, "power_max_watts", "W", 1.0))
    for best, ending, unit, factor in measured:
        for (name, gpu), value in best.items():
            if gpu in report.gpus:
                figures.append(ToolFigure(f"rvs_{metric_part(name)}_{ending}", value * factor, unit, report.scope(gpu)))
    return figures


def run(job: ToolTask) -> ToolAnswer:
    """Run the tests that RVS has for this GPU at the task's level (RVS 1.3 and later)."""
    command: list[str | Path] = [job.executable(BINARY), "-r", str(job.level), "-j", job.folder / "rvs.json"]
    ended = job.call(command, job.seconds_left())
    report = parse(ended.output)
    failed_already = {(name, gpu) for name, gpu, passed, _ in report.verdicts if not passed}
    # Older versions of RVS choose the path of the file themselves.
    failures = failures_in_json(job.read("rvs.json"))
    report.verdicts += [failure for failure in failures if failure[:2] not in failed_already]
    return settle(ended, judge(report, job.gpus))
