"""The report with unique ids in place of workers' names; every form of the report is made from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..report.place import DELIVERY
from ..report.summary import summary_lines
from .redactor import Redactor
from .stage_file import without_internal

_PLACE_OF_RUN = re.compile(r"\bnodes/([A-Za-z0-9][A-Za-z0-9._-]*)/([a-z][a-z0-9_]*)\.(?:log|json)\b")


def converted(original: dict[str, Any], redactor: Redactor, name: str) -> dict[str, Any]:
    """The report converted node by node; consumes ``original``, since memory should not hold two reports.

    Nodes are in the order of their ids, which reveals nothing of the inventory.
    """
    nodes = original.pop("nodes")
    nodes.reverse()
    done = []
    while nodes:
        done.append(_node(nodes.pop(), redactor))
    done.sort(key=lambda node: node["name"])
    fleet = original["fleet"]
    report = {
        "schema": original["schema"],
        "run": {**_texts(original["run"], redactor), "bucket": "delivery", "folder": name},
        "verdict": original["verdict"],
        "counts": original["counts"],
        "summary": [],
        "nodes": done,
        "fleet": {**_named(fleet, redactor), "problems": _problems(fleet["problems"], redactor)},
    }
    report["summary"] = summary_lines(report)
    return report


def _node(node: Mapping[str, Any], redactor: Redactor) -> dict[str, Any]:
    """Key by key: a new field of the report is not delivered before it is added here."""
    identity = redactor.name(node["name"])
    return {
        "name": identity,
        "id": identity,
        **{key: node[key] for key in ("verdict", "flaky", "class", "accelerator") if key in node},
        **{key: _texts(node[key], redactor) for key in ("sku", "catalogue_sku") if key in node},
        "labels": {text(key, redactor): text(value, redactor) for key, value in node.get("labels", {}).items()},
        "identity": _texts(without_internal(node["identity"]), redactor),
        "stages": [{**stage, "message": text(stage["message"], redactor)} for stage in node["stages"]],
        "checks": [_check(check, redactor) for check in node["checks"]],
        "metrics": _texts(node["metrics"], redactor),
        "problems": _problems(node["problems"], redactor),
    }


def _check(check: Mapping[str, Any], redactor: Redactor) -> dict[str, Any]:
    texts = ("reason", "expected", "source", "remedy", "value", "part")
    return {
        key: text(value, redactor) if key in texts and isinstance(value, str) else value for key, value in check.items()
    }


def _problems(problems: list[Mapping[str, Any]], redactor: Redactor) -> list[dict[str, Any]]:
    return [
        {
            "node": redactor.known.names.get(one["node"], text(one["node"], redactor)) if one["node"] else one["node"],
            "stage": one["stage"],
            "reason": text(one["reason"], redactor),
        }
        for one in problems
    ]


def _named(value: Any, redactor: Redactor) -> Any:
    """Like _texts; a value that is a node's name becomes its id, whatever word it is."""
    if isinstance(value, Mapping):
        return {
            key: _names(item, redactor) if key in ("node", "names") else _named(item, redactor)
            for key, item in value.items()
        }
    return [_named(item, redactor) for item in value] if isinstance(value, list) else _texts(value, redactor)


def _names(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, list):
        return [_names(item, redactor) for item in value]
    return redactor.known.names[value] if value in redactor.known.names else _texts(value, redactor)


def _texts(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, str):
        return text(value, redactor)
    if isinstance(value, Mapping):
        return {key: _texts(item, redactor) for key, item in value.items()}
    return [_texts(item, redactor) for item in value] if isinstance(value, list) else value


def text(value: str, redactor: Redactor) -> str:
    """A text of the report; paths of evidence in it become paths of the delivery."""
    value = redactor.short(value)
    return _PLACE_OF_RUN.sub(lambda found: _place(found, redactor), value) if "nodes/" in value else value


def _place(found: re.Match[str], redactor: Redactor) -> str:
    identity = found[1] if found[1] in redactor.ids else redactor.known.names.get(found[1])
    return f"{DELIVERY.of(identity, found[2])}.log" if identity else found.group()
