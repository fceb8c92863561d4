"""What a run did not test, on which nodes and why; which metrics no criterion looks at, and which criteria look at what
no node reports. Advice, never a verdict: what is required and missing decides by its own check.

A metric is covered when a check of its stage judges it or needs it, when it is compared between nodes by default, or
when a list declares it informational, with a reason.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..core import extensions
from ..core.escape import one_line
from ..core.grouping import values_by_key
from ..core.stage_traits import alternatives_to, traits_of
from ..core.text import first_lines
from ..records import environment
from ..records.documents import Document, Record
from ..records.properties import NVLINK_STAGES
from . import sku_catalogue
from .check import Check, Informational, Subject, is_informational
from .comparisons import comparison_rule_of
from .entries import not_applicable
from .kinds import KINDS

MAX_SHOWN = 100


class Coverage(NamedTuple):
    """Gaps of metrics and checks, sorted. ``unjudged``: ``stage/metric``. ``unreported``: ``check (stage/metric)``."""

    unjudged: tuple[str, ...]
    unreported: tuple[str, ...]


def compare(
    reported: Mapping[str, Iterable[str]],
    checks: Iterable[Check],
    informational: Sequence[Informational] = (),
    applied: Collection[str] | None = None,
) -> Coverage:
    """The gaps between what stages report (stage -> names of metrics and fingerprints) and what checks look at.
    ``applied``: names of the checks that something should be reported for; None for all."""
    names_reported = {stage: set(names) for stage, names in reported.items()}
    looked_at = [(check, KINDS[check.kind].metrics(check)) for check in checks]
    judged = {(check.stage, name) for check, names in looked_at for name in names}
    unjudged = {
        f"{stage}/{name}"
        for stage, names in names_reported.items()
        for name in names
        if (stage, name) not in judged
        and not comparison_rule_of(name).worse
        and not is_informational(stage, name, informational)
    }
    unreported = {
        f"{check.name} ({check.stage}/{name})"
        for check, names in looked_at
        for name in names - names_reported.get(check.stage, set())
        if applied is None or check.name in applied
    }
    return Coverage(tuple(sorted(unjudged)), tuple(sorted(unreported)))


def of_report(
    nodes: Sequence[Document], checks: Iterable[Check], informational: Sequence[Informational]
) -> dict[str, list[str]] | None:
    """The gaps of a judged run, limited in number because nodes choose the names; None without gaps. A check counts as
    unreported if it applied to a stage that ended well."""
    reported: dict[str, set[str]] = defaultdict(set)
    applied: set[str] = set()
    for node in nodes:
        ended_well = {stage["name"] for stage in node["stages"] if stage["state"] == "success"}
        for stage, metrics in node["metrics"].items():
            reported[stage] |= {metric["name"] for metric in metrics}
        applied |= {
            check["name"] for check in node["checks"] if check["verdict"] != "skipped" and check["stage"] in ended_well
        }
    gaps = compare(reported, checks, informational, applied)._asdict()
    return {key: first_lines(names, MAX_SHOWN) for key, names in gaps.items()} if any(gaps.values()) else None


OPEN_STATES = frozenset({"missing", "pending", "skipped", "cancelled"})
NO_TOOL = "not on the node or in its image"
NO_FIGURE = "the node does not report it"
MAX_ENTRIES, MAX_NAMES, MAX_TEXT, MAX_NOTES = 200, 20, 200, 32

#: (stage, what was not tested, why)
Gap = tuple[str, str, str]


def of_run(
    run: Document, nodes: Sequence[Document], subjects: Mapping[str, Subject], criteria: Sequence[Check]
) -> list[dict[str, Any]]:
    """What a run did not test, with the reasons, the gaps of most nodes first. ``nodes`` are those of the report."""
    nodes_by_gap = values_by_key(
        (gap, node["name"]) for node in nodes for gap in _gaps_of(node, run, subjects[node["name"]], criteria)
    )
    ordered = sorted(nodes_by_gap.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    return [
        {"stage": stage, "what": what, "reason": reason, "count": len(names), "names": names[:MAX_NAMES]}
        for (stage, what, reason), names in ordered[:MAX_ENTRIES]
    ]


def _gaps_of(node: Document, run: Document, subject: Subject, criteria: Sequence[Check]) -> Iterable[Gap]:
    missing = (*_missing_stages(run, node), *_missing_checks(node))
    return dict.fromkeys((*missing, *_unreported(node, subject, criteria), *_notes(subject.records)))


def _missing_stages(run: Document, node: Document) -> Iterator[Gap]:
    expected = run["nodes"][node["name"]]
    exempt = expected.get("exempt", {})
    why = f"not in the profile {run['profile']}" + (", or left out by tags" if "tags" in run["narrowed_by"] else "")
    alone = "a single node has no gang" if len(run["nodes"]) == 1 else why
    apart = () if sku_catalogue.is_in_domain(node.get("catalogue_sku")) else NVLINK_STAGES
    for stage in extensions.found("stages"):
        if stage not in expected["stages"] and not traits_of(stage).optional and stage not in apart:
            reason = exempt.get(stage, alone if stage in run.get("gang_stages", ()) else why)
            yield stage, stage, one_line(reason, MAX_TEXT)
    for stage in node["stages"]:
        if stage["state"] in OPEN_STATES:
            message = one_line(stage["message"], MAX_TEXT)
            yield stage["name"], stage["name"], f"{stage['state']}: {message}" if message else str(stage["state"])


def _missing_checks(node: Document) -> Iterator[Gap]:
    """The checks of ended stages that had no figure to judge."""
    ended = {stage["name"] for stage in node["stages"] if stage["state"] not in OPEN_STATES}
    for check in node["checks"]:
        if check["verdict"] == "missing" and check["stage"] in ended:
            yield check["stage"], check["metric"] or check["name"], one_line(check["reason"], MAX_TEXT)


def _unreported(node: Document, subject: Subject, criteria: Sequence[Check]) -> Iterator[Gap]:
    """Checks that apply only if the node reports their figure, which it does not."""
    ended = {stage["name"] for stage in node["stages"] if stage["state"] == "success"}
    for check in criteria:
        if not check.where_reported or check.stage not in ended:
            continue
        if check.catalogue_sku not in (None, *subject.skus) or not_applicable(check, subject):
            continue
        record = subject.records[check.stage]
        if environment.texts(record["environment"], f"left_out.{check.stage}"):
            continue  # the whole stage is missing, which has an entry of its own
        if not any(subject.metrics(record, metric, check.scope) for metric in alternatives_to(check.metric)):
            notes = record["environment"]
            why = environment.texts(notes, f"telemetry.absent.{check.metric}")
            if not why and check.metric.startswith("memory_ecc_"):
                why = environment.texts(notes, "memory.ecc_problem")
            yield check.stage, check.metric, one_line((why or [NO_FIGURE])[0], MAX_TEXT)


def _notes(records: Mapping[str, Record]) -> Iterator[Gap]:
    """What records say was not tested: parts left out and why, missing tools, tests that did not run."""
    for stage, record in records.items():
        notes = record["environment"]
        left_out, absent, not_run = notes.get("left_out"), notes.get("absent_tools"), notes.get("not_run")
        if isinstance(left_out, dict):
            for part, reason in list(left_out.items())[:MAX_NOTES]:
                yield stage, one_line(str(part), 80), one_line(str(reason), MAX_TEXT)
        for tool in absent[:MAX_NOTES] if isinstance(absent, list) else ():
            yield stage, one_line(str(tool), 80), NO_TOOL
        for tool, tests in list(not_run.items())[:MAX_NOTES] if isinstance(not_run, dict) else ():
            if isinstance(tests, list) and tests != [tool]:
                yield stage, f"{one_line(tool, 80)}: {one_line(', '.join(map(str, tests)), 100)}", "did not run"
