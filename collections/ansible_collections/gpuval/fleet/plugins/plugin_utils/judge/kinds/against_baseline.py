"""Kind ``baseline``: each part against the figures of an earlier run of accepted nodes."""

import functools
from collections.abc import Mapping

from ...core import units
from ...records.documents import Document, Record
from .. import baseline as baselines
from ..baseline import LEAST_NODES, Baseline
from ..check import Check, Subject
from ..entries import Entry, PartResult, entries_of, entry_of, excused, lacking, not_applicable, not_to_judge
from ..peer_groups import FINGERPRINT, figures_of, group_key, newest_revision, revision_words
from ..peer_statistics import MEDIAN_ERROR, MIN_PARTS, Peers, deviation_text, widened
from .base import CheckKind, JudgeContext, Target, allowance, earlier_failures, without_too_little

#: A baseline of n nodes has an uncertain spread: 1 + this/n times as many deviations are allowed.
FEW_NODES = 12


class AgainstBaseline(CheckKind):
    name = "baseline"
    compares = True

    def problem(self, check: Check) -> str | None:
        if check.same_part and check.scope != "gpu":
            return "same_part: a baseline keeps GPUs apart, and no other parts"
        unknown = [path for path in check.group_by if path not in baselines.SETUPS]
        if unknown:
            return f"group_by {unknown[0]}: a baseline keeps figures apart by {' and '.join(baselines.SETUPS)} alone"
        return None

    def describe(self, check: Check, target: Target) -> str:
        return f"at most {allowance(check)} the baseline, or {units.number_text(check.deviations)} of its deviations"

    def judge(self, check: Check, subject: Subject, context: JudgeContext) -> list[Entry]:
        baseline = context.baseline
        open_entries = not_applicable(check, subject)
        if not open_entries and baseline is None:
            open_entries = [entry_of(check, "skipped", "gpuval_baseline names no baseline")]
        open_entries = open_entries or not_to_judge(check, subject)
        if open_entries or baseline is None:
            return open_entries
        record = subject.records[check.stage]
        (sku, _, workload, *values), unreported = group_key(subject, record, check.group_by)
        if unreported:
            return [entry_of(check, "missing", f"{check.stage} does not report its {unreported[0]}")]
        setup = dict(zip(check.group_by, values, strict=True))
        # An older baseline has only the median (revision 1), which records report beside the speed.
        revisions = dict.fromkeys((newest_revision(check, subject, record), 1))

        def find(setup: Mapping[str, str]) -> Document | None:
            figures = (baseline.find(check, sku, subject.gpus, workload, setup, revision) for revision in revisions)
            return next(filter(None, figures), None)

        figure = find(setup)
        if figure is None:
            kind = " ".join([sku, f"{subject.gpus} GPUs", workload, *setup.values(), *revision_words(max(revisions))])
            reason = f"the baseline {baseline.title} has no {check.metric} of {kind}"
            alike = _asked_for(check, subject, setup)
            if not any(map(find, alike)):
                return [entry_of(check, "skipped", reason)]
            texts = " or ".join(" ".join(one.values()) for one in alike)
            return [entry_of(check, "missing", f"{reason}, but of what this run asks for: {texts}")]
        if check.same_part and "places" not in figure:
            reason = (
                f"the baseline {baseline.title} does not keep the {check.scope}s of {check.metric} apart: it is of an "
                f"earlier version, or of fewer than {MIN_PARTS} nodes"
            )
            return [entry_of(check, "skipped", reason)]
        results = _results(check, subject, record, figure, baseline)
        earlier = earlier_failures(check, record, lambda attempt: _results(check, subject, attempt, figure, baseline))
        absent = lacking(check, subject, record, {one.part for one in results})
        entries = entries_of(check, [*earlier, *results], absent)
        for entry in entries if figure["nodes"] < LEAST_NODES else ():
            if entry["verdict"] == "fail":
                entry.update(verdict="warn", severity="advisory")
                entry["reason"] += f"; advice, since it is of {figure['nodes']} nodes, fewer than {LEAST_NODES}"
        return excused(check, without_too_little(check, subject, record, entries), subject, record)


def _asked_for(check: Check, subject: Subject, setup: Mapping[str, str]) -> list[dict[str, str]]:
    """The setups that the run's settings ask for instead of the one that the node reports."""
    requested = subject.setups.get(check.stage, {})
    setups = [dict(setup)]
    for path in setup:
        name = path.removeprefix(FINGERPRINT)
        if path.startswith(FINGERPRINT) and name in requested:
            setups = [{**one, path: value} for one in setups for value in sorted(requested[name])]
    return setups


def _results(check: Check, subject: Subject, record: Record, figure: Document, baseline: Baseline) -> list[PartResult]:
    figures, results = figures_of(check, subject, record, figure.get("revision", 1))
    unit = check.unit or ""
    places = figure["places"] if check.same_part else {"": [figure["median"], figure["deviation"]]}
    try:
        groups = {
            place: Peers(
                units.to_float(units.convert(median, figure["unit"], unit)),
                units.to_float(units.convert(deviation, figure["unit"], unit)),
                figure["nodes"],
            )
            for place, (median, deviation) in places.items()
        }
    except units.UnitError as error:
        reason = f"{check.metric} of the baseline: {error}"
        return [*results, *(PartResult(part, None, value, unit, reason) for part, value in figures)]
    # From few nodes the spread is uncertain, and so is the median: its standard error is added.
    deviations = widened(check.deviations, figure["nodes"], FEW_NODES) * (1 + MEDIAN_ERROR**2 / figure["nodes"]) ** 0.5
    for part, value in figures:
        peers = groups.get(part if check.same_part else "")
        if peers is None:
            text = f"the baseline {baseline.title} has no {check.metric} of {part}"
            results.append(PartResult(part, None, value, unit, text))
            continue
        passed = not peers.is_outlier(value, *check.sides, deviations)
        badness = peers.badness(value, *check.sides)
        results.append(
            PartResult(part, passed, value, unit, functools.partial(_reason, check, value, peers, baseline), -badness)
        )
    return results


def _reason(check: Check, value: float, peers: Peers, baseline: Baseline) -> str:
    unit = check.unit or ""
    figure = f"{check.metric} {units.human(value, unit)}, {deviation_text(peers.change(value))}"
    return f"{figure} {units.human(peers.median, unit)} of the baseline {baseline.title}"
