"""Runs DCGM's active diagnostics, ``dcgmi diag -r LEVEL -j``, and reads both layouts of its JSON.

DCGM 2 and 3: ``DCGM GPU Diagnostic``, results by ``gpu_ids`` ("0,1"), texts as warnings and info. DCGM 4: ``DCGM
Diagnostic``, results by ``entity_group`` and ``entity_id``, warnings with numbers of error, category and severity, and
a ``test_summary`` for each test. Names: NVIDIA/DCGM, nvvs/include/NvvsJsonStrings.h.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

from ..common.tool_output import dicts, json_object, metric_part, number, plain, shortened, texts, whole
from .answer import (
    FAIL,
    NODE,
    PASS,
    SKIPPED,
    UNANSWERED,
    ToolAnswer,
    ToolFault,
    ToolFigure,
    ToolTask,
    hold_against,
    settle,
)

BINARY = "dcgmi"
LAYOUTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
STATUSES = {"pass": "pass", "fail": "fail", "warn": "warn", "skip": "skip", "notrun": "skip"}
SHOWN = 3

#: DCGM's category for tests of the installation, not of hardware; and the name of the test in layouts without.
SOFTWARE = ("deployment", "software")
#: Tests of the Extended Utility Diagnostics (EUD), a separate package that most nodes lack.
OPTIONAL = re.compile(r"(?:cpu[_ ])?eud\b|eud_test", re.IGNORECASE)

_GPU_GROUP = 1  # DCGM_FE_GPU
_MAX_GPU = 1023
_UNITS = {
    "gb/s": ("bytes_per_second", "bytes/s", 1e9),
    "mb/s": ("bytes_per_second", "bytes/s", 1e6),
    "us": ("seconds", "seconds", 1e-6),
    "ms": ("seconds", "seconds", 1e-3),
    "w": ("watts", "W", 1.0),
    "c": ("celsius", "C", 1.0),
    "bytes": ("bytes", "bytes", 1.0),
    "gflops": ("tflops", "TFLOP/s", 1e-3),
}
_LABELLED = re.compile(r"([A-Za-z][A-Za-z0-9 _/-]{0,60}):\s+([0-9.]+)\s*([A-Za-z/]+)")
_GIGAFLOPS = re.compile(r"approximately\s+([0-9.]+)\s+gigaflops", re.IGNORECASE)
#: dcgmi 2 to 4: "Error: unable to establish a connection to the specified host: localhost", and "... host engine".
_NO_ENGINE = re.compile(r"unable to (?:establish a )?connect(?:ion)?\b.{0,40}\bhost|host ?engine connection", re.I)
#: Start of a line in which dcgmi itself reports an error.
ERROR = re.compile(r"^\s*error\b\s*:", re.IGNORECASE)
_OF_A_GPU = re.compile(r"^(?:GPU \d+ )+")


@dataclass(frozen=True)
class DcgmResult:
    """A result of DCGM: test, GPU (None: the node, or the ``entity`` that is no GPU), status (pass, fail, warn, skip,
    or as written for any other), DCGM's texts and error numbers."""

    test: str
    gpu: int | None
    status: str
    entity: str = ""
    warnings: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    info: tuple[str, ...] = ()
    is_of_hardware: bool = False

    @property
    def scope(self) -> str:
        return NODE if self.gpu is None else f"gpu:{self.gpu}"


def _read(text: str) -> tuple[list[DcgmResult], str]:
    """Return the results in dcgmi's output, and DCGM's version; other text around the JSON is allowed. Raises
    ``LookupError`` that says why there are no valid results."""
    text = plain(text)
    documents = ((json_object(text, key=layout), layout) for layout in LAYOUTS)
    document, layout = next(((document, layout) for document, layout in documents if document is not None), (None, ""))
    if document is None:
        raise LookupError("its JSON is missing or cut short")
    body, metadata = next(iter(dicts([document[layout]])), {}), document.get("metadata")
    errors = texts(body.get("runtime_error")) + texts(document.get("runtime_error"))
    if errors:
        raise LookupError(f"it could not run: {shortened(errors[0])}")
    groups = dicts(body.get("test_categories"))
    tests = [(test, str(group.get("category", ""))) for group in groups for test in dicts(group.get("tests"))]
    tests = tests or [(test, str(test.get("name", ""))) for test in dicts(body.get("tests"))]
    findings = [
        replace(finding, is_of_hardware=subject.lower() not in SOFTWARE)
        for test, subject in tests
        for finding in _findings(test)
    ]
    if not findings:
        raise LookupError("its JSON holds no results")
    versions = texts(body.get("version")) + texts(metadata.get("version") if isinstance(metadata, dict) else None)
    return findings, versions[0] if versions else ""


def _findings(test: dict) -> list[DcgmResult]:
    name = shortened(str(test.get("name", "unnamed")), 48)
    results = [finding for result in dicts(test.get("results")) for finding in _of_result(name, result)]
    summary = test.get("test_summary")
    if isinstance(summary, dict):
        status = _status(summary)
        # The status of the whole test counts if no single result has it.
        if (status not in ("pass", "skip") and all(finding.status != status for finding in results)) or not results:
            results.append(_finding(name, None, status, summary))
    return results or [DcgmResult(name, None, "no result")]


def _of_result(name: str, result: dict) -> list[DcgmResult]:
    status = _status(result)
    group, group_id = result.get("entity_group"), result.get("entity_group_id")
    gpus: list[int | None] = []
    if group is not None or group_id is not None or "entity_id" in result:
        index = whole(result.get("entity_id"))
        if index is not None and 0 <= index <= _MAX_GPU:
            if group not in (None, "GPU") or group_id not in (None, _GPU_GROUP):
                return [_finding(name, None, status, result, entity=f"{shortened(str(group or group_id), 24)} {index}")]
            gpus = [index]
    else:
        ids = str(result.get("gpu_ids", result.get("gpu_id", "")))
        gpus = [int(part) for part in re.findall(r"\d{1,4}", ids) if int(part) <= _MAX_GPU]
    return [_finding(name, gpu, status, result) for gpu in gpus or [None]]


def _finding(name: str, gpu: int | None, status: str, result: dict, entity: str = "") -> DcgmResult:
    warnings, codes = [], []
    raw = result.get("warnings", result.get("warning"))
    for item in raw if isinstance(raw, list) else [raw]:
        warning = item if isinstance(item, dict) else {"warning": item}
        warnings += texts(warning.get("warning"))
        code = warning.get("error_id", warning.get("error_code"))
        code = whole(code.get("code") if isinstance(code, dict) else code)
        codes += [] if code is None else [code]
    return DcgmResult(name, gpu, status, entity, tuple(warnings), tuple(codes), tuple(texts(result.get("info"))))


def _status(result: dict) -> str:
    written = str(result.get("status", ""))
    return STATUSES.get(re.sub(r"[^a-z]", "", written.lower()), f"status {shortened(written, 24)!r}")


def judge(text: str, gpus: int | None, level: int = 2) -> ToolAnswer:
    """Return the answer that the output of ``dcgmi diag -j`` proves; ``gpus``: the expected number. Level 1 tests no
    hardware; at other levels, an output without a hardware test proves nothing. Never raises."""
    try:
        findings, version = _read(text)
    except LookupError as error:
        return ToolAnswer.none(str(error.args[0]))
    counts = Counter(finding.status for finding in findings)
    hardware = [finding for finding in findings if finding.is_of_hardware]
    tested = {finding.gpu for finding in hardware if finding.gpu is not None and finding.status != "skip"}
    skipped = list(dict.fromkeys(finding.test for finding in hardware if finding.status == "skip"))
    ran = {finding.test for finding in hardware if finding.status != "skip"}
    answer = ToolAnswer(
        PASS,
        summary=f"DCGM {version}".rstrip()
        + f": {counts['pass']} results passed, {counts['skip']} skipped, {counts['warn']} warnings",
        faults=[ToolFault(finding.scope, _words(finding)) for finding in findings if finding.status == "fail"],
        notes=[f"{finding.scope}: {_words(finding)}" for finding in findings if finding.status == "warn"]
        + [f"{f.scope}: passed with a warning, {_words(f)}" for f in findings if f.status == "pass" and f.warnings]
        + [f"{test} is not installed or was skipped" for test in skipped if OPTIONAL.match(test)],
        not_run=[test for test in skipped if not OPTIONAL.match(test)],
        figures=_figures(findings, counts),
    )
    odd = sorted(status for status in counts if status not in STATUSES.values())
    in_part = [f for f in hardware if f.status == "skip" and f.gpu is not None and f.test in ran]
    if answer.faults:
        answer.verdict = FAIL
    elif odd:
        answer = ToolAnswer.none(f"it says {odd[0]} of a test, which is neither a pass nor a fail")
    elif not ran and (skipped or level > 1):
        names = f": {', '.join(skipped)} skipped" if skipped else ""
        answer.verdict, answer.reason = SKIPPED, f"it tested no hardware{names}"
    elif in_part:
        places = ", ".join(f"{finding.test} on {finding.scope}" for finding in in_part[:SHOWN])
        answer.verdict, answer.reason = SKIPPED, f"it skipped {places}, and not elsewhere"
    elif gpus and hardware and len(tested) != gpus:
        missing = sorted(set(range(gpus)) - tested)
        untested = f", not gpu:{missing[0]}" if missing else ""
        answer = ToolAnswer.none(f"it tested {len(tested)} GPUs of {gpus}{untested}")
    return answer


def _words(finding: DcgmResult) -> str:
    warnings = "; ".join(dict.fromkeys(shortened(text, 300) for text in finding.warnings[:SHOWN])) or "no reason given"
    code = f" (DCGM error {', '.join(map(str, finding.codes[:SHOWN]))})" if finding.codes else ""
    location = f" of {finding.entity}" if finding.entity else ""
    return f"{finding.test}{location}: {warnings}{code}"


def _figures(findings: list[DcgmResult], counts: Counter) -> list[ToolFigure]:
    figures = [ToolFigure("dcgm_results_count", len(findings), "count")]
    for name, status in (("failed", "fail"), ("warnings", "warn"), ("skipped", "skip")):
        figures.append(ToolFigure(f"dcgm_{name}_count", counts[status], "count"))
    for finding in findings:
        if finding.gpu is None:
            continue
        name = f"dcgm_{metric_part(finding.test, 32)}"
        if finding.status in ("pass", "warn", "fail"):
            figures.append(ToolFigure(f"{name}_failed_count", int(finding.status == "fail"), "count", finding.scope))
        figures += _measured(finding, name)
    return figures


def _measured(finding: DcgmResult, name: str) -> list[ToolFigure]:
    """Return the figures in DCGM's info texts: "GPU to Host bandwidth: 58.62 GB/s", "... 11103.02 gigaflops"."""
    figures = []
    for text in finding.info:
        for part in re.split(r",\s", text[:4096]):
            figure = _OF_A_GPU.sub("", part.strip())
            labelled, gigaflops = _LABELLED.search(figure), _GIGAFLOPS.search(figure)
            value, rate = number(labelled and labelled[2]), number(gigaflops and gigaflops[1])
            if labelled and value is not None and labelled[3].lower() in _UNITS:
                ending, unit, factor = _UNITS[labelled[3].lower()]
                label = f"{name}_{metric_part(labelled[1], 32)}_{ending}"
                figures.append(ToolFigure(label, value * factor, unit, finding.scope))
            elif rate is not None:
                figures.append(ToolFigure(f"{name}_tflops", rate / 1e3, "TFLOP/s", finding.scope))
    return figures


def run(job: ToolTask) -> ToolAnswer:
    """Run DCGM's diagnostics of the task's level on all GPUs."""
    ended = job.call([job.executable(BINARY), "diag", "-r", str(job.level), "-j"], job.seconds_left())
    answer = hold_against(judge(ended.output, job.gpus, job.level), ended.output, ERROR)
    if answer.verdict == UNANSWERED and _NO_ENGINE.search(ended.output):
        remedy = "start nv-hostengine on the node (systemctl start nvidia-dcgm)"
        return ToolAnswer.left_out(f"no host engine answers dcgmi: {remedy}")
    if answer.verdict == PASS and answer.notes and (ended.code or 0) > 0:
        return answer  # dcgmi's exit code is not 0 after a mere warning
    return settle(ended, answer)
