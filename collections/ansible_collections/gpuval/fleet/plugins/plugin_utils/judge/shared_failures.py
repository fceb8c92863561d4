"""Failures of several nodes at once through one thing that they share: store, model, image, program, switch. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..core.text import some_of
from ..records.failure_classes import NODE, class_named, subject_of
from .entries import Entry, own_entry

#: Nodes that fail alike share the cause if there are so many, and so large a share of those that ran the stage.
MIN_NODES, MIN_SHARE = 2, 0.5
#: The class of a shared failure whose cause no record names.
SHARED = "shared"
_WORD = re.compile(r"[\w-]+(?:\.[\w-]+)*")
#: Addresses, ids, UUIDs and figures differ between nodes; so do the ranks and parts that they number.
_NUMBER = re.compile(r"(?<![a-z])(?=[a-f:.,-]*\d)[0-9a-fx:.,-]*[0-9a-f]|\d+", re.IGNORECASE)


class FailedStage(NamedTuple):
    """The end of a stage that failed, and what it says of the cause."""

    node: str
    stage: str
    failure_class: str
    text: str


@dataclass(frozen=True)
class SharedFailure:
    """One failure of several nodes in a stage, which ``ran`` nodes brought to an end."""

    stage: str
    failure_class: str
    text: str
    nodes: tuple[str, ...]
    ran: int

    @property
    def reason(self) -> str:
        return f"{len(self.nodes)} of {self.ran} nodes ended alike: {self.text}"

    def entry(self) -> Entry:
        """The finding about what they share, for the fleet."""
        row = class_named(self.failure_class)
        return own_entry(
            f"{self.stage}_shared", self.stage, "state", "missing", part="fleet", value=len(self.nodes),
            expected="success on most nodes", reason=f"{self.reason} ({some_of(self.nodes)})",
            remedy=(row.steps if row else "").replace("{stage}", self.stage).replace("{node}", self.nodes[0]),
            **{"class": self.failure_class},
        )  # fmt: skip


def find_shared(failed: Iterable[FailedStage], ran: Mapping[str, int]) -> dict[tuple[str, str], SharedFailure]:
    """By node and stage the failure that it shares with other nodes; ``ran``: by stage the nodes that ended it.

    A class that speaks of the node becomes that of a shared failure.
    """
    ends = list(failed)
    names = {end.node for end in ends}
    groups: dict[tuple[str, str, str], list[FailedStage]] = defaultdict(list)
    for end in ends:
        groups[end.stage, end.failure_class, normalised(end.text, names)].append(end)
    shared = {}
    for (stage, name, _), group in groups.items():
        if len(group) >= max(MIN_NODES, MIN_SHARE * ran[stage]):
            text = _renamed(group[0].text, {group[0].node}, "the node")
            of_what = SHARED if subject_of(name) == NODE else name
            failure = SharedFailure(stage, of_what, text, tuple(end.node for end in group), ran[stage])
            shared.update({(node, stage): failure for node in failure.nodes})
    return shared


def normalised(text: str, names: Collection[str]) -> str:
    """The text without what differs between nodes: their ``names``, numbers, addresses, ranks."""
    return _NUMBER.sub("#", _renamed(text, names, "NODE"))


def _renamed(text: str, names: Collection[str], name: str) -> str:
    return _WORD.sub(lambda word: name if word[0] in names else word[0], text)
