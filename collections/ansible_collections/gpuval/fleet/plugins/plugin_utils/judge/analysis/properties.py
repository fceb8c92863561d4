"""What nodes are grouped by: the versions that their facts tell, and the labels of the inventory."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.escape import one_line
from ...records import environment
from ...records.documents import Record
from ..versions import KINDS

MAX_TEXT = 120
LABEL = "label "


def of_node(labels: Mapping[str, str], facts: Record | None) -> dict[str, str]:
    """By property its value; a label that is called as a version is keeps its kind before its name."""
    found = {}
    reported = {} if facts is None else facts["environment"]
    for name, version in KINDS.items():
        texts = sorted(set(environment.texts(reported, version.path)))
        if texts:
            found[name] = one_line(", ".join(texts), MAX_TEXT)
    for name, value in labels.items():
        found[LABEL + name if name in KINDS else name] = value
    return found
