"""Decides which runs accept which nodes: ``decide`` makes acceptance.json from reports alone. Pure.

In a whole run a node passed all that an acceptance needs. The last one accepts the node, if RUNS names it. Faults
count from all runs in the results folder.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..core.grouping import values_by_key
from ..core.text import natural_order, some_of
from ..judge.repairs import DeclaredRepair, NodeSighting, ReportedRun, days_before, open_faults, sightings_of
from ..judge.verdict import run_verdict
from ..records.documents import Document
from ..runs.failed_checks import FAIL, INCOMPLETE, PASS
from .accepted_racks import AGAIN, decide_racks

SCHEMA = "gpuval.acceptance/1"
#: Number of accepted nodes with which a repaired node must have passed a multi-node stage.
NEIGHBOURS = 2
#: Action in gpuval_repairs that ends the expectation of a node in the inventory.
REMOVED = "removed"
#: Values of `narrowed_by` of a run that left out nodes, and no stages.
OF_NODES = ("limit", "busy")

REPAIR = f"repair it, then {AGAIN}"
WHOLE = "`make validate`, and start RUNS with that run"
DECLARE = (
    f"declare in gpuval_repairs what was done between these runs, or repair it, then {AGAIN}; after a wrong limit "
    "`make report` judges that run again"
)
NAME = "`make accept RUNS={runs}`"


@dataclass(frozen=True)
class AcceptanceInputs:
    """All that an acceptance depends on. ``runs``: judged runs that ended after ``since``; ``named``: run ids in RUNS;
    ``hosts``: nodes of the inventory now. Times are RFC 3339, UTC."""

    runs: Sequence[ReportedRun]
    named: Collection[str]
    inventory: str
    hosts: Collection[str]
    repairs: Sequence[DeclaredRepair]
    window_days: int
    since: str
    accepted_at: str
    version: str

    @cached_property
    def first(self) -> ReportedRun:
        """The oldest of the named runs."""
        return min((run for run in self.runs if run.run_id in self.named), key=lambda run: str(run.head["created_at"]))

    @cached_property
    def sightings(self) -> list[NodeSighting]:
        """Every node of every run, as that run reported it; the oldest run first."""
        return sightings_of(self.runs)

    @cached_property
    def by_part(self) -> dict[str, list[NodeSighting]]:
        """{name of a machine or GPU: all reports of nodes that have it}."""
        return values_by_key((part, one) for one in self.sightings for part in one.parts)

    @cached_property
    def of_inventory(self) -> list[NodeSighting]:
        return [one for one in self.sightings if one.inventory == self.inventory]

    @cached_property
    def by_name(self) -> dict[str, list[NodeSighting]]:
        return values_by_key((one.name, one) for one in self.of_inventory)

    @cached_property
    def multi_node_stages(self) -> list[str]:
        return list(self.first.head.get("multi_node_stages", ()))

    @cached_property
    def alone(self) -> Collection[str]:
        """Names of nodes for which the first run had no similar node to form a multi-node group with."""
        return (self.first.report["fleet"].get("gangs") or {"alone": {"names": ()}})["alone"]["names"]

    @cached_property
    def gangs(self) -> dict[str, list[set[str]]]:
        """{run id: sets of nodes that ran multi-node stages together}."""
        sections = {run.run_id: run.report["fleet"].get("gangs") or {"formed": ()} for run in self.runs}
        return {run_id: [{*gang["names"]} for gang in section["formed"]] for run_id, section in sections.items()}

    @cached_property
    def work(self) -> dict[str, set[tuple[str, str]]]:
        """{SKU: (stage, text of its settings) pairs that nodes passed in the first run}."""
        nodes = (one for one in self.of_inventory if one.run is self.first.head)
        pairs = values_by_key((one.sku, work) for one in nodes for work in self.work_of(one))
        return {sku: {*work} for sku, work in pairs.items()}

    @cached_property
    def expected(self) -> list[str]:
        """Names of the inventory's nodes, and of nodes in its runs of all nodes, unless declared as removed."""
        whole_runs = [one.name for one in self.of_inventory if not {*one.run["narrowed_by"]} & {*OF_NODES}]
        removed = {repair.node for repair in self.repairs if (repair.part, repair.action) == ("node", REMOVED)}
        return sorted({*whole_runs, *self.first.head.get("busy", ())} - removed | {*self.hosts}, key=natural_order)

    def work_of(self, sighting: NodeSighting) -> set[tuple[str, str]]:
        """(stage, text of its settings) of each single-node stage that the node passed in a run."""
        alone = (stage for stage in sighting.node["stages"] if stage["name"] not in self.multi_node_stages)
        return {(stage["name"], str(stage.get("setup"))) for stage in alone if stage["state"] == "success"}


class AcceptanceCase:
    """A node's reports in all runs, oldest first. ``named``: reports under the node's name. ``near``: ``named``, and
    reports under other names about the same machine or GPUs. ``last``: report of its last whole run, else of its last
    run. ``later``: those of ``near`` from other runs that ended no earlier than that run."""

    def __init__(self, inputs: AcceptanceInputs, name: str) -> None:
        self.inputs, self.name = inputs, name
        self.named = inputs.by_name.get(name, [])
        near = {one for sighting in self.named for part in sighting.parts for one in inputs.by_part[part]}
        self.near = sorted(near, key=lambda one: (one.at, one.run_id, one.name))
        self.whole = [one for one in self.named if one.is_whole]
        last: Any = next(iter((self.whole or self.named)[-1:]), None)
        self.last = last
        self.first = next((one for one in self.named if one.run is inputs.first.head), None)
        self.later = [one for one in self.near if self.whole and one.at >= last.at and one.run is not last.run]
        later = [one for one in self.later if one.needs_repair]
        self.withdrawing = [one for one in later if any(last.bears(of, one) for _, of in one.faults)]
        self.unrepaired = open_faults(last, self.near, inputs.repairs) if self.whole else []
        had_fault = any(one.needs_repair and one.at < last.at for one in self.named)
        self.is_repaired = had_fault or bool(last and self.first and last.changes_since(self.first))
        # the first run had all nodes in it
        passed_first = self.first and self.first.is_whole and (last is self.first or not self.is_repaired)
        self.needs_neighbours = not passed_first

    def reasons(self) -> Iterator[tuple[str, str]]:
        """(rule, reason) of each rule in RULES that applies, the decisive one first, except ``not_together``."""
        inputs, last, first = self.inputs, self.last, self.inputs.first
        if not self.named:
            yield "never_whole", "no run since then has it"
        if not self.whole:
            failed = [one for one in self.named if one.node["verdict"] == FAIL]
            lacking = [f": {one.node['class']} in run {one.run_id}" for one in self.named if one.node["class"]][-1:]
            rule, words = (
                ("failed", "no whole run passed it since") if failed else ("not_whole", "no run tested it wholly")
            )
            yield rule, words + "".join([*_gaps(self.named), *lacking])
            return
        by = f"run {last.run_id}"
        for late in self.withdrawing:
            yield "withdrawn", f"{late.node['class']} in run {late.run_id}, after {by}"
        for late in self.later:
            changes = [f"{part} {change}" for part, change in late.changes_since(last).items()]
            if late not in self.named:
                changes = [
                    f"{part} is in {late.name}" for part in sorted(last.parts & late.parts) if part.startswith("gpu ")
                ]
            if changes:
                yield "parts_changed", f"{some_of(changes)} by run {late.run_id}, after {by}"
        if self.unrepaired:
            faults = some_of(dict.fromkeys(map(str, self.unrepaired)), 3)
            times = [f"{repair.part} at {repair.at}" for repair in inputs.repairs if repair.node == self.name]
            remark = f"; gpuval_repairs has {some_of(times)}: another part, or not between these runs" if times else ""
            yield "not_repaired", f"passed after {faults} without a new serial, firmware or declared repair{remark}"
        if last.run_id not in inputs.named:
            yield "not_named", f"its last whole {by} is not in RUNS"
        if last.at < days_before(inputs.accepted_at, inputs.window_days):
            yield "too_old", f"its last whole {by} ended at {last.at}, over {inputs.window_days} days ago"
        if last.run.get("criteria") != first.head["criteria"]:
            yield "other_criteria", f"{by} was judged by other criteria or another baseline"
        if last.run["profile"] != first.head["profile"]:
            yield "other_work", f"{by} has the profile {last.run['profile']}"
        before = self.first if self.first and self.first.machines else last
        if (before.sku, before.node.get("gpus")) != (last.sku, last.node.get("gpus")):
            yield "other_work", f"{by} tested another SKU or number of GPUs ({last.sku})"
        work, of_sku = inputs.work_of(last), inputs.work.get(last.sku, set())
        if not of_sku:
            yield "other_work", f"{by} tested the SKU {last.sku}, which run {first.run_id} lacks"
        for stage in sorted({stage for stage, _ in of_sku} - {stage for stage, _ in work}):
            yield "other_work", f"{by} lacks {stage}"
        for stage, _ in sorted(work - of_sku):
            yield "other_work", f"{by} ran {stage} with other settings than run {first.run_id}"
        if "limit" in last.run["narrowed_by"] and last.run.get("part_of") != first.run_id:
            groups = last.run.get("part_of") or "no other run"
            yield "other_groups", f"{by} compared it with {groups}, not with run {first.run_id}"

    def together(self, sound: Sequence[str]) -> dict[str, dict[str, Any]]:
        """{multi-node stage: run id and accepted neighbours of the first run that counts, from the last whole run on}.
        ``sound``: names of accepted nodes that needed no repair."""
        inputs = self.inputs
        counting: dict[str, dict[str, Any]] = {}
        for one in [self.last, *(late for late in self.later if late in self.named)] if self.whole else ():
            gang = next((gang - {self.name} for gang in inputs.gangs[one.run_id] if self.name in gang), set())
            neighbours = [name for name in sound if name in gang] if self.needs_neighbours else []
            is_enough = not self.needs_neighbours or len(neighbours) >= min(NEIGHBOURS, len(inputs.expected) - 1)
            passed = [stage["name"] for stage in one.node["stages"] if stage["state"] == "success"]
            is_same = one.node["verdict"] == PASS and one.run.get("criteria") == inputs.first.head["criteria"]
            for stage in {*inputs.multi_node_stages}.intersection(passed if is_enough and is_same else ()):
                counting.setdefault(stage, {"run_id": one.run_id, "neighbours": neighbours})
        return counting

    def document(self, sound: Sequence[str]) -> dict[str, Any]:
        """The node's entry in acceptance.json. ``sound``: names of accepted nodes that needed no repair."""
        rule, reason = next(self.reasons(), ("accepted", ""))
        together, last, is_whole = self.together(sound), self.last, bool(self.whole)
        ran = {stage["name"] for stage in last.node["stages"]} if last else set()
        needed = [stage for stage in self.inputs.multi_node_stages if self.needs_neighbours or stage in ran]
        lacking = [stage for stage in needed if stage not in together and self.name not in self.inputs.alone]
        if rule == "accepted" and lacking:
            rule, reason = (
                "not_together",
                f"{some_of(lacking)} did not run together with {NEIGHBOURS} accepted neighbours",
            )
        verdict, step = RULES[rule]
        open_runs = {fault.run_id for fault in self.unrepaired}
        causes = self.withdrawing if rule == "withdrawn" else [one for one in self.near if one.run_id in open_runs]
        if rule in ("withdrawn", "not_repaired") and not any(one.node["verdict"] == FAIL for one in causes):
            verdict = INCOMPLETE
        neighbours = [name for name in sound if name != self.name][:NEIGHBOURS]
        if rule == "not_together" and len(neighbours) < min(NEIGHBOURS, len(self.inputs.expected) - 1):
            step = WHOLE
        chosen = ",".join([self.name, *neighbours])
        runs = ",".join(dict.fromkeys([*self.inputs.named, *([last.run_id] if last else ())]))
        machines = {machine for one in self.named for machine in one.machines}
        return {
            "name": self.name, "id": last and last.node.get("id"), "verdict": verdict, "rule": rule, "reason": reason,
            "next": step.format(chosen=chosen, runs=runs),
            "run_id": last.run_id if is_whole else None, "tested_at": last.at if is_whole else None,
            "sku": last.sku if last else "", "labels": dict(last.node.get("labels", {})) if last else {},
            "identity": last.node["identity"] if last else {}, "repaired": verdict == PASS and self.is_repaired,
            **self._changes(), "multi_node": together,
            **({"rack": last.node["rack"]} if last and "rack" in last.node else {}),
            "runs": [
                self._row(one, verdict) for one in self.near if one in self.named or one.machines & machines
            ],
        }  # fmt: skip

    def _changes(self) -> dict[str, Any]:
        """The node's machine that was replaced last; and GPUs that came or went, with the node that has or had each."""
        seen, replaced, changes = [one for one in self.named if one.machines], None, []
        for then, now in itertools.pairwise(seen):
            parts = now.changes_since(then)
            if now.machine in parts:
                replaced = {"machine": then.machine, "by": now.machine, "run_id": then.run_id}
                continue
            for part, change in parts.items():
                others = [one.name for one in self.near if one.name != self.name and part in one.parts]
                node = others[-1 if change == "went" else 0] if others else None
                changes.append({"part": part, "change": change, "node": node, "run_id": now.run_id})
        return {"replaced": replaced, "changes": changes}

    def _row(self, one: NodeSighting, verdict: str) -> dict[str, Any]:
        is_open = not self.whole or one.run_id in {fault.run_id for fault in self.unrepaired}
        effects = (
            ("counts", one in self.whole[-1:]),
            ("withdraws", one in self.withdrawing),
            ("open", one.needs_repair and is_open),
            ("settled", one.needs_repair),
        )
        effect = next((word for word, holds in effects if holds), "none")
        return {
            "run_id": one.run_id, "name": one.name, "at": one.at, "verdict": one.node["verdict"],
            "class": one.node["class"], "whole": one.is_whole,
            "effect": "accepts" if effect == "counts" and verdict == PASS else effect,
        }  # fmt: skip


#: {rule: (verdict of the node, next step for the operator)}.
RULES = {
    "accepted": (PASS, ""),
    **dict.fromkeys(("failed", "withdrawn"), (FAIL, REPAIR)),
    "not_repaired": (FAIL, DECLARE),
    "not_named": (INCOMPLETE, NAME),
    **dict.fromkeys(("never_whole", "not_whole", "parts_changed", "too_old"), (INCOMPLETE, AGAIN)),
    **dict.fromkeys(("other_criteria", "other_work", "other_groups", "not_together"), (INCOMPLETE, AGAIN)),
}


def _gaps(named: Sequence[NodeSighting]) -> list[str]:
    """A remark, in a list, on why the last PASS of a node without a whole run does not accept the node."""
    passed = [one for one in named if one.node["verdict"] == PASS][-1:]
    return [
        f" (run {one.run_id}: {what} {some_of(listed, 3)})"
        for one in passed
        for what, listed in (
            ("narrowed by", [word for word in one.run["narrowed_by"] if word not in OF_NODES]),
            ("shorter than the profile:", one.run.get("shortened", ())),
            ("not proven:", one.node.get("unproven", ())),
        )
        if listed
    ]


def decide(inputs: AcceptanceInputs) -> dict[str, Any]:
    """Make acceptance.json (gpuval.acceptance/1). ``inputs`` must name at least one run of the inventory."""
    cases = [AcceptanceCase(inputs, name) for name in inputs.expected]
    sound = [case.name for case in cases if not case.needs_neighbours and not next(case.reasons(), None)]
    nodes = [case.document(sound) for case in cases]
    related = {row["run_id"] for node in nodes for row in node["runs"]}
    counts = Counter(node["verdict"] for node in nodes)
    racks = decide_racks([run for run in inputs.runs if run.inventory == inputs.inventory], nodes)
    document = {
        "schema": SCHEMA, "version": inputs.version, "inventory": inputs.inventory, "accepted_at": inputs.accepted_at,
        "window_days": inputs.window_days, "since": inputs.since, "first_run": inputs.first.run_id,
        "profile": inputs.first.head["profile"], "criteria": dict(inputs.first.head["criteria"]),
        "multi_node_stages": inputs.multi_node_stages,
        "verdict": run_verdict((decided["verdict"] for decided in (*nodes, *racks)), narrowed=False),
        "counts": {
            "expected": len(nodes), **{word: counts[word] for word in (PASS, FAIL, INCOMPLETE)},
            "repaired": sum(node["repaired"] for node in nodes),
        },
        "runs": [
            _run_row(inputs, run, nodes) for run in sorted(inputs.runs, key=lambda run: str(run.head["finished_at"]))
            if run.inventory == inputs.inventory or run.run_id in related
        ],
        "repairs": [repair._asdict() for repair in inputs.repairs], "nodes": nodes,
        **({"racks": racks} if racks else {}),
    }  # fmt: skip
    return {**document, "summary": summary_lines(document)}


def summary_lines(document: Document) -> list[str]:
    """The lines of the FINAL ACCEPTANCE block of an acceptance."""
    counts, nodes, runs = document["counts"], document["nodes"], document["runs"]
    replaced = [(node["name"], node["replaced"]) for node in nodes if node["replaced"]]
    went = [(node["name"], change) for node in nodes for change in node["changes"] if change["change"] == "went"]
    listed = {
        "Runs that count": [f"{run['run_id']} ({run['accepts']} nodes)" for run in runs if run["accepts"]],
        "Runs that accept no node": [f"{run['run_id']} ({run['excluded']})" for run in runs if run["excluded"]],
        "Machines replaced": [f"{name} ({machine['by']} for {machine['machine']})" for name, machine in replaced],
        "Nodes removed": removed_nodes(document),
        "GPUs that moved": [f"{gone['part']} from {name} to {gone['node']}" for name, gone in went if gone["node"]],
    }
    words = ", ".join(f"{counts[word]} {word}" for word in (PASS, FAIL, INCOMPLETE))
    refused = (node for verdict in (FAIL, INCOMPLETE) for node in nodes if node["verdict"] == verdict)
    racks = [rack for rack in document.get("racks", ()) if rack["verdict"] != PASS]
    return [
        f"Nodes: {counts['expected']} expected, {words}; {counts['repaired']} of them accepted after a repair",
        *(f"{title}: {some_of(texts, between='; ')}" for title, texts in listed.items() if texts),
        *(f"{node['name']} {node['verdict']} {node['rule']}: {node['reason']}: {node['next']}" for node in refused),
        *(f"rack {rack['name']} {rack['verdict']}: {rack['reason']}: {rack['next']}" for rack in racks),
    ]


def removed_nodes(document: Document) -> list[str]:
    """Lines on nodes that an acceptance no longer expects, each with date and author of the declaration."""
    expected = {node["name"] for node in document["nodes"]}
    removed = [one for one in document["repairs"] if (one["part"], one["action"]) == ("node", REMOVED)]
    return [f"{one['node']} (removed {one['at']}, by {one['by']})" for one in removed if one["node"] not in expected]


def _run_row(inputs: AcceptanceInputs, run: ReportedRun, nodes: Sequence[Document]) -> dict[str, Any]:
    head, first = run.head, inputs.first.head
    reasons = (
        (run.inventory != inputs.inventory, "of another inventory"),
        (run.run_id not in inputs.named, "not in RUNS"),
        (bool({*head["narrowed_by"]} - {*OF_NODES}), f"narrowed by {some_of(head['narrowed_by'])}"),
        (bool(head.get("shortened")), "shorter than the profile"),
        (head.get("criteria") != first["criteria"], "other criteria"),
        (head["profile"] != first["profile"], "other profile"),
    )
    return {
        "run_id": run.run_id, "inventory": run.inventory, "named": run.run_id in inputs.named,
        **{key: head[key] for key in ("created_at", "finished_at", "judged_at", "profile", "narrowed_by")},
        **{key: run.report[key] for key in ("verdict", "counts")},
        "accepts": sum((node["run_id"], node["verdict"]) == (run.run_id, PASS) for node in nodes),
        "excluded": next((reason for holds, reason in reasons if holds), ""), "report_sha256": run.sha256,
    }  # fmt: skip
