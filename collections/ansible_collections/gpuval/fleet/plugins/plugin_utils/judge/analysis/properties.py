"""What nodes are grouped by: the versions that their facts tell, and the labels of the inventory."""

from __future__ import annotations

from collections.abc import Mapping

from ...records.documents import Record
from ...records.properties import properties_of
from ..versions import KINDS

LABEL = "label "


def of_node(labels: Mapping[str, str], facts: Record | None) -> dict[str, str]:
    """By property its value; a label that is called as a version is keeps its kind before its name."""
    reported = {} if facts is None else properties_of(facts)
    versions = {name: reported[name] for name in KINDS if name in reported}
    return versions | {LABEL + name if name in KINDS else name: text for name, text in labels.items()}
