"""Decides which parts (GPUs, or ranks on a CPU) compute wrongly, by a majority and results that the host knows.

Three kinds of evidence, strongest first. A difference from values that the host knows to the last bit (weights that it
sent, exact products) proves a fault. A part whose repeats differ is wrong. Parts with equal repeats are compared with
the majority; without a majority, as between two, the part with clearly smaller errors against float64 is right, else
all are named.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

CLEARLY = 2.0
"""How many times smaller a GPU's errors against float64 must be to call it right: rounding differs by less."""


@dataclass(frozen=True)
class Trace:
    """Digests of a section's results on one GPU, how many repeats gave exactly these, and errors against float64."""

    digests: tuple[int, ...]
    repeats: int
    errors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """A section of the work: the label of each digest, ``{index: digest that the host knows}``, limits of errors."""

    name: str
    labels: Sequence[str]
    known: Mapping[int, int]
    limits: Mapping[str, float]


@dataclass(frozen=True)
class WrongValues:
    """Wrong values on one GPU (index ``part``): their number in all repeats, and a text on the first."""

    part: int
    count: int
    text: str


@dataclass(frozen=True)
class Judgement:
    """The right digests of a section (None if unknown), and findings on the GPUs that differ."""

    right: tuple[int, ...] | None
    findings: list[WrongValues]


def judge(section: Section, parts: Sequence[Sequence[Trace]]) -> Judgement:
    """Return the right digests of a section and findings on wrong GPUs. ``parts``: the different traces of each GPU."""
    right = _right(section, parts)
    findings = []
    for part, traces in enumerate(parts):
        # Without a majority a part is compared with the first other part that differs, or with its own repeats.
        others = (trace.digests for index, other in enumerate(parts) if index != part for trace in other)
        rival = right or next((digests for digests in others if digests != traces[0].digests), traces[0].digests)
        finding = _examine(section, part, traces, rival, is_decided=right is not None)
        if finding:
            findings.append(finding)
    return Judgement(right, findings)


def offences(section: Section, trace: Trace) -> list[str]:
    """Return the names of a trace's errors against float64 that rounding does not explain, NaN included."""
    return [name for name, error in trace.errors.items() if not error <= section.limits[name]]


def unknown_bits(section: Section, trace: Trace) -> list[int]:
    """Return the indices of a trace's digests that differ from those that the host knows."""
    return [index for index, value in section.known.items() if trace.digests[index] != value]


def _right(section: Section, parts: Sequence[Sequence[Trace]]) -> tuple[int, ...] | None:
    def is_clean(trace: Trace) -> bool:
        return not offences(section, trace) and not unknown_bits(section, trace)

    steady = [traces[0] for traces in parts if len(traces) == 1]
    clean = [trace for trace in steady if is_clean(trace)]
    everything = [trace for traces in parts for trace in traces]
    voters = clean or [trace for trace in everything if is_clean(trace)] or steady
    votes: Counter = Counter()
    for trace in voters:
        votes[trace.digests] += 1 if trace in steady else trace.repeats
    ranked = votes.most_common()
    if not ranked:
        return None
    tied = {digests for digests, count in ranked if count == ranked[0][1]}
    if len(tied) == 1:
        return ranked[0][0]
    return _closest([trace for trace in voters if trace.digests in tied], section.limits)


def _closest(traces: Sequence[Trace], limits: Mapping[str, float]) -> tuple[int, ...] | None:
    """Return the digests of the trace whose errors, relative to the limits, are clearly smallest; None without one."""
    scores: dict[tuple[int, ...], float] = {}
    for trace in traces:
        shares = [math.inf if math.isnan(error) else error / limits[name] for name, error in trace.errors.items()]
        scores[trace.digests] = max(shares, default=0.0)
    (best, low), (_, second), *_ = sorted(scores.items(), key=lambda item: item[1])
    return best if low * CLEARLY < second else None


def _examine(
    section: Section, part: int, traces: Sequence[Trace], rival: tuple[int, ...], is_decided: bool
) -> WrongValues | None:
    repeats = sum(trace.repeats for trace in traces)
    count, bad_repeats, first_wrong, off = 0, 0, None, {}
    for trace in traces:
        wrong = {i for i, (digest, rival_digest) in enumerate(zip(trace.digests, rival)) if digest != rival_digest}
        wrong.update(unknown_bits(section, trace))
        offending = offences(section, trace)
        off.update({name: trace.errors[name] for name in offending})
        if wrong or offending:
            count += (len(wrong) + len(offending)) * trace.repeats
            bad_repeats += trace.repeats
        if wrong and (first_wrong is None or min(wrong) < first_wrong):
            first_wrong = min(wrong)
    if not count:
        return None
    words = []
    if first_wrong is not None:
        against = "what the host knows" if first_wrong in section.known else "the other parts"
        if not is_decided:
            against = "the other parts, and which of them is right is unknown" if len(traces) == 1 else "itself"
        elif len(traces) > 1:
            against = f"{against}, and from its own other repeats"
        words.append(f"first differs at '{section.labels[first_wrong]}' from {against}")
    for name, error in off.items():
        words.append(f"{name} is off from float64 by {error:.2g}, limit {section.limits[name]:g}")
    return WrongValues(part, count, f"{'; '.join(words)}; {count} values in {bad_repeats} of {repeats} repeats")
