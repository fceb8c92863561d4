"""report.md: first the verdict, then the nodes that need attention, then all measured figures."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..core import units
from ..core.escape import markdown as escaped
from ..core.stage_traits import traits_of
from ..judge.analysis import fleet
from ..judge.entries import headline
from ..records import brief
from ..records.digests import STORE_ONLY
from . import not_tested, template
from .page.causes import failures, warned_parts
from .page.figures import judged_figures
from .page.results import RESULTS, EvidencePlace
from .problems import action_text
from .summary import decisive, node_metrics, places, reasons, verdict_title

#: Maximum rows of the table of GPUs, enough for a hundred nodes of eight GPUs.
MAX_GPUS = 1024
VERDICTS = ("pass", "fail", "warn", "missing", "skipped")
#: Maximum bytes of a job summary: GitHub refuses more than 1 MiB.
MAX_JOB_SUMMARY = 200_000


def markdown_report(report: Mapping[str, Any], evidence: EvidencePlace = RESULTS) -> str:
    """The text of report.md. Text from nodes is escaped. ``evidence``: where its readers find the evidence files."""
    nodes, of_fleet = report["nodes"], report["fleet"]
    analysis = of_fleet.get("analysis")
    judged = judged_figures(report) if analysis else set()
    return template.load("report.md.j2", escaped).render(
        report=report,
        title=verdict_title(report),
        MAX_GPUS=MAX_GPUS,
        gpus=[(node["name"], gpu) for node in nodes for gpu in node["identity"].get("gpus", [])],
        failures=failures([node for node in nodes if node["verdict"] != "PASS"]),
        between=sorted(of_fleet["checks"], key=lambda check: check["verdict"] == "pass"),
        groups=fleet.by_group(analysis) if analysis else [],
        statistics=[
            figure
            for figure in (analysis["statistics"] if analysis else ())
            if (figure["stage"], figure["metric"]) in judged and figure["min"] != figure["max"]
        ],
        stages=list(dict.fromkeys(stage["name"] for node in nodes for stage in node["stages"])),
        figures=[line for node in nodes for line in figure_lines(node)],
        warned=warned_parts(report),
        losses=not_tested.losses(report),
        evidence_files=lambda node: _evidence_files(node, evidence),
        reasons=reasons,
        action_text=action_text,
        headline=headline,
        decisive=decisive,
        places=places,
        hardware=_hardware,
        counted=_verdict_counts,
        stage_cell=_stage_cell,
    )


def job_summary(report: Mapping[str, Any]) -> str:
    """The job summary for GitHub Actions: the verdict, and the nodes that are not accepted."""
    text = markdown_report(report).partition("\n## Nodes\n")[0].rstrip()
    cut = text.encode()[:MAX_JOB_SUMMARY].decode(errors="ignore")
    return f"{text}\n\n" if cut == text else f"{cut.rpartition(chr(10))[0]}\n\nand more: see report.html\n\n"


def _evidence_files(node: Mapping[str, Any], evidence: EvidencePlace) -> str:
    kinds = " and ".join(f".{kind}" for kind in reversed(evidence.kinds))
    stages = [stage["name"] for stage in node["stages"] if stage["state"] not in ("missing", "pending")]
    return ", ".join(f"{evidence.of(node['name'], stage)}{kinds}" for stage in stages)


def _verdict_counts(node: Mapping[str, Any]) -> str:
    counts = Counter(check["verdict"] for check in node["checks"])
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def _hardware(node: Mapping[str, Any]) -> str:
    gpus = node["identity"].get("gpus", [])
    models = sorted({gpu.get("model", "GPU") for gpu in gpus})
    serial = node["identity"].get("serial", "")
    parts = [f"{len(gpus)} x {', '.join(models)}" if gpus else "", f"serial {serial}" if serial else ""]
    return ", ".join(filter(None, parts))


def _stage_cell(node: Mapping[str, Any], name: str) -> str:
    for stage in node["stages"]:
        if stage["name"] == name:
            seconds, attempt = stage["duration_seconds"], stage["attempt"] or 1
            duration = f" {units.duration(seconds)}" if seconds is not None else ""
            unconfirmed = f", {STORE_ONLY}" if stage.get("confirmed_by") == STORE_ONLY else ""
            return stage["state"] + duration + (f", attempt {attempt}" if attempt > 1 else "") + unconfirmed
    return ""


def figure_lines(node: Mapping[str, Any]) -> list[str]:
    """A line of text for each stage of a node: its main figures, then further figures of the table of nodes."""
    lines = []
    for stage in (stage["name"] for stage in node["stages"]):
        metrics = node_metrics(node, stage)
        shown = [figure for figure in traits_of(stage).figures if figure.metric in metrics]
        if any(figure.line for figure in shown):
            figures = {name: metric["value"] for name, metric in metrics.items()}
            line = brief.stage_line(node["name"], stage, figures, None)
            speeds = [metrics[figure.metric] for figure in shown if figure.in_table and not figure.line]
            lines.append(", ".join([line, *(units.human(metric["value"], metric["unit"]) for metric in speeds)]))
    return lines
