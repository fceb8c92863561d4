"""All inputs of a judgement of a run as one value, and the report from them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ..core import schemas
from ..core.paths import version
from ..judge import actions, verdict
from ..judge.baseline import Baseline
from ..judge.check import Check
from ..judge.identity import names_sharing_gpus
from ..judge.judging import is_settled, read_evidence
from ..judge.peer_groups import PeerHistory
from ..records.documents import FINAL_STATES
from ..records.evidence import CHANGED, LATE, RunEvidence, digest_of
from ..runs import applied_criteria, earlier_faults
from ..runs import folder as run_folder
from ..runs import state as run_state
from ..runs.folder import RunFolder
from . import evidence as gang_evidence
from . import report_section

SCHEMA = "gpuval.judgement/1"


@dataclass(frozen=True)
class JudgementFacts:
    """What a judgement depends on besides the run's files and the collection's data, as JSON.

    verdict_before: the last verdict on the run (gpuval.verdict/1); records that changed since do not count, nor do new
    ones if the run ``is_frozen``. settled: see `is_settled`. cleaned: a clean ended the run. resume: the command that
    resumes an unfinished run without controller; is_attended: its controller judges it, and goes on. standings: how
    nodes compared with their peers before. faults: those of earlier runs, each with its ``runs``; lacked_gpus,
    earlier_gpus: as in ``verdict.judge`` and `RunEvidence`. remedies: ``{text: remedy}`` with the commands of this
    controller. given: criteria and baseline that the run's folder does not keep.
    """

    judged_at: str
    version: str = field(default_factory=version)
    verdict_before: Mapping[str, Any] | None = None
    is_frozen: bool = False
    settled: bool = False
    cleaned: bool = False
    resume: str = ""
    is_attended: bool = False
    standings: Sequence[Mapping[str, Any]] = ()
    faults: Sequence[Mapping[str, Any]] = ()
    lacked_gpus: Mapping[str, str] = field(default_factory=dict)
    earlier_gpus: Mapping[str, Sequence[str]] = field(default_factory=dict)
    remedies: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Any] | None = None

    @property
    def judged_seconds(self) -> float:
        """Unix time of the judgement in seconds."""
        return datetime.fromisoformat(self.judged_at).timestamp()

    @property
    def earlier(self) -> actions.Earlier:
        """``{(failure class, machine or GPU): runs}`` of the faults of earlier runs, as actions look them up."""
        return {(fault["class"], fault["of"]): fault["runs"] for fault in self.faults}

    def document(self) -> dict[str, Any]:
        """The content of ``.state/judgement.json``."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}


def present_facts(
    folder: RunFolder,
    run: Mapping[str, Any],
    *,
    earlier: actions.Earlier | None = None,
    declared: Callable[[str, str], str] = lambda _run, _machine: "",
    **more: Any,
) -> JudgementFacts:
    """The facts of a judgement that is made now: the only place that asks the clock, the environment and other runs.
    ``earlier``, ``declared``: faults in earlier runs and what these declared, as in ``actions.lacked_gpus``; ``more``:
    further fields. `read_inputs` adds ``earlier_gpus``, once the evidence shows which nodes' GPUs matter."""
    is_unfinished = run["finished_at"] is None and folder.run_file.exists()
    return JudgementFacts(
        judged_at=run_folder.now(),
        settled=is_settled(folder),
        cleaned=run_state.of(run).get("reason") == run_state.CLEANED,
        resume=folder.seen().resume if is_unfinished else "",
        faults=[{"class": word, "of": of, "runs": sorted(runs)} for (word, of), runs in (earlier or {}).items()],
        lacked_gpus=actions.lacked_gpus(earlier or {}, declared),
        **{"standings": applied_criteria.standings(folder), **more},
    )


def facts_file(folder: RunFolder) -> Path:
    return folder.state / "judgement.json"


def keep_facts(folder: RunFolder, facts: JudgementFacts) -> None:
    """Write ``.state/judgement.json``, by which the judgement can be repeated."""
    document = facts.document()
    schemas.validate("judgement", document, what="judgement.json")
    run_folder.write_json(facts_file(folder), document)


def kept_facts(folder: RunFolder) -> JudgementFacts | None:
    """The facts of the last judgement; None if none were kept. Raises RunError for a damaged file."""
    remedy = "`make report` writes it again"
    document = run_folder.read_kept(facts_file(folder), remedy, "judgement")
    if document is None:
        return None
    judged_by = document["given"] or {"schema": "gpuval.judging/1", "criteria": [], "baseline": None}
    try:
        schemas.validate("judging", {**judged_by, "standings": document["standings"]}, what="it")
        if document["verdict_before"]:
            schemas.validate("verdict", document["verdict_before"], what="it")
    except schemas.Invalid as error:
        raise run_folder.RunError(f"{facts_file(folder)} is damaged ({error}): {remedy}") from error
    return facts_of(document)


def facts_of(document: Mapping[str, Any]) -> JudgementFacts:
    """The facts in a document that follows the schema ``judgement``."""
    return JudgementFacts(**{key: value for key, value in document.items() if key != "schema"})


@dataclass(frozen=True)
class JudgementInputs:
    """All that a judgement reads, apart from the collection's data. ``run`` has the stages of gangs."""

    run: Mapping[str, Any]
    evidence: RunEvidence
    checks: Sequence[Check]
    facts: JudgementFacts
    gangs: Mapping[str, Any] | None = None
    baseline: Baseline | None = None


def read_inputs(
    folder: RunFolder,
    run: Mapping[str, Any],
    checks: Sequence[Check],
    *,
    gangs: Mapping[str, Any] | None = None,
    with_gangs: bool = True,
    baseline: Baseline | None = None,
    facts: JudgementFacts | None = None,
    results: Path | None = None,
) -> JudgementInputs:
    """Read the run's files. ``gangs``: its gang document, None without gangs. Without ``with_gangs`` nodes are judged
    by their own stages only. ``facts``: None for those of now; ``results``: the folder of earlier runs, None if
    ``facts`` has the GPUs of these."""
    if facts is None:
        facts, results = present_facts(folder, run), folder.results
    evidence = read_evidence(folder, run, at=facts.judged_seconds, settled=facts.settled)
    evidence.cleaned, evidence.resume = facts.cleaned, facts.resume
    if results is not None:
        gpus = earlier_faults.gpus_of(folder, run, names_sharing_gpus(run, evidence))
        facts = dataclasses.replace(facts, earlier_gpus={name: sorted(uuids) for name, uuids in gpus.items()})
    evidence.earlier_gpus = {name: frozenset(uuids) for name, uuids in facts.earlier_gpus.items()}
    if with_gangs:
        run = gang_evidence.expected(run, gangs)
        gang_evidence.take(evidence, folder, run, gangs, facts.judged_seconds)
    if facts.verdict_before is not None:
        _keep_judged(evidence, folder, run, facts.verdict_before, frozen=facts.is_frozen)
    return JudgementInputs(run, evidence, checks, facts, gangs if with_gangs else None, baseline)


def report_on(
    inputs: JudgementInputs, history: PeerHistory | None = None, *, for_report: bool = True
) -> dict[str, Any]:
    """The report (gpuval.report/1) without actions and summary. It only changes ``history``, which gets groups of nodes
    and by default starts with the facts' standings. ``for_report``: as in ``verdict.judge``."""
    facts, evidence = inputs.facts, inputs.evidence
    earlier = {**actions.found_earlier(facts.earlier), "lacked_gpus": facts.lacked_gpus}
    report = verdict.judge(
        inputs.run, evidence, inputs.checks, judged_at=facts.judged_at, baseline=inputs.baseline,
        history=PeerHistory.of(facts.standings) if history is None else history, for_report=for_report, **earlier,
    )  # fmt: skip
    if facts.verdict_before is not None:
        entries = {**{node["name"]: node for node in report["nodes"]}, **report["run"].get("busy", {})}
        for name, (stages, _) in evidence.changed.items():
            digests = facts.verdict_before["evidence"][name]
            entries[name]["evidence"] |= {stage: digests[stage] for stage in stages}
    if inputs.gangs is not None:
        report["fleet"]["gangs"] = report_section.of_document(inputs.gangs)
    return report


def _keep_judged(
    evidence: RunEvidence, folder: RunFolder, run: Mapping[str, Any], judged: Mapping[str, Any], *, frozen: bool
) -> None:
    """Remove records from the evidence that changed since the verdict ``judged``: signed URLs may outlive a run. In a
    run that is validated again (not ``frozen``), nodes may add records, and a node launched again has new ones."""
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
