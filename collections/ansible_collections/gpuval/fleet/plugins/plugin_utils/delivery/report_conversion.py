"""Converts report.json for a delivery, whose forms of the report are made from it: unique ids in place of names."""

import re
from collections.abc import Mapping
from typing import Any

from ..internal_data.conversion import InternalDataConverter
from ..records.metrics import CompactMetrics
from ..report.page.results import DELIVERY
from ..report.summary import summary_lines
from .stage_file import without_internal

_PLACE_OF_RUN = re.compile(r"\bnodes/([A-Za-z0-9][A-Za-z0-9._-]*)/([a-z][a-z0-9_]*)\.(?:log|json)\b")


def converted(original: dict[str, Any], converter: InternalDataConverter, name: str) -> dict[str, Any]:
    """Convert a report node by node. Consumes ``original``, so that memory need not hold two reports. ``name``: of the
    delivery. Nodes come in the order of their ids, which reveals nothing about the inventory."""
    nodes = original.pop("nodes")
    nodes.reverse()
    nodes_converted = [_node(nodes.pop(), converter) for _ in range(len(nodes))]
    report = {
        **{key: original[key] for key in ("schema", "run", "verdict", "counts")},
        "run": {**_converted(original["run"], converter), "bucket": "delivery", "folder": name},
        "summary": [],
        **({"racks": [_rack(rack, converter) for rack in original["racks"]]} if "racks" in original else {}),
        "nodes": sorted(nodes_converted, key=lambda node: node["name"]),
        "fleet": _converted(original["fleet"], converter),
    }
    report["summary"] = summary_lines(report)
    return report


_CONVERTED = ("sku", "catalogue_sku", "unproven", "versions")


def _node(node: Mapping[str, Any], converter: InternalDataConverter) -> dict[str, Any]:
    """Convert a node of the report key by key: a new field is not delivered until it is added here."""
    identity = converter.known.names[node["name"]]
    return {
        "name": identity, "id": identity,
        **{key: node[key] for key in ("verdict", "flaky", "class", "accelerator", "gpus") if key in node},
        **{key: _converted(node[key], converter) for key in _CONVERTED if key in node},
        **({"action": _action(node["action"], converter)} if "action" in node else {}),
        "labels": {text(key, converter): text(value, converter) for key, value in node.get("labels", {}).items()},
        **({"rack": text(node["rack"], converter)} if "rack" in node else {}),
        "identity": _converted(without_internal(node["identity"]), converter),
        "stages": [
            {**stage, "message": text(stage["message"], converter)}
            | {key: _converted(stage[key], converter) for key in ("setup", "versions") if key in stage}
            for stage in node["stages"]
        ],
        "checks": [_check(check, converter) for check in node["checks"]],
        **{key: _converted(node[key], converter) for key in ("metrics", "problems")},
    }  # fmt: skip


def _rack(rack: Mapping[str, Any], converter: InternalDataConverter) -> dict[str, Any]:
    """Convert an NVLink rack of the report; its trays come in the order of their ids."""
    fields = {key: _converted(value, converter) for key, value in rack.items() if key not in ("trays", "checks")}
    trays = sorted((_converted(tray, converter) for tray in rack["trays"]), key=lambda tray: str(tray["node"]))
    checks = [
        {**_check(check, converter), "nodes": sorted(converter.known.names[name] for name in check["nodes"])}
        for check in rack["checks"]
    ]
    return {**fields, "trays": trays, "checks": checks}


def _action(action: Mapping[str, Any], converter: InternalDataConverter) -> dict[str, Any]:
    """Convert a node's action, without earlier runs and identities of parts, which are not of the delivered run."""
    parts = [text(part, converter) for part in action["parts"]]
    return {"name": action["name"], "class": action["class"], "parts": parts, "earlier_runs": [], "faults": []}


def _check(check: Mapping[str, Any], converter: InternalDataConverter) -> dict[str, Any]:
    texts = ("reason", "expected", "source", "remedy", "value", "part")
    return {**check, **{key: text(check[key], converter) for key in texts if isinstance(check.get(key), str)}}


def _converted(value: Any, converter: InternalDataConverter, *, of_node: bool = False) -> Any:
    """Convert every text in a JSON value. ``of_node``: a text that is a node's name becomes its id, even a word."""
    if isinstance(value, str):
        return converter.known.names[value] if of_node and value in converter.known.names else text(value, converter)
    if isinstance(value, Mapping):
        return {key: _converted(item, converter, of_node=key in ("node", "names")) for key, item in value.items()}
    if isinstance(value, list | CompactMetrics):
        return [_converted(item, converter, of_node=of_node) for item in value]
    return value


def text(value: str, converter: InternalDataConverter) -> str:
    """Convert a text of the report; paths of evidence in the text become paths in the delivery."""
    value = converter.short(value)
    return _PLACE_OF_RUN.sub(lambda match: _place(match, converter), value) if "nodes/" in value else value


def _place(match: re.Match[str], converter: InternalDataConverter) -> str:
    identity = match[1] if match[1] in converter.ids else converter.known.names.get(match[1])
    return f"{DELIVERY.of(identity, match[2])}.log" if identity else match.group()
