"""One failure for one cause: what all parts of a node share is the node's, and a part that waits is fine. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .check import Check
from .entries import Entry
from .subject import Subject

#: Figures of a stage in which all GPUs wait for the slowest, and those that show which it is.
WAITING: Mapping[str, Collection[str]] = {
    "training_model_tflops": frozenset({"training_compute_p50_seconds", "training_compute_ratio"}),
}


def of_the_node(check: Check, subject: Subject, entries: list[Entry]) -> list[Entry]:
    """The entries of a check; where every GPU of several fails it alike, one that names the node."""
    far = [one for one in entries if one["verdict"] in ("fail", "warn") and one["part"].startswith("gpu:")]
    if check.scope != "gpu" or len(far) < 2 or len({one["part"] for one in far}) != subject.gpus:
        return entries
    if len(far) < len(entries):  # something is missing too
        return entries
    return [{**far[0], "part": "node", "reason": f"all {len(far)} GPUs, {far[0]['part']}: {far[0]['reason']}"}]


def name_the_cause(checks: Sequence[Entry]) -> list[Entry]:
    """The checks of a node; where one GPU holds up the others, what fails for waiting is a warning that names it."""
    kept: list[Entry] = []
    for entry in checks:
        cause = _cause(entry, checks) if entry["verdict"] in ("fail", "warn") else None
        if cause is None:
            kept.append(entry)
        elif not any(one["name"] == entry["name"] and one["verdict"] == "warn" for one in kept):
            reason = f"all GPUs wait for {cause['part']} ({cause['name']}); {entry['reason']}"
            kept.append({**entry, "verdict": "warn", "severity": "advisory", "part": "node", "reason": reason})
    return kept


def _cause(entry: Entry, checks: Sequence[Entry]) -> Entry | None:
    """The failed check of a single GPU that explains this entry."""
    shows = WAITING.get(entry["metric"] or "", ())
    found = (one for one in checks if one["metric"] in shows and one["stage"] == entry["stage"])
    return next((one for one in found if one["verdict"] == "fail" and one["part"] != "node"), None)
