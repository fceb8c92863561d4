"""What a run did not test, or would have missed, as one line for the console and as lines for report.html."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..core import units
from ..core.grouping import values_by_key
from ..core.text import some_of


def line(gaps: Sequence[Mapping[str, Any]], node_count: int, max_reasons: int = 4) -> str:
    """What has no evidence, in one line: stages by reason, and the number of figures and parts; empty without gaps."""
    whole_stages = (gap for gap in gaps if gap["what"] == gap["stage"])
    by_reason = values_by_key(((gap["reason"], gap["count"]), gap["stage"]) for gap in whole_stages)
    parts = [
        f"{', '.join(stages)} ({reason}" + (f"; {count} of {node_count} nodes)" if node_count > 1 else ")")
        for (reason, count), stages in list(by_reason.items())[:max_reasons]
    ]
    figures = len({gap["what"] for gap in gaps if gap["what"] != gap["stage"]})
    plural = "s" if figures > 1 else ""
    texts = [f"stages for {len(by_reason) - max_reasons} more reasons"] if len(by_reason) > max_reasons else []
    texts += [f"{figures} figure{plural} or part{plural} of other stages"] if figures else []
    parts += [f"{' and '.join(texts)}: see report.html"] if texts else []
    return "; ".join(parts)


def lines(report: Mapping[str, Any]) -> list[str]:
    """Lines on what a run has no evidence for: nodes that ran nothing, stages by reason, figures, parts and tools."""
    nodes = report["nodes"]
    never = [node["name"] for node in nodes if all(stage["started_at"] is None for stage in node["stages"])]
    texts = [f"{len(never)} of {len(nodes)} nodes ran no stage: {some_of(never, 6)}"] if never else []
    gaps = [gap for gap in report["fleet"].get("not_tested", ()) if not set(gap["names"]) <= set(never)]
    parts = dict.fromkeys(gap["what"] for gap in gaps if gap["what"] != gap["stage"])
    keyed = (((gap["reason"], tuple(gap["names"]), gap["count"]), gap) for gap in gaps if gap["what"] == gap["stage"])
    stages = values_by_key((key, gap["what"]) for key, gap in keyed)
    for (reason, names, count), whats in stages.items():
        where = "" if count == len(nodes) else f" on {some_of(names, 3) if count <= 3 else f'{count} nodes'}"
        texts.append(f"{some_of(whats, 6)}{where}: {reason}")
    return texts + ([f"Figures, parts or tools: {some_of(parts, 4)}"] if parts else [])


def losses(report: Mapping[str, Any]) -> list[str]:
    """Lines about what a run can detect: for each figure and group of nodes the smallest loss of speed of one part, and
    of a whole node, and the duration of bursts beyond its reach."""
    lines = []
    for entry in report["fleet"].get("power", ()):
        part, node = (
            f"{units.number_text(100 * entry[key])} %" if entry.get(key) else "not known" for key in ("part", "node")
        )
        more = [f"whole node {node}"] if "part" in entry else []
        if entry["burst_seconds"]:
            more.append(f"bursts over {units.human(entry['burst_seconds'], 'seconds')} not tested")
        more.append(f"{entry['nodes']} node{'s' if entry['nodes'] > 1 else ''}")
        lines.append(f"{entry['title']} {part if 'part' in entry else node} ({', '.join(more)})")
    return lines
