"""Links that several nodes lost on ports of one name at the same time: the switch is at fault, and no node. Pure.

In a rail-optimised fabric the ports of one name end at one switch; in others a node has all its ports at one, so that
each name is lost on the nodes of that switch.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..core.text import some_of
from ..records import environment
from ..records.documents import Record
from .check import Subject
from .entries import Entry

METRIC, FAILURE_CLASS = "link_down_new_count", "switch_links"
#: The loss of a link is shared if so many nodes have it; of a run of two nodes, both.
MIN_NODES = 3
MAX_PORT = 64
_REMEDY = (
    "look at the log of the switch behind these ports for a restart, at its power and firmware; then validate again"
)


class LinkLoss(NamedTuple):
    """A port that lost its link in an attempt of a stage, and when that began and ended (RFC 3339 UTC)."""

    node: str
    stage: str
    port: str
    began: str
    ended: str


def _losses(node: str, record: Record) -> Iterable[LinkLoss]:
    """The links that the node's ports lost during the attempts of a stage, by its record."""
    for attempt in (record, *record["attempts"]):
        began = attempt["started_at"] or attempt["updated_at"]
        ended = attempt["finished_at"] or attempt["updated_at"]
        for port in environment.values(attempt["environment"], "telemetry.links_down[]") or ():
            yield LinkLoss(node, record["stage"], str(port)[:MAX_PORT], began, ended)


def find_shared(subjects: Mapping[str, Subject]) -> dict[tuple[str, str], str]:
    """``{(node, stage): text}`` where other nodes lost the same links at the same time, which the text names."""
    by_port: dict[str, list[LinkLoss]] = defaultdict(list)
    for name, subject in subjects.items():
        for record in subject.records.values():
            for loss in _losses(name, record):
                by_port[loss.port].append(loss)
    least = min(MIN_NODES, max(2, len(subjects)))
    texts: dict[tuple[str, str], str] = {}
    alone = set()
    for port, losses in by_port.items():
        for loss in losses:
            nodes = dict.fromkeys(one.node for one in losses if loss.began <= one.ended and one.began <= loss.ended)
            if len(nodes) < least:
                alone.add((loss.node, loss.stage))
            text = f"{len(nodes)} nodes lost the link of {port} in the same time: {some_of(nodes)}"
            texts.setdefault((loss.node, loss.stage), text)
    return {place: text for place, text in texts.items() if place not in alone}


def blame_switch(checks: list[Entry], shared: Mapping[tuple[str, str], str], node: str) -> list[Entry]:
    """The checks of a node; the failure class of links that it lost with others (``shared``) becomes the switch's."""
    for check in checks:
        text = shared.get((node, check["stage"])) if check["metric"] == METRIC else None
        if text and check["verdict"] == "fail":
            check |= {"class": FAILURE_CLASS, "remedy": _REMEDY, "reason": f"{text}; {check['reason']}"}
    return checks
