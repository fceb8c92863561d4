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
    report = {
        "schema": original["schema"],
        "run": {**_converted(original["run"], redactor), "bucket": "delivery", "folder": name},
        "verdict": original["verdict"],
        "counts": original["counts"],
        "summary": [],
        "nodes": done,
        "fleet": _converted(original["fleet"], redactor),
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
        **{key: _converted(node[key], redactor) for key in ("sku", "catalogue_sku", "unproven") if key in node},
        **({"action": _action(node["action"], redactor)} if "action" in node else {}),
        "labels": {text(key, redactor): text(value, redactor) for key, value in node.get("labels", {}).items()},
        "identity": _converted(without_internal(node["identity"]), redactor),
        "stages": [{**stage, "message": text(stage["message"], redactor)} for stage in node["stages"]],
        "checks": [_check(check, redactor) for check in node["checks"]],
        "metrics": _converted(node["metrics"], redactor),
        "problems": _converted(node["problems"], redactor),
    }


def _action(action: Mapping[str, Any], redactor: Redactor) -> dict[str, Any]:
    """Earlier runs and identities stay here: they are no part of the delivered run."""
    parts = [text(part, redactor) for part in action["parts"]]
    return {"name": action["name"], "class": action["class"], "parts": parts, "earlier_runs": [], "faults": []}


def _check(check: Mapping[str, Any], redactor: Redactor) -> dict[str, Any]:
    texts = ("reason", "expected", "source", "remedy", "value", "part")
    return {
        key: text(value, redactor) if key in texts and isinstance(value, str) else value for key, value in check.items()
    }


def _converted(value: Any, redactor: Redactor, *, of_node: bool = False) -> Any:
    """JSON with every text in it converted; the name of a node becomes its id, whatever word it is."""
    if isinstance(value, str):
        return redactor.known.names[value] if of_node and value in redactor.known.names else text(value, redactor)
    if isinstance(value, Mapping):
        return {key: _converted(item, redactor, of_node=key in ("node", "names")) for key, item in value.items()}
    return [_converted(item, redactor, of_node=of_node) for item in value] if isinstance(value, list) else value


def text(value: str, redactor: Redactor) -> str:
    """A text of the report; paths of evidence in it become paths of the delivery."""
    value = redactor.short(value)
    return _PLACE_OF_RUN.sub(lambda found: _place(found, redactor), value) if "nodes/" in value else value


def _place(found: re.Match[str], redactor: Redactor) -> str:
    identity = found[1] if found[1] in redactor.ids else redactor.known.names.get(found[1])
    return f"{DELIVERY.of(identity, found[2])}.log" if identity else found.group()
