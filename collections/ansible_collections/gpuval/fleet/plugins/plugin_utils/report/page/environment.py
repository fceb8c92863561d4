"""Hardware and software of the nodes: each property with its values, and the nodes that differ. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ...core.escape import one_line
from ...records.properties import FACTS, IMAGE, MAX_TEXT, TITLES


def of_fleet(report: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """For each property its values, the most common first, with the names of their nodes. Reports of release 1.0 have
    no properties."""
    names: dict[str, dict[str, list[str]]] = {title: defaultdict(list) for title in TITLES.values()}
    for node in report["nodes"]:
        for title, text in sorted(_titled(node)):
            names[title][text].append(node["name"])
    return [
        (title, sorted(nodes_of.items(), key=lambda item: (-len(item[1]), item[0])))
        for title, nodes_of in names.items()
        if nodes_of
    ]


def _titled(node: Mapping[str, Any]) -> set[tuple[str, str]]:
    versions = {FACTS: node.get("versions", {})}
    versions |= {stage["name"]: stage["versions"] for stage in node["stages"] if "versions" in stage}
    return {
        (TITLES[name], one_line(f"{stage}: {text}", MAX_TEXT) if name == IMAGE else text)
        for stage, properties in versions.items()
        for name, text in properties.items()
        if name in TITLES
    }
