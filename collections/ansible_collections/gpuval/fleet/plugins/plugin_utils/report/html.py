"""report.html: one file that opens anywhere, offline. Verdict, nodes that are not accepted, checks, figures and
versions are in the HTML itself; a script draws from embedded JSON what needs drawing.

Nothing in it is trusted: jinja2 escapes every text, JSON cannot end its script element, and the page's own policy lets
the browser run and load nothing but what is known here by its SHA-256.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from ..core import units
from ..core.escape import NODE_NAME, clean_text, one_line
from .page import checks, curves, environment, figures, findings
from .page.encode import Shared, script_json
from .place import RESULTS, Place
from .summary import node_line

ASSETS = Path(__file__).parent / "page" / "assets"
SCRIPTS = ("uplot/uPlot.iife.min.js", "report.js")
STYLES = ("uplot/uPlot.min.css", "report.css")

MAX_WARNINGS = 200
MAX_PROBLEMS = 100
MAX_COVERAGE = 4000
MAX_GPUS = 16
MAX_MEMBERS, MAX_LEFT_OUT, MAX_SENTENCES = 16, 40, 60
#: Only such names become links: they are the run's own and stay within the results.
_VERDICT_WORDS = {
    "PASS": "Every expected node passed.",
    "PARTIAL": "All that was asked for passed; the run was narrowed, so it is no acceptance.",
    "FAIL": "At least one node failed a required check.",
    "INCOMPLETE": "Required evidence is missing, so there is no acceptance.",
}


def html_report(report: Mapping[str, Any], directory: Path | None = None, evidence: Place = RESULTS) -> str:
    """The page. From ``directory``, the run's results, come curves, versions and the links to files that are there.

    ``evidence`` gives the paths of those files as the page's reader has them.
    """
    with html_page(report, directory, evidence) as page:
        return page()


@contextmanager
def html_page(
    report: Mapping[str, Any], directory: Path | None = None, evidence: Place = RESULTS
) -> Iterator[Callable[[], str]]:
    """Begin the page, as ``html_report`` has it; the function that it gives makes the text. Between them other
    processes read the curves of a fleet.
    """
    files = _files(directory)
    with curves.reading(report, directory or Path(), files) as read:
        yield lambda: _rendered(report, directory, evidence, files, read)


def _rendered(
    report: Mapping[str, Any],
    directory: Path | None,
    evidence: Place,
    files: Mapping[str, frozenset[str]],
    read_curves: Callable[[], list[list[list[Any]]]],
) -> str:
    linked = evidence.linked(files)
    texts = Shared()
    tabled = checks.table(report)
    spread = figures.figures_of(report)
    data = {
        "nodes": _nodes(report, tabled, texts, linked),
        "place": evidence.path,
        **checks.as_data(report, tabled, texts),
        "figures": figures.as_data(spread.figures, len(report["nodes"])),
        "curves": curves.with_texts(read_curves(), texts),
    }
    data["texts"] = texts.all()
    scripts, styles = [_asset(name) for name in SCRIPTS], [_asset(name) for name in STYLES]
    return _template().render(
        policy=_policy(scripts, styles),
        scripts=scripts,
        styles=styles,
        data=script_json(data),
        run=report["run"],
        verdict=report["verdict"],
        verdict_words=_VERDICT_WORDS[report["verdict"]],
        counts=report["counts"],
        times=_times(report),
        remarks=_remarks(report),
        causes=checks.causes(report),
        bad_nodes=list(checks.not_accepted(report, linked, evidence)),
        columns=tabled.columns,
        between=report["fleet"]["checks"],
        gangs=_gangs(report),
        figures=[_figure_row(report, number, one) for number, one in enumerate(spread.figures)],
        spread=spread,
        analysis=findings.shown(report),
        stages=_stages(report),
        properties=environment.of_fleet(report, directory),
        warnings=_warnings(report),
        problems=report["fleet"]["problems"][:MAX_PROBLEMS],
        problem_count=len(report["fleet"]["problems"]),
        coverage={
            name: one_line(", ".join(names), MAX_COVERAGE)
            for name, names in report["fleet"].get("coverage", {}).items()
            if names
        },
        node_names=[node["name"] for node in report["nodes"]],
    )


@functools.cache
def _template() -> jinja2.Template:
    environment_of_page = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean_text(value) if type(value) is str else value,
    )
    environment_of_page.filters["breakable"] = _breakable
    environment_of_page.filters["anchor"] = lambda name: "#node=" + quote(one_line(name, 253), safe="")
    environment_of_page.filters["duration"] = lambda value: units.duration(value) if value is not None else ""
    return environment_of_page.get_template("report.html.j2")


def _breakable(name: str) -> Markup:
    """The name of a metric or a check, which may break after its words."""
    return Markup("_<wbr>").join(clean_text(name).split("_"))  # join escapes the parts


@functools.cache
def _asset(name: str) -> str:
    """A script or style of our own; it is put into the page as it is."""
    text = (ASSETS / name).read_text(encoding="utf-8").strip()
    if re.search(r"</(script|style)|<!--", text, re.IGNORECASE):
        raise ValueError(f"{name} would end the element that it stands in")
    return text


def _policy(scripts: list[str], styles: list[str]) -> str:
    """What the page may do: run and apply what is in it from the start, load nothing, send nothing."""

    def hashes(texts: list[str]) -> str:
        digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes(scripts)}; style-src {hashes(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _files(directory: Path | None) -> dict[str, frozenset[str]]:
    """Which files of evidence lie in the results, by node."""
    if directory is None or not (directory / "nodes").is_dir():
        return {}
    with os.scandir(directory / "nodes") as entries:
        names = [entry.name for entry in entries if entry.is_dir() and NODE_NAME.fullmatch(entry.name)]
    return {name: frozenset(path.name for path in (directory / "nodes" / name).iterdir()) for name in names}


def _nodes(
    report: Mapping[str, Any], tabled: checks.Table, texts: Shared, files: Mapping[str, frozenset[str]]
) -> list[dict[str, Any]]:
    origin = _origin(report)
    return [
        {
            "n": one_line(node["name"], 253),
            "i": one_line(node["id"], 120) if node["id"] and node["id"] != node["name"] else "",
            "v": node["verdict"],
            "c": texts.number(node.get("class") or ""),
            "f": node["flaky"],
            "k": texts.number(node.get("catalogue_sku") or node["accelerator"]),
            "d": texts.number(node["sku"]),
            "b": [texts.number(f"{one_line(name, 64)} {one_line(value, 120)}")
                  for name, value in node.get("labels", {}).items()],
            "l": letters,
            "s": [_stage(stage, origin, texts, files.get(node["name"], frozenset())) for stage in node["stages"]],
            "g": [
                [gpu["index"], *(texts.number(gpu.get(key, "")) for key in ("model", "serial", "pci"))]
                for gpu in node["identity"].get("gpus", [])[:MAX_GPUS]
            ],
            "m": [node["identity"].get("machine_id") or "", node["identity"].get("serial") or ""],
        }
        for node, letters in zip(report["nodes"], tabled.letters, strict=True)
    ]  # fmt: skip


def _origin(report: Mapping[str, Any]) -> float | None:
    starts = (curves.seconds(stage["started_at"]) for node in report["nodes"] for stage in node["stages"])
    return min((start for start in starts if start is not None), default=None)


def _stage(stage: Mapping[str, Any], origin: float | None, texts: Shared, there: frozenset[str]) -> list[Any]:
    """[name, state, seconds from the run's first stage, seconds, attempt, message, files: 1 log, 2 record]."""
    start = curves.seconds(stage["started_at"])
    begun = round(start - origin, 1) if start is not None and origin is not None else None
    lasted = round(stage["duration_seconds"], 2) if stage["duration_seconds"] is not None else None
    files = (f"{stage['name']}.log" in there) + 2 * (f"{stage['name']}.json" in there)
    message = texts.number(one_line(stage["message"], 200))
    return [texts.number(stage["name"]), stage["state"], begun, lasted, stage["attempt"], message, files]


def _times(report: Mapping[str, Any]) -> dict[str, Any]:
    run = report["run"]
    begin, end = curves.seconds(run["created_at"]), curves.seconds(run["finished_at"])
    return {"wall": end - begin if begin is not None and end is not None and end >= begin else None}


def _remarks(report: Mapping[str, Any]) -> list[str]:
    """The lines of the console's block that tell of no node by itself: those have a place of their own here."""
    of_nodes = {one_line(node_line(node), 700) for node in report["nodes"] if node["verdict"] != "PASS"}
    return [line for line in report["summary"][1:] if line not in of_nodes and not line.startswith("... and ")]


def _gangs(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Who worked together, who was left out, what a search found; None for a run without gangs."""
    gangs = report["fleet"].get("gangs")
    if not gangs:
        return None
    left_out, alone, searched = gangs["left_out"], gangs["alone"]["names"], []
    for one in gangs["findings"]:
        counts = ", ".join(f"{count} {word}" for word, count in one["counts"].items() if count)
        shown = one["sentences"][:MAX_SENTENCES]
        more = one["sentences_left_out"] + len(one["sentences"]) - len(shown)
        searched.append({**one, "counts": counts, "sentences": shown, "more": more})
    return {
        "formed": [
            {"name": one["gang"], "count": len(one["names"]), "names": one["names"][:MAX_MEMBERS],
             "more": max(0, len(one["names"]) - MAX_MEMBERS)}
            for one in gangs["formed"]
        ],
        "left_out": left_out[:MAX_LEFT_OUT],
        "left_out_more": max(0, len(left_out) - MAX_LEFT_OUT),
        "alone": {"names": alone[:MAX_MEMBERS], "more": max(0, len(alone) - MAX_MEMBERS)},
        "rounds": len(gangs["rounds"]) + gangs["rounds_left_out"],
        "ended": gangs["ended_at"] is not None,
        "searched": searched,
    }  # fmt: skip


def _figure_row(report: Mapping[str, Any], number: int, one: figures.Figure) -> dict[str, Any]:
    names, spread = [node["name"] for node in report["nodes"]], one.spread
    outliers = []
    for value, (node, scope) in one.outliers:
        part, change = "" if scope == "node" else f" {scope}", spread.change(value)
        text = one.human(value) + (f", {change:+.1%}" if change is not None else "")
        outliers.append({"name": names[node], "part": part, "text": text, "x": round(one.share(value) * 200, 1)})
    top = max(one.bins())
    bars = [(index, round(26 * count / top, 1) or 0.6) for index, count in enumerate(one.bins()) if count]
    wide = 200 / figures.BINS
    path = "".join(f"M{round(index * wide, 1)} 28v-{height}h{wide - 0.6:.1f}v{height}z" for index, height in bars)
    return {
        "number": number,
        "stage": one.key.stage,
        "metric": one.metric,
        "scope": one.key.scope,
        "sku": one.key.kind,
        "judged": one.judged,
        "count": spread.count,
        "median": one.human(spread.median),
        "mean": one.human(spread.mean),
        "p05": one.human(spread.p05),
        "p95": one.human(spread.p95),
        "low": one.human(spread.low),
        "high": one.human(spread.high),
        "variation": findings.percent(spread.variation),
        "median_x": round(one.share(spread.median) * 200, 1),
        "path": path,
        "outliers": outliers,
        "outlier_count": len(spread.outliers),
    }


def _stages(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How each stage ended, and how long it took."""
    states: dict[str, Counter[str]] = {}
    lasted: dict[str, list[tuple[float, str]]] = {}
    flaky: Counter[str] = Counter()
    for node in report["nodes"]:
        for stage in node["stages"]:
            states.setdefault(stage["name"], Counter())[stage["state"]] += 1
            flaky[stage["name"]] += stage["flaky"]
            if stage["duration_seconds"] is not None:
                lasted.setdefault(stage["name"], []).append((stage["duration_seconds"], node["name"]))
    rows = []
    for name, counted in states.items():
        times = sorted(lasted.get(name, []))
        rows.append(
            {
                "name": name,
                "states": ", ".join(f"{count} {state}" for state, count in counted.most_common()),
                "flaky": flaky[name],
                "median": times[len(times) // 2][0] if times else None,
                "least": times[0][0] if times else None,
                "most": times[-1][0] if times else None,
                "slowest": times[-1][1] if times else "",
            }
        )
    return rows


def _warnings(report: Mapping[str, Any]) -> dict[str, Any]:
    """Advice, grouped by check: a remark that every node gets is one line."""
    grouped: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for node in report["nodes"]:
        for check in node["checks"]:
            if checks.letter(check) in "wm":
                grouped.setdefault((check["stage"], check["name"]), []).append((node["name"], check["reason"]))
    rows = []
    for (stage, name), entries in list(grouped.items())[:MAX_WARNINGS]:
        names = list(dict.fromkeys(node for node, _ in entries))
        rows.append({"stage": stage, "name": name, "count": len(names), "names": names[:8],
                     "more": max(0, len(names) - 8), "reason": one_line(entries[0][1], 300)})  # fmt: skip
    return {"rows": rows, "left_out": max(0, len(grouped) - MAX_WARNINGS)}
