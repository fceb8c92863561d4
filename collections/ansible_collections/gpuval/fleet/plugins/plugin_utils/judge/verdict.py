"""The verdict on a run, from the expected nodes, the evidence and the criteria. Pure.

Per node: the launch (of a node that was never started it is the only check), the end of every stage it was asked to
run, one machine listed once, the accelerator and the SKU it claims to have, what its owner declares, and every
criterion that applies, some of them between nodes. A required check that failed makes the node FAIL; else required
evidence that is missing makes it INCOMPLETE; only a node of which some work is proven and nothing required is open is
PASS. Removing evidence (a launch, a record, a metric, a
part) from a node never makes that node PASS, nor the run, but for figures that no check requires: a fault or an
impossible figure that is reported counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..core.beside import beside, by_halves
from ..core.escape import one_line
from ..core.text import natural_order
from ..records import launch_errors
from ..records.documents import Problem, Record
from ..records.evidence import Evidence, digest_of
from ..records.states import FINAL_STATES, RUN_ENDED
from . import causes, coverage, declared, not_tested, order_check, ordered_nics, plausible, retries, versions
from .analysis import fleet
from .baseline import Baseline
from .check import Check
from .copies import copy_checks, find_copies
from .criteria import Criteria, of_stage
from .entries import Entry
from .identity import Twins, find_twins, identity_of, models_of
from .kinds import KINDS, Context
from .own_checks import (
    DISK_FULL,
    NO_IMAGE,
    NO_PACKAGE,
    WRONG_DIGEST,
    accelerator_check,
    changed_check,
    exempt_check,
    explains,
    gpu_order_checks,
    identity_checks,
    in_use_checks,
    lacks_image,
    launch_check,
    no_stage_check,
    state_check,
    without_parts,
)
from .peer_groups import PeerHistory
from .subject import FACTS, Subject
from .subjects import subject_of, subjects_of

#: Faults of the node that are more specific than the stage that met them first.
_STAGE_CLASSES = frozenset({"no_engine", DISK_FULL, "read_only", WRONG_DIGEST})
#: Of a stage without an end: the store or disk that it met, an image or what its gang found missing, work that it gave
#: way to.
_MISSING_CLASSES = frozenset({"store_away", NO_PACKAGE, NO_IMAGE, DISK_FULL, "foreign_work"})
#: Other work has the node, or took it: in a run of idle nodes that is no verdict.
BUSY = frozenset(
    {"foreign_work", "other_run", "gpus_in_use", "preempted", "suspended", "slurm_pending", "slurm_preempted"}
)
#: A job that waits for work of others; another reason (limits, licenses, a node that is down) is none of these.
WAITS_FOR_OTHERS = ("(Priority)", "(Resources)")
#: In the name of a process or container of a gpuval run that is not at work on the node any more.
LEFTOVER = " of gpuval run "
#: Checks of what a search found of one node.
FOUND = ("fabric_suspect", "fabric_untested", "fabric_bad_links")


def judge(
    run: Mapping[str, Any],
    evidence: Evidence,
    criteria: Sequence[Check],
    *,
    judged_at: str,
    baseline: Baseline | None = None,
    history: PeerHistory | None = None,
    lacked_gpus: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The report (``gpuval.report/1``) on ``run``, a document of ``gpuval.run/1``; ``judged_at`` is RFC 3339 UTC.

    ``baseline`` is for the checks of that kind. ``history`` are the groups of nodes of an earlier judgement; those of
    now are added. ``lacked_gpus`` says by machine, as actions name them, which earlier run missed its GPUs.
    """
    twins, copies = find_twins(run, evidence), find_copies(run, evidence)
    names = sorted(run["nodes"], key=natural_order)
    subjects = subjects_of(run, evidence, lacked_gpus)
    context = Context(criteria, baseline, PeerHistory() if history is None else history)
    figures = {name: _figures_of(run["nodes"][name], subjects[name]) for name in names}

    def analysed(without: Collection[str] = ()) -> dict[str, Any] | None:
        kept = [name for name in names if name not in without]
        return fleet.analyse([figures[name] for name in kept], [subjects[name].properties for name in kept])

    def judged(names: Sequence[str]) -> list[dict[str, Any]]:
        return [
            judge_node(run, name, evidence, context, twins=twins, copies=copies, subject=subjects[name])
            for name in names
        ]

    with beside(lambda: (analysed(), _digests(evidence)), len(names)) as of_all:
        _compare(run, subjects, context)
        nodes = [node for part in by_halves(judged, names) for node in part]
        analysis, digests = of_all()
    for node in nodes:
        node["evidence"] = digests.get(node["name"], {})
        node["metrics"] = {stage: record["metrics"] for stage, record in subjects[node["name"]].records.items()}
    busy = {node["name"]: _busy_with(node) for node in nodes if run.get("only_idle") and _is_busy(node)}
    if busy:
        analysis = analysed(busy)
    nodes = [node for node in nodes if node["name"] not in busy]
    narrowed = sorted({*run["narrowed_by"], *(["busy"] if busy else [])})
    counted = Counter(node["verdict"] for node in nodes)
    report: dict[str, Any] = {
        "schema": "gpuval.report/1",
        "run": {
            "run_id": run["run_id"],
            "folder": run["folder"],
            "bucket": run["bucket"],
            "profile": run["profile"],
            "created_at": run["created_at"],
            "finished_at": run["finished_at"],
            "judged_at": judged_at,
            "narrowed_by": narrowed,
            **({"busy": busy} if busy else {}),
            **({"shortened": list(run["shortened"])} if run.get("shortened") else {}),
            **({"resume": evidence.resume} if evidence.resume else {}),
        },
        "verdict": run_verdict((node["verdict"] for node in nodes), narrowed=bool(narrowed), busy=bool(busy)),
        "counts": {
            "expected": len(nodes),
            "PASS": counted["PASS"],
            "FAIL": counted["FAIL"],
            "INCOMPLETE": counted["INCOMPLETE"],
            "flaky": sum(node["flaky"] for node in nodes),
        },
        "summary": [],  # the lines come with the forms of the report
        "nodes": nodes,
        "fleet": {"checks": context.fleet, "problems": _problems(run, evidence)},
    }
    for entry in context.fleet:
        entry["reason"] = one_line(entry["reason"], 600)
    informational = criteria.informational if isinstance(criteria, Criteria) else ()
    gaps = coverage.of_report(nodes, criteria, informational)
    if not gaps.complete:
        report["fleet"]["coverage"] = gaps.document()
    untested = not_tested.of_run({**run, "narrowed_by": narrowed}, nodes, subjects, criteria)
    if untested:
        report["fleet"]["not_tested"] = untested
    if analysis is not None:
        report["fleet"]["analysis"] = analysis
    return report


def _digests(evidence: Evidence) -> dict[str, dict[str, str]]:
    """Of each node, by stage, the digest of what ended: what is judged now is known again later."""
    return {
        name: {stage: digest_of(record) for stage, record in records.items() if record["state"] in FINAL_STATES}
        for name, records in evidence.records.items()
    }


def _figures_of(expected: Mapping[str, Any], subject: Subject) -> dict[str, Any]:
    """What the analysis of the fleet reads of a node's entry."""
    return {
        "name": subject.name,
        "catalogue_sku": subject.catalogue_sku,
        "accelerator": subject.accelerator,
        "identity": identity_of(subject.records.get(FACTS)),
        "stages": [_stage(stage, subject.records.get(stage), failed=False) for stage in expected["stages"]],
        "metrics": {stage: record["metrics"] for stage, record in subject.records.items()},
    }


def _compare(run: Mapping[str, Any], subjects: Mapping[str, Subject], context: Context) -> None:
    """Hold nodes against each other, by the criteria that do: the context has the entries of each then."""
    between = [
        (check, [subjects[name] for name in sorted(subjects) if check.stage in run["nodes"][name]["stages"]])
        for check in context.criteria
        if KINDS[check.kind].needs_peers(check)
    ]
    for check, asked in between:
        KINDS[check.kind].survey(check, asked, context)
    for check, asked in between:
        KINDS[check.kind].compare(check, asked, context)


def _is_busy(node: Mapping[str, Any]) -> bool:
    """What an earlier run left is no work of others: it may hang in the driver."""
    if node["verdict"] != "INCOMPLETE" or node["class"] not in BUSY:
        return False
    reason = (headline(node) or {}).get("reason", "")
    if node["class"] == "slurm_pending":
        return any(word in reason for word in WAITS_FOR_OTHERS)
    return LEFTOVER not in reason


def _busy_with(node: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "class": node["class"],
        "reason": (headline(node) or {}).get("reason", ""),
        "evidence": node["evidence"],
    }


def run_verdict(nodes: Iterable[str], *, narrowed: bool, busy: bool = False) -> str:
    """FAIL before INCOMPLETE before PASS; no nodes is INCOMPLETE, ``busy`` ones PARTIAL; a narrowed PASS is PARTIAL."""
    verdicts = set(nodes)
    if busy and not verdicts:
        return "PARTIAL"
    if "FAIL" in verdicts:
        return "FAIL"
    if verdicts != {"PASS"}:
        return "INCOMPLETE"
    return "PARTIAL" if narrowed else "PASS"


def node_verdict(checks: Sequence[Entry]) -> str:
    """The verdict on a node from its checks; one without any required work that passed is INCOMPLETE."""
    required = [check for check in checks if check["severity"] == "required"]
    if any(check["verdict"] == "fail" for check in required):
        return "FAIL"
    proven = any(check["verdict"] == "pass" and check["kind"] not in ("launch", "identity") for check in required)
    if not proven or any(check["verdict"] == "missing" for check in required):
        return "INCOMPLETE"
    return "PASS"


def node_class(
    checks: Sequence[Entry],
    contacts: Mapping[str, Mapping[str, Any] | None] = MappingProxyType({}),
    without_image: Collection[str] = (),
) -> str:
    """One word for what decided against a node: the launch's class, a stage and its end, or the name of the check.

    ``contacts``: by stage why its record could not be fetched. ``without_image``: stages whose image is not there.
    """
    check = headline({"checks": checks})
    if check is None:
        return "nothing_proven"
    if check["kind"] == "launch":
        return str(check["value"])
    if check["kind"] == "state" and check["stage"]:
        if check["stage"] in without_image:
            return NO_IMAGE
        fault = launch_errors.classify("", check["reason"]).name
        if fault in (_STAGE_CLASSES if check["verdict"] == "fail" else _MISSING_CLASSES):
            return fault
        contact = contacts.get(check["stage"])
        if contact and check["verdict"] == "missing" and explains(contact, check["value"]):
            return one_line(contact["class"], 40)
        return f"{check['stage']}_{check['value']}"
    return "same_machine_twice" if check["name"] == "identity" else str(check["name"])


def headline(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The check that decided against the node: the first required one that failed, else the first that is missing.

    Where a part explains the first, its own failed check comes before. Of those that are missing what a search found of
    this very node comes before what all members of its gang share.
    """
    required = [check for check in node["checks"] if check["severity"] == "required"]
    failed = [check for check in required if check["verdict"] == "fail"]
    cause = failed[0].get("cause") if failed else None
    failed.sort(key=lambda check: bool(cause) and check["part"] != cause)
    missing = [check for check in required if check["verdict"] == "missing"]
    found = [check for check in missing if check["name"] in FOUND and check["value"] is not None]
    return next(iter([*failed, *found, *missing]), None)


def judge_node(
    run: Mapping[str, Any],
    name: str,
    evidence: Evidence,
    context: Context,
    *,
    twins: Mapping[str, Twins] | None = None,
    copies: Mapping[str, Mapping[str, list[str]]] | None = None,
    subject: Subject | None = None,
) -> dict[str, Any]:
    """The report's entry of one node; ``twins`` (find_twins) are other names of the same machine, ``copies``
    (find_copies) nodes with the same measurements.

    A ``context`` in which nodes were not compared judges the node by its own records alone.
    """
    expected = run["nodes"][name]
    subject = subject or subject_of(run, name, evidence)
    records, facts, skus = subject.records, subject.records.get(FACTS), subject.skus
    identity = identity_of(facts)
    problems = _problems_of(name, expected["stages"], evidence)
    launch = evidence.launches.get(name)
    cleaned = {one["stage"] for one in problems if one["reason"] == RUN_ENDED}
    if evidence.cleaned:
        cleaned = {*expected["stages"]}
    # a node that was cleaned has no records left: that is no fault of its connection
    contacts = {stage: None if stage in cleaned else evidence.contact_of(name, stage) for stage in expected["stages"]}
    checks = [launch_check(name, launch, records), *identity_checks(name, facts, (twins or {}).get(name) or Twins())]
    if evidence.resume and not launch and checks[0]["verdict"] == "missing":
        checks[0]["remedy"] = evidence.resume
    checks += copy_checks((copies or {}).get(name, {}))
    never_started = not records and checks[0]["verdict"] == "missing"  # the launch says it all
    if not expected["stages"]:
        checks.append(no_stage_check())
    if FACTS not in expected["stages"] and not never_started:
        checks.append(accelerator_check(subject, facts))
    for stage in () if never_started else expected["stages"]:
        of_gang = stage in expected.get("gang_stages", ())
        checks += in_use_checks(name, stage, records.get(stage))
        checks.append(
            state_check(
                name,
                stage,
                records.get(stage),
                problems,
                contacts[stage],
                of_gang=of_gang,
                cleaned=stage in cleaned,
                resume=evidence.resume,
            )
        )
        if stage == FACTS:
            checks += _checks_of_facts(expected, subject)
        if stage not in context.of_stages:
            context.of_stages[stage] = of_stage(context.criteria, stage)
        for check in context.of_stages[stage]:
            if check.catalogue_sku is None or check.catalogue_sku in skus:
                entries = causes.of_the_node(check, subject, _entries(check, subject, context))
                checks.extend(causes.beside_other_work(check, records.get(stage), entries))
        checks += plausible.checks(name, stage, records.get(stage), subject.catalogue_sku, of_gang=of_gang)
        checks += gpu_order_checks(subject, stage, records.get(stage), identity)
    checks = without_parts(checks)
    if name in evidence.changed:
        checks.append(changed_check(*evidence.changed[name]))
    checks += [exempt_check(stage, reason) for stage, reason in expected.get("exempt", {}).items()]
    _withhold(checks, context.criteria)
    causes.follow_the_fleet(checks, context.criteria)
    checks = causes.name_the_cause(checks, subject)
    for entry in checks:
        entry["reason"] = one_line(entry["reason"], 600)
    failed = {check["stage"] for check in checks if check["severity"] == "required" and check["verdict"] == "fail"}
    stages = [_stage(stage, records.get(stage), failed=stage in failed) for stage in expected["stages"]]
    verdict = node_verdict(checks)
    without_image = [stage for stage in expected["stages"] if lacks_image(records.get(stage))]
    return {
        "name": name,
        "id": expected.get("id"),
        "labels": dict(expected.get("labels", {})),
        "verdict": verdict,
        "class": None if verdict == "PASS" else node_class(checks, contacts, without_image),
        "flaky": verdict == "PASS" and any(stage["flaky"] for stage in stages),
        "sku": expected["sku"],
        "catalogue_sku": subject.catalogue_sku,
        "accelerator": subject.accelerator,
        "identity": identity,
        "stages": stages,
        "checks": checks,
        "problems": problems,
    }


def _checks_of_facts(expected: Mapping[str, Any], subject: Subject) -> list[Entry]:
    """What the node is, against what its owner ordered and declares."""
    facts = subject.records.get(FACTS)
    return [
        accelerator_check(subject, facts),
        *order_check.checks(subject, facts is not None, models_of(facts)),
        *ordered_nics.checks(expected.get("nics", {}), facts),
        *versions.checks(expected.get("versions", {}), facts, FACTS),
        *declared.checks(expected.get("declared", {}), facts, FACTS),
    ]


def _entries(check: Check, subject: Subject, context: Context) -> list[Entry]:
    kind = KINDS[check.kind]
    if kind.needs_peers(check):
        return context.nodes.get(subject.name, {}).get(check.name, [])
    return kind.judge(check, subject, context)


def _withhold(checks: Sequence[Entry], criteria: Sequence[Check]) -> None:
    """A check whose requirement failed, or lacks evidence, proves nothing: seven GPUs may be faster than eight."""
    open_checks = {check["name"] for check in checks if check["verdict"] in ("fail", "warn", "missing")}
    known = {check["name"] for check in checks}
    requiring = {check.name: check.requires for check in criteria if check.requires}
    for entry in checks:
        lacking = [name for name in requiring.get(entry["name"], ()) if name in open_checks or name not in known]
        if lacking and entry["verdict"] != "skipped":
            entry["verdict"], entry["remedy"] = "missing", ""  # the check that it waits for has one
            entry["reason"] = f"judged only when {' and '.join(lacking)} passes; {entry['reason']}"


def failed_criteria(node: Mapping[str, Any], criteria: Sequence[Check]) -> list[Check]:
    """The required criteria that a judged node failed: what decides whether a stage may be measured again."""
    failed = {check["name"] for check in node["checks"] if check["verdict"] == "fail"}
    checks = (check for stage in node["stages"] if failed for check in of_stage(criteria, stage["name"]))
    return [check for check in checks if check.name in failed]


def _stage(name: str, record: Record | None, *, failed: bool) -> dict[str, Any]:
    copied = ("attempt", "started_at", "finished_at", "duration_seconds")
    if record is None:
        return {
            "name": name, "workload": None, "state": "missing", "message": "", "flaky": False,
            "retried_for": None, **dict.fromkeys(copied)
        }  # fmt: skip
    cause = retries.retried_for(record) if record["state"] == "success" and not failed else None
    return {
        "name": name,
        "workload": one_line(record["workload"], 64),
        "state": record["state"],
        "message": one_line(record["message"], 1000),
        "flaky": cause == retries.FLAKY,
        "retried_for": cause,
        **{key: value for key, value in record.items() if key in copied},
    }


def _problems_of(name: str, stages: Sequence[str], evidence: Evidence) -> list[Problem]:
    problems = [_problem(problem) for problem in evidence.problems if problem["node"] == name]
    return problems + _not_asked(name, stages, evidence)


def _not_asked(name: str, stages: Sequence[str], evidence: Evidence) -> list[Problem]:
    reason = "a record of a stage that the node was not asked to run"
    others = sorted(evidence.records.get(name, {}).keys() - set(stages))
    return [{"node": name, "stage": one_line(stage, 40), "reason": reason} for stage in others]


def _problems(run: Mapping[str, Any], evidence: Evidence) -> list[Problem]:
    problems = [_problem(problem) for problem in evidence.problems]
    for name in sorted(evidence.records.keys() - run["nodes"].keys()):
        problems.append(
            {"node": None, "stage": None, "reason": f"records of {one_line(name, 80)!r}, not a node of the run"}
        )
    for name, expected in run["nodes"].items():
        problems += _not_asked(name, expected["stages"], evidence)
    return sorted(problems, key=lambda one: (one["node"] or "", one["stage"] or "", one["reason"]))


def _problem(problem: Problem) -> Problem:
    return {
        "node": one_line(problem["node"], 253) if problem["node"] else None,
        "stage": one_line(problem["stage"], 40) if problem["stage"] else None,
        "reason": one_line(problem["reason"]),
    }
