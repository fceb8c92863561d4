"""Texts on gangs for users, of bounded size: a search's findings, the report's section, lines in FINAL ACCEPTANCE."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.escape import one_line
from ..core.grouping import values_by_key
from ..core.text import some_of
from . import rounds
from .search.search_findings import CLASSES

#: Limits of the report's section; gangs/gangs.json has everything.
MAX_SENTENCES, MAX_CHARACTERS = 200, 600
MAX_ROUNDS = 200
MAX_REASON = 300
MAX_CONSOLE_LINES = 4


def of_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """The report's section on gangs (``gangs`` of ``fleet`` in gpuval.report/1), from the gang document. Nodes are
    values of ``node`` and ``names``, never keys: a delivery replaces them by ids."""
    listed = document["rounds"]
    return {
        "formed_at": document["formed_at"],
        "ended_at": document["ended_at"],
        "formed": [
            {"gang": name, "names": [member["node"] for member in members]}
            for name, members in document["gangs"].items()
        ],
        "left_out": [
            {"node": name, "reason": one_line(reason, MAX_REASON)} for name, reason in document["left_out"].items()
        ],
        "alone": {"names": list(document["alone"])},
        "rounds": [
            {
                "name": item["name"],
                "kind": item["kind"],
                "gangs": len(item["gangs"]),
                "nodes": sum(len(nodes) for nodes in item["gangs"].values()),
                "ended_at": item["ended_at"],
            }
            for item in listed[:MAX_ROUNDS]
        ],
        "rounds_left_out": max(0, len(listed) - MAX_ROUNDS),
        "findings": [_finding_section(found) for found in document["findings"].values()],
    }


def _finding_section(finding: Mapping[str, Any]) -> dict[str, Any]:
    lines = lines_of(finding)
    classes = list(finding["nodes"].values())
    return {
        "gang": finding["name"],
        "why": one_line(finding["why"], MAX_REASON),
        "rounds": finding["rounds"],
        "counts": {word: classes.count(word) for word in CLASSES},
        "bad_links": [{"names": list(link)} for link in finding["bad_links"][:MAX_SENTENCES]],
        "suspect_links": [{"names": list(link)} for link in finding["suspect_links"][:MAX_SENTENCES]],
        "sentences": [one_line(line, MAX_CHARACTERS) for line in lines[:MAX_SENTENCES]],
        "sentences_left_out": max(0, len(lines) - MAX_SENTENCES),
    }


def console_lines(section: Mapping[str, Any], verdicts: Mapping[str, str]) -> list[str]:
    """Lines on gangs for the console, from the report's section. ``verdicts``: by node, as a FAIL has its own line."""
    texts = []
    if not section["formed"]:
        texts.append("Gangs: none was formed")
    # a node that failed its own stages has its own line
    left_out = {row["node"]: row["reason"] for row in section["left_out"] if verdicts.get(row["node"]) != "FAIL"}
    for reason, nodes in grouped(left_out)[:MAX_CONSOLE_LINES]:
        texts.append(f"Left out of the gangs: {some_of(nodes)}: {reason}")
    if section["formed"] and section["ended_at"] is None:
        texts.append("Gangs: interrupted before their end")
    for row in section["findings"]:
        counts = ", ".join(f"{count} {word}" for word, count in row["counts"].items() if count)
        rounds = f"{row['rounds']} round{'' if row['rounds'] == 1 else 's'}"
        texts.append(f"Gang {row['gang']} searched in {rounds}: {counts}")
        # `node-3 is bad: ...` has its own line above if that node fails
        sentences = [line for line in row["sentences"] if verdicts.get(line.partition(" is ")[0]) != "FAIL"]
        texts += sentences[:MAX_CONSOLE_LINES]
        if len(sentences) > MAX_CONSOLE_LINES:
            texts.append(f"... and {len(sentences) - MAX_CONSOLE_LINES} more of gang {row['gang']}: see report.html")
    return texts


def grouped(reasons: Mapping[str, str]) -> list[tuple[str, Sequence[str]]]:
    """Pairs (reason, nodes with it) from ``{node: reason}``, the most common reason first."""
    groups = values_by_key((reason, node) for node, reason in reasons.items())
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def lines_of(finding: Mapping[str, Any]) -> list[str]:
    """The findings of a search as lines of text."""
    lines = []
    for state in ("bad", "suspect", "untested"):
        for node, named in finding["nodes"].items():
            if named == state:
                lines.append(f"{node} is {state}: {rounds.sentence(node, finding)}")
    for quality, links in (("bad", finding["bad_links"]), ("suspect", finding["suspect_links"])):
        for link in links:
            name = " - ".join(link)
            lines.append(f"the link {name} is {quality}: {'; '.join(finding['evidence'].get(name, []))}")
    links = {" - ".join(link) for link in (*finding["bad_links"], *finding["suspect_links"])}
    for name, sentences in finding["evidence"].items():  # the other keys are boundaries: a rack, a switch
        if name not in finding["nodes"] and name not in links:
            lines.append(f"{name}: {'; '.join(sentences)}")
    lines += finding["gang"]
    speed = rounds.unknown_speed(finding)
    return [*(lines or ["the search found no bad node or link"]), *([speed] if speed else [])]
