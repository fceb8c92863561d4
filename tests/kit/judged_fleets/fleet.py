"""What all made-up fleets are made with: a run whose records are changed node by node, and all that is judged of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.judging import JudgementFacts, JudgementInputs
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import actions, verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.kinds import JudgeContext
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import judged as judged_report
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import attempts

from tests.kit.builders import NONCE, STAGES, TIME, healthy, make_record, make_run, metric, standard_checks
from tests.kit.judged_folder import through_json

#: By name what makes the documents of a fleet; its argument is an empty folder.
FLEETS: dict[str, Callable[[Path], dict[str, Any]]] = {}
#: What a plan allows of each stage where the fleets ask which stages are retried.
RETRIED = ("crash", "timeout", "failure", "slow")


def fleet(maker):
    """Registers the maker of a fleet under its name."""
    FLEETS[maker.__name__] = maker
    return maker


class Fleet:
    """A run and its evidence. A node's name says what is odd about it."""

    def __init__(self, nodes, *, stages=STAGES, records=None, checks=None, gpus=8, vendor="nvidia", **run_fields):
        self.run = make_run(tuple(nodes), stages=list(stages), **run_fields)
        self.evidence = healthy(self.run, gpus=gpus, vendor=vendor)
        if records is not None:
            self.evidence.records = {name: records(name) for name in self.run["nodes"]}
        for by_stage in self.evidence.records.values():
            for stage in stages:
                by_stage.setdefault(stage, make_record(stage=stage))
        for name, by_stage in self.evidence.records.items():
            for stage in list(by_stage):
                if stage in stages:
                    by_stage[stage]["node"] = name
                else:
                    del by_stage[stage]
        self.checks = standard_checks() if checks is None else checks

    def node(self, name) -> dict[str, Any]:
        """The node's entry of run.json."""
        return self.run["nodes"][name]

    def record(self, name, stage, **fields) -> dict[str, Any]:
        """The record of a stage, with these fields."""
        record = self.evidence.records[name][stage]
        record.update(fields)
        return record

    def replace(self, name, stage, **fields) -> dict[str, Any]:
        """A record without figures in place of the stage's own."""
        record = make_record(name, stage, **fields)
        self.evidence.records[name][stage] = record
        return record

    def drop(self, name, *stages):
        for stage in stages:
            del self.evidence.records[name][stage]

    def facts(self, name) -> dict[str, Any]:
        """The environment of the node's facts."""
        return self.evidence.records[name]["facts"]["environment"]

    def figures(self, name, stage, metric_name, scope=None) -> list[dict[str, Any]]:
        return [
            figure
            for figure in self.evidence.records[name][stage]["metrics"]
            if figure["name"] == metric_name and scope in (None, figure["scope"])
        ]

    def set(self, name, stage, metric_name, value, scope=None, **fields):
        """Change the figures of that name, or add one."""
        for figure in self.figures(name, stage, metric_name, scope) or [self._added(name, stage, metric_name, scope)]:
            figure.update(value=value, **fields)

    def scale(self, name, stage, metric_name, factor, scope=None):
        for figure in self.figures(name, stage, metric_name, scope):
            figure["value"] *= factor

    def forget(self, name, stage, metric_name, scope=None):
        record = self.evidence.records[name][stage]
        gone = self.figures(name, stage, metric_name, scope)
        record["metrics"] = [figure for figure in record["metrics"] if not any(figure is each for each in gone)]

    def _added(self, name, stage, metric_name, scope):
        figure = metric(metric_name, 0, scope=scope or "node")
        self.evidence.records[name][stage]["metrics"].append(figure)
        return figure

    def attempt(self, name, stage, **fields):
        """An attempt before the record; the record becomes the next one."""
        record = self.evidence.records[name][stage]
        earlier = {**copy.deepcopy(record), "attempts": [], "attempt": record["attempt"], **fields}
        record["attempts"] = [*record["attempts"], earlier]
        record["attempt"] = record["attempt"] + 1
        return earlier

    def launch(self, name, state, message="", **fields):
        self.evidence.launches[name] = {"state": state, "message": message, "nonce": NONCE, **fields}

    def never_started(self, name, *launch, **fields):
        del self.evidence.records[name]
        del self.evidence.launches[name]
        if launch:
            self.launch(name, *launch, **fields)

    def judged(self, **options) -> dict[str, Any]:
        return judged(self.run, self.evidence, self.checks, **options)


def judged(
    run, evidence, checks, *, earlier: Mapping = MappingProxyType({}), baseline=None, standings=(), alone=True
) -> dict[str, Any]:
    """The documents of a fleet: its report with actions and summary, what the watch would retry, its standings."""
    faults = [{"class": word, "of": of, "runs": sorted(runs)} for (word, of), runs in earlier.items()]
    facts = JudgementFacts(
        TIME, standings=list(standings), faults=faults, lacked_gpus=actions.lacked_gpus(earlier),
    )  # fmt: skip
    made = judged_report.judge(JudgementInputs(run, evidence, checks, through_json(facts), baseline=baseline))
    documents = {"report": made.report, "standings": made.standings}
    if alone:
        documents["by_itself"] = retried(run, evidence, checks, baseline)
    return documents


def retried(run, evidence, checks, baseline=None) -> dict[str, Any]:
    """By node its verdict by its own records alone, and the stages that are retried for it, as the watch asks."""
    context = JudgeContext(checks, baseline)
    told = {}
    for name in run["nodes"]:
        node = verdict.judge_node(run, name, evidence, context)
        failed = verdict.failed_criteria(node, checks)
        plan = [{"name": stage["name"], "retry": RETRIED} for stage in node["stages"]]
        told[name] = {
            "verdict": node["verdict"],
            "class": node["class"],
            "failed": [check.name for check in failed],
            "retried": attempts.stages_to_retry(plan, evidence.records.get(name, {}), failed),
        }
    return told
