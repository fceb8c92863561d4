"""Outliers with ``peers: fleet``: each part beside those of all nodes of its kind.

Nodes are compared that share SKU, number of GPUs, workload and the values of ``group_by``; those that are ``alike``
(the same software) first, if there are enough. The centre is the median of all their parts, the spread the scaled
median absolute deviation, at least what repeats predict, both without the parts that are far off. With ``relative_to:
node`` a part is first divided by the median of its node: a fast or slow node hides no slow part.

A node that does not report what a comparison needs is missing evidence; one that is alone of its kind is not compared.
So removing a figure from a node never makes that node PASS.
"""

import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...core import units
from ...core.grouping import values_by_key
from ...core.text import some_of
from ...records.documents import Record
from .. import peer_statistics
from ..check import Check, Subject
from ..entries import Absent, Entry, PartResult, entries_of, entry_of, excused, lacking
from ..peer_groups import (
    GroupKey,
    PeerGroup,
    PeerHistory,
    PeerSample,
    levels_of,
    modes_of,
    ratios_of,
    sample_of,
)
from ..peer_statistics import Peers, Tails, deviation_of, deviation_text, doubtful_limit, normal_limit, widened
from .base import JudgeContext, MetricKind, Metrics, Results, Target, allowance, earlier_failures, without_too_little

#: Length of the first part of a group's key (SKU, number of GPUs, workload); values of ``group_by`` follow.
_KIND = 3

Samples = Sequence[PeerSample]


def _survey_nodes(check: Check, samples: Samples, of_nodes: Sequence[float | None], levels: Tails) -> None:
    """Record how far each node is ahead, and how far two measurements of it differ, in deviations of the nodes."""
    levels_known = [*filter(None, of_nodes)]
    deviation = deviation_of(levels_known, check.margin)
    for sample, level in zip(samples, of_nodes, strict=True) if deviation else ():
        node, ahead = sample.subject.name, levels.ahead[check.stage]
        levels.deviations[node][check.metric] = deviation
        ahead[node] = max(check.sign * ((level or 1.0) - 1) / deviation, ahead.get(node, 0.0))
        then = dict(sample.measured_before(check).figures)
        changes = [math.log(value / then[part]) for part, value in sample.figures if then.get(part, 0.0) > 0 < value]
        if changes and level:
            change = statistics.median(changes)
            levels.changes[node][check.metric] = max(
                abs(change) / deviation, levels.changes[node].get(check.metric, 0.0)
            )
            worst = max(check.sign * (1 - one) for one in (level, level * math.exp(-change)))
            if worst > doubtful_limit(levels_known, check.margin, 0.0):
                levels.far.add(node)


def _behind(check: Check, samples: Samples, of_nodes: Sequence[float | None], before: PeerGroup | None) -> list[str]:
    """Names of nodes that are slower as a whole than normal noise explains, beside these nodes or an earlier group."""
    if check.relative_to:
        return []
    if before is not None:
        levels = [(one.subject.name, level) for one in samples if (level := _level(check, one, before)) is not None]
        middle, limit = 1.0, before.normal or math.inf
    elif len(samples) > check.min_peers:
        levels = _levels(samples, of_nodes)
        middle, limit = normal_limit([level for _, level in levels], check.margin)
    else:
        return []
    return [name for name, level in levels if check.sign * (middle - level) > limit]


def _level(check: Check, sample: PeerSample, group: PeerGroup) -> float | None:
    """The speed of the whole node relative to the group, 1 at the group's median; None if it is unknown."""
    pairs = ((value, group.peers_of(part)) for part, _, value in sample.compared(check))
    ratios = [value / peers.median for value, peers in pairs if peers is not None]
    return statistics.median(ratios) if ratios else None


def _levels(samples: Samples, of_nodes: Sequence[float | None]) -> list[tuple[str, float]]:
    return [(one.subject.name, level) for one, level in zip(samples, of_nodes, strict=True) if level is not None]


def _ratios(check: Check, samples: Samples) -> list[tuple[str, float]]:
    """(name, ratio) of every part: relative to its node, and to the parts of its place where places differ."""
    ratios = zip(samples, ratios_of(replace(check, relative_to="node"), samples), strict=True)
    return [(sample.subject.name, ratio) for sample, of_parts in ratios for ratio in of_parts.values()]


def compare_again(check: Check, subject: Subject, context: JudgeContext) -> None:
    """Compare one node whose figures changed since ``compare``, and put its entries into the context. In a large group
    one node changes no limit: there the node is compared with the group in the history."""
    groups = context.samples[check.name]
    places = [(key, one) for key in sorted(groups) for one in groups[key] if one.subject.name == subject.name]
    (key, before), sample = places[-1], sample_of(check, subject)
    if not isinstance(sample, PeerSample):
        context.nodes[subject.name][check.name] = sample
        return
    changed = [sample if sample.revision == before.revision else sample.of_first_revision(check)]
    if len(groups[key]) < peer_statistics.FEW_TO_LEAVE_OUT:
        changed += [one for one in groups[key] if one.subject.name != subject.name]
    comparison = _Comparison(check, context, only=subject.name)
    larger_groups = _larger_groups(check, groups, context.history)[key]
    comparison.judge_group(key, comparison.with_usual_part_count(changed), larger_groups)


def _larger_groups(check: Check, groups: Mapping[GroupKey, Samples], history: PeerHistory) -> dict[GroupKey, str]:
    """For each group the larger groups of the same kind as text; empty if there are none."""
    sizes = history.sizes(check)
    for key, samples in groups.items():
        sizes[key] = max(sizes.get(key, 0), len(samples))
    enough = [key for key in sorted(sizes) if sizes[key] > check.min_peers]
    return {
        key: "; ".join(
            f"{sizes[other]} nodes have {' '.join(other[_KIND:]) or 'revision 1'}"
            for other in enough
            if other[:_KIND] == key[:_KIND] and other != key
        )
        for key in groups
    }


@dataclass(frozen=True)
class _Comparison:
    """One check on all nodes that ran its stage. ``only``: the node whose entries are needed, empty for all nodes."""

    check: Check
    context: JudgeContext
    only: str = ""

    def _requested(self, samples: Samples) -> Samples:
        return [sample for sample in samples if sample.subject.name == self.only] if self.only else samples

    def judge_group(self, key: GroupKey, samples: Samples, larger_groups: str) -> None:
        """Judge the nodes of one group. ``larger_groups``: text about larger groups of the same kind."""
        check, history = self.check, self.context.history
        by_software = values_by_key((sample.alike, sample) for sample in samples)
        all_now = PeerGroup.of(check, samples, " ".join(key), self._reach)
        all_peers = history.largest(check, key, None, all_now)
        if all_peers.nodes <= check.min_peers and larger_groups:
            self._leave_uncompared(samples, larger_groups)
            return
        levels: dict[GroupKey, list[float]] = defaultdict(list)  # by software the speed of each node relative to all
        for sample in samples if len(by_software) > 1 and check.relative_to is None else ():
            level = _level(check, sample, all_peers)
            if level is not None:
                levels[sample.alike].append(level)
        for alike in sorted(by_software):
            members = by_software[alike]
            kind = " ".join([*key, *alike])
            if len(by_software) == 1:
                now = replace(all_now, kind=" ".join(kind.split()))
            else:
                now = PeerGroup.of(check, members, kind, self._reach)
            peers = history.largest(check, key, alike, now)
            if peers.nodes > check.min_peers:
                self._compare(members, peers, behind=self._software_deficit(alike, levels))
            else:
                self._compare(members, all_peers, doubt=self._software_doubt(alike, by_software, all_peers))

    def _reach(self, samples: Samples, repeats: float) -> tuple[float, float, float]:
        """Three relative deviations that chance explains: of parts if tails are long, of whole nodes if tails are
        normal, and of nodes to measure again. ``repeats``: deviation of parts that repeats of one measurement explain,
        as normal noise."""
        check, nodes = self.check, len(samples)
        if not samples:  # two numbers of links are equally common
            return 0.0, 0.0, 0.0
        levels, within = self.context.tails[samples[0].group[0]]
        known_levels = _levels(samples, levels_of(check, samples)) if check.relative_to is None else []
        reach = 0.0
        for tails, is_used in ((levels, check.relative_to is None), (within, check.scope != "node")):
            deviations = tails.reach(nodes) if is_used and nodes > check.min_peers else 0.0
            if deviations:
                ratios = _ratios(check, samples) if tails is within else known_levels
                peers = Peers.of([value for _, value in ratios])
                known_noise = repeats if tails is within else 0.0
                spread = math.sqrt(max(0.0, peers.deviation**2 - known_noise**2)) if peers else 0.0
                reach = max(reach, deviations * spread)
        if check.relative_to or nodes <= check.min_peers:
            return reach, 0.0, 0.0
        of_nodes, least = [level for _, level in known_levels], check.margin
        peers = Peers.without_the_far(of_nodes, least, check.deviations)
        doubtful = doubtful_limit(of_nodes, least, peers.deviation) if peers else math.inf
        middle, limit = (1.0, math.inf) if levels.are_long(peer_statistics.CERTAIN) else normal_limit(of_nodes, least)
        return reach, limit / middle if math.isfinite(limit) else 0.0, doubtful if math.isfinite(doubtful) else 0.0

    def with_usual_part_count(self, samples: Samples) -> list[PeerSample]:
        """The samples with the usual number of parts: nodes of one kind have equally many links, each with a vote."""
        counts = [sample.parts for sample in samples if sample.parts is not None]
        most = peer_statistics.majority([str(count) for count in counts])
        samples_kept = []
        for sample in samples:
            if sample.parts is None or len(counts) == 1 or str(sample.parts) == most:
                samples_kept.append(sample)
                continue
            usual = "with no majority" if most is None else f"and {most} on most of the {len(counts)} nodes of its kind"
            self._keep(sample, [self._missing(f"{self.check.parts_from} is {sample.parts}, {usual}: no comparison")])
        return samples_kept

    def _leave_uncompared(self, samples: Samples, larger_groups: str) -> None:
        """Record that these nodes have no peers of their ``group_by``. ``larger_groups``: text on groups with peers."""
        check = self.check
        for sample in samples:
            fields = " and ".join([*check.group_by, *(["its definition"] if sample.revision > 1 else [])])
            cause = f"{fields or 'its definition'} is {' '.join(sample.group[_KIND:]) or 'revision 1'}"
            reason = f"no peers: {cause}, on fewer than {check.min_peers + 1} nodes, while {larger_groups}"
            settled = self._entries(sample, None) if sample.settled else []
            self._keep(sample, [*excused(check, settled, sample.subject, sample.record), self._missing(reason)])

    def _software_deficit(self, alike: GroupKey, levels: Mapping[GroupKey, Sequence[float]]) -> str:
        """Why a node cannot pass only because others with its software are like it: as a group they are slower than all
        others. Empty if they are not slower, or are the majority."""
        check = self.check
        near = levels.get(alike, ())
        distant = [level for other, its in levels.items() if other != alike for level in its]
        usual = Peers.without_the_far(distant, check.margin, check.deviations)
        if not near or len(distant) <= check.min_peers or len(distant) < len(near) or usual is None:
            return ""
        error = peer_statistics.MEDIAN_ERROR * usual.deviation * (1 / len(near) + 1 / len(distant)) ** 0.5
        middle = statistics.median(near)
        if not replace(usual, deviation=error).is_outlier(middle, *check.sides, check.deviations):
            return ""
        most = max(sorted(other for other in levels if other != alike), key=lambda other: len(levels[other]))
        return (
            f"{check.metric} of {len(near)} nodes with {self._software(alike)} is "
            f"{deviation_text(usual.change(middle))} that of {len(distant)} others (most with {self._software(most)}): "
            "inconclusive: software or hardware"
        )

    def _software_doubt(self, alike: GroupKey, by_software: Mapping[GroupKey, Samples], all_peers: PeerGroup) -> str:
        """Why an outlier may be good: the nodes that it is compared with have other software."""
        counts = {software: len(members) for software, members in by_software.items() if software != alike}
        if not counts or not self.check.alike:
            is_new = self.check.alike and all_peers.nodes > self.check.min_peers
            return f"its {self._software(alike)} may be new since" if is_new else ""
        most = max(sorted(counts), key=lambda software: counts[software])
        return f"its {self._software(alike)} is not the {self._software(most)} of {counts[most]} others"

    def _software(self, alike: GroupKey) -> str:
        return ", ".join(f"{path} {value}" for path, value in zip(self.check.alike, alike, strict=True))

    def _compare(self, samples: Samples, group: PeerGroup, *, doubt: str = "", behind: str = "") -> None:
        """Judge nodes against the group. ``doubt``: why outliers are inconclusive; ``behind``: why no node can pass."""
        check = self.check
        if group.nodes <= check.min_peers:
            self._without_peers(samples, group)
            return
        wrong = []
        worse = {sample.subject.name for sample in group.modes.worse} if group.modes else set()
        two = self._two_populations(group)
        certain = group.modes is not None and group.modes.certain
        # A single node below the SKU's measured figures may be chance; most nodes of a group below them are not.
        is_slow_batch = 2 * sum(bool(self._beside_the_measured(sample)) for sample in samples) > len(samples)
        for sample in self._requested(samples):
            of_worse = self._of_the_worse(sample, group, two, doubt) if sample.subject.name in worse else None
            if of_worse and certain:
                entries = of_worse
            else:
                entries = excused(check, self._entries(sample, group, doubt), sample.subject, sample.record)
                if of_worse and all(one["verdict"] == "pass" for one in entries):
                    entries += of_worse[:1]
            if behind:
                entries = [*(one for one in entries if one["verdict"] != "pass"), self._missing(behind)]
            if is_slow_batch and all(one["verdict"] == "pass" for one in entries):
                entries += self._beside_the_measured(sample)
            self._keep(sample, entries)
            parts = [entry["part"] for entry in entries if entry["verdict"] in ("fail", "warn")]
            if parts:
                wrong.append((-len(parts), f" {some_of(parts, 1)}", sample.subject.name))
        reason = f"{group.kind}: {check.metric} of {group.nodes} nodes"
        peers = group.together
        if peers is not None:
            median = peers.median
            text = units.number_text(median) if check.relative_to else units.human(median, check.unit or "")
            reason += f", median {text}, deviation {_spread(peers)}"
        if wrong:
            worst_first = sorted(wrong, key=lambda far: far[:2])  # of equals the first in the list of nodes
            reason += f"; far off: {some_of(name + text for _, text, name in worst_first)}"
        if behind:
            reason += f"; {behind}"
        if certain:
            reason += f"; {two}"
        verdict = "fail" if wrong else "missing" if behind else "pass"
        entry = entry_of(check, verdict, reason, part="fleet", value=two if certain else None)
        self.context.fleet.append(entry)

    def _two_populations(self, group: PeerGroup) -> str:
        """How the nodes form two populations, as text; empty if they are one."""
        if group.modes is None:
            return ""
        worse, better = group.modes.worse, group.modes.better
        middle, usual = map(_median_of, (worse, better))
        change = deviation_text((middle - usual) / abs(usual))
        properties = ([sample.subject.properties for sample in mode] for mode in (worse, better))
        common = peer_statistics.shared(*properties)
        why = f" ({'; '.join(common[:3])})" if common else ""
        rest_text = f"that of {len(better)} others{why}"
        return f"not one population: {self.check.metric} of {len(worse)} nodes is {change} {rest_text}"

    def _of_the_worse(self, sample: PeerSample, group: PeerGroup, two: str, doubt: str) -> list[Entry]:
        """The entries of a node in the worse of two populations. It fails if that is the minority; else nothing shows
        which population is right, and floors and baselines decide."""
        check, unit = self.check, self.check.unit or ""
        worse, better = (group.modes.worse, group.modes.better) if group.modes else ((), ())
        middle, usual = _median_of([sample]), _median_of(better)
        figure = f"{check.metric} {units.human(middle, unit)}, {deviation_text((middle - usual) / abs(usual))}"
        reason = f"{figure} the median {units.human(usual, unit)} of {len(better)} nodes; {two}"
        verdict = "fail" if len(worse) < len(better) else "missing" if len(worse) == len(better) else "warn"
        if not (group.modes and group.modes.certain):
            verdict, reason = "warn", f"{reason}: chance is not excluded; measure again"
        elif doubt and verdict == "fail":
            verdict, reason = "missing", f"{reason}; {doubt}: inconclusive: software or hardware"
        elif verdict != "fail":
            reason += ": inconclusive which is right; set a floor or a baseline"
        entry = entry_of(check, verdict, reason, value=middle, unit=unit)
        if verdict == "warn":
            entry["severity"] = "advisory"
        entries = self._entries(sample, None) if sample.settled or _lacking(check, sample) else []
        return [entry, *excused(check, entries, sample.subject, sample.record)]

    def _without_peers(self, samples: Samples, group: PeerGroup) -> None:
        """Judge nodes of a group that is too small: by checks without peers, parts against their own node's, and nodes
        against the best. Failures are only warnings, except for parts whose spread is known for the SKU."""
        check = self.check
        reason = f"{group.nodes} of its kind ({group.kind}): a comparison needs {check.min_peers + 1} nodes"
        skipped = entry_of(check, "skipped", reason)
        for sample in self._requested(samples):
            entries = self._entries(sample, None) if sample.settled else []
            absent = _lacking(check, sample)
            if absent is not None and not entries:
                entries = [entry_of(check, "missing", absent[1], part=absent[0])]
            entries += self._beside_few(sample, samples)
            self._keep(sample, excused(check, entries, sample.subject, sample.record) or [dict(skipped)])

    def _beside_few(self, sample: PeerSample, samples: Samples) -> list[Entry]:
        """Entries of the parts, or the node, that are too far off even beside few peers."""
        check, unit = self.check, self.check.unit or ""
        if check.relative_to is None:
            return self._beside_the_best(sample, samples)
        group = PeerGroup.of(check, samples, " ".join(sample.group))
        if check.same_part and len(samples) < peer_statistics.MIN_PARTS:
            return []  # parts of one node differ by design here
        known = sample.subject.known_spreads.get((check.metric, sample.revision))
        failed, doubtful = [], []
        entries: list[Entry] = []
        if known is None and (check.metric, 1) in sample.subject.known_spreads:
            first = [one.of_first_revision(check) for one in samples]
            first_sample = next(one for one in first if one.subject is sample.subject)
            entries = [entry for entry in self._beside_few(first_sample, first) if entry["verdict"] == "fail"]
        for part, value, ratio in sample.compared(check):
            peers = group.peers_of(part)
            if peers is None or not peers.is_beyond(ratio, *check.sides, group.limit_to_warn(check, peers)):
                continue
            reason = f"{self._reason(value, ratio, group, peers)}; of {len(samples)} nodes"
            distance = max(
                widened(check.deviations, peers.count, peer_statistics.FEW_PARTS) * peers.deviation,
                peer_statistics.KNOWN * (known or 0),
            )
            if known is not None and peers.is_beyond(ratio, *check.sides, distance):
                spread = units.number_text(100 * known)
                failed.append(PartResult(part, False, value, unit, f"{reason}; healthy ones differ by {spread} %"))
            else:
                doubtful.append(PartResult(part, False, value, unit, f"{reason}: measure again"))
        entries += entries_of(check, failed) if failed else []
        return [*entries, *self._warnings(doubtful)]

    def _beside_the_best(self, sample: PeerSample, samples: Samples) -> list[Entry]:
        """Entries of the whole node beside the better half of few nodes, else beside the SKU's measured figures."""
        check = self.check
        levels = dict(zip((one.subject.name for one in samples), levels_of(check, samples), strict=True))
        ranked = sorted(level for level in levels.values() if level is not None)
        own_level = levels[sample.subject.name]
        if own_level is None:
            return []
        if len(ranked) < 2:
            return self._beside_the_measured(sample)
        best = ranked[len(ranked) // 2] if check.max_below is not None else ranked[(len(ranked) - 1) // 2]
        peers = Peers(best, 0.0, len(ranked))
        if not peers.is_beyond(own_level, *check.sides, 0.0):
            return self._beside_the_measured(sample)
        middle = _median_of([sample])
        figure = f"{check.metric} {units.human(middle, check.unit or '')}, {deviation_text(peers.change(own_level))}"
        reason = (
            f"{figure} the better of {len(ranked)} nodes: measure again, or set a floor or a baseline; a verdict needs "
            f"{check.min_peers + 1} nodes"
        )
        return self._warnings([PartResult("node", False, middle, check.unit or "", reason)])

    def _beside_the_measured(self, sample: PeerSample) -> list[Entry]:
        """Entries of the whole node beside the least figure of healthy nodes of its SKU: a whole batch may be slow."""
        check, unit = self.check, self.check.unit or ""
        usual = sample.subject.measured.get((check.metric, sample.revision))
        if usual is None and sample.revision > 1:
            return self._beside_the_measured(sample.of_first_revision(check))
        if check.relative_to or not sample.figures:
            return []
        worse = (check.max_below, None if check.max_below is not None else check.max_above)
        middle = _median_of([sample])
        if usual is None or not Peers(usual, 0.0, 1).is_beyond(middle, *worse, 0.0):
            return []
        change = deviation_text((middle - usual) / usual)
        reason = (
            f"{check.metric} {units.human(middle, unit)}, {change} the {units.human(usual, unit)} that healthy nodes "
            "of its SKU made: compare with other machines of the SKU, or set a floor or a baseline"
        )
        return self._warnings([PartResult("node", False, middle, unit, reason)])

    def _warnings(self, doubtful: Sequence[PartResult]) -> list[Entry]:
        """Entries that name doubtful parts but decide nothing."""
        entries = entries_of(self.check, doubtful) if doubtful else []
        return [{**entry, "verdict": "warn", "severity": "advisory"} for entry in entries]

    def _entries(self, sample: PeerSample, group: PeerGroup | None, doubt: str = "") -> list[Entry]:
        results = list(sample.settled)
        doubtful: list[PartResult] = []
        if group is not None:
            now, doubtful = self._beside(sample, group)
            compared = [*self._earlier_results(sample, group), *now]
            results += sample.unknown
            results += [
                # missing evidence: the part is far off beside nodes that are not quite of its kind
                one._replace(passed=None, reason=f"{one.text}; {doubt}: inconclusive: software or hardware")
                if doubt and one.passed is False
                else one
                for one in compared
            ]
        absent = _lacking(self.check, sample)
        entries = entries_of(self.check, results, absent) if results or absent or not doubtful else []
        return [*entries, *self._warnings(doubtful)]

    def _beside(self, sample: PeerSample, group: PeerGroup) -> tuple[list[PartResult], list[PartResult]]:
        """Results of the parts that are too far off and of the one nearest to it; and results of doubtful parts."""
        check, unit = self.check, self.check.unit or ""
        compared = sample.compared(check)
        if not compared:
            why = f"{check.metric}: the median of the node is 0, which allows no relative figure"
            return [PartResult(part, None, value, unit, why) for part, value in sample.figures], []
        failed: list[PartResult] = []
        doubtful: list[PartResult] = []
        worst, nearest, is_excused = None, float("-inf"), False
        stages = self._stages_behind(sample) if group.normal else ()
        before = sample.measured_before(check)
        then = {part: ratio for part, _, ratio in before.compared(check)}
        # Is the whole node far enough off to be measured again: now, and in the measurement before?
        levels = (_level(check, one, group) for one in (sample, before))
        doubts = [level is not None and check.sign * (1 - level) > (group.doubtful or math.inf) for level in levels]
        for part, value, ratio in compared:
            peers = group.peers_of(part)
            if peers is None:
                why = f"{check.metric}: fewer than {peer_statistics.MIN_PARTS} peers, or a median of 0"
                failed.append(PartResult(part, None, value, unit, why))
                continue
            reason = functools.partial(self._reason, value, ratio, group, peers)
            is_beyond = functools.partial(peers.is_beyond, max_below=check.max_below, max_above=check.max_above)
            margin = check.margin * abs(peers.median)
            measured = f"; {deviation_text(peers.change(then[part]))} when measured before" if part in then else ""
            if is_beyond(ratio, distance=group.limit(check, peers)):
                once = measured and abs(then[part] - ratio) > margin and not is_beyond(then[part], distance=margin)
                failed.append(PartResult(part, None if once else False, value, unit, f"{reason()}{measured}"))
                continue
            middle, to_warn = abs(peers.median), group.limit_to_warn(check, peers)
            if stages:
                to_warn = min(to_warn, group.normal * middle)
            if is_beyond(ratio, distance=to_warn) and len(stages) > 1:
                agreeing = f"{reason()}; the node is behind in {' and '.join(stages)}"
                failed.append(PartResult(part, False, value, unit, agreeing))
                continue
            now, first = (min(to_warn, group.doubtful * middle) if doubt else to_warn for doubt in doubts)
            was_far = part in then and is_beyond(then[part], distance=first)
            errors = functools.partial(self._two_errors, sample, group, peers)
            is_repeated = was_far and abs(ratio - then[part]) <= margin + errors(2)  # else the first decides the mean
            level = (ratio + then[part]) / 2 if is_repeated else ratio
            if (
                was_far
                and is_beyond(ratio, distance=margin)
                and is_beyond(level, distance=margin + errors(2 if is_repeated else 1))
            ):
                failed.append(PartResult(part, False, value, unit, f"{reason()}{measured}"))
                continue
            is_far = is_beyond(ratio, distance=now)
            is_usual = was_far and not is_far and self._is_usual_change(sample, then[part], ratio)
            is_excused |= is_usual
            if is_far or (was_far and not is_usual):
                needed = units.number_text(100 * group.limit(check, peers) / middle)
                doubt = f": so far off that chance is not excluded (a verdict needs {needed} %); measure again"
                doubtful.append(PartResult(part, False, value, unit, f"{reason()}{measured}{doubt}"))
            badness = peers.badness(ratio, *check.sides)
            if badness > nearest:
                worst, nearest = PartResult(part, True, value, unit, reason, -badness), badness
        is_doubtful = is_excused or doubtful or any(one.passed is False or one.part in then for one in failed)
        if check.required and check.retry and is_doubtful:
            self.context.doubtful[sample.subject.name].add(check.stage)
        failed, doubtful = (self._whole_node(sample, found, behind=bool(stages)) for found in (failed, doubtful))
        return [*failed, *([worst] if worst is not None else [])], doubtful

    def _is_usual_change(self, sample: PeerSample, before: float, now: float) -> bool:
        """Whether two measurements of healthy nodes differed as much."""
        levels, name = self.context.tails[sample.subject.kind][0], sample.subject.name
        metric = self.check.metric
        usual = levels.healthy_changes(name, metric)[0] * levels.deviations[name].get(metric, 0.0)
        return before > 0 < now and abs(math.log(now / before)) <= usual

    def _two_errors(self, sample: PeerSample, group: PeerGroup, peers: Peers, count: int) -> float:
        """Two standard errors of the mean of ``count`` measurements (by repeats or changes) and of the peers'
        median."""
        levels, middle = self.context.tails[sample.subject.kind][0], abs(peers.median)
        deviation = levels.deviations[sample.subject.name].get(self.check.metric, peers.deviation / middle)
        of_mean = max(group.repeats, levels.error() * deviation) / math.sqrt(count)
        return 2 * middle * math.hypot(of_mean, peer_statistics.MEDIAN_ERROR * deviation / math.sqrt(group.nodes))

    def _stages_behind(self, sample: PeerSample) -> Sequence[str]:
        """The stages in which the whole node is behind, if this check shows it: chance does not recur in another."""
        stages = self.context.behind.get(sample.subject.name, {})
        return sorted(stages) if self.check.name in stages.get(self.check.stage, ()) else ()

    def _whole_node(self, sample: PeerSample, results: list[PartResult], *, behind: bool) -> list[PartResult]:
        """The results, with the node instead of its parts if most fail alike, or half if the node is ``behind``."""
        far = [one for one in results if one.passed is False]
        most = 2 * len(far) >= len(sample.figures) if behind else 2 * len(far) > len(sample.figures)
        if self.check.relative_to or len(far) < 2 or not most:
            return results
        middle = _median_of([sample])
        parts = f"{len(far)} of {len(sample.figures)} {self.check.scope}s alike ({far[0].part}: {far[0].text})"
        node_result = PartResult("node", False, middle, self.check.unit or "", parts)
        return [*(one for one in results if one.passed is not False), node_result]

    def _earlier_results(self, sample: PeerSample, group: PeerGroup) -> list[PartResult]:
        """Results of the sample's earlier attempts that failed and may not be measured again."""

        def results(attempt: Record) -> list[PartResult]:
            then = sample.of_attempt(self.check, attempt)
            return [*then.settled, *self._beside(then, group)[0]]

        return list(earlier_failures(self.check, sample.record, results))

    def _reason(self, value: float, ratio: float, group: PeerGroup, peers: Peers) -> str:
        check = self.check
        figure = f"{check.metric} {units.human(value, check.unit or '')}, {deviation_text(peers.change(ratio))}"
        earlier = ", judged before" if group.earlier else ""
        if check.relative_to:
            text = f"{figure} its neighbours, beside {peers.count} good parts of {group.nodes} nodes"
        else:
            text = f"{figure} the median {units.human(peers.median, check.unit or '')} of {group.nodes} nodes"
        return f"{text} ({group.kind}{earlier}; spread {_spread(peers)})"

    def _missing(self, reason: str) -> Entry:
        return entry_of(self.check, "missing", reason)

    def _keep(self, sample: PeerSample, entries: list[Entry]) -> None:
        entries = without_too_little(self.check, sample.subject, sample.record, entries)
        self.context.nodes[sample.subject.name][self.check.name] = entries


def _lacking(check: Check, sample: PeerSample) -> Absent:
    return lacking(check, sample.subject, sample.record, sample.reported)


def _median_of(samples: Samples) -> float:
    return statistics.median(value for sample in samples for _, value in sample.figures)


def _spread(peers: Peers) -> str:
    return f"{units.number_text(100 * peers.deviation / abs(peers.median))} %"


class Outlier(MetricKind):
    name = "outlier"
    compares = True

    def problem(self, check: Check) -> str | None:
        if check.peers == "fleet":
            return None
        of_the_fleet = ("relative_to", "same_part", "spread_from", "alike", "group_by")
        return next((f"{key} is for peers: fleet" for key in of_the_fleet if getattr(check, key)), None)

    def describe(self, check: Check, target: Target) -> str:
        if check.peers == "node":
            return f"at most {allowance(check)} the median of its peers"
        among = "its neighbours, as on other nodes" if check.relative_to else "its peers in the fleet"
        deviations = units.number_text(check.deviations)
        return f"at most {allowance(check)} the median of {among}, or {deviations} deviations"

    def needs_peers(self, check: Check) -> bool:
        return check.peers == "fleet"

    def survey(self, check: Check, subjects: Sequence[Subject], context: JudgeContext) -> None:
        """Put the nodes' samples into the context, and how long the tails of their figures are, which all checks of a
        SKU show together. Runs before ``compare``."""
        groups = context.samples[check.name]
        for subject in subjects:
            sample = sample_of(check, subject)
            if isinstance(sample, PeerSample):
                groups.setdefault(sample.group, []).append(sample)
            else:
                context.nodes[subject.name][check.name] = sample
        for key, samples in groups.items():
            of_nodes = [] if check.relative_to else levels_of(check, samples)
            for name in _behind(check, samples, of_nodes, context.history.larger(check, key, len(samples))):
                context.behind[name][check.stage].add(check.name)
            if len(samples) <= check.min_peers:
                continue
            levels, within = context.tails[key[0]]
            if check.relative_to:
                within.add(_ratios(check, samples), check.margin, check.deviations, check.sign)
            else:
                modes = modes_of(check, samples, of_nodes)
                named = _levels(modes.better, levels_of(check, modes.better)) if modes else _levels(samples, of_nodes)
                levels.add(named, check.margin, check.deviations, check.sign)
                _survey_nodes(check, samples, of_nodes, levels)

    def compare(self, check: Check, subjects: Sequence[Subject], context: JudgeContext) -> None:
        """Put the entries of surveyed nodes and of the fleet into the context, and their groups into its history."""
        groups = context.samples[check.name]
        # If a group is small, its medians join the group of revision 1. That is judged first, so that entries of
        # speeds replace those of medians.
        later_revisions = [(key, samples) for key, samples in groups.items() if samples[0].revision > 1]
        for key, speeds in later_revisions:
            older = groups.get(key[:-1], [])
            if older and min(len(speeds), len(older)) <= check.min_peers:
                medians = [median for one in speeds if (median := one.of_first_revision(check)).figures]
                groups[key[:-1]] = [*older, *medians]
                if len(speeds) <= check.min_peers:
                    groups[key] = [one for one in speeds if not one.of_first_revision(check).figures]
        larger_groups = _larger_groups(check, groups, context.history)
        comparison = _Comparison(check, context)
        for key in sorted(groups):
            comparison.judge_group(key, comparison.with_usual_part_count(groups[key]), larger_groups[key])

    def judge_parts(self, check: Check, target: Target, metrics: Metrics, subject: Subject, record: Record) -> Results:
        """The result of each part against the median of all. A figure that is no number fails, and is no peer."""
        units_seen = {metric["unit"] for metric in metrics if metric["value"] is not None}
        if len(units_seen) > 1:
            reason = f"{check.metric} has several units: {', '.join(sorted(units_seen))}"
            return [PartResult(metric["scope"], None, metric["value"], metric["unit"], reason) for metric in metrics]
        group = Peers.of([metric["value"] for metric in metrics if metric["value"] is not None])
        results = []
        for metric in metrics:
            part, value, unit = metric["scope"], metric["value"], metric["unit"]
            if value is None:
                results.append(PartResult(part, False, None, unit, f"{check.metric} is not a number"))
            elif group is None:
                why = f"fewer than {peer_statistics.MIN_PARTS} figures, or a median of 0, to compare"
                results.append(PartResult(part, None, value, unit, why))
            else:
                deviations = widened(check.deviations, group.count, peer_statistics.FEW_PARTS)
                passed = not group.is_outlier(value, *check.sides, deviations)
                text = functools.partial(_reason, check, value, unit, group)
                results.append(PartResult(part, passed, value, unit, text, -group.badness(value, *check.sides)))
        return results


def _reason(check: Check, value: float, unit: str, group: Peers) -> str:
    figure = f"{check.metric} {units.human(value, unit)}, {deviation_text(group.change(value))}"
    return f"{figure} the median {units.human(group.median, unit)} of {group.count}"
