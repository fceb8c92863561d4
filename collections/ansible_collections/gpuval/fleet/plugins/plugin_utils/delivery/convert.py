"""The report with unique ids in the place of workers' names; every form is made from it anew."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery.disguise import Disguise
from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery.stage_file import without_internal
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.place import DELIVERY
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.summary import summary_lines

_PLACE_OF_RUN = re.compile(r"\bnodes/([A-Za-z0-9][A-Za-z0-9._-]*)/([a-z][a-z0-9_]*)\.(?:log|json)\b")


def converted(original: dict[str, Any], disguise: Disguise, name: str) -> dict[str, Any]:
    """The report converted, node by node; of the original nothing is left, since two would be too many.

    Nodes come in the order of their ids, which tells nothing of the inventory.
    """
    nodes = original.pop("nodes")
    nodes.reverse()
    done = []
    while nodes:
        done.append(_node(nodes.pop(), disguise))
    done.sort(key=lambda node: node["name"])
    fleet = original["fleet"]
    report = {
        "schema": original["schema"],
        "run": {**_texts(original["run"], disguise), "bucket": "delivery", "folder": name},
        "verdict": original["verdict"],
        "counts": original["counts"],
        "summary": [],
        "nodes": done,
        "fleet": {**_named(fleet, disguise), "problems": _problems(fleet["problems"], disguise)},
    }
    report["summary"] = summary_lines(report)
    return report


def _node(node: Mapping[str, Any], disguise: Disguise) -> dict[str, Any]:
    """Key by key: what a report gets one day is not in a delivery before someone thought of it here."""
    identity = disguise.name(node["name"])
    return {
        "name": identity,
        "id": identity,
        **{key: node[key] for key in ("verdict", "flaky", "class", "accelerator") if key in node},
        **{key: _texts(node[key], disguise) for key in ("sku", "catalogue_sku") if key in node},
        "labels": {text(key, disguise): text(value, disguise) for key, value in node.get("labels", {}).items()},
        "identity": _texts(without_internal(node["identity"]), disguise),
        "stages": [{**stage, "message": text(stage["message"], disguise)} for stage in node["stages"]],
        "checks": [_check(check, disguise) for check in node["checks"]],
        "metrics": _texts(node["metrics"], disguise),
        "problems": _problems(node["problems"], disguise),
    }


def _check(check: Mapping[str, Any], disguise: Disguise) -> dict[str, Any]:
    told = ("reason", "expected", "source", "remedy", "value", "part")
    return {
        key: text(value, disguise) if key in told and isinstance(value, str) else value for key, value in check.items()
    }


def _problems(problems: list[Mapping[str, Any]], disguise: Disguise) -> list[dict[str, Any]]:
    return [
        {
            "node": disguise.known.names.get(one["node"], text(one["node"], disguise)) if one["node"] else one["node"],
            "stage": one["stage"],
            "reason": text(one["reason"], disguise),
        }
        for one in problems
    ]


def _named(value: Any, disguise: Disguise) -> Any:
    """Like _texts; names of nodes that stand by themselves become ids whatever word they are."""
    if isinstance(value, Mapping):
        return {
            key: _names(item, disguise) if key in ("node", "names") else _named(item, disguise)
            for key, item in value.items()
        }
    return [_named(item, disguise) for item in value] if isinstance(value, list) else _texts(value, disguise)


def _names(value: Any, disguise: Disguise) -> Any:
    if isinstance(value, list):
        return [_names(item, disguise) for item in value]
    return disguise.known.names[value] if value in disguise.known.names else _texts(value, disguise)


def _texts(value: Any, disguise: Disguise) -> Any:
    if isinstance(value, str):
        return text(value, disguise)
    if isinstance(value, Mapping):
        return {key: _texts(item, disguise) for key, item in value.items()}
    return [_texts(item, disguise) for item in value] if isinstance(value, list) else value


def text(value: str, disguise: Disguise) -> str:
    """A text of the report; the places of evidence that it names are those of the delivery."""
    value = disguise.short(value)
    return _PLACE_OF_RUN.sub(lambda found: _place(found, disguise), value) if "nodes/" in value else value


def _place(found: re.Match[str], disguise: Disguise) -> str:
    identity = found[1] if found[1] in disguise.ids else disguise.known.names.get(found[1])
    return f"{DELIVERY.of(identity, found[2])}.log" if identity else found.group()
