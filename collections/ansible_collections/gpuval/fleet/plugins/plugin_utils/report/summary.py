"""The lines of the FINAL ACCEPTANCE block: how many nodes, which of them are bad and why, what was measured."""

import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ...module_utils.hardware.pci import GPU_VENDORS
from ..core import commands, units
from ..core.escape import console_line, one_line
from ..core.grouping import values_by_key
from ..core.stage_traits import traits_of
from ..core.text import some_of, with_remedy
from ..gang import report_section
from ..judge import acceptance, sku_catalogue, stage_end
from ..records import failure_classes, launch_errors
from ..runs import overview
from . import not_tested, problems

#: The summary's words for nodes that passed only on a further attempt, by the cause of the retry.
RETRIED = {
    stage_end.FLAKY: "Flaky, passed only on a retry",
    stage_end.OUT_OF_MEMORY: "Ran out of memory once (raise the memory limit, or see what else uses the memory)",
    stage_end.DISK_FULL: "Found a full disk once (free space, or see what else writes to it)",
    stage_end.INTERRUPTED: "Interrupted (pod evicted or deleted, node lost, run cancelled), passed on a retry",
    stage_end.NOT_THE_NODE: "Passed on a retry; the store, the site or the user's program was at fault before",
}
NARROWED = {
    "busy": "nodes with other work", "stages": "stages that are no whole profile", "spreads": "spreads of another run",
}  # fmt: skip
MAX_NODE_LINES = 20
MAX_LINE = 2000
ACCEPTED = ("PASS", "PARTIAL")


def summary_lines(report: Mapping[str, Any]) -> list[str]:
    """The lines of FINAL ACCEPTANCE below the verdict, as plain text."""
    counts, nodes = report["counts"], report["nodes"]
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("PASS", "FAIL", "INCOMPLETE"))
    lines = [*_untested_gpus(report), f"Nodes: {counts['expected']} expected, {verdicts}"]
    lines += node_lines(report)
    lines += rack_lines(report)
    lines += filter(None, [problems.actions_line(bad_nodes(report))])
    if busy := report["run"].get("busy"):
        lines.append("Busy, not checked: " + some_of(f"{name} ({work['class']})" for name, work in busy.items()))
    elif not nodes:
        lines.append("No node was expected: check the inventory and --limit")
    if nodes and report["verdict"] in ACCEPTED:
        lines += _measured(nodes)
    counted = Counter(
        check["value"]
        for node in nodes
        for check in node["checks"]
        if check["kind"] == "launch" and check["verdict"] == "missing"
    )
    if counted.total() > 1:  # with many nodes the counts by class say more than names
        lines.append("Not started: " + ", ".join(f"{count} {word}" for word, count in counted.most_common()))
    if gangs := report["fleet"].get("gangs"):
        lines += report_section.console_lines(gangs, {node["name"]: node["verdict"] for node in nodes})
    lines += [*_remarks(report), *_effort(nodes)]
    return [one_line(line, MAX_LINE) for line in lines]


def verdict_title(report: Mapping[str, Any]) -> str:
    """The verdict on a run as the first line of FINAL ACCEPTANCE shows it."""
    is_untested = report["verdict"] in ACCEPTED and report.get("run", {}).get("gpus_tested") is False
    return one_line(report["verdict"]) + (" (no GPU was tested)" if is_untested else "")


def _untested_gpus(report: Mapping[str, Any]) -> list[str]:
    """Lines that say why an accepted run tested no GPU: no node has one, or no stage tests one."""
    nodes, lines = report["nodes"], []
    if report["verdict"] not in ACCEPTED:
        return []
    undeclared = [node for node in nodes if node["sku"] != sku_catalogue.CPU]
    if undeclared and all(node["accelerator"] == sku_catalogue.CPU for node in nodes):
        subject = f"{len(undeclared)} of {len(nodes)} node(s) have no GPU hardware, and no GPU was declared"
        lines.append(f"No GPU was tested: {subject}: set gpuval_gpu_count, or gpuval_sku: cpu for CPU nodes")
    stages = acceptance.stages_of(nodes)
    if stages and not report["fleet"].get("gangs") and not acceptance.may_use_gpus(stages):
        ran = f"the run had {', '.join(stages)}"
        lines.append(f"No stage that tests a GPU ran: {ran}. Leave out gpuval_stages and --tags for the others")
    return lines


def node_lines(report: Mapping[str, Any]) -> list[str]:
    """Lines on why nodes are not PASS, at most MAX_NODE_LINES problems."""
    listed = problems.problems(bad_nodes(report))
    lines = problems.lines(listed[:MAX_NODE_LINES], report["run"]["run_id"])
    hidden = sum(len(problem.nodes) for problem in listed[MAX_NODE_LINES:])
    return [*lines, f"... and {hidden} more: see report.html"] if hidden else lines


def rack_lines(report: Mapping[str, Any]) -> list[str]:
    """The number of NVLink racks, and a line for each that is not PASS, FAIL first."""
    racks = report.get("racks", ())
    counts = Counter(rack["verdict"] for rack in racks)
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("PASS", "FAIL", "INCOMPLETE"))
    bad = sorted((rack for rack in racks if rack["verdict"] != "PASS"), key=lambda rack: rack["verdict"] != "FAIL")
    lines = [f"Racks: {words}"] if racks else []
    for rack in bad[:MAX_NODE_LINES]:
        check, *others = decisive(rack)
        more = f" (and {some_of((other['name'] for other in others), 3)})" if others else ""
        line = f"rack {rack['name']} {rack['verdict']} {check['name']}: {one_line(check['reason'], 320)}{more}"
        lines.append(with_remedy(line, "" if check["name"] == "rack_nodes" else check["remedy"]))
    hidden = len(bad) - MAX_NODE_LINES
    return [*lines, f"... and {hidden} more racks: see report.html"] if hidden > 0 else lines


def bad_nodes(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The nodes of a report that are not PASS, those with FAIL first."""
    bad = (node for node in report["nodes"] if node["verdict"] != "PASS")
    return sorted(bad, key=lambda node: node["verdict"] != "FAIL")


def decisive(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The required checks that kept a node or rack from PASS. If a stage's end is missing, only that counts."""
    checks = node["checks"]
    open_stages = {check["stage"] for check in checks if check["kind"] == "state" and check["verdict"] != "pass"}
    required = [check for check in checks if check["severity"] == "required"]
    missing = [
        check
        for check in required
        if check["verdict"] == "missing" and (check["kind"] in ("state", "launch") or check["stage"] not in open_stages)
    ]
    return [check for check in required if check["verdict"] == "fail"] + missing


def reasons(node: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], str, str]]:
    """(check, its parts as text, remedy) for each decisive check of a node. Parts with the same reason are one entry, a
    remedy is named once. Checks with the same cause follow each other."""
    checks_of_parts = values_by_key((check.get("cause") or check["part"], check) for check in decisive(node))
    ordered = itertools.chain(*checks_of_parts.values())
    alike = values_by_key(((check["name"], check["reason"]), check) for check in ordered)
    remedies: set[str] = set()
    texts = []
    for check, *others in alike.values():
        parts = "; ".join(filter(None, (problems.part_of(node, one) for one in (check, *others))))
        texts.append((check, parts, "as above" if check["remedy"] in remedies else check["remedy"]))
        remedies.add(check["remedy"])
    return texts


def places(pair: Mapping[str, Any]) -> str:
    """What a correlation was computed over, as text: 23 nodes, or 184 gpus of 23 nodes."""
    parts = "" if pair["over"] == "node" else f"{pair['count']} {pair['over']}s of "
    return f"{parts}{pair['nodes']} nodes"


def node_metrics(node: Mapping[str, Any], stage: str) -> dict[str, Mapping[str, Any]]:
    """{name: metric} of a stage's node-wide metrics, without those whose value is missing."""
    metrics = reversed(node["metrics"].get(stage, ()))  # the first of two metrics with one name counts
    return {metric["name"]: metric for metric in metrics if metric["scope"] == "node" and metric["value"] is not None}


def _measured(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    stages = dict.fromkeys(stage["name"] for node in nodes for stage in node["stages"])
    for stage in stages:
        figures, most = [], 0
        metrics = [node_metrics(node, stage) for node in nodes]
        for shown in (figure for figure in traits_of(stage).figures if figure.summary):
            reported = [by_name[shown.metric] for by_name in metrics if shown.metric in by_name]
            if alike := [metric["value"] for metric in reported if metric["unit"] == reported[0]["unit"]]:
                most = max(most, len(alike))
                figures.append(shown.summary.format(units.human(statistics.median(alike), reported[0]["unit"])))
        if figures:
            of = f" (median of {most} nodes)" if most > 1 else ""
            lines.append(f"{stage}{of}: {', '.join(figures)}")
    return lines or [f"Done: {', '.join(stages)}"]


def _remarks(report: Mapping[str, Any]) -> list[str]:
    nodes = report["nodes"]
    lines = []
    causes = {node["name"]: {stage.get("retried_for") for stage in node["stages"]} for node in nodes}
    for cause, words in RETRIED.items():
        if retried := [node["name"] for node in nodes if node["verdict"] == "PASS" and cause in causes[node["name"]]]:
            lines.append(f"{words}: {some_of(retried)}")
    undeclared = [
        node["name"]
        for node in nodes
        if node["accelerator"] in GPU_VENDORS
        and any(check["verdict"] == "skipped" and check["reason"] == "count not declared" for check in node["checks"])
    ]
    if undeclared:
        lines.append(f"GPU count not declared: {some_of(undeclared)}; set gpuval_gpu_count to have it checked")
    lines += filter(None, [_mixed(nodes), _unknown_models(nodes)])
    on_bus = {node["name"]: node_metrics(node, "facts").get("gpu_hardware_count") for node in nodes}  # used or not
    untested = [node["name"] for node in nodes if node["sku"] == "cpu" and (on_bus[node["name"]] or {}).get("value")]
    if untested:
        lines.append(f"GPUs not tested, because gpuval_sku is cpu: {some_of(untested)}")
    fleet_checks = report["fleet"]["checks"]
    if kinds := [str(check["value"]) for check in fleet_checks if check["kind"] == "outlier" and check["value"]]:
        lines.append(f"The fleet is {some_of(kinds, 2, '; ')}: set floors or a baseline to judge it")
    many = len(nodes) > 1
    # in the order of the checks: equal results must give equal bytes, unlike the order of a set
    warnings = ({check["name"]: 1 for check in node["checks"] if check["verdict"] == "warn"} for node in nodes)
    if warned := Counter(itertools.chain.from_iterable(warnings)):
        texts = (f"{name} ({count} of {len(nodes)} nodes)" if many else name for name, count in warned.most_common())
        lines.append(f"Warnings: {some_of(texts)}; see report.html")
    if gaps := not_tested.line(report["fleet"].get("not_tested", []), len(nodes)):
        lines.append(f"Not tested: {gaps}")
    if losses := not_tested.losses(report):
        lines.append(f"Smallest losses that are named (99 %): {some_of(losses, 8)}")
    refused = []
    for problem in report["fleet"]["problems"]:
        row = failure_classes.find(problem["reason"], launch_errors.CLASSES)
        if row is None or row.subject != "store":
            refused.append(problem)
        elif not problem["node"]:
            lines.append(f"Store: {one_line(problem['reason'], 400)} ({row.name}): {row.steps}")
    if refused:
        first = refused[0]
        where = " ".join(text for text in (first["node"], first["stage"]) if text)
        more = f", and {len(refused) - 1} more: see report.html" if len(refused) > 1 else ""
        lines.append(f"Problems of the evidence: {where + ': ' if where else ''}{one_line(first['reason'], 200)}{more}")
    run, accepted = report["run"], report["verdict"] in ACCEPTED
    if accepted and many and run["profile"] == "custom" and not report["fleet"].get("gangs"):
        lines.append("No multi-node stage ran: gpuval_stages leaves them out, gpuval_profiles keeps them")
    if run.get("shortened"):
        profile = f" {run['profile']}" if run["profile"] != "custom" else ""
        lines.append(f"Shorter than the profile{profile}: {', '.join(run['shortened'])}")
    unproven = Counter(gap for node in nodes if node["verdict"] == "PASS" for gap in node.get("unproven", ()))
    if unproven and accepted:
        shown = (f"{gap} on {count} of {len(nodes)} nodes" if many else gap for gap, count in unproven.most_common())
        lines.append(f"Not proven: {some_of(shown, 8, '; ')}: PARTIAL at best, the profile quick proves all of it")
    if run["narrowed_by"]:
        options = " and ".join(NARROWED.get(option, f"--{option}") for option in run["narrowed_by"])
        lines.append(f"Narrowed by {options}: PARTIAL at best")
    return lines


def _effort(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line with the GPU-hours that the stages of all nodes took, and the share of time in which GPUs were busy."""
    spent = busy = 0.0
    shares: dict[str, list[float]] = {}
    for node in nodes:
        gpus = len(node.get("identity", {}).get("gpus", ()))
        ended = [stage for stage in node["stages"] if stage.get("started_at") and stage.get("finished_at")]
        if not gpus or not ended:
            continue
        times = [[datetime.fromisoformat(stage[key]) for stage in ended] for key in ("started_at", "finished_at")]
        spent += gpus * max(0.0, (max(times[1]) - min(times[0])).total_seconds())
        for stage in ended:
            metrics = node["metrics"].get(stage["name"], ())
            used = [metric["value"] or 0.0 for metric in metrics if metric["name"] == "gpu_utilisation_mean_ratio"]
            shares.setdefault(stage["name"], []).extend(used)
            busy += sum(used) * (stage.get("duration_seconds") or 0.0)
    if not spent:
        return []
    line = f"Spent: {spent / 3600:,.1f} GPU-hours"
    by_stage = ", ".join(f"{stage} {100 * statistics.fmean(used):.0f} %" for stage, used in shares.items() if used)
    return [f"{line}, GPUs busy for {100 * min(1.0, busy / spent):.0f} % ({by_stage})" if by_stage else line]


def _mixed(nodes: Sequence[Mapping[str, Any]]) -> str:
    """A line on nodes whose GPUs differ from those of most nodes and are not declared; empty if all are alike.
    Each kind is judged by itself, so a lone node is compared with no other."""
    kinds: dict[str, list[str]] = {}
    for node in nodes:
        models = Counter(gpu.get("model", "unknown model") for gpu in node["identity"].get("gpus", ()))
        if node["identity"] and node["sku"] in (sku_catalogue.AUTO, *GPU_VENDORS):
            kind = " and ".join(f"{count} x {model}" for model, count in sorted(models.items())) or "no GPU"
            kinds.setdefault(kind, []).append(node["name"])
    most, *rarer = sorted(kinds, key=lambda kind: len(kinds[kind]), reverse=True) or [""]
    if not rarer:
        return ""
    odd = some_of((f"{some_of(kinds[kind], 5)} with {kind}" for kind in rarer), 5, "; ")
    remedy = "set gpuval_sku and gpuval_gpu_count to have them checked"
    return f"GPUs differ: {odd}; {len(kinds[most])} with {most}: {remedy}"


def _unknown_models(nodes: Sequence[Mapping[str, Any]]) -> str:
    """A line on nodes whose GPU model the catalogue lacks, so that only general criteria apply; empty without such."""
    named = values_by_key(
        (str(check["value"]), node["name"])
        for node in nodes
        for check in node["checks"]
        if (check["name"], check["verdict"]) == ("sku", "warn") and check["reason"].startswith("not in the catalogue")
    )
    texts = some_of((f"{model} on {some_of(names, 5)}" for model, names in sorted(named.items())), 5, "; ")
    remedy = "only the general criteria apply: set gpuval_sku, and floors of your own"
    return f"Model not in the catalogue: {texts}; {remedy}" if named else ""


def final_block(report: Mapping[str, Any], width: int = 50, page: str = "", inventory: str = "") -> str:
    """The FINAL ACCEPTANCE block between two lines of ``width`` equals signs, without terminal escapes. ``page``: path
    of report.html; ``inventory``: the options with which commands choose the run's nodes."""
    lines = [*report["summary"]]
    if report.get("run", {}).get("resume"):
        lines.append(f"The run has not ended: {report['run']['resume']}")
    elif inventory and report["verdict"] in ("FAIL", "INCOMPLETE") and not overview.alone(report["run"]):
        lines.append("Validate again what did not pass: `make rerun`")
    lines += [f"Report: {page}"] if page else []
    failed = str(Path(page).with_name("failed_nodes.txt")) if page else commands.FAILED_NODES
    if page and "run" in report:
        here = problems.folder_of(report["run"]["run_id"])
        lines = [line.replace(f"@{here}/", f"@{Path(page).parent}/") for line in lines]
    rule, pasteable = "=" * width, (commands.pasteable(line, inventory, failed=failed) for line in lines)
    lines = [f"- {console_line(one_line(line, MAX_LINE))}" for line in pasteable]
    return "\n".join([rule, f"FINAL ACCEPTANCE: {verdict_title(report)}", *lines, rule])
