"""The report on a run with the evidence of its gangs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..judge import verdict
from ..judge.baseline import Baseline
from ..judge.check import Check
from ..judge.identity import names_sharing_gpus
from ..judge.judging import read_evidence
from ..judge.peer_groups import PeerHistory
from ..records.documents import FINAL_STATES
from ..records.evidence import CHANGED, LATE, RunEvidence, digest_of
from ..runs import earlier_faults
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
    judged: Mapping[str, Any] | None = None,
    frozen: bool = False,
    for_report: bool = True,
    earlier: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> dict[str, Any]:
    """The report (gpuval.report/1) without its summary; ``gangs``: the run's gang document, None without gangs.

    Without ``with_gangs`` nodes are judged by their own stages only. ``judged``: the last verdict on the run
    (gpuval.verdict/1); records that changed since do not count, nor do new ones if the run is ``frozen``. ``earlier``:
    findings of earlier runs, as arguments of ``verdict.judge``; ``for_report`` as there.
    """
    evidence = read_evidence(folder, run)
    evidence.earlier_gpus = earlier_faults.gpus_of(folder, run, names_sharing_gpus(run, evidence))
    if with_gangs:
        run = gang_evidence.expected(run, gangs)
        gang_evidence.take(evidence, folder, run, gangs)
    if judged is not None:
        _keep_judged(evidence, folder, run, judged, frozen=frozen)
    report = verdict.judge(
        run, evidence, checks, judged_at=run_folder.now(), baseline=baseline, history=history, for_report=for_report,
        **earlier,
    )  # fmt: skip
    if judged is not None:
        entries = {**{node["name"]: node for node in report["nodes"]}, **report["run"].get("busy", {})}
        for name, (stages, _) in evidence.changed.items():
            entries[name]["evidence"] |= {stage: judged["evidence"][name][stage] for stage in stages}
    if with_gangs and gangs is not None:
        report["fleet"]["gangs"] = report_section.of_document(gangs)
    return report


def _keep_judged(
    evidence: RunEvidence, folder: RunFolder, run: Mapping[str, Any], judged: Mapping[str, Any], *, frozen: bool
) -> None:
    """Remove from the evidence what changed since the verdict: a node's signed URLs may outlive its run.

    In a run that is validated again, not ``frozen``, nodes may complete theirs; one launched again has new records.
    """
    for name in run["nodes"]:
        if not frozen and str(folder.read_launch(name).get("at", "")) > judged["judged_at"]:
            continue
        records, digests = evidence.records.get(name, {}), judged["evidence"].get(name, {})
        late = [stage for stage, one in records.items() if stage not in digests and one["state"] in FINAL_STATES]
        changed = [stage for stage in digests if stage not in records or digest_of(records[stage]) != digests[stage]]
        for stages, reason in ((late if frozen else [], LATE), (changed, CHANGED)):
            for stage in stages:
                records.pop(stage, None)
                evidence.add_problem(reason, node=name, stage=stage)
        if changed:
            evidence.changed[name] = changed, judged["nodes"].get(name, "INCOMPLETE")
