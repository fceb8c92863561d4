"""One rank of the fingerprint stage: repeats fixed work and compares the result bits with those of all other ranks."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ..common.ranks import Ranks, leave, run_rank, software_environment
from ..common.result import WorkloadFailure, WorkloadResult
from .group import fingerprint_group
from .judge import Judgement, Section, Trace, judge
from .sections import LIMITS, SECTIONS, FingerprintWork, Recorder, sha256
from .sizes import MIN_REPEATS, parse_arguments, sizes_for

MAX_TRACES = 8
"""Number of different results of one rank that are kept; a rank with more is wrong in any case."""
PROGRESS_SECONDS = 5.0
FINDINGS_SHOWN = 4
REMEDY = (
    "Wrong arithmetic without an error is silent data corruption: take the part out, look for XID and ECC errors and "
    "row remaps, and replace it; where it is unknown which part is wrong, run again beside a third"
)


def main(ranks: Ranks, result: WorkloadResult) -> None:
    config = parse_arguments(sys.argv[1:])
    if config.inject_bit_flip and config.inject_bit_flip.part >= ranks.world_size:
        raise WorkloadFailure(f"--inject-bit-flip names part {config.inject_bit_flip.part} of {ranks.world_size}")
    make_deterministic(ranks)
    result.environment.update(software_environment(ranks))
    groups = ranks.gather(fingerprint_group(ranks.device))
    if len(set(groups)) > 1:
        lines = "; ".join(f"{ranks.scope_of(rank)}: {group}" for rank, group in enumerate(groups))
        raise WorkloadFailure(f"the parts of the node are not alike, so their results cannot be compared: {lines}")
    result.environment["fingerprint_group"] = groups[0]
    repeats = Repeats(config, ranks).run()
    everyone = ranks.gather(repeats)
    judgements = {}
    for name in SECTIONS:
        section = Section(name, repeats.labels[name], repeats.known[name], LIMITS)
        judgements[name] = judge(section, [rank_repeats.traces[name] for rank_repeats in everyone])
    if ranks.is_first:
        report(ranks, result, repeats, everyone, judgements)


def make_deterministic(ranks: Ranks) -> None:
    """Restrict PyTorch to deterministic algorithms; operations without one raise an error."""
    torch.use_deterministic_algorithms(True)
    # The work reads no uninitialised memory, and filling it costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # missing in its stubs
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    # Use attention by matrix products: fused kernels add in any order in the backward pass.
    for fused in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{fused}_sdp", bool)(False)
    torch.backends.cuda.enable_math_sdp(True)
    if not ranks.accelerator.is_gpu:
        torch.set_num_threads(1)  # the number of threads splits sums


@dataclass
class Repeats:
    """One rank's repeats of the work, and its different results by section, with labels and known digests."""

    config: argparse.Namespace
    ranks: Ranks
    count: int = 0
    seconds: float = 0.0
    traces: dict[str, list[Trace]] = field(default_factory=lambda: {name: [] for name in SECTIONS})
    labels: dict[str, list[str]] = field(default_factory=dict)
    known: dict[str, dict[int, int]] = field(default_factory=dict)

    def run(self) -> Repeats:
        """Repeat all sections for the configured time, at least twice."""
        ranks, flip = self.ranks, self.config.inject_bit_flip
        work = FingerprintWork(ranks.device, sizes_for(ranks.accelerator.kind))
        recorder = Recorder(ranks.device)
        started = spoken = time.monotonic()
        ranks.say(f"the same work on {ranks.world_size} x {ranks.accelerator.kind}, again and again")
        while self.count < MIN_REPEATS or time.monotonic() - started < self.config.seconds:
            self.count += 1
            is_flipped = flip is not None and flip.hits(ranks.rank, self.count)
            for name in SECTIONS:
                recorder.start()
                work.run(name, recorder, is_flipped, ranks.tick)
                self._keep(name, recorder, work)
                ranks.tick()
            if time.monotonic() - spoken >= PROGRESS_SECONDS:
                spoken = time.monotonic()
                changed = ", ".join(name for name, traces in self.traces.items() if len(traces) > 1)
                steadiness = f"does not agree with itself in {changed}" if changed else "agrees with itself"
                ranks.say(f"{self.count} repeats after {spoken - started:.0f} s, {ranks.scope} {steadiness}")
        self.seconds = time.monotonic() - started
        return self

    def _keep(self, name: str, recorder: Recorder, work: FingerprintWork) -> None:
        """Count the result of the section ``name``; a new result is also compared with the host's in float64."""
        digests = recorder.digests()
        traces = self.traces[name]
        for index, trace in enumerate(traces):
            if trace.digests == digests:
                traces[index] = Trace(digests, trace.repeats + 1, trace.errors)
                return
        self.labels[name], self.known[name] = recorder.labels, recorder.known
        if len(traces) < MAX_TRACES:
            traces.append(Trace(digests, 1, work.errors(name)))
        else:
            traces[-1] = Trace(traces[-1].digests, traces[-1].repeats + 1, traces[-1].errors)

    def __getstate__(self) -> dict:
        """Return the fields to send to the other ranks: the results alone."""
        return {"count": self.count, "seconds": self.seconds, "traces": self.traces}


def report(
    ranks: Ranks,
    result: WorkloadResult,
    repeats: Repeats,
    everyone: Sequence[Repeats],
    judgements: Mapping[str, Judgement],
) -> None:
    """Add figures, fingerprints and the names of wrong GPUs to rank 0's result. ``judgements``: by section."""
    add = result.add_metric
    add("fingerprint_processes_count", ranks.world_size, "count")
    findings = [finding for judgement in judgements.values() for finding in judgement.findings]
    for part, rank_repeats in enumerate(everyone):
        scope = ranks.scope_of(part)
        add("fingerprint_repeats_count", rank_repeats.count, "count", scope)
        add("fingerprint_repeat_seconds", rank_repeats.seconds / rank_repeats.count, "seconds", scope)
        count = sum(finding.count for finding in findings if finding.part == part)
        add("fingerprint_mismatch_count", count, "count", scope)
        for name, error in worst_errors(rank_repeats).items():
            add(f"fingerprint_{name}_error_ratio", error, "ratio", scope)
    for name, judgement in judgements.items():
        if judgement.right is not None:
            result.fingerprints[f"fingerprint_{name}_sha256"] = sha256(repeats.labels[name], judgement.right)
    if not findings:
        training = judgements["training"].right
        result.message = (
            f"{ranks.world_size} x {ranks.accelerator.kind}, {repeats.count} repeats: all agree bit for bit, training "
            f"{sha256(repeats.labels['training'], training or ())[:12]}; "
            f"loss off from float64 by {worst_errors(repeats)['training_fp32_loss']:.1g}"
        )
        return
    uuids = {device["index"]: device["uuid"] for device in result.environment["devices"]}
    lines = [
        f"{ranks.scope_of(f.part)}{f' ({uuids[f.part]})' if uuids.get(f.part) else ''}: {f.text}" for f in findings
    ]
    more = f"; {len(lines) - FINDINGS_SHOWN} more" if len(lines) > FINDINGS_SHOWN else ""
    result.state = "failure"
    result.message = f"{'. '.join(lines[:FINDINGS_SHOWN])}{more}. {REMEDY}"


def worst_errors(repeats: Repeats) -> dict[str, float]:
    """Return ``{error: greatest value}`` of a rank's relative errors against float64; NaN stays NaN."""
    worst: dict[str, float] = {}
    for trace in (trace for traces in repeats.traces.values() for trace in traces):
        for name, error in trace.errors.items():
            worst[name] = error if name not in worst or not error <= worst[name] else worst[name]
    return worst


if __name__ == "__main__":
    leave(run_rank(main))
