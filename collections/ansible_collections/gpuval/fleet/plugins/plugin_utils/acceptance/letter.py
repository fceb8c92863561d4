"""Makes acceptance.html, the letter of an acceptance: two pages for a hundred nodes."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..core.grouping import values_by_key
from ..records.documents import Document
from ..report import html, not_tested, template
from ..report.page.nodes import rack
from .decision import removed_nodes

STYLES = ("report.css", "acceptance.css")
#: Verdicts from worst to best: a rack without NVLink domain gets the worst verdict of its nodes.
_WORST_FIRST = ("FAIL", "INCOMPLETE", "PASS")


def letter_html(acceptance: Document, digest: str, reports: Mapping[str, Document]) -> str:
    """The letter's HTML. `digest`: SHA-256 of acceptance.json; `reports`: {run id: report.json}, unpacked, at least of
    the first run and of all runs that accept nodes."""
    nodes, first = acceptance["nodes"], acceptance["first_run"]
    entries = {(run_id, entry["name"]): entry for run_id, report in reports.items() for entry in report["nodes"]}
    tested_nodes = [(node, entries.get((node["run_id"], node["name"]), {})) for node in nodes]
    gpus = {node["name"]: (entry or entries.get((first, node["name"]), {})).get("gpus") for node, entry in tested_nodes}
    accepting = [run["run_id"] for run in acceptance["runs"] if run["accepts"]] or [first]
    limits = _required_limits(reports[run_id] for run_id in accepting)
    losses, sources = _losses(reports[accepting[0]], limits)
    stages = [(node["name"], stage) for node, entry in tested_nodes for stage in entry.get("stages", ())]
    tested = values_by_key((stage["name"], stage["state"]) for _, stage in stages)
    channels = (
        (stage.get("confirmed_by", ""), f"{name} {stage['name']}") for name, stage in stages if stage["attempt"]
    )
    styles = [html.read_asset(name) for name in STYLES]
    return template.load("page/assets/acceptance.html.j2", html.escaped).render(
        acceptance=acceptance,
        digest=digest,
        policy=html.policy_of([], styles),
        styles=styles,
        ordered=values_by_key(((node["sku"], _models(node), gpus[node["name"]]), node) for node in nodes),
        racks=values_by_key((rack(node), node) for node in nodes),
        decided={rack["name"]: rack for rack in acceptance.get("racks", ())},
        worst=lambda members: min((node["verdict"] for node in members), key=_WORST_FIRST.index),
        exceptions=[
            node for node in nodes
            if node["verdict"] != "PASS" or node["repaired"] or node["replaced"] or node["changes"]
        ],
        repairs=values_by_key((repair["node"], repair) for repair in acceptance["repairs"]),
        removed=removed_nodes(acceptance),
        tested={name: Counter(states) for name, states in tested.items()},
        not_tested={run_id: not_tested.lines(reports[run_id]) for run_id in accepting},
        losses=losses,
        sources=sources,
        has_kinds=len(losses) > len({entry["title"] for entry, _ in losses}),
        other_losses={run_id: not_tested.losses(reports[run_id]) for run_id in accepting[1:]},
        all_limits={text: names for texts in limits.values() for text, names in texts.items()},
        # every run of a node: id, the machine's name there if it is another one, verdict, class and effect
        histories=values_by_key((
            tuple((run["run_id"], run["name"] if run["name"] != node["name"] else "", run["verdict"],
                   run["class"] or "", run["effect"]) for run in node["runs"]),
            node["name"],
        ) for node in nodes),
        channels=values_by_key(channels),
    )  # fmt: skip


def _models(node: Document) -> str:
    return ", ".join(sorted({str(gpu.get("model") or "") for gpu in node["identity"].get("gpus", ())}))


def _required_limits(reports: Iterator[Document]) -> dict[str, dict[tuple[str, str], list[str]]]:
    """{metric: {(limit, source of the limit): names of required checks}}, from all nodes of the reports."""
    limits: dict[str, dict[tuple[str, str], dict[str, None]]] = {}
    for check in itertools.chain.from_iterable(node["checks"] for report in reports for node in report["nodes"]):
        if check["severity"] == "required" and check["metric"]:
            texts = limits.setdefault(check["metric"], {})
            texts.setdefault((check["expected"], check["source"]), {})[check["name"]] = None
    return {metric: {text: list(names) for text, names in texts.items()} for metric, texts in limits.items()}


def _losses(
    report: Document, limits: Mapping[str, Mapping[tuple[str, str], Sequence[str]]]
) -> tuple[list[tuple[dict[str, Any], list[tuple[str, int]]]], list[str]]:
    """Returns (figures, sources). Each figure of a report has the smallest loss that its checks detect, and its limits
    with the number of their source."""
    numbers: dict[str, int] = {}
    losses = []
    for entry, text in zip(report["fleet"].get("power", ()), not_tested.losses(report), strict=True):
        texts = limits.get(entry["metric"], ())
        numbered = [(expected, numbers.setdefault(source, len(numbers) + 1)) for expected, source in texts]
        losses.append(({**entry, "text": text.removeprefix(entry["title"])}, numbered))
    return losses, list(numbers)
