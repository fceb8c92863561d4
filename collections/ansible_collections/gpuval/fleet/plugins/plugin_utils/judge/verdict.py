"""The verdict on a run, from the expected nodes, the evidence and the criteria. Pure.

A required check that failed makes its node FAIL if the failure class is about the node (``failures/*.yml``), else
INCOMPLETE, like required evidence that is missing. A node is PASS only if some work is proven and no required check is
open. Removing evidence (a launch, a record, a metric, a part) from a node never makes that node or the run PASS, except
for figures that no check requires: a fault or an impossible figure that is reported counts.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..core.escape import one_line
from ..core.processes import beside, by_halves
from ..core.text import natural_order
from ..records.digests import STORE_ONLY
from ..records.documents import FINAL_STATES, Document, EvidenceProblem, Record
from ..records.evidence import RunEvidence, digest_of
from ..records.failure_classes import traits_of
from ..records.properties import properties_of, setup_of
from . import acceptance, coverage, power, racks, sku_catalogue, stage_end
from .analysis import fleet
from .baseline import Baseline
from .check import FACTS, Check
from .checks_without_criteria import find_copies
from .criteria import checks_digest, informational_of, of_stage
from .entries import headline, verdict_and_class
from .identity import find_twins, identity_of
from .kinds import JudgeContext
from .node_checks import JudgedRun, NodeCase, checks_of, clean_problem, stages_not_asked, was_slow
from .peer_groups import PeerHistory
from .stage_end import MAX_REASON
from .subjects import subject_of, subjects_of

#: Reasons of a Slurm job that waits for others' jobs; limits, licenses or a node that is down are other reasons.
WAITS_FOR_OTHERS = ("(Priority)", "(Resources)")
#: Text in the name of a process or container that an earlier gpuval run left behind.
LEFTOVER = " of gpuval run "
#: Number of good nodes that are measured again to compare the doubtful ones with.
PEERS_MEASURED_AGAIN = 2
#: Verdicts on a run in which no node is open or failed.
ACCEPTED = ("PASS", "PARTIAL")


def judge(
    run: Document,
    evidence: RunEvidence,
    criteria: Sequence[Check],
    *,
    judged_at: str,
    baseline: Baseline | None = None,
    history: PeerHistory | None = None,
    lacked_gpus: Mapping[str, str] = MappingProxyType({}),
    unsteady: Mapping[str, Collection[str]] = MappingProxyType({}),
    for_report: bool = True,
) -> dict[str, Any]:
    """The report (``gpuval.report/1``) on ``run``, a document of ``gpuval.run/1``; ``judged_at`` is RFC 3339 UTC.

    ``baseline``: for checks of kind baseline. ``history``: groups of nodes from earlier judgements, to which this one's
    are added. ``lacked_gpus``: for each machine, as actions name it, the earlier run that missed its GPUs.
    ``unsteady``: for each machine or GPU the earlier runs in which its speed changed. Without ``for_report``, parts
    that no verdict depends on are left out: the analysis of the fleet and the smallest losses.
    """
    twins = find_twins(run, evidence)
    judged = JudgedRun(
        run,
        evidence,
        JudgeContext(criteria, baseline, PeerHistory() if history is None else history),
        subjects_of(run, evidence, lacked_gpus),
        twins,
        find_copies(run, evidence, twins),
        unsteady,
    )
    nodes, analysis = _judge_nodes(judged, _analyse if for_report else lambda *_: None)
    busy = {
        node["name"]: {
            "class": node["class"], "reason": (headline(node) or {}).get("reason", ""), "evidence": node["evidence"]
        }
        for node in nodes if run.get("only_idle") and _is_busy(node)
    }  # fmt: skip
    if busy:
        nodes = [node for node in nodes if node["name"] not in busy]
        analysis = _analyse(judged, busy) if for_report else None
    racks_judged = racks.racks_of(run, nodes, judged.subjects)
    losses = power.of_run(judged.context) or None if for_report else None
    is_lent = baseline is not None and bool(baseline.document.get("spreads"))
    narrowed = sorted({*run["narrowed_by"], *(["busy"] if busy else []), *(["spreads"] if is_lent else [])})
    is_less = bool(narrowed) or any(node.get("unproven") for node in nodes)
    verdicts = [*(node["verdict"] for node in nodes), *racks.verdicts_for_run(racks_judged, narrowed)]
    verdict = run_verdict(verdicts, narrowed=is_less, busy=bool(busy))
    with_gpus = [node for node in nodes if node["accelerator"] != sku_catalogue.CPU]
    judged_by = {"checks": checks_digest(criteria), **({"baseline": baseline.digest} if baseline else {})}
    together = dict.fromkeys(stage for node in run["nodes"].values() for stage in node.get("gang_stages", ()))
    tests_gpus = acceptance.may_use_gpus(acceptance.stages_of(with_gpus))
    return {
        "schema": "gpuval.report/1",
        "run": {
            **{key: run[key] for key in ("run_id", "folder", "bucket", "profile", "created_at", "finished_at")},
            "judged_at": judged_at,
            "narrowed_by": narrowed,
            **({"criteria": judged_by} if for_report else {}),
            **({"multi_node_stages": list(together)} if together else {}),
            **({"part_of": run["part_of"]} if run.get("part_of") else {}),
            **({"busy": busy} if busy else {}),
            **({"shortened": list(run["shortened"])} if run.get("shortened") else {}),
            **({"resume": evidence.resume} if evidence.resume else {}),
            **({"gpus_tested": False} if verdict in ACCEPTED and not tests_gpus else {}),
        },
        "verdict": verdict,
        "counts": {
            "expected": len(nodes),
            **{word: sum(node["verdict"] == word for node in nodes) for word in ("PASS", "FAIL", "INCOMPLETE")},
            "flaky": sum(node["flaky"] for node in nodes),
        },
        "summary": [],  # filled in when the report is written
        **({"racks": racks_judged} if racks_judged else {}),
        "nodes": nodes,
        "fleet": _fleet_report(judged, nodes, narrowed, power=losses, analysis=analysis),
    }


def _judge_nodes(
    judged: JudgedRun, analyse: Callable[[JudgedRun], dict[str, Any] | None]
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The report's entries of all nodes, and the analysis of the fleet; large fleets use two processes."""
    names = sorted(judged.subjects, key=natural_order)
    with beside(lambda: (analyse(judged), _digests(judged.evidence)), len(names)) as analyse_beside:
        judged.compare_nodes()
        judged.compare_figures()
        parts = by_halves(lambda part: [_judge_case(NodeCase(name, judged)) for name in part], names)
        nodes = [node for part in parts for node in part]
        analysis, digests = analyse_beside()
    for node in nodes:
        records = judged.subjects[node["name"]].records
        node["evidence"] = digests.get(node["name"], {})
        node["metrics"] = {stage: record["metrics"] for stage, record in records.items()}
        gaps = acceptance.unproven(node) if node["verdict"] != "INCOMPLETE" else []
        node.update({"unproven": gaps} if gaps else {})
    return nodes, analysis


def _analyse(judged: JudgedRun, without: Collection[str] = ()) -> dict[str, Any] | None:
    """Statistics of the fleet's figures for the report, except of the nodes in ``without``; None for too few nodes."""
    subjects = [judged.subjects[name] for name in sorted(judged.subjects, key=natural_order) if name not in without]
    figures = [
        {
            "name": subject.name,
            "catalogue_sku": subject.catalogue_sku,
            "accelerator": subject.accelerator,
            "identity": identity_of(subject.records.get(FACTS)),
            "stages": [
                _stage_entry(stage, subject.records, failed=False)
                for stage in judged.document["nodes"][subject.name]["stages"]
            ],
            "metrics": {stage: record["metrics"] for stage, record in subject.records.items()},
        }
        for subject in subjects
    ]
    return fleet.analyse(figures, [subject.properties for subject in subjects])


def _fleet_report(judged: JudgedRun, nodes: Sequence[Document], narrowed: Sequence[str], **more: Any) -> dict[str, Any]:
    """The report's section about the nodes together."""
    run, criteria, checks = judged.document, judged.context.criteria, judged.context.fleet
    for entry in checks:
        entry["reason"] = one_line(entry["reason"], MAX_REASON)
    optional = {
        "coverage": coverage.of_report(nodes, criteria, informational_of(criteria)),
        "not_tested": coverage.of_run({**run, "narrowed_by": narrowed}, nodes, judged.subjects, criteria) or None,
        **more,
    }
    present = {name: document for name, document in optional.items() if document is not None}
    return {"checks": checks, "problems": _report_problems(run, judged.evidence), **present}


def _digests(evidence: RunEvidence) -> dict[str, dict[str, str]]:
    """For each node and stage the digest of the final record, so that a later judgement sees what changed."""
    return {
        name: {stage: digest_of(record) for stage, record in records.items() if record["state"] in FINAL_STATES}
        for name, records in evidence.records.items()
    }


def _is_busy(node: Document) -> bool:
    """Whether other work occupies the node. A leftover of an earlier run does not count: it may hang in the driver."""
    if node["verdict"] != "INCOMPLETE" or not traits_of(node["class"]).other_work:
        return False
    reason = (headline(node) or {}).get("reason", "")
    if node["class"] == "slurm_pending":
        return any(word in reason for word in WAITS_FOR_OTHERS)
    return LEFTOVER not in reason


def run_verdict(nodes: Iterable[str], *, narrowed: bool, busy: bool = False) -> str:
    """The verdict on a run from those on its nodes and racks: FAIL before INCOMPLETE before PASS. Without nodes it is
    INCOMPLETE, or PARTIAL if all are ``busy``. ``narrowed``: the run proves too little for more than PARTIAL."""
    verdicts = set(nodes)
    if busy and not verdicts:
        return "PARTIAL"
    if "FAIL" in verdicts:
        return "FAIL"
    if verdicts != {"PASS"}:
        return "INCOMPLETE"
    return "PARTIAL" if narrowed else "PASS"


def judge_node(run: Document, name: str, evidence: RunEvidence, context: JudgeContext) -> dict[str, Any]:
    """The report's entry of one node from its own records: ``context`` has no comparison of nodes."""
    return _judge_case(NodeCase(name, JudgedRun(run, evidence, context, {name: subject_of(run, name, evidence)})))


def to_measure_again(
    run: Document, evidence: RunEvidence, context: JudgeContext, able: Collection[str]
) -> dict[str, list[str]]:
    """``{node: stages to measure again}``, of nodes far from their peers, and of two good nodes of each kind among
    them. ``able``: names of nodes that can measure again."""
    judged = JudgedRun(run, evidence, context, subjects_of(run, evidence))
    judged.compare_nodes()
    chosen: dict[str, set[str]] = {name: stages for name, stages in context.doubtful.items() if name in able}
    for kind in {judged.subjects[name].kind for name in chosen}:
        stages = set().union(*(its for name, its in chosen.items() if judged.subjects[name].kind == kind))
        ahead = context.tails[kind][0].ahead
        good = [name for name in able if judged.subjects[name].kind == kind and name not in context.doubtful]
        good.sort(key=lambda name: (-max(ahead[stage].get(name, 0.0) for stage in stages), name))
        chosen |= dict.fromkeys(good[:PEERS_MEASURED_AGAIN], stages)
    return {name: sorted(stages) for name, stages in chosen.items()}


def _judge_case(case: NodeCase) -> dict[str, Any]:
    checks = checks_of(case)
    failed = {check["stage"] for check in checks if check["severity"] == "required" and check["verdict"] == "fail"}
    records = case.subject.records
    stages = []
    for stage in case.expected["stages"]:
        stages.append(_stage_entry(stage, records, failed=stage in failed, slow=was_slow(case, stage)))
        if stage in records:
            stages[-1]["confirmed_by"] = case.run.evidence.channels.get(case.name, {}).get(stage, STORE_ONLY)
            # settings that the figures depend on, for comparisons with other runs
            versions = properties_of(records[stage]) if stage != FACTS else {}
            stages[-1] |= {"setup": setup_of(records[stage]), **({"versions": versions} if versions else {})}
    judged = verdict_and_class(checks)
    return {
        "name": case.name,
        "id": case.expected.get("id"),
        "labels": dict(case.expected.get("labels", {})),
        **judged,
        "flaky": judged["verdict"] == "PASS" and any(stage["flaky"] for stage in stages),
        "sku": case.expected["sku"],
        "catalogue_sku": case.subject.catalogue_sku,
        "accelerator": case.subject.accelerator,
        "identity": case.identity,
        "gpus": case.subject.gpus,
        "versions": properties_of(case.facts) if case.facts else {},
        "stages": stages,
        "checks": checks,
        "problems": case.problems,
    }


def failed_criteria(node: Document, criteria: Sequence[Check]) -> list[Check]:
    """The required criteria that a node failed or did too little work for, by which a stage may be measured again."""
    failed = {check["name"] for check in node["checks"] if check["verdict"] == "fail"}
    few = {check["name"] for check in node["checks"] if check["verdict"] == "missing" and check["value"] is not None}
    checks = [check for stage in node["stages"] if failed or few for check in of_stage(criteria, stage["name"])]
    return [one for one in checks if one.name in failed or (one.name in few and one.retry and one.samples_from)]


def _stage_entry(name: str, records: Mapping[str, Record], *, failed: bool, slow: bool = True) -> dict[str, Any]:
    """The report's entry of a stage. ``slow``: whether attempts that passed were slow."""
    record = records.get(name)
    copied = ("attempt", "started_at", "finished_at", "duration_seconds")
    if record is None:
        return {
            "name": name, "workload": None, "state": "missing", "message": "", "flaky": False,
            "retried_for": None, **dict.fromkeys(copied)
        }  # fmt: skip
    passed = record["state"] == "success" and not failed
    cause = stage_end.retried_for(record, records.values(), slow=slow) if passed else None
    return {
        "name": name,
        "workload": one_line(record["workload"], 64),
        "state": record["state"],
        "message": one_line(record["message"], 1000),
        "flaky": cause == stage_end.FLAKY,
        "retried_for": cause,
        **{key: value for key, value in record.items() if key in copied},
    }


def _report_problems(run: Document, evidence: RunEvidence) -> list[EvidenceProblem]:
    problems = [clean_problem(problem) for problem in evidence.problems]
    strangers = (one_line(name, 80) for name in sorted(evidence.records.keys() - run["nodes"].keys()))
    reasons = (f"records of {name!r}, not a node of the run" for name in strangers)
    problems += [{"node": None, "stage": None, "reason": reason} for reason in reasons]
    for name, expected in run["nodes"].items():
        problems += stages_not_asked(name, expected["stages"], evidence)
    return sorted(problems, key=lambda entry: (entry["node"] or "", entry["stage"] or "", entry["reason"]))
