"""report.md: the verdict first, then the nodes that need attention, then everything that was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..core import units
from ..core.escape import markdown as escaped
from ..judge.analysis import fleet
from ..judge.verdict import headline
from .page.figures import judged_figures
from .page.findings import places
from .place import RESULTS, Place
from .summary import metric_value, part_text

MAX_CHECKS_SHOWN = 40
MAX_FINDINGS = 40
MAX_FIGURES_OF_A_GROUP = 5
MAX_PAIRS = 10
MAX_STATISTICS = 40
MAX_MEMBERS, MAX_LEFT_OUT, MAX_SENTENCES = 1200, 40, 40


def markdown_report(report: Mapping[str, Any], evidence: Place = RESULTS) -> str:
    """The report as Markdown; text that nodes wrote is escaped throughout."""
    sections = [
        _head(report), _attention(report, evidence), _nodes(report), _gangs(report), _between(report),
        _analysis(report), _stages(report), _figures(report), _remarks(report), _coverage(report),
    ]  # fmt: skip
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines) + "\n"


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    run = report["run"]
    yield f"# FINAL ACCEPTANCE: {report['verdict']}"
    yield ""
    yield from (f"- {escaped(line, 700)}" for line in report["summary"])
    yield ""
    yield from _table(
        ("run", "profile", "started", "finished", "judged", "store"),
        [
            (
                escaped(run["run_id"]),
                escaped(run["profile"]),
                escaped(run["created_at"]),
                escaped(run["finished_at"] or "not finished"),
                escaped(run["judged_at"]),
                escaped(f"{run['bucket']}/{run['folder']}"),
            )
        ],
    )


def _attention(report: Mapping[str, Any], evidence: Place) -> Iterator[str]:
    bad = [node for node in report["nodes"] if node["verdict"] != "PASS"]
    if not bad:
        return
    yield "## Nodes that are not accepted"
    for node in bad:
        yield ""
        word = f" ({escaped(node['class'])})" if node.get("class") else ""
        yield f"### {escaped(node['name'])}: {node['verdict']}{word}"
        yield ""
        checks = _bad_checks(node)
        for check in checks[:MAX_CHECKS_SHOWN]:
            part = part_text(node, check["part"])
            where = f" ({escaped(part)})" if part else ""
            stage = f"{escaped(check['stage'])}: " if check["stage"] else ""
            yield f"- **{check['verdict']}** {stage}{escaped(check['reason'], 600)}{where}"
            if check["expected"]:
                origin = f"check {escaped(check['name'])}; {escaped(check['source'])}"
                yield f"  - expected: {escaped(check['expected'])} ({origin})"
            if check["remedy"]:
                yield f"  - remedy: {escaped(check['remedy'])}"
        if len(checks) > MAX_CHECKS_SHOWN:
            yield f"- and {len(checks) - MAX_CHECKS_SHOWN} more checks: see report.json"
        stages = [stage["name"] for stage in node["stages"] if stage["state"] not in ("missing", "pending")]
        if stages:
            kinds = " and ".join(f".{kind}" for kind in reversed(evidence.kinds))
            files = ", ".join(f"{evidence.of(node['name'], stage)}{kinds}" for stage in stages)
            yield f"- evidence: {escaped(files, 1200)}"


def _bad_checks(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Required checks that decided against the node; a stage whose end is missing speaks for its criteria."""
    open_stages = {
        check["stage"] for check in node["checks"] if check["kind"] == "state" and check["verdict"] != "pass"
    }
    bad = [
        check for check in node["checks"] if check["severity"] == "required" and check["verdict"] in ("fail", "missing")
    ]
    shown = [
        check
        for check in bad
        if check["verdict"] == "fail" or check["kind"] in ("state", "launch") or check["stage"] not in open_stages
    ]
    return sorted(shown, key=lambda check: check["verdict"] != "fail")


def _nodes(report: Mapping[str, Any]) -> Iterator[str]:
    if not report["nodes"]:
        return
    yield "## Nodes"
    yield ""
    rows = []
    for node in report["nodes"]:
        counted = dict.fromkeys(("pass", "fail", "warn", "missing", "skipped"), 0)
        for check in node["checks"]:
            counted[check["verdict"]] += 1
        decisive = None if node["verdict"] == "PASS" else headline(node)
        flaky = " (flaky)" if node["flaky"] else ""
        rows.append(
            (
                escaped(node["name"])
                + (f" ({escaped(node['id'])})" if node["id"] not in (None, "", node["name"]) else ""),
                node["verdict"] + flaky,
                escaped(node["accelerator"]),
                escaped(_hardware(node)),
                ", ".join(f"{count} {verdict}" for verdict, count in counted.items() if count),
                escaped(decisive["reason"], 200) if decisive else "",
            )
        )
    yield from _table(("node", "verdict", "accelerator", "hardware", "checks", "reason"), rows)


def _gangs(report: Mapping[str, Any]) -> Iterator[str]:
    """Who worked together, who did not, and what was found where that went wrong."""
    gangs = report["fleet"].get("gangs")
    if not gangs:
        return
    yield "## Gangs"
    yield ""
    for gang in gangs["formed"]:
        members = gang["names"]
        yield f"- gang {escaped(gang['gang'])}: {len(members)} nodes: {escaped(', '.join(members), MAX_MEMBERS)}"
    if not gangs["formed"]:
        yield "- no gang was formed"
    for one in gangs["left_out"][:MAX_LEFT_OUT]:
        yield f"- left out: {escaped(one['node'])}: {escaped(one['reason'], 300)}"
    if len(gangs["left_out"]) > MAX_LEFT_OUT:
        yield f"- and {len(gangs['left_out']) - MAX_LEFT_OUT} more that were left out: see report.json"
    if gangs["alone"]["names"]:
        yield f"- like no other, so asked nothing: {escaped(', '.join(gangs['alone']['names']), MAX_MEMBERS)}"
    rounds = ", ".join(one["name"] for one in gangs["rounds"])
    yield f"- rounds: {escaped(rounds, MAX_MEMBERS) or 'none'}{'' if gangs['ended_at'] else '; broken off'}"
    for one in gangs["findings"]:
        counts = ", ".join(f"{count} {word}" for word, count in one["counts"].items() if count)
        yield f"- the search in gang {escaped(one['gang'])}, {one['rounds']} rounds: {counts}"
        yield from (f"  - {escaped(line, 600)}" for line in one["sentences"][:MAX_SENTENCES])
        left = one["sentences_left_out"] + max(0, len(one["sentences"]) - MAX_SENTENCES)
        if left:
            yield f"  - and {left} more: see gangs/gangs.json"


def _between(report: Mapping[str, Any]) -> Iterator[str]:
    """What nodes of one kind were held against each other for."""
    checks = report["fleet"]["checks"]
    if not checks:
        return
    yield "## Between nodes"
    yield ""
    for check in sorted(checks, key=lambda check: check["verdict"] == "pass"):
        what = f"{escaped(check['stage'])}, {escaped(check['name'])}"
        yield f"- **{check['verdict']}** {what}: {escaped(check['reason'], 600)}"


def _analysis(report: Mapping[str, Any]) -> Iterator[str]:
    """Groups that differ, how the judged figures are spread, and what moves together."""
    analysis = report["fleet"].get("analysis")
    if analysis is None:
        return
    yield "## Analysis"
    yield ""
    yield "It describes the fleet and changes no verdict."
    groups = fleet.by_group(analysis)
    if groups:
        yield ""
        yield "Groups that differ from the other nodes of their kind:"
        yield ""
    for its in groups[:MAX_FINDINGS]:
        yield f"- {escaped(its[0]['text'], 600)}"
        for one in its[1:MAX_FIGURES_OF_A_GROUP]:
            yield f"  - {escaped(one['metric'])} {escaped(one['moved'])} (q={one['q']:.1g})"
        if len(its) > MAX_FIGURES_OF_A_GROUP:
            yield f"  - and {len(its) - MAX_FIGURES_OF_A_GROUP} more figures: see report.json"
    if len(groups) > MAX_FINDINGS:
        yield f"- and {len(groups) - MAX_FINDINGS} more groups: see report.json"
    if analysis["correlations"]:
        yield ""
        yield "Figures that move together (Spearman's rho):"
        yield ""
    for pair in analysis["correlations"][:MAX_PAIRS]:
        names = f"{escaped(pair['one']['metric'])} and {escaped(pair['other']['metric'])}"
        what = f"{escaped(pair['stage'])}, {escaped(pair['kind'])}, {escaped(places(pair))}"
        yield f"- {names}: {pair['rho']:+.2f} ({what})"
    judged = judged_figures(report)
    rows = [
        one for one in analysis["statistics"] if (one["stage"], one["metric"]) in judged and one["min"] != one["max"]
    ]
    if rows:
        yield ""
        columns = ("figure", "kind", "n", "mean", "CV", "min", "p5", "p50", "p95", "max", "outliers", "missing")
        yield from _table(columns, [_statistic(one) for one in rows[:MAX_STATISTICS]])
    if len(rows) > MAX_STATISTICS:
        yield ""
        yield f"and {len(rows) - MAX_STATISTICS} more judged figures: see report.json"


def _statistic(one: Mapping[str, Any]) -> tuple[str, ...]:
    variation = one["coefficient_of_variation"]
    return (
        escaped(one["metric"]),
        escaped(one["kind"]),
        str(one["count"]),
        *(escaped(units.human(one[key], one["unit"])) for key in ("mean",)),
        f"{variation:.2%}" if variation is not None and variation < 10 else "",
        *(escaped(units.human(one[key], one["unit"])) for key in ("min", "p5", "p50", "p95", "max")),
        str(one["outlier_count"]),
        str(one["missing"] + one["not_finite"]),
    )


def _hardware(node: Mapping[str, Any]) -> str:
    gpus = node["identity"].get("gpus", [])
    models = sorted({gpu.get("model", "GPU") for gpu in gpus})
    serial = node["identity"].get("serial", "")
    parts = [f"{len(gpus)} x {', '.join(models)}" if gpus else "", f"serial {serial}" if serial else ""]
    return ", ".join(part for part in parts if part)


def _stages(report: Mapping[str, Any]) -> Iterator[str]:
    names = list(dict.fromkeys(stage["name"] for node in report["nodes"] for stage in node["stages"]))
    if not names:
        return
    yield "## Stages"
    yield ""
    rows = []
    for node in report["nodes"]:
        stages = {stage["name"]: stage for stage in node["stages"]}
        rows.append((escaped(node["name"]), *(_stage_cell(stages.get(name)) for name in names)))
    yield from _table(("node", *map(escaped, names)), rows)


def _stage_cell(stage: Mapping[str, Any] | None) -> str:
    if stage is None:
        return ""
    seconds = stage["duration_seconds"]
    attempt = f", attempt {stage['attempt']}" if stage["attempt"] and stage["attempt"] > 1 else ""
    return stage["state"] + (f" {units.duration(seconds)}" if seconds is not None else "") + attempt


def _figures(report: Mapping[str, Any]) -> Iterator[str]:
    lines = [line for node in report["nodes"] for line in figure_lines(node)]
    if lines:
        yield "## Figures"
        yield ""
        yield from (f"- {escaped(line)}" for line in lines)


def figure_lines(node: Mapping[str, Any]) -> list[str]:
    """One line for each of training, loading and inference that has its figures."""
    lines = []

    def value(stage: str, name: str) -> float | None:
        metric = metric_value(node, stage, name)
        return None if metric is None else metric["value"]

    seconds = value("training", "training_duration_seconds")
    if seconds is not None:
        speed = [
            units.human(metric["value"], metric["unit"])
            for name in ("training_tokens_per_second", "training_samples_per_second", "training_model_tflops")
            if (metric := metric_value(node, "training", name)) is not None
        ]
        lines.append(", ".join([f"Node: {node['name']}, Training Time: {seconds:.2f} seconds", *speed]))
    size, seconds = value("loading", "loading_bytes"), value("loading", "loading_duration_seconds")
    rate = value("loading", "loading_bytes_per_second")
    if size is not None and seconds is not None:
        speed = f", Throughput: {units.gigabits_per_second(rate)}" if rate is not None else ""
        lines.append(
            f"Node: {node['name']}, Data Size: {units.gigabytes(size)}, Duration: {seconds:.1f} seconds{speed}"
        )
    figures = [
        ("Startup Time", value("inference", "inference_startup_seconds"), "{:.1f} seconds"),
        ("Running Time", value("inference", "inference_running_seconds"), "{:.1f} seconds"),
        ("Inference Number", value("inference", "inference_requests_done_count"), "{:.0f}"),
        ("Generated Token Number", value("inference", "inference_generated_tokens_count"), "{:.0f}"),
    ]
    known = [f"{label}: {form.format(figure)}" for label, figure, form in figures if figure is not None]
    if known:
        lines.append(", ".join([f"Node: {node['name']}", *known]))
    return lines


def _remarks(report: Mapping[str, Any]) -> Iterator[str]:
    warned = [
        (node, check) for node in report["nodes"] for check in node["checks"]
        if check["verdict"] == "warn" or (check["verdict"] == "missing" and check["severity"] == "advisory")
    ]  # fmt: skip
    if warned:
        yield "## Warnings"
        yield ""
        for node, check in warned:
            yield f"- {escaped(node['name'])} {escaped(check['stage'])}: {escaped(check['reason'])}"
        yield ""
    if report["fleet"]["problems"]:
        yield "## Refused as evidence"
        yield ""
        for problem in report["fleet"]["problems"]:
            where = " ".join(escaped(text) for text in (problem["node"], problem["stage"]) if text)
            yield f"- {where + ': ' if where else ''}{escaped(problem['reason'])}"


def _coverage(report: Mapping[str, Any]) -> Iterator[str]:
    gaps = report["fleet"].get("coverage")
    if not gaps:
        return
    yield "## Not covered"
    for title, names in (
        ("Reported, and no criterion looks at it", gaps["unjudged"]),
        ("Criteria whose figure no node reported", gaps["unreported"]),
    ):
        if names:
            yield ""
            yield f"- {title}: {escaped(', '.join(names), 4000)}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
