"""The report's part on gangs: members, nodes left out, rounds, findings of searches; bounded. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.escape import one_line
from . import orchestrate
from .search.findings import CLASSES

#: Bounds; gangs/gangs.json has the rest.
MAX_SENTENCES, MAX_CHARACTERS = 200, 600
MAX_ROUNDS = 200
MAX_REASON = 300


def of_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """The report's part (``gangs`` of ``fleet`` in gpuval.report/1), from gangs.json.

    Nodes are values of ``node`` and ``names``, never keys: a delivery replaces them by ids.
    """
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
        "findings": [_finding(found) for found in document["findings"].values()],
    }


def _finding(finding: Mapping[str, Any]) -> dict[str, Any]:
    lines = orchestrate.lines_of(finding)
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
