"""Hardware and software of the nodes: each property with its values, and the nodes that differ. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ...core.escape import one_line
from ...records.properties import IMAGE, MAX_TEXT, TITLES, versions_of


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
    return {
        (TITLES[name], one_line(f"{stage['name']}: {text}", MAX_TEXT) if name == IMAGE else text)
        for stage in node["stages"]
        for name, text in versions_of(node, stage).items()
        if name in TITLES
    }
