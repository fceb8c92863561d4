"""A run's evidence as it lies in results/, and the report on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import evidence as gang_evidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import report_section
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import baseline, verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.criteria import Check
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.peer_history import Stood
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import Evidence, take_record
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.summary import summary_lines
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.access import object_key


def read_evidence(folder: RunFolder, run: Mapping[str, Any]) -> Evidence:
    """The evidence of the nodes' own stages, checked once more: files there may have been touched."""
    problems = run_folder.read_json(folder.problems_file) if folder.problems_file.exists() else []
    evidence = Evidence(launches=folder.read_launches(), problems=problems)
    for node, expected in run["nodes"].items():
        for stage in expected["stages"]:
            path = folder.evidence_file(node, stage)
            if path.exists():
                take_record(evidence, run, object_key(run["folder"], "records", stage, node), path.read_bytes())
    return evidence


def report_on(
    folder: RunFolder,
    run: Mapping[str, Any],
    checks: Sequence[Check],
    *,
    gangs: Mapping[str, Any] | None = None,
    with_gangs: bool = True,
    held_against: baseline.Baseline | None = None,
    stood: Stood | None = None,
) -> dict[str, Any]:
    """The report (gpuval.report/1); ``gangs`` is the document of the run's gangs, if any were formed.

    Without ``with_gangs`` nodes are judged by their own stages alone.
    """
    evidence = read_evidence(folder, run)
    if with_gangs:
        run = gang_evidence.expected(run, gangs)
        gang_evidence.take(evidence, folder, run, gangs)
    report = verdict.judge(run, evidence, checks, judged_at=run_folder.now(), held_against=held_against, stood=stood)
    if with_gangs and gangs is not None:
        report["fleet"]["gangs"] = report_section.of_document(gangs)
        report["summary"] = summary_lines(report)
    return report
