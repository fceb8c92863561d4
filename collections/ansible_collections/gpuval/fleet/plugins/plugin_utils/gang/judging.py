"""The report on a run with the evidence of its gangs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..judge import verdict
from ..judge.baseline import Baseline
from ..judge.check import Check
from ..judge.judging import read_evidence
from ..judge.peer_groups import PeerHistory
from ..runs import folder as run_folder
from ..runs.folder import RunFolder
from . import evidence as gang_evidence
from . import report_section


def report_on(
    folder: RunFolder,
    run: Mapping[str, Any],
    checks: Sequence[Check],
    *,
    gangs: Mapping[str, Any] | None = None,
    with_gangs: bool = True,
    baseline: Baseline | None = None,
    history: PeerHistory | None = None,
) -> dict[str, Any]:
    """The report (gpuval.report/1), without its summary; ``gangs`` is gangs.json of the run, None without gangs.

    Without ``with_gangs`` nodes are judged by their own stages alone.
    """
    evidence = read_evidence(folder, run)
    if with_gangs:
        run = gang_evidence.expected(run, gangs)
        gang_evidence.take(evidence, folder, run, gangs)
    report = verdict.judge(run, evidence, checks, judged_at=run_folder.now(), baseline=baseline, history=history)
    if with_gangs and gangs is not None:
        report["fleet"]["gangs"] = report_section.of_document(gangs)
    return report
