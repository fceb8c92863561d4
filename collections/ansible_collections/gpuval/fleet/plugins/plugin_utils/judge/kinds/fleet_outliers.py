"""Kind ``outlier`` with ``peers: fleet``: each part of a node (GPU, rank, link) against the parts of similar nodes.

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
    Modes,
    PeerGroup,
    PeerSample,
    levels_of,
    modes_of,
    ratios_within,
    sample_of,
)
from ..peer_statistics import NormalNoise, Peers, Tails, deviation_text, widened
from .base import JudgeContext, MetricKind, Metrics, Results, Target, allowance, earlier_failures, without_too_little

#: Length of the first part of a group's key (SKU, number of GPUs, workload); values of ``group_by`` follow.
_KIND = 3

Samples = Sequence[PeerSample]


def _survey_nodes(check: Check, samples: Samples, levels: Mapping[str, float], tails: Tails) -> None:
    """Record how far each node is ahead, and how far two measurements of it differ, in deviations of the nodes."""
    noise = NormalNoise.of([*filter(None, levels.values())], check.margin)
    deviation = noise.relative_deviation
    for sample in samples if deviation else ():
        node, ahead = sample.subject.name, tails.ahead[check.stage]
        level = levels.get(node) or 1.0
        tails.deviations[node][check.metric] = deviation
        ahead[node] = max(check.sign * (level - 1) / deviation, ahead.get(node, 0.0))
        then = dict(sample.measured_before(check).figures)
        changes = [math.log(value / then[part]) for part, value in sample.figures if then.get(part, 0.0) > 0 < value]
        if changes and levels.get(node):
            change = statistics.median(changes)
            known_changes = tails.changes[node]
            known_changes[check.metric] = max(abs(change) / deviation, known_changes.get(check.metric, 0.0))
            worst = max(check.sign * (1 - one) for one in (level, level * math.exp(-change)))
            if worst > noise.doubtful_limit(0.0):
                tails.far.add(node)


def _behind(check: Check, samples: Samples, levels: Mapping[str, float], before: PeerGroup | None) -> list[str]:
    """Names of nodes that are slower as a whole than normal noise explains, beside these nodes or an earlier group."""
    if check.relative_to or (before is None and len(samples) <= check.min_peers):
        return []
    if before is not None:
        middle, limit = 1.0, before.normal or math.inf
        pairs = ((one.subject.name, before.level_of(check, one)) for one in samples)
        levels = {name: level for name, level in pairs if level is not None}
    else:
        noise = NormalNoise.of([*levels.values()], check.margin)
        middle, limit = noise.middle, noise.limit
    return [name for name, level in levels.items() if check.sign * (middle - level) > limit]


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
    _Comparison(check, context, only=subject.name).judge_group(key, changed)


@dataclass(frozen=True)
class _Comparison:
    """One check on all nodes that ran its stage. ``only``: the node whose entries are needed, empty for all nodes."""

    check: Check
    context: JudgeContext
    only: str = ""

    def _is_requested(self, sample: PeerSample) -> bool:
        return self.only in ("", sample.subject.name)

    @functools.cached_property
    def _large_groups(self) -> dict[GroupKey, int]:
        """The groups with enough nodes to compare, now or before, and their number of nodes."""
        sizes = self.context.history.sizes(self.check)
        for key, samples in self.context.samples[self.check.name].items():
            sizes[key] = max(sizes.get(key, 0), len(samples))
        return {key: size for key, size in sorted(sizes.items()) if size > self.check.min_peers}

    def judge_group(self, key: GroupKey, all_samples: Samples) -> None:
        """Judge the nodes of one peer group. ``key``: the values that they share."""
        check, history = self.check, self.context.history
        samples = self._with_usual_part_count(all_samples)
        by_software = values_by_key((sample.alike, sample) for sample in samples)
        tails = self.context.tails[key[0]]
        all_now = PeerGroup.of(check, samples, " ".join(key), tails)
        all_peers = history.largest(check, key, None, all_now)
        if all_peers.nodes <= check.min_peers:
            alike_groups = [other for other in self._large_groups if other[:_KIND] == key[:_KIND] and other != key]
            if alike_groups:
                self._leave_uncompared(samples, alike_groups)
                return
        levels: dict[GroupKey, list[float]] = defaultdict(list)  # by software the speed of each node relative to all
        for sample in samples if len(by_software) > 1 and check.relative_to is None else ():
            level = all_peers.level_of(check, sample)
            if level is not None:
                levels[sample.alike].append(level)
        for alike in sorted(by_software):
            members = by_software[alike]
            kind = " ".join([*key, *alike])
            if len(by_software) == 1:
                now = replace(all_now, kind=" ".join(kind.split()))
            else:
                now = PeerGroup.of(check, members, kind, tails)
            peers = history.largest(check, key, alike, now)
            if peers.nodes > check.min_peers:
                self._compare(members, peers, behind=self._software_deficit(alike, levels))
            else:
                self._compare(members, all_peers, doubt=self._software_doubt(alike, by_software, all_peers))

    def _with_usual_part_count(self, samples: Samples) -> list[PeerSample]:
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

    def _leave_uncompared(self, samples: Samples, larger_groups: Sequence[GroupKey]) -> None:
        """Record that these nodes have no peers of their ``group_by``. ``larger_groups``: groups that have peers."""
        check, sizes = self.check, self._large_groups
        larger = "; ".join(f"{sizes[key]} nodes have {' '.join(key[_KIND:]) or 'revision 1'}" for key in larger_groups)
        for sample in samples:
            fields = " and ".join([*check.group_by, *(["its definition"] if sample.revision > 1 else [])])
            cause = f"{fields or 'its definition'} is {' '.join(sample.group[_KIND:]) or 'revision 1'}"
            reason = f"no peers: {cause}, on fewer than {check.min_peers + 1} nodes, while {larger}"
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
        modes = group.modes
        worse = {sample.subject.name for sample in modes.worse} if modes else set()
        two = self._two_populations(modes) if modes else ""
        certain = modes is not None and modes.certain

        @functools.cache
        def is_slow_batch() -> bool:
            # A single node below the SKU's measured figures may be chance; most nodes of a group below them are not.
            return 2 * sum(bool(self._beside_the_measured(sample)) for sample in samples) > len(samples)

        for sample in filter(self._is_requested, samples):
            of_worse = self._of_the_worse(sample, modes, two, doubt) if modes and sample.subject.name in worse else None
            if of_worse and certain:
                entries = of_worse
            else:
                entries = excused(check, self._entries(sample, group, doubt), sample.subject, sample.record)
                if of_worse and all(one["verdict"] == "pass" for one in entries):
                    entries += of_worse[:1]
            if behind:
                entries = [*(one for one in entries if one["verdict"] != "pass"), self._missing(behind)]
            if all(one["verdict"] == "pass" for one in entries) and is_slow_batch():
                entries += self._beside_the_measured(sample)
            self._keep(sample, entries)
            parts = [entry["part"] for entry in entries if entry["verdict"] in ("fail", "warn")]
            if parts:
                wrong.append((-len(parts), f" {some_of(parts, 1)}", sample.subject.name))
        if self.only:
            return
        figures, peers = f"{group.kind}: {check.metric} of {group.nodes} nodes", group.together
        if peers is not None:
            text = units.number_text(peers.median) if check.relative_to else units.human(peers.median, check.unit or "")
            figures += f", median {text}, deviation {_spread(peers)}"
        wrong.sort(key=lambda far: far[:2])  # of equals the first in the list of nodes
        far_off = f"far off: {some_of(name + text for _, text, name in wrong)}" if wrong else ""
        reason = "; ".join(filter(None, (figures, far_off, behind, two if certain else "")))
        verdict = "fail" if wrong else "missing" if behind else "pass"
        self.context.fleet.append(entry_of(check, verdict, reason, part="fleet", value=two if certain else None))

    def _two_populations(self, modes: Modes) -> str:
        """How the nodes form two populations, as text."""
        worse, better = modes.worse, modes.better
        middle, usual = map(_median_of, (worse, better))
        change = deviation_text((middle - usual) / abs(usual))
        properties = ([sample.subject.properties for sample in mode] for mode in (worse, better))
        common = peer_statistics.shared(*properties)
        text = f"not one population: {self.check.metric} of {len(worse)} nodes is {change} that of {len(better)} others"
        return f"{text} ({'; '.join(common[:3])})" if common else text

    def _of_the_worse(self, sample: PeerSample, modes: Modes, two: str, doubt: str) -> list[Entry]:
        """The entries of a node in the worse of two populations. It fails if that is the minority; else nothing shows
        which population is right, and floors and baselines decide."""
        check, unit = self.check, self.check.unit or ""
        worse, better = modes.worse, modes.better
        middle, usual = _median_of([sample]), Peers(_median_of(better), 0.0, len(better))
        median = f"the median {units.human(usual.median, unit)} of {len(better)} nodes"
        reason = f"{self._figure(middle, usual)} {median}; {two}"
        verdict = "fail" if len(worse) < len(better) else "missing" if len(worse) == len(better) else "warn"
        if not modes.certain:
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
        for sample in filter(self._is_requested, samples):
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
        levels = levels_of(check, samples)
        ranked = sorted(levels.values())
        if sample.subject.name not in levels:
            return []
        best = ranked[len(ranked) // 2] if check.max_below is not None else ranked[(len(ranked) - 1) // 2]
        peers, own_level = Peers(best, 0.0, len(ranked)), levels[sample.subject.name]
        if not peers.is_beyond(own_level, *check.sides, 0.0):
            return self._beside_the_measured(sample)
        reason = (
            f"the better of {len(ranked)} nodes: measure again, or set a floor or a baseline; a verdict needs "
            f"{check.min_peers + 1} nodes"
        )
        return self._warn_of_node(sample, peers, own_level, reason)

    def _beside_the_measured(self, sample: PeerSample) -> list[Entry]:
        """Entries of the whole node beside the least figure of healthy nodes of its SKU: a whole batch may be slow."""
        check = self.check
        usual = sample.subject.measured.get((check.metric, sample.revision))
        if usual is None and sample.revision > 1:
            return self._beside_the_measured(sample.of_first_revision(check))
        if usual is None or check.relative_to or not sample.figures:
            return []
        worse, peers = (check.max_below, None if check.max_below is not None else check.max_above), Peers(usual, 0.0, 1)
        middle = _median_of([sample])
        if not peers.is_beyond(middle, *worse, 0.0):
            return []
        reason = (
            f"the {units.human(usual, check.unit or '')} that healthy nodes of its SKU made: compare with other "
            "machines of the SKU, or set a floor or a baseline"
        )
        return self._warn_of_node(sample, peers, middle, reason)

    def _warn_of_node(self, sample: PeerSample, peers: Peers, compared: float, reason: str) -> list[Entry]:
        """The warning about a whole node that is far from the median of ``peers``, which is ``reason`` in words."""
        middle = _median_of([sample])
        text = f"{self._figure(middle, peers, compared)} {reason}"
        return self._warnings([PartResult("node", False, middle, self.check.unit or "", text)])

    def _warnings(self, doubtful: Sequence[PartResult]) -> list[Entry]:
        """Entries that name doubtful parts but decide nothing."""
        entries = entries_of(self.check, doubtful) if doubtful else []
        return [{**entry, "verdict": "warn", "severity": "advisory"} for entry in entries]

    def _entries(self, sample: PeerSample, group: PeerGroup | None, doubt: str = "") -> list[Entry]:
        results = list(sample.settled)
        doubtful: list[PartResult] = []
        if group is not None:
            now, doubtful = self._beside(sample, group)
            judge_earlier = functools.partial(self._earlier_results, sample, group)
            compared = [*earlier_failures(self.check, sample.record, judge_earlier), *now]
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
        near: list[PartResult] = []
        is_excused = False
        # Whether this check shows the whole node behind, and in which stages: chance does not recur in another one.
        by_stage = self.context.behind.get(sample.subject.name, {})
        stages = sorted(by_stage) if group.normal and check.name in by_stage.get(check.stage, ()) else ()
        before = sample.measured_before(check)
        then = {part: ratio for part, _, ratio in before.compared(check)}
        # Is the whole node far enough off to be measured again: now, and in the measurement before?
        levels = (group.level_of(check, one) for one in (sample, before))
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
                is_once = measured and abs(then[part] - ratio) > margin and not is_beyond(then[part], distance=margin)
                failed.append(PartResult(part, None if is_once else False, value, unit, f"{reason()}{measured}"))
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
            if was_far and is_beyond(ratio, distance=margin):
                once, twice = (margin + self._two_errors(sample, group, peers, count) for count in (1, 2))
                is_repeated = abs(ratio - then[part]) <= twice  # else the first decides the mean
                level, error = ((ratio + then[part]) / 2, twice) if is_repeated else (ratio, once)
                if is_beyond(level, distance=error):
                    failed.append(PartResult(part, False, value, unit, f"{reason()}{measured}"))
                    continue
            is_far = is_beyond(ratio, distance=now)
            is_usual = was_far and not is_far and self._is_usual_change(sample, then[part], ratio)
            is_excused |= is_usual
            if is_far or (was_far and not is_usual):
                needed = units.number_text(100 * group.limit(check, peers) / middle)
                doubt = f": so far off that chance is not excluded (a verdict needs {needed} %); measure again"
                doubtful.append(PartResult(part, False, value, unit, f"{reason()}{measured}{doubt}"))
            near.append(PartResult(part, True, value, unit, reason, -peers.badness(ratio, *check.sides)))
        is_doubtful = is_excused or doubtful or any(one.passed is False or one.part in then for one in failed)
        if check.required and check.retry and is_doubtful:
            self.context.doubtful[sample.subject.name].add(check.stage)
        failed, doubtful = (self._whole_node(sample, found, behind=bool(stages)) for found in (failed, doubtful))
        return [*failed, *sorted(near, key=lambda one: one.margin)[:1]], doubtful

    def _is_usual_change(self, sample: PeerSample, before: float, now: float) -> bool:
        """Whether two measurements of healthy nodes differed as much as these two figures do."""
        levels, name = self.context.tails[sample.subject.kind][0], sample.subject.name
        metric = self.check.metric
        usual = levels.healthy_changes(name, metric)[0] * levels.deviations[name].get(metric, 0.0)
        return before > 0 < now and abs(math.log(now / before)) <= usual

    def _two_errors(self, sample: PeerSample, group: PeerGroup, peers: Peers, count: int) -> float:
        """Two standard errors of the distance between the mean of ``count`` measurements and the peers' median."""
        levels, middle = self.context.tails[sample.subject.kind][0], abs(peers.median)
        deviation = levels.deviations[sample.subject.name].get(self.check.metric, peers.deviation / middle)
        of_mean = max(group.repeats, levels.error() * deviation) / math.sqrt(count)
        return 2 * middle * math.hypot(of_mean, peer_statistics.MEDIAN_ERROR * deviation / math.sqrt(group.nodes))

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

    def _earlier_results(self, sample: PeerSample, group: PeerGroup, attempt: Record) -> list[PartResult]:
        """Results of an earlier attempt."""
        then = sample.of_attempt(self.check, attempt)
        return [*then.settled, *self._beside(then, group)[0]]

    def _reason(self, value: float, ratio: float, group: PeerGroup, peers: Peers) -> str:
        check, figure = self.check, self._figure(value, peers, ratio)
        earlier = ", judged before" if group.earlier else ""
        if check.relative_to:
            text = f"{figure} its neighbours, beside {peers.count} good parts of {group.nodes} nodes"
        else:
            text = f"{figure} the median {units.human(peers.median, check.unit or '')} of {group.nodes} nodes"
        return f"{text} ({group.kind}{earlier}; spread {_spread(peers)})"

    def _figure(self, value: float, peers: Peers, compared: float | None = None) -> str:
        """A figure beside its peers, as text. ``compared``: the value to compare, if not the figure."""
        change = deviation_text(peers.change(value if compared is None else compared))
        return f"{self.check.metric} {units.human(value, self.check.unit or '')}, {change}"

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
            of_nodes = {} if check.relative_to else levels_of(check, samples)
            for name in _behind(check, samples, of_nodes, context.history.larger(check, key, len(samples))):
                context.behind[name][check.stage].add(check.name)
            if len(samples) <= check.min_peers:
                continue
            levels, within = context.tails[key[0]]
            if check.relative_to:
                within.add(ratios_within(check, samples), check.margin, check.deviations, check.sign)
            else:
                modes = modes_of(check, samples, of_nodes)
                of_one_mode = levels_of(check, modes.better) if modes else of_nodes
                levels.add(of_one_mode.items(), check.margin, check.deviations, check.sign)
                _survey_nodes(check, samples, of_nodes, levels)

    def compare(self, check: Check, subjects: Sequence[Subject], context: JudgeContext) -> None:
        """Compare nodes in ``context.samples``. Put entries of nodes and fleet, and peer groups, into ``context``."""
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
        comparison = _Comparison(check, context)
        for key in sorted(groups):
            comparison.judge_group(key, groups[key])

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
