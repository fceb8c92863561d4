"""All checks of one node, by tables of what produces and revises them, which read from top to bottom. Pure."""

import functools
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..core.escape import one_line
from ..records.documents import LAUNCHED, RUN_ENDED, Document, EvidenceProblem, Record
from ..records.evidence import RunEvidence
from . import coherence, comparisons, declared, implicated_parts, link_losses, plausible, unsteady
from .baseline import lend_spreads
from .cabling import CablingComparison
from .check import FACTS, Check, Subject
from .checks_without_criteria import (
    accelerator_check,
    changed_and_exempt_checks,
    copy_checks,
    gpu_order_checks,
    identity_checks,
    in_use_checks,
    interruption_checks,
    launch_check,
    no_stage_checks,
    without_parts,
)
from .criteria import informational_of, of_stage
from .entries import Entry, is_held
from .identity import Twins, identity_of, models_of
from .kinds import KINDS, JudgeContext
from .kinds.base import MetricKind
from .stage_end import MAX_REASON, REFUSED, StageEnd, find_shared, judge_end


@dataclass(frozen=True)
class JudgedRun:
    """What the checks of all nodes of a run share. ``twins``, ``copies``: see find_twins, find_copies. ``unsteady``:
    for each machine or GPU the earlier runs in which its speed changed."""

    document: Document
    evidence: RunEvidence
    context: JudgeContext
    subjects: Mapping[str, Subject]
    twins: Mapping[str, Twins] = field(default_factory=dict)
    copies: Mapping[str, Mapping[str, list[str]]] = field(default_factory=dict)
    unsteady: Mapping[str, Collection[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lend_spreads(self.context.baseline, self.subjects.values())

    @functools.cached_property
    def cabling(self) -> CablingComparison:
        """The network cables of the nodes, compared with the cabling plan."""
        return CablingComparison(self.document, self.subjects)

    @functools.cached_property
    def shared_link_losses(self) -> dict[tuple[str, str], str]:
        """``{(node, stage): text}`` for links that several nodes lost at the same time."""
        return link_losses.find_shared(self.subjects)

    @functools.cached_property
    def problems(self) -> dict[str, list[EvidenceProblem]]:
        """For each node the evidence that was refused."""
        problems: dict[str, list[EvidenceProblem]] = {name: [] for name in self.subjects}
        for problem in self.evidence.problems:
            if problem["node"] in problems:
                problems[problem["node"]].append(clean_problem(problem))
        return problems

    @functools.cached_property
    def ends(self) -> dict[str, list[StageEnd]]:
        """For each node how its stages ended, with what other nodes show about each end."""
        ends = {name: [*self._own_ends(name)] for name in self.subjects}
        all_ends = [*itertools.chain(*ends.values())]
        passed = Counter(end.stage for end in all_ends if end.state == "success")
        ran = passed + Counter(end.stage for end in all_ends if end.failed)
        shared = find_shared(filter(None, (end.as_failed for end in all_ends)), ran)
        return {
            name: [
                replace(end, peers_passed=passed[end.stage], shared=shared.get((name, end.stage))) for end in of_node
            ]
            for name, of_node in ends.items()
        }

    def _own_ends(self, name: str) -> Iterator[StageEnd]:
        expected, records = self.document["nodes"][name], self.subjects[name].records
        launched = (self.evidence.launches.get(name) or {}).get("state") in LAUNCHED
        for stage in expected["stages"]:
            refusals = [problem["reason"] for problem in self.problems[name] if problem["stage"] == stage]
            cleaned = self.evidence.cleaned or RUN_ENDED in refusals
            yield StageEnd(
                name,
                stage,
                records.get(stage),
                refusal=min(refusals, key=lambda reason: not reason.startswith(REFUSED), default=""),
                # a clean deletes the node's records, so that a lost connection is no reason why they are missing
                contact=None if cleaned else self.evidence.contact_of(name, stage),
                unstarted=self.evidence.unstarted.get(name, {}).get(stage),
                lost_again=None if cleaned else self.evidence.lost_again(name, stage),
                began_again=launched and self.evidence.is_asked_again(name, stage),
                of_gang=stage in expected.get("gang_stages", ()),
                cleaned=cleaned,
                resume=self.evidence.resume,
            )

    def compare_nodes(self) -> None:
        """Run the criteria that compare nodes, and put each node's entries into the context."""
        nodes = self.document["nodes"]
        self.context.samples.clear()
        between = [
            (check, [self.subjects[name] for name in sorted(self.subjects) if check.stage in nodes[name]["stages"]])
            for check in self.context.criteria
            if KINDS[check.kind].needs_peers(check)
        ]
        for check, peers in between:
            KINDS[check.kind].survey(check, peers, self.context)
        for check, peers in between:
            KINDS[check.kind].compare(check, peers, self.context)

    def compare_figures(self) -> None:
        """Compare figures that no criterion compares; add a check of the fleet for each failure that nodes share."""
        subjects = [self.subjects[name] for name in sorted(self.subjects)]
        self.context.figures, of_fleet = comparisons.compare(subjects, informational_of(self.context.criteria))
        shared = dict.fromkeys(end.shared for ends in self.ends.values() for end in ends if end.shared)
        self.context.fleet += [*of_fleet, *(failure.entry() for failure in shared)]


#: Metrics of network ports that fail a node, unless its owner declares that none is used (gpuval_nic_count: 0).
METRICS_OF_PORTS = frozenset({"optics_alarm_count", "link_down_new_count", "link_symbol_error_new_ratio"})


class NodeCase:
    """One node of a run, with all that its checks need. ``expected``: its entry in the run document. ``ends``: how each
    stage ended; empty for a node that was not ``started``, for which the ``launch`` check is enough."""

    def __init__(self, name: str, run: JudgedRun) -> None:
        evidence = run.evidence
        self.name, self.run = name, run
        self.expected, self.subject = run.document["nodes"][name], run.subjects[name]
        self.facts = self.record(FACTS)
        self.identity = identity_of(self.facts)
        self.problems = run.problems[name] + stages_not_asked(name, self.expected["stages"], evidence)
        self.launch = launch_check(name, evidence.launches.get(name), self.subject.records)
        if evidence.resume and not evidence.launches.get(name) and self.launch["verdict"] == "missing":
            self.launch["remedy"] = evidence.resume
        self.started = bool(self.subject.records) or self.launch["verdict"] != "missing"
        self.ends = {end.stage: judge_end(end) for end in run.ends[name]} if self.started else {}

    def record(self, stage: str) -> Record | None:
        return self.subject.records.get(stage)

    def is_of_gang(self, stage: str) -> bool:
        return stage in self.expected.get("gang_stages", ())


def _checks_of_facts(case: NodeCase, stage: str) -> list[Entry]:
    """Checks of the node's facts against what its owner ordered and declares."""
    if stage != FACTS:
        return []
    facts = case.facts
    return [
        accelerator_check(case.subject, facts),
        *declared.order_checks(case.subject, facts is not None, models_of(facts)),
        *declared.checks_of(case.expected, facts),
        *case.run.cabling.checks(case.name),
    ]


def _checks_of_criteria(case: NodeCase, stage: str) -> list[Entry]:
    subject, context, entries = case.subject, case.run.context, []
    compared = context.nodes.get(case.name, {})
    for check in _criteria_of(case, stage):
        kind = KINDS[check.kind]
        judged = compared.get(check.name, []) if kind.needs_peers(check) else kind.judge(check, subject, context)
        of_check = implicated_parts.of_the_node(check, subject, judged)
        entries += implicated_parts.beside_other_work(check, case.record(stage), of_check)
    return entries


def _criteria_of(case: NodeCase, stage: str) -> list[Check]:
    context = case.run.context
    if stage not in context.of_stages:
        context.of_stages[stage] = of_stage(context.criteria, stage)
    skus = case.subject.skus
    untested = METRICS_OF_PORTS if case.expected.get("nics", {}).get("count") == 0 else ()
    criteria = [one for one in context.of_stages[stage] if one.metric not in untested]
    return [one for one in criteria if one.catalogue_sku is None or one.catalogue_sku in skus]


def was_slow(case: NodeCase, stage: str) -> bool:
    """Whether an earlier attempt passed, but missed a limit that allows another measurement or was part of a gang's
    round, which is repeated for its results."""
    record, subject = case.record(stage), case.subject
    attempts = [one for one in record["attempts"] if one["state"] == "success"] if record is not None else []
    limits = [
        (check, kind) for check in (_criteria_of(case, stage) if attempts else ())
        if check.required and check.retry and isinstance(kind := KINDS[check.kind], MetricKind)
        and not kind.needs_peers(check) and check.value_from is None and is_held(check, subject)
    ]  # fmt: skip
    return any(attempt.get("of_round") for attempt in attempts) or any(
        part.passed is False
        for attempt in attempts
        for check, kind in limits
        for part in kind.results(check, check.value, subject, attempt)[0]
    )


def _is_control(case: NodeCase, stage: str) -> bool:
    """Whether a good node repeated the stage only to compare a slow one with: no attempt was slow or far from peers."""
    of_node = [one for entries in case.run.context.nodes.get(case.name, {}).values() for one in entries]
    compared = any(one["stage"] == stage and one["kind"] == "outlier" and one["verdict"] == "pass" for one in of_node)
    return compared and stage not in case.run.context.doubtful.get(case.name, ()) and not was_slow(case, stage)


#: Functions that make the checks of a node as a whole, in the order of the report.
NODE_CHECKS: tuple[Callable[[NodeCase], list[Entry]], ...] = (
    lambda case: [case.launch],
    lambda case: interruption_checks(case.name, case.run.evidence.launches.get(case.name) or {}),
    lambda case: identity_checks(case.name, case.facts, case.run.twins.get(case.name) or Twins()),
    lambda case: copy_checks(case.run.copies.get(case.name, {})),
    lambda case: no_stage_checks(case.expected["stages"]),
    lambda case: (
        [accelerator_check(case.subject, case.facts)] if case.started and FACTS not in case.expected["stages"] else []
    ),
)
#: Functions that make the checks of one stage of a node that was started, in the order of the report.
STAGE_CHECKS: tuple[Callable[[NodeCase, str], list[Entry]], ...] = (
    lambda case, stage: in_use_checks(case.name, stage, case.record(stage)),
    lambda case, stage: [case.ends[stage]],
    _checks_of_facts,
    _checks_of_criteria,
    lambda case, stage: plausible.checks(
        case.name, stage, case.record(stage), case.subject.catalogue_sku, of_gang=case.is_of_gang(stage)
    ),
    lambda case, stage: (
        []
        if _is_control(case, stage)
        else unsteady.checks(case.subject, stage, _criteria_of(case, stage), case.run.unsteady, case.run.context)
    ),
    lambda case, stage: gpu_order_checks(case.subject, stage, case.record(stage), case.identity),
)


def _with_contradictions(checks: list[Entry], case: NodeCase) -> list[Entry]:
    """The checks, with those of contradictory records. A failed figure explains contradictions of its own."""
    failed = {check["metric"] for check in checks if check["verdict"] == "fail"}
    found = (coherence.checks(case.subject, stage, case.is_of_gang(stage), failed) for stage in case.ends)
    return [*checks, *itertools.chain(*found)]


def _withhold(checks: list[Entry], case: NodeCase) -> list[Entry]:
    """The checks, ``missing`` if they require another check that did not pass: seven GPUs may be faster than eight."""
    open_checks = {check["name"] for check in checks if check["verdict"] in ("fail", "warn", "missing")}
    names = {check["name"] for check in checks}
    required_by = {check.name: check.requires for check in case.run.context.criteria if check.requires}
    for check in checks:
        lacking = [name for name in required_by.get(check["name"], ()) if name in open_checks or name not in names]
        if lacking and check["verdict"] != "skipped":
            check["verdict"], check["remedy"] = "missing", ""  # the required check has a remedy
            check["reason"] = f"judged only when {' and '.join(lacking)} passes; {check['reason']}"
    return checks


def _accept_alone(checks: list[Entry], case: NodeCase) -> list[Entry]:
    """The checks. A node that alone has its software gets a warning for lack of peers if all its speeds are proven."""
    alone = case.run.context.alone.get(case.name, ())
    if not any(check["name"] in alone and check["verdict"] == "missing" for check in checks):
        return checks
    criteria = {one.name: one for one in case.run.context.criteria if one.required}
    floors, compared = set(), set()
    for entry in checks:
        criterion = criteria.get(entry["name"])
        if criterion and criterion.kind == "min" and criterion.catalogue_sku:
            floors.add(entry["verdict"])
        elif criterion and criterion.kind == "outlier" and criterion.peers == "fleet":
            compared.add(entry["verdict"])
    proven = all("pass" in verdicts <= {"pass", "warn", "skipped"} for verdicts in (floors, compared))
    for entry in checks if proven else ():
        if entry["name"] in alone and entry["verdict"] == "missing":
            reason = f"{entry['reason']}; its floors are met, and its speeds are those of its peers"
            entry.update(verdict="warn", severity="advisory", reason=reason)
    return checks


#: Revisions of a node's checks once they are complete, in this order.
REVISIONS: tuple[Callable[[list[Entry], NodeCase], list[Entry]], ...] = (
    lambda checks, case: comparisons.add_unjudged(checks, case.run.context.figures.get(case.name, ())),
    _with_contradictions,
    lambda checks, _: without_parts(checks),
    lambda checks, case: [*checks, *changed_and_exempt_checks(case.run.evidence.changed.get(case.name), case.expected)],
    _withhold,
    _accept_alone,
    lambda checks, case: link_losses.blame_switch(checks, case.run.shared_link_losses, case.name),
    lambda checks, case: implicated_parts.follow_the_fleet(checks, case.run.context.criteria),
    lambda checks, case: implicated_parts.name_the_cause(checks, case.subject),
)


def checks_of(case: NodeCase) -> list[Entry]:
    checks = [check for produce in NODE_CHECKS for check in produce(case)]
    for stage in case.ends:
        checks += [check for produce in STAGE_CHECKS for check in produce(case, stage)]
    for revise in REVISIONS:
        checks = revise(checks, case)
    for check in checks:
        check["reason"] = sys.intern(one_line(check["reason"], MAX_REASON))  # half of a fleet's are the same
    return checks


def clean_problem(problem: EvidenceProblem) -> EvidenceProblem:
    return {
        "node": one_line(problem["node"], 253) if problem["node"] else None,
        "stage": one_line(problem["stage"], 40) if problem["stage"] else None,
        "reason": one_line(problem["reason"]),
    }


def stages_not_asked(name: str, stages: Sequence[str], evidence: RunEvidence) -> list[EvidenceProblem]:
    reason = "a record of a stage that the node was not asked to run"
    stages_left = sorted(evidence.records.get(name, {}).keys() - set(stages))
    return [{"node": name, "stage": one_line(stage, 40), "reason": reason} for stage in stages_left]
