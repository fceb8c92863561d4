"""DCGM's active diagnostics, ``dcgmi diag -r LEVEL -j``, in both layouts of its JSON.

DCGM 2 and 3: ``DCGM GPU Diagnostic``, results by ``gpu_ids`` ("0,1"), texts as warnings and info. DCGM 4: ``DCGM
Diagnostic``, results by ``entity_group`` and ``entity_id``, warnings with numbers of error, category and severity, and
a ``test_summary`` for each test. Names: NVIDIA/DCGM, nvvs/include/NvvsJsonStrings.h.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from ..common.tool_output import dicts, json_object, metric_part, number, plain, shortened, texts, whole
from .answer import FAIL, NODE, PASS, Answer, Fault, Figure
from .job import Job, settle

BINARY = "dcgmi"
LAYOUTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
STATUSES = {"pass": "pass", "fail": "fail", "warn": "warn", "skip": "skip", "notrun": "skip"}
SHOWN = 3

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
_OF_A_GPU = re.compile(r"^(?:GPU \d+ )+")


@dataclass(frozen=True)
class Finding:
    """One result: the test, the GPU (None: the node, or something that is no GPU, named in ``entity``), its status
    (pass, fail, warn, skip, or as written where it is none of them), DCGM's words and error numbers."""

    test: str
    gpu: int | None
    status: str
    entity: str = ""
    warnings: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    info: tuple[str, ...] = ()

    @property
    def scope(self) -> str:
        return NODE if self.gpu is None else f"gpu:{self.gpu}"


@dataclass(frozen=True)
class Diagnosis:
    """All results; ``problem`` says why there are none that count."""

    findings: tuple[Finding, ...] = ()
    version: str = ""
    problem: str = ""


def parse(text: str) -> Diagnosis:
    """Read the output of ``dcgmi diag -j``, other text before and after the JSON allowed. Never raises."""
    text = plain(text)
    found = ((json_object(text, key=layout), layout) for layout in LAYOUTS)
    document, layout = next(((document, layout) for document, layout in found if document is not None), (None, ""))
    if document is None:
        return Diagnosis(problem="its JSON is missing or cut short")
    body = document[layout]
    if not isinstance(body, dict):
        return Diagnosis(problem="its JSON is not laid out as that of any known version")
    metadata = document.get("metadata")
    versions = texts(body.get("version")) + texts(metadata.get("version") if isinstance(metadata, dict) else None)
    version = versions[0] if versions else ""
    errors = texts(body.get("runtime_error")) + texts(document.get("runtime_error"))
    if errors:
        return Diagnosis(version=version, problem=f"it could not run: {shortened(errors[0])}")
    tests = [test for group in dicts(body.get("test_categories")) for test in dicts(group.get("tests"))]
    findings = [finding for test in tests or dicts(body.get("tests")) for finding in _findings(test)]
    return Diagnosis(tuple(findings), version, "" if findings else "its JSON holds no results")


def _findings(test: dict) -> list[Finding]:
    name = shortened(str(test.get("name", "unnamed")), 48)
    found = [finding for result in dicts(test.get("results")) for finding in _of_result(name, result)]
    summary = test.get("test_summary")
    if isinstance(summary, dict):
        status = _status(summary)
        # Of the test as a whole; of interest where no result has it of a part.
        if (status not in ("pass", "skip") and all(finding.status != status for finding in found)) or not found:
            found.append(_finding(name, None, status, summary))
    if not found:
        found.append(Finding(name, None, "no result"))
    return found


def _of_result(name: str, result: dict) -> list[Finding]:
    status = _status(result)
    group, group_id = result.get("entity_group"), result.get("entity_group_id")
    if group is not None or group_id is not None or "entity_id" in result:
        index = whole(result.get("entity_id"))
        if index is None or not 0 <= index <= _MAX_GPU:
            return [_finding(name, None, status, result)]
        if group in (None, "GPU") and group_id in (None, _GPU_GROUP):
            return [_finding(name, index, status, result)]
        return [_finding(name, None, status, result, entity=f"{shortened(str(group or group_id), 24)} {index}")]
    ids = str(result.get("gpu_ids", result.get("gpu_id", "")))
    gpus = [int(part) for part in re.findall(r"\d{1,4}", ids) if int(part) <= _MAX_GPU]
    return [_finding(name, gpu, status, result) for gpu in gpus] or [_finding(name, None, status, result)]


def _finding(name: str, gpu: int | None, status: str, result: dict, entity: str = "") -> Finding:
    warnings, codes = [], []
    raw = result.get("warnings", result.get("warning"))
    for item in raw if isinstance(raw, list) else [raw]:
        if isinstance(item, dict):
            warnings += texts(item.get("warning"))
            code = item.get("error_id", item.get("error_code"))
            code = whole(code.get("code") if isinstance(code, dict) else code)
            codes += [] if code is None else [code]
        else:
            warnings += texts(item)
    info = tuple(texts(result.get("info")))
    return Finding(name, gpu, status, entity, tuple(warnings), tuple(codes), info)


def _status(result: dict) -> str:
    written = str(result.get("status", ""))
    return STATUSES.get(re.sub(r"[^a-z]", "", written.lower()), f"status {shortened(written, 24)!r}")


def judge(diagnosis: Diagnosis, gpus: int | None) -> Answer:
    """Return what the results prove; ``gpus`` is how many the node is to have."""
    if diagnosis.problem:
        return Answer.none(diagnosis.problem)
    findings = diagnosis.findings
    counts = Counter(finding.status for finding in findings)
    faults = [Fault(finding.scope, _words(finding)) for finding in findings if finding.status == "fail"]
    answer = Answer(
        PASS,
        summary=f"DCGM {diagnosis.version}".rstrip()
        + f": {counts['pass']} results passed, {counts['skip']} skipped, {counts['warn']} warnings",
        faults=faults,
        notes=[f"{finding.scope}: {_words(finding)}" for finding in findings if finding.status == "warn"]
        + [f"{f.scope}: passed with a warning, {_words(f)}" for f in findings if f.status == "pass" and f.warnings],
        figures=_figures(findings, counts),
    )
    odd = sorted(status for status in counts if status not in STATUSES.values())
    tested = {finding.gpu for finding in findings if finding.gpu is not None and finding.status != "skip"}
    if faults:
        answer.verdict = FAIL
    elif odd:
        answer = Answer.none(f"it says {odd[0]} of a test, which is neither a pass nor a fail")
    elif not counts["pass"] + counts["warn"]:
        answer = Answer.none("it skipped every test")
    elif gpus and tested and len(tested) != gpus:
        missing = sorted(set(range(gpus)) - tested)
        answer = Answer.none(f"it tested {len(tested)} GPUs of {gpus}" + (f", not gpu:{missing[0]}" if missing else ""))
    return answer


def _words(finding: Finding) -> str:
    warnings = "; ".join(dict.fromkeys(shortened(text, 300) for text in finding.warnings[:SHOWN])) or "no reason given"
    code = f" (DCGM error {', '.join(map(str, finding.codes[:SHOWN]))})" if finding.codes else ""
    of = f" of {finding.entity}" if finding.entity else ""
    return f"{finding.test}{of}: {warnings}{code}"


def _figures(findings: tuple[Finding, ...], counts: Counter) -> list[Figure]:
    figures = [
        Figure("dcgm_results_count", len(findings), "count"),
        Figure("dcgm_failed_count", counts["fail"], "count"),
        Figure("dcgm_warnings_count", counts["warn"], "count"),
        Figure("dcgm_skipped_count", counts["skip"], "count"),
    ]
    for finding in findings:
        name = f"dcgm_{metric_part(finding.test, 32)}"
        if finding.gpu is not None and finding.status in ("pass", "warn", "fail"):
            figures.append(Figure(f"{name}_failed_count", int(finding.status == "fail"), "count", finding.scope))
        if finding.gpu is not None:
            figures += _measured(finding, name)
    return figures


def _measured(finding: Finding, name: str) -> list[Figure]:
    """Return the figures in DCGM's info texts: "GPU to Host bandwidth: 58.62 GB/s", "... 11103.02 gigaflops"."""
    found = []
    for text in finding.info:
        for part in re.split(r",\s", text[:4096]):
            figure = _OF_A_GPU.sub("", part.strip())
            labelled, gigaflops = _LABELLED.search(figure), _GIGAFLOPS.search(figure)
            value = number(labelled[2]) if labelled else None
            ending, unit, factor = _UNITS.get(labelled[3].lower(), ("", "", 0.0)) if labelled else ("", "", 0.0)
            rate = number(gigaflops[1]) if gigaflops else None
            if labelled and value is not None and ending:
                label = f"{name}_{metric_part(labelled[1], 32)}_{ending}"
                found.append(Figure(label, value * factor, unit, finding.scope))
            elif rate is not None:
                found.append(Figure(f"{name}_tflops", rate / 1e3, "TFLOP/s", finding.scope))
    return found


def run(job: Job) -> Answer:
    """Run the diagnostics of the level, on all GPUs."""
    path = job.executable(BINARY)
    ended = job.call([path, "diag", "-r", str(job.level), "-j"], job.seconds_left())
    answer = judge(parse(ended.output), job.gpus)
    if answer.verdict not in (PASS, FAIL) and _NO_ENGINE.search(ended.output):
        return Answer.left_out(
            "no host engine answers dcgmi: start nv-hostengine on the node (systemctl start nvidia-dcgm)"
        )
    if answer.verdict == PASS and answer.notes and (ended.code or 0) > 0:
        return answer  # a warning alone makes dcgmi end with another code than 0
    return settle(ended, answer)
