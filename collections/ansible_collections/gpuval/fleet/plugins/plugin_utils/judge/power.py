"""The smallest loss of speed that a run's checks detect: for each figure, in one part and in a whole node.

A loss is simulated in the run's own records, and the checks of the figure judge these again beside the same peers:
limits, spreads, margins and errors are those of the verdict. The smallest loss is the one that is detected in 99 of
100 parts (or nodes), whichever of them it hits. `StageFigure` has the titles of the figures.
"""

import functools
import itertools
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.laps import median_of

from ..core.grouping import values_by_key
from ..core.stage_traits import figures_of, traits_of_stages
from ..records.documents import Document
from .check import Check
from .kinds import KINDS, JudgeContext, fleet_outliers
from .peer_groups import GroupKey, PeerHistory, PeerSample, ratios_of
from .peer_statistics import FEW_TO_LEAVE_OUT

#: Simulated losses of speed are multiples of STEP, up to 95 %. If no check detects 95 %, the smallest loss is unknown.
STEP, STEPS = 0.001, range(951)
#: In one of this many parts (or nodes) a loss of speed may stay undetected.
ONE_OF = 100
#: Periodic disturbances are detected if a measurement lasts this many periods (docs/design/statistics.md).
BURSTS = 10
#: Upper bound of a plausible measuring time, in seconds.
MAX_SECONDS = 1e7
#: Losses are simulated in this many of the largest peer groups, and in this many of the fastest parts of each.
MAX_GROUPS, MAX_TRIED = 8, 3

#: Key of a peer group: (values that its nodes share, their software).
_Place = tuple[GroupKey, GroupKey]
#: Where a loss of speed is simulated: (a node's sample, the names of its slowed parts).
_Victim = tuple[PeerSample, Collection[str]]


def of_run(context: JudgeContext) -> list[dict[str, Any]]:
    """For each figure and peer group a dict with the smallest loss of speed that the checks detect, as a share (0.05 is
    5 %); None if they detect none. Call it after the comparison of nodes, which puts their samples into the context."""
    losses = []
    for figure in (figure for figure in figures_of(traits_of_stages()) if figure.loss):
        metric_checks = [check for check in context.criteria if check.metric == figure.metric]
        fleet = [check for check in metric_checks if context.samples.get(check.name)]
        checks = [check for check in metric_checks if check in fleet or not KINDS[check.kind].needs_peers(check)]
        samples_by_key = context.samples[fleet[0].name] if fleet else {}
        pairs = ((key, sample) for key, samples in samples_by_key.items() for sample in samples)
        groups = values_by_key(((key, sample.alike), sample) for key, sample in pairs)
        scopes = {"node": True}
        if any(check.relative_to or check.peers == "node" for check in checks):
            scopes["part"] = False
        for group in sorted(groups, key=lambda group: (-len(groups[group]), group))[:MAX_GROUPS]:
            seconds = [timed for sample in groups[group] if (timed := _seconds(figure.loss, sample)) is not None]
            losses.append({
                "stage": fleet[0].stage, "metric": figure.metric, "title": figure.loss["title"],
                "nodes": len(groups[group]), "kind": " ".join(filter(None, [*group[0], *group[1]])),
                "burst_seconds": float(f"{statistics.median(seconds) / BURSTS:.2g}") if seconds else None,
                **{name: _loss(checks, fleet, group, context, is_whole=whole) for name, whole in scopes.items()},
            })  # fmt: skip
    return losses


def _seconds(loss: Document, sample: PeerSample) -> float | None:
    """How long the node measured a figure, in seconds; None if the node's record has no such time. ``loss``: the
    figure's `StageFigure.loss`, which names the time to read."""
    parts: Any = sample.record["environment"].get("seconds_by_part")
    if "duration" in loss:
        parts = {one["name"]: one["value"] for one in sample.record["metrics"] if one["name"] == loss["duration"]}
    seconds = parts.get(loss.get("part", loss.get("duration"))) if isinstance(parts, dict) else None
    return seconds * loss.get("share", 1) if isinstance(seconds, (int, float)) and 0 < seconds < MAX_SECONDS else None


def _loss(
    checks: Sequence[Check], fleet: Sequence[Check], group: _Place, context: JudgeContext, *, is_whole: bool
) -> float | None:
    """The smallest loss of speed that a check detects even in the part (node if ``is_whole``) that hides it best, as a
    share (0.05 is 5 %). None if no check detects any. ``fleet``: those of ``checks`` that compare nodes."""
    victims = {check: list(_hiding(check, group, context, is_whole=is_whole)) for check in fleet}
    least = STEPS[-1]
    for check in checks:
        loss = 0
        for victim in victims.get(check, itertools.chain(*victims.values())):
            is_named = functools.partial(_is_named, check, victim, context)
            if not loss or (loss < least and not is_named(loss)):
                loss = bisect_left(STEPS, True, lo=loss + 1, hi=least, key=is_named)
        least = loss or least
    return round(least * STEP, 3) if least < STEPS[-1] else None


def _hiding(check: Check, group: _Place, context: JudgeContext, *, is_whole: bool) -> Iterator[_Victim]:
    """The fastest parts (nodes if ``is_whole``) of a peer group that the check does not flag: they hide a loss best. Of
    100 the fastest is left out. Of few nodes all are tried: which node is slow changes the spread of the others."""
    samples = [rank for rank in context.samples[check.name].get(group[0], ()) if rank.alike == group[1]]
    ranked: list[tuple[float, _Victim]] = []
    for sample, ratios in zip(samples, ratios_of(check, samples), strict=True):
        speeds = {part: check.sign * ratio for part, ratio in ratios.items()}
        whole_node = [(statistics.median(speeds.values()), (sample, [*speeds]))] if speeds else []
        ranked += whole_node if is_whole else [(speed, (sample, [part])) for part, speed in speeds.items()]
    ranked.sort(key=lambda rank: -rank[0])
    unnamed = (victim for _, victim in ranked[len(ranked) // ONE_OF :] if not _names(context, check, victim))
    is_few = is_whole and len(ranked) < FEW_TO_LEAVE_OUT
    return itertools.islice(unnamed, None if is_few else MAX_TRIED)


def _is_named(check: Check, victim: _Victim, context: JudgeContext, steps: int) -> bool:
    """Whether the check flags the victim's parts (or node) once they lose ``steps`` times 0.1 % of their speed."""
    (sample, parts), factor = victim, 1 - steps * STEP
    subject, record, names = sample.subject, sample.record, (check.metric, median_of(check.metric))
    if check.catalogue_sku not in (None, *subject.skus):
        return False
    metrics: list[Any] = [
        {**one, "value": one["value"] / factor if one["unit"] == "seconds" else one["value"] * factor}
        if one["name"] in names and one["scope"] in parts and one["value"] is not None
        else one
        for one in record["metrics"]
    ]
    subject = replace(subject, records={**subject.records, check.stage: {**record, "metrics": metrics}}, _compact={})
    fresh: dict[str, Any] = {"nodes": defaultdict(dict), "doubtful": defaultdict(set), "fleet": []}
    weakened = replace(context, history=PeerHistory(dict(context.history.groups)), **fresh)
    kind = KINDS[check.kind]
    if kind.needs_peers(check):
        fleet_outliers.compare_again(check, subject, weakened)
    else:
        weakened.nodes[subject.name][check.name] = kind.judge(check, subject, weakened)
    return _names(weakened, check, victim)


def _names(context: JudgeContext, check: Check, victim: _Victim) -> bool:
    """Whether the check's entries in the context flag the victim: its only part, most of its parts, or its node."""
    sample, parts = victim
    entries = context.nodes[sample.subject.name].get(check.name, ())
    named = [entry["part"] for entry in entries if entry["verdict"] in ("fail", "warn", "missing")]
    return "node" in named or 2 * len({*named} & {*parts}) > len(parts)
