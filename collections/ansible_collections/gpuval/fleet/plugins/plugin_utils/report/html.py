"""report.html: one file that opens anywhere, offline. Verdict, nodes that are not accepted, checks, figures and
versions are in the HTML itself; a script draws charts from embedded JSON. No text is trusted: jinja2 escapes all, and
JSON cannot end its script element. The content security policy allows only gpuval's scripts and styles, by SHA-256."""

import base64
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from ..core import units
from ..core.escape import clean_text, one_line
from ..core.grouping import values_by_key
from ..judge.analysis.fleet import by_group
from ..judge.entries import headline
from ..records.digests import STORE_ONLY
from ..runs import folder as run_folder
from ..runs import origin
from . import not_tested, template
from .page import causes, checks, compared, curves, figures, next_steps, nodes, results
from .page.encode import SharedValues, script_json, short
from .page.results import RESULTS, EvidencePlace
from .problems import action_text
from .summary import MAX_LINE, bad_nodes, decisive, node_lines, places, rack_lines, reasons

ASSETS = Path(__file__).parent / "page" / "assets"
SCRIPTS = ("uplot/uPlot.iife.min.js", "report.js")
STYLES = ("uplot/uPlot.min.css", "report.css")
MAX_GPUS = 16
#: Number of cards of rejected nodes that the page shows unfolded.
MAX_SHOWN_FAILURES = 24
_VERDICT_WORDS = {
    "PASS": "Every expected node passed.",
    "PARTIAL": "All that was asked for passed; the run was narrowed, or proves less than an acceptance needs.",
    "FAIL": "At least one node failed a required check.",
    "RACK": "No node failed, but at least one NVLink rack failed a required check.",
    "INCOMPLETE": "Required evidence is missing, so there is no acceptance.",
}


def html_report(report: Mapping[str, Any], directory: Path | None = None, evidence: EvidencePlace = RESULTS) -> str:
    """The text of report.html. ``directory``: the run's results folder, None for a page without curves and links;
    ``evidence``: where readers of the page find the evidence files."""
    with results.reading(report, directory) as read:
        return page_of(report, directory, read, evidence)


def page_of(
    report: Mapping[str, Any], directory: Path | None, read: results.Read, evidence: EvidencePlace = RESULTS
) -> str:
    """The text of report.html. ``read``: names of evidence files by node, and an iterator over the nodes' curves, which
    waits for the processes that read them. ``directory`` and ``evidence`` mean the same as in `html_report`."""
    files, drawings = read
    linked = evidence.linked(files)
    # the page of a delivery leaves the site: it has no commands for the controller, and nothing about other runs
    folder = directory if evidence is RESULTS else None
    comparison, node_table = compared.Comparison(report, folder), nodes.NodeTable(report)
    tabled, spread = checks.ChecksTable(report), figures.PlottedFigures(report)
    bad, texts = bad_nodes(report), SharedValues()
    failures = causes.failures(bad)
    begin, end = curves.seconds(report["run"]["created_at"]), curves.seconds(report["run"]["finished_at"])
    lines_of_nodes = {one_line(line, MAX_LINE) for line in (*node_lines(report), *rack_lines(report))}
    inventory = origin.shown(run_folder.RunFolder(folder).inventory) if folder else ""
    data = {
        "nodes": _node_data(report, tabled, texts, linked),
        "place": evidence.path,
        **checks.as_data(report, tabled, texts),
        "figures": figures.as_data(spread.figures, len(report["nodes"])),
        "main": _main_figures(node_table, comparison),
    }
    is_rack = report["verdict"] == "FAIL" and not report["counts"]["FAIL"]
    parts = {
        "report": report,
        "racks": report.get("racks", []),
        "verdict_words": _VERDICT_WORDS["RACK" if is_rack else report["verdict"]],
        "wall_seconds": end - begin if begin is not None and end is not None and end >= begin else None,
        "remarks": [line for line in report["summary"][1:] if line not in lines_of_nodes],
        "steps": next_steps.of_report(report, inventory) if folder else [],
        "not_tested": not_tested.lines(report),
        "losses": not_tested.losses(report),
        "analysis": _analysis_data(report),
        "stages": _stage_rows(report),
        "warnings": causes.warned_parts(report),
        "causes": causes.causes(report),
        "bad_nodes": bad,
        "failures": failures,
        "open_failures": 6 if len(failures) <= 6 else 3,
        "has_models": directory is not None and (directory / "perf.html").is_file(),
        "comparison": comparison,
        "node_table": node_table,
        "evidence_links": lambda node: checks.evidence_links(node, linked, evidence),
        "columns": tabled.columns,
        "spread": spread,
        "properties": nodes.properties_of_fleet(report),
    }
    data["curves"] = [curves.shared(drawn, texts) for drawn in drawings]
    data["texts"] = texts.all()
    scripts, styles = [read_asset(name) for name in SCRIPTS], [read_asset(name) for name in STYLES]
    return template.load("page/assets/report.html.j2", escaped).render(
        **parts, **_WORDING, policy=policy_of(scripts, styles), scripts=scripts, styles=styles, data=script_json(data)
    )


def escaped(text: str, limit: int | None = None) -> str:
    return escape(clean_text(text) if limit is None else one_line(text, limit))


#: Functions and limits that the template of report.html uses.
_WORDING = {
    "MAX_SHOWN_FAILURES": MAX_SHOWN_FAILURES,
    "MAX_REMARKS_OF_A_NODE": checks.MAX_REMARKS_OF_A_NODE,
    "reasons": reasons,
    "action_text": action_text,
    "headline": headline,
    "decisive": decisive,
    "places": places,
    "anchor": lambda name: "#node=" + quote(one_line(name, 253), safe=""),
    # names of metrics and checks may wrap after each underscore; join escapes their words
    "breakable": lambda name: Markup("_<wbr>").join(clean_text(name).split("_")),
    "short": lambda value: short(float(value)),
    "plain": lambda cell: units.human(*cell[:2]).partition(" (")[0],
    "signed": lambda change: "" if change is None else f"{100 * change:+.1f} %",
}


@functools.cache
def read_asset(name: str) -> str:
    """Read a script or style that ships with gpuval; report.html contains it unchanged."""
    text = (ASSETS / name).read_text(encoding="utf-8").strip()
    if re.search(r"</(script|style)|<!--", text, re.IGNORECASE):
        raise ValueError(f"{name} would end the element that it stands in")
    return text


def policy_of(scripts: list[str], styles: list[str]) -> str:
    """Content security policy of report.html: run these ``scripts``, apply these ``styles``, load and send nothing."""

    def hashes(texts: list[str]) -> str:
        digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes(scripts)}; style-src {hashes(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _node_data(
    report: Mapping[str, Any], tabled: checks.ChecksTable, texts: SharedValues, files: results.Files
) -> list[dict[str, Any]]:
    starts = [curves.seconds(stage["started_at"]) for node in report["nodes"] for stage in node["stages"]]
    first = min((start for start in starts if start is not None), default=0.0)
    return [
        {
            "n": one_line(node["name"], 253),
            "i": one_line(node["id"], 120) if node["id"] and node["id"] != node["name"] else "",
            "v": node["verdict"], "c": texts.number(node.get("class") or ""), "f": node["flaky"],
            "k": texts.number(node.get("catalogue_sku") or node["accelerator"]), "d": texts.number(node["sku"]),
            "b": [texts.number(f"{one_line(name, 64)} {one_line(value, 120)}") for name, value in
                  {**node.get("labels", {}), **({"rack": node["rack"]} if "rack" in node else {})}.items()],
            "l": letters,
            "s": [_stage_data(stage, first, texts, files.get(node["name"], frozenset())) for stage in node["stages"]],
            "g": [
                [gpu["index"], *(texts.number(gpu.get(key, "")) for key in ("model", "serial", "uuid", "pci", "slot"))]
                for gpu in node["identity"].get("gpus", [])[:MAX_GPUS]
            ],
            "m": [node["identity"].get("machine_id") or "", node["identity"].get("serial") or ""],
        }
        for node, letters in zip(report["nodes"], tabled.letters, strict=True)
    ]  # fmt: skip


def _stage_data(stage: Mapping[str, Any], first: float, texts: SharedValues, names: frozenset[str]) -> list[Any]:
    """A stage as the page's script reads it: [name, state, start in seconds after ``first``, duration in seconds,
    attempt, message, sum of 1 (log exists), 2 (record exists) and 4 (confirmed by the store only)]."""
    start = curves.seconds(stage["started_at"])
    begun = round(start - first, 1) if start is not None else None
    lasted = round(stage["duration_seconds"], 2) if stage["duration_seconds"] is not None else None
    files = (f"{stage['name']}.log" in names) + 2 * (f"{stage['name']}.json" in names)
    files += 4 * (stage.get("confirmed_by") == STORE_ONLY)
    message = texts.number(one_line(stage["message"], 200))
    return [texts.number(stage["name"]), stage["state"], begun, lasted, stage["attempt"], message, files]


def _main_figures(table: nodes.NodeTable, comparison: compared.Comparison) -> dict[str, Any]:
    """The main figures of each node now, of the fleet and of an earlier run, in lists with a value for each column."""
    baseline = {row.key: row.then for row in comparison.baseline_rows}
    earlier = comparison.earlier.comparable if comparison.earlier else {}
    return {
        "columns": [
            [stage, metric, unit, short(float(median)), short(baseline.get((stage, metric)))]
            for (stage, metric), (median, unit, *_) in zip(table.columns, table.medians, strict=True)
        ],
        "earlier": comparison.earlier.run_id if comparison.earlier else "",
        "baseline": comparison.baseline if baseline else "",
        "now": [[short(cell[0]) if cell else None for cell in row.cells] for row in table.rows],
        "then": {
            number: [short(before.get(key)) for key in table.columns]
            for number, row in enumerate(table.rows)
            if (before := earlier.get(row.node["name"]))
        },
    }


def _analysis_data(report: Mapping[str, Any]) -> dict[str, Any] | None:
    if (analysis := report["fleet"].get("analysis")) is None:
        return None
    judged = figures.judged_figures(report)
    differing = [entry for entry in analysis["statistics"] if entry["min"] != entry["max"]]
    # figures that a check judges come first, then the others, both in the order of stages
    differing.sort(key=lambda entry: (entry["stage"], entry["metric"]) not in judged)
    return {
        "groups": by_group(analysis),
        "compared_by": list(dict.fromkeys(entry["by"] for entry in analysis["groups"])),
        "statistics": differing,
        "same": len(analysis["statistics"]) - len(differing),
        "pairs": analysis["correlations"],
        "counts": analysis["counts"],
    }


def _stage_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries_of_nodes = ((stage, node["name"]) for node in report["nodes"] for stage in node["stages"])
    stages = values_by_key((entry[0]["name"], entry) for entry in entries_of_nodes)
    rows = []
    for name, entries in stages.items():
        states = Counter(stage["state"] for stage, _ in entries)
        durations = ((stage["duration_seconds"], node) for stage, node in entries)
        times = sorted(timed for timed in durations if timed[0] is not None) or [(None, "")]
        row = {
            "name": name,
            "states": ", ".join(f"{count} {state}" for state, count in states.most_common()),
            "flaky": sum(stage["flaky"] for stage, _ in entries),
            "median": times[len(times) // 2][0], "least": times[0][0], "most": times[-1][0], "slowest": times[-1][1],
        }  # fmt: skip
        rows.append(row)
    return rows
