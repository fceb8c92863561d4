"""Which nodes are accepted by which runs: ``decide`` makes acceptance.json of reports, and reads nothing else. Pure.

Each node is accepted by its last whole run. All runs of the results folder are looked at: one that is not named accepts
no node, and what it found counts all the same.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..core.grouping import values_by_key
from ..core.text import natural_order, some_of
from ..judge.repairs import DeclaredRepair, NodeSighting, OpenFault, ReportedRun, days_before, open_faults
from ..judge.verdict import run_verdict
from ..records.documents import Document
from ..runs.failed_checks import FAIL, INCOMPLETE, PASS

SCHEMA = "gpuval.acceptance/1"
#: Accepted nodes that a repaired one must work together with.
NEIGHBOURS = 2
#: The action of a repair by which a node is expected no more.
REMOVED = "removed"
#: Of a run that left out nodes, and no stages.
OF_NODES = ("limit", "busy")
AGAIN = '`make validate ARGS="--limit {chosen}"`, and name that run in RUNS, too'
REPAIR = f"repair it, then {AGAIN}"
DECLARE = f"repair it, or declare in gpuval_repairs what was done, then {AGAIN}"
NAME = "`make accept RUNS={runs}`"


@dataclass(frozen=True)
class AcceptanceInputs:
    """All that an acceptance depends on. ``runs``: those that ended since ``since``; ``named``: ids of RUNS; ``hosts``:
    nodes of the inventory now; times are RFC 3339, UTC."""

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
        """All nodes of all runs, the oldest run first."""
        runs = sorted(self.runs, key=lambda run: (run.head["finished_at"], run.run_id))
        return [sighting for run in runs for sighting in run.sightings()]

    @cached_property
    def by_part(self) -> dict[str, list[NodeSighting]]:
        """All sightings by the names of machines and GPUs."""
        return values_by_key((part, one) for one in self.sightings for part in one.parts)

    @cached_property
    def of_inventory(self) -> list[NodeSighting]:
        return [one for one in self.sightings if one.inventory == self.inventory]

    @cached_property
    def by_name(self) -> dict[str, list[NodeSighting]]:
        return values_by_key((one.name, one) for one in self.of_inventory)

    @cached_property
    def expected(self) -> list[str]:
        """Nodes of the inventory and of all its runs that left out no node, without those that were removed."""
        whole_runs = [one.name for one in self.of_inventory if not {*one.run["narrowed_by"]} & {*OF_NODES}]
        removed = {repair.node for repair in self.repairs if (repair.part, repair.action) == ("node", REMOVED)}
        return sorted({*whole_runs, *self.first.head.get("busy", ())} - removed | {*self.hosts}, key=natural_order)

    @cached_property
    def multi_node_stages(self) -> list[str]:
        return list(self.first.head.get("multi_node_stages", ()))

    @cached_property
    def gangs(self) -> dict[str, list[set[str]]]:
        """By run the sets of nodes that worked together."""
        sections = {run.run_id: run.report["fleet"].get("gangs") or {"formed": ()} for run in self.runs}
        return {run_id: [{*gang["names"]} for gang in section["formed"]] for run_id, section in sections.items()}

    @cached_property
    def work(self) -> dict[str, set[tuple[str, str]]]:
        """By SKU the stages of the first run, each with its settings."""
        work: dict[str, set[tuple[str, str]]] = {}
        for one in self.of_inventory:
            if one.run is self.first.head:
                work.setdefault(one.sku, set()).update(self.work_of(one))
        return work

    def work_of(self, sighting: NodeSighting) -> set[tuple[str, str]]:
        """(stage, settings) of what the node did by itself."""
        stages = (stage for stage in sighting.node["stages"] if stage["state"] == "success")
        return {
            (stage["name"], str(stage.get("setup"))) for stage in stages if stage["name"] not in self.multi_node_stages
        }


@dataclass
class AcceptanceCase:
    """A node with all its runs. ``sound``: the accepted nodes that needed no repair, once they are known. A method that
    is a rule returns why the node is not accepted, and an empty text where it does not apply."""

    inputs: AcceptanceInputs
    name: str
    sound: list[str] = field(default_factory=list)

    @cached_property
    def named(self) -> list[NodeSighting]:
        """Under its name in the inventory."""
        return self.inputs.by_name.get(self.name, [])

    @cached_property
    def near(self) -> list[NodeSighting]:
        """Its sightings, and all that share a machine or a GPU with one of them, the oldest first."""
        parts = {part for one in self.named for part in one.parts}
        near = {one for part in parts for one in self.inputs.by_part[part]}
        return sorted(near, key=lambda one: (one.at, one.run_id, one.name))

    @cached_property
    def related(self) -> list[NodeSighting]:
        """Its sightings, and those of its machines under other names."""
        machines = {machine for one in self.named for machine in one.machines}
        return [one for one in self.near if one in self.named or one.machines & machines]

    @cached_property
    def last(self) -> NodeSighting:
        """Its last whole run; the last run of a node without one."""
        return [one for one in self.named if one.is_whole or not self.has_whole][-1]

    @cached_property
    def has_whole(self) -> bool:
        return any(one.is_whole for one in self.named)

    @cached_property
    def later(self) -> list[NodeSighting]:
        """Those that are no older than its last whole run."""
        return [one for one in self.near if one.at >= self.last.at and one.run is not self.last.run]

    @cached_property
    def withdrawing(self) -> list[NodeSighting]:
        return [one for one in self.later if any(self.last.bears(of, one) for _, of in one.faults)]

    @cached_property
    def unrepaired(self) -> list[OpenFault]:
        return open_faults(self.last, self.near, self.inputs.repairs) if self.has_whole else []

    @cached_property
    def is_repaired(self) -> bool:
        """Whether the first run's verdict on it does not hold any more, or was no PASS of a whole run."""
        first = next((one for one in self.named if one.run is self.inputs.first.head), None)
        had_fault = any(one.needs_repair and one.at < self.last.at for one in self.named)
        return first is None or not first.is_whole or had_fault or bool(self.last.changes_since(first))

    @cached_property
    def together(self) -> dict[str, dict[str, Any]]:
        """By multi-node stage the first run since its last whole one that counts, with accepted neighbours in it."""
        counting: dict[str, dict[str, Any]] = {}
        for one in [self.last, *(late for late in self.later if late in self.named)] if self.has_whole else ():
            gang = next((gang - {self.name} for gang in self.inputs.gangs[one.run_id] if self.name in gang), set())
            neighbours = [name for name in self.sound if name in gang] if self.is_repaired else []
            enough = not self.is_repaired or len(neighbours) >= min(NEIGHBOURS, len(self.inputs.expected) - 1)
            passed = [stage["name"] for stage in one.node["stages"] if stage["state"] == "success"]
            is_good = (
                enough and one.node["verdict"] == PASS and one.run.get("criteria") == self.inputs.first.head["criteria"]
            )
            for stage in self.inputs.multi_node_stages:
                if is_good and stage in passed:
                    counting.setdefault(stage, {"run_id": one.run_id, "neighbours": neighbours})
        return counting

    def never_whole(self) -> str:
        return "" if self.named else "no run since then has it"

    def failed(self) -> str:
        faults = [one for one in self.named if one.node["verdict"] == FAIL]
        if self.has_whole or not faults:
            return ""
        run_id = faults[-1].run["run_id"]
        return f"{faults[-1].node['class']} in run {run_id}, and no whole run has passed since{self._gaps()}"

    def not_whole(self) -> str:
        if self.has_whole:
            return ""
        classes = [f"{one.node['class']} in run {one.run_id}" for one in self.named if one.node["verdict"] != PASS]
        return f"no run tested it wholly{self._gaps()}" + (f": {classes[-1]}" if classes else "")

    def _gaps(self) -> str:
        """Why the last PASS does not accept the node."""
        passed = [one for one in self.named if one.node["verdict"] == PASS]
        if not passed:
            return ""
        run = passed[-1].run
        narrowed = [word for word in run["narrowed_by"] if word not in OF_NODES]
        texts = [f"narrowed by {some_of(narrowed)}"] if narrowed else []
        texts += [f"shorter than the profile: {some_of(run['shortened'], 3)}"] if run.get("shortened") else []
        unproven = passed[-1].node.get("unproven")
        texts += [f"not proven: {some_of(unproven, 3)}"] if unproven else []
        return f" ({run['run_id']} {'; '.join(texts)})"

    def withdrawn(self) -> str:
        late = next(iter(self.withdrawing), None)
        return f"{late.node['class']} in run {late.run_id}, after run {self.last.run_id}" if late else ""

    def parts_changed(self) -> str:
        run_id = self.last.run_id
        for late in self.later:
            changes = [f"{part} {change}" for part, change in late.changes_since(self.last).items()]
            moved = sorted(part for part in self.last.parts & late.parts if part.startswith("gpu "))
            if late in self.named and changes:
                return f"{some_of(changes)} by run {late.run_id}, after run {run_id}"
            if late not in self.named and moved:
                return f"{some_of(moved)} is in {late.name} by run {late.run_id}, after run {run_id}"
        return ""

    def not_repaired(self) -> str:
        faults = some_of(dict.fromkeys(map(str, self.unrepaired)), 3)
        return f"passed after {faults} without a new serial, firmware or declared repair" if faults else ""

    def not_named(self) -> str:
        run_id = self.last.run_id
        return "" if run_id in self.inputs.named else f"its last whole run {run_id} is not in RUNS"

    def too_old(self) -> str:
        is_young = self.last.at >= days_before(self.inputs.accepted_at, self.inputs.window_days)
        return (
            "" if is_young else f"its last whole run ended at {self.last.at}, over {self.inputs.window_days} days ago"
        )

    def other_criteria(self) -> str:
        is_same = self.last.run.get("criteria") == self.inputs.first.head["criteria"]
        return "" if is_same else f"run {self.last.run_id} was judged by other criteria or another baseline"

    def other_work(self) -> str:
        inputs, last = self.inputs, self.last
        work, of_sku = inputs.work_of(last), inputs.work.get(last.sku, set())
        earlier = {
            (one.sku, one.node.get("gpus")) for one in self.named if one.run is inputs.first.head and one.machines
        }
        lacking = sorted({stage for stage, _ in of_sku} - {stage for stage, _ in work})
        differing = sorted(stage for stage, settings in work if (stage, settings) not in of_sku)
        reasons = (
            (last.run["profile"] != inputs.first.head["profile"], f"has the profile {last.run['profile']}"),
            (bool(earlier - {(last.sku, last.node.get("gpus"))}), f"tested another SKU or number of GPUs ({last.sku})"),
            (not of_sku, f"tested the SKU {last.sku}, which run {inputs.first.run_id} lacks"),
            (bool(lacking), f"lacks {some_of(lacking)}"),
            (bool(differing), f"ran {some_of(differing)} with other settings than run {inputs.first.run_id}"),
        )
        return next((f"run {last.run['run_id']} {reason}" for holds, reason in reasons if holds), "")

    def other_groups(self) -> str:
        run, first = self.last.run, self.inputs.first.run_id
        if "limit" not in run["narrowed_by"] or run.get("part_of") == first:
            return ""
        return f"run {run['run_id']} compared it with {run.get('part_of') or 'no other run'}, not with run {first}"

    def not_together(self) -> str:
        alone = (self.inputs.first.report["fleet"].get("gangs") or {"alone": {"names": ()}})["alone"]["names"]
        ran = {stage["name"] for stage in self.last.node["stages"]}
        lacking = [
            stage
            for stage in self.inputs.multi_node_stages
            if stage not in self.together and self.name not in alone and (self.is_repaired or stage in ran)
        ]
        return f"{some_of(lacking)} did not run together with {NEIGHBOURS} accepted neighbours since" if lacking else ""

    def document(self) -> dict[str, Any]:
        """The node in acceptance.json, by the first rule that applies."""
        outcomes = ((rule, verdict, step, reason(self)) for rule, verdict, step, reason in RULES)
        rule, verdict, step, why = next((one for one in outcomes if one[3]), ("accepted", PASS, "", ""))
        last = self.last if self.named else None
        if rule == "withdrawn":
            verdict = FAIL if any(one.node["verdict"] == FAIL for one in self.withdrawing) else INCOMPLETE
        chosen = ",".join([self.name, *[name for name in self.sound if name != self.name][:NEIGHBOURS]])
        runs = ",".join(dict.fromkeys([*self.inputs.named, *([last.run["run_id"]] if last else ())]))
        return {
            "name": self.name, "id": last and last.node.get("id"), "verdict": verdict, "rule": rule, "reason": why,
            "next": step.format(chosen=chosen, runs=runs),
            "run_id": last.run["run_id"] if last and self.has_whole else None,
            "tested_at": last.at if last and self.has_whole else None,
            "sku": last.sku if last else "", "labels": dict(last.node.get("labels", {})) if last else {},
            "identity": last.node["identity"] if last else {},
            "repaired": verdict == PASS and self.is_repaired,
            **self._changes(), "multi_node": self.together,
            "runs": [self._row(one, verdict) for one in self.related],
        }  # fmt: skip

    def _changes(self) -> dict[str, Any]:
        """The machine that was replaced last, and GPUs that came or went otherwise, with the node that has or had them
        else."""
        seen, replaced, changes = [one for one in self.named if one.machines], None, []
        for then, now in itertools.pairwise(seen):
            parts = now.changes_since(then)
            if now.machine in parts:
                replaced = {"machine": then.machine, "by": now.machine, "run_id": then.run["run_id"]}
                continue
            for part, change in parts.items():
                others = [one.name for one in self.near if one.name != self.name and part in one.parts]
                node = others[-1 if change == "went" else 0] if others else None
                changes.append({"part": part, "change": change, "node": node, "run_id": now.run["run_id"]})
        return {"replaced": replaced, "changes": changes}

    def _row(self, one: NodeSighting, verdict: str) -> dict[str, Any]:
        is_open = not self.has_whole or one.run_id in {fault.run_id for fault in self.unrepaired}
        effects = (
            ("counts", one is self.last and self.has_whole),
            ("withdraws", self.has_whole and one in self.withdrawing),
            ("open", one.needs_repair and is_open),
            ("settled", one.needs_repair),
        )
        effect = next((word for word, holds in effects if holds), "none")
        return {
            "run_id": one.run_id, "name": one.name, "at": one.at, "verdict": one.node["verdict"],
            "class": one.node["class"], "whole": one.is_whole,
            "effect": "accepts" if effect == "counts" and verdict == PASS else effect,
        }  # fmt: skip


#: Name, verdict and next step of each rule: the first that gives a reason decides; without one the node is accepted.
RULES: tuple[tuple[str, str, str, Callable[[AcceptanceCase], str]], ...] = (
    ("never_whole", INCOMPLETE, AGAIN, AcceptanceCase.never_whole),
    ("failed", FAIL, REPAIR, AcceptanceCase.failed),
    ("not_whole", INCOMPLETE, AGAIN, AcceptanceCase.not_whole),
    ("withdrawn", FAIL, REPAIR, AcceptanceCase.withdrawn),
    ("parts_changed", INCOMPLETE, AGAIN, AcceptanceCase.parts_changed),
    ("not_repaired", FAIL, DECLARE, AcceptanceCase.not_repaired),
    ("not_named", INCOMPLETE, NAME, AcceptanceCase.not_named),
    ("too_old", INCOMPLETE, AGAIN, AcceptanceCase.too_old),
    ("other_criteria", INCOMPLETE, AGAIN, AcceptanceCase.other_criteria),
    ("other_work", INCOMPLETE, AGAIN, AcceptanceCase.other_work),
    ("other_groups", INCOMPLETE, AGAIN, AcceptanceCase.other_groups),
    ("not_together", INCOMPLETE, AGAIN, AcceptanceCase.not_together),
)


def decide(inputs: AcceptanceInputs) -> dict[str, Any]:
    """The document ``gpuval.acceptance/1``. ``inputs`` name at least one run, of the inventory."""
    cases = [AcceptanceCase(inputs, name) for name in inputs.expected]
    sound = [
        case.name
        for case in cases
        if case.named and not case.is_repaired and not any(rule[3](case) for rule in RULES[:-1])
    ]
    for case in cases:
        case.sound = sound
    nodes = [case.document() for case in cases]
    related = {one.run_id for case in cases for one in case.related}
    counts = Counter(node["verdict"] for node in nodes)
    document = {
        "schema": SCHEMA, "version": inputs.version, "inventory": inputs.inventory, "accepted_at": inputs.accepted_at,
        "window_days": inputs.window_days, "since": inputs.since, "first_run": inputs.first.run_id,
        "profile": inputs.first.head["profile"], "criteria": dict(inputs.first.head["criteria"]),
        "multi_node_stages": inputs.multi_node_stages,
        "verdict": run_verdict((node["verdict"] for node in nodes), narrowed=False),
        "counts": {
            "expected": len(nodes), **{word: counts[word] for word in (PASS, FAIL, INCOMPLETE)},
            "repaired": sum(node["repaired"] for node in nodes),
        },
        "runs": [
            _run_row(inputs, run, nodes) for run in sorted(inputs.runs, key=lambda run: str(run.head["finished_at"]))
            if run.inventory == inputs.inventory or run.run_id in related
        ],
        "repairs": [repair._asdict() for repair in inputs.repairs], "nodes": nodes,
    }  # fmt: skip
    return {**document, "summary": summary_lines(document)}


def summary_lines(document: Document) -> list[str]:
    """The lines of the FINAL ACCEPTANCE block of an acceptance."""
    counts, nodes = document["counts"], document["nodes"]
    listed = {
        "Runs that count": [f"{run['run_id']} ({run['accepts']} nodes)" for run in document["runs"] if run["accepts"]],
        "Runs that accept no node": [
            f"{run['run_id']} ({run['excluded']})" for run in document["runs"] if run["excluded"]
        ],
        "Machines replaced": [
            f"{node['name']} ({node['replaced']['by']} for {node['replaced']['machine']})"
            for node in nodes
            if node["replaced"]
        ],
        "GPUs that moved": [
            f"{change['part']} from {node['name']} to {change['node']}"
            for node in nodes
            for change in node["changes"]
            if change["change"] == "went" and change["node"]
        ],
    }
    words = ", ".join(f"{counts[word]} {word}" for word in (PASS, FAIL, INCOMPLETE))
    refused = (node for verdict in (FAIL, INCOMPLETE) for node in nodes if node["verdict"] == verdict)
    return [
        f"Nodes: {counts['expected']} expected, {words}; {counts['repaired']} of them accepted after a repair",
        *(f"{title}: {some_of(texts, between='; ')}" for title, texts in listed.items() if texts),
        *(f"{node['name']} {node['verdict']} {node['rule']}: {node['reason']}: {node['next']}" for node in refused),
    ]


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
