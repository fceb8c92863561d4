"""Checks nodes' answers about their network, which are untrusted: size and schema. Keeps what findings need. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...module_utils.network.endpoints import FIGURES
from ...module_utils.network.peers import LinkAnswer
from ..core import schemas
from ..core.errors import GpuvalError
from ..core.escape import one_line

#: Maximum size of a node's answer: one about 1,000 peers has 600 KiB.
MAX_BYTES = 4 << 20
#: Figures of a service that was not measured.
NO_FIGURES = {**dict.fromkeys(FIGURES), "host": "", "port": None, "message": ""}


class RejectedAnswerError(GpuvalError):
    """A node's malformed answer about its network, which gpuval's own code never gives; the message names the field."""


@dataclass(frozen=True)
class Answers:
    """One node's answer about its network, or the `reason` why it has none, or why it was rejected.

    `services` (with all figures) and `interfaces` are documents of the schema network_answer, by name.
    """

    peers: dict[str, LinkAnswer] = field(default_factory=dict)
    services: dict[str, dict[str, Any]] = field(default_factory=dict)
    interfaces: dict[str, dict[str, Any]] = field(default_factory=dict)
    not_listening: dict[int, str] = field(default_factory=dict)
    reason: str = ""
    is_rejected: bool = False


def take_in(facts: Any, node: str, peers: Sequence[str], services: Sequence[str], not_listening: Any = None) -> Answers:
    """Check and parse a node's answer (`facts`) about the peers and services to measure. `not_listening`: by port, why
    the node does not listen there. Raises RejectedAnswerError."""
    answer = {**facts, "not_listening": not_listening or {}} if isinstance(facts, Mapping) else facts
    try:
        if len(json.dumps(answer, allow_nan=False)) > MAX_BYTES:
            raise RejectedAnswerError(f"it has more than {MAX_BYTES} bytes")
        schemas.validate("network_answer", answer, what="it")
    except (schemas.Invalid, ValueError, TypeError, RecursionError) as error:
        raise RejectedAnswerError(one_line(str(error), 300)) from None
    missing = sorted({*peers} - answer["peers"].keys() | {*services} - answer["endpoints"].keys())
    if answer["node"] != node or missing:
        raise RejectedAnswerError(f"it lacks {missing[0]}" if missing else "it is in the name of another node")
    return Answers(
        peers={name: LinkAnswer(**_clean(answer["peers"][name])) for name in peers},
        services={name: {**NO_FIGURES, **_clean(answer["endpoints"][name])} for name in services},
        interfaces={
            one_line(name): {**_clean(entry), "addresses": [one_line(address) for address in entry["addresses"]]}
            for name, entry in answer["interfaces"].items()
        },
        not_listening={
            int(port): one_line(reason, 120) for port, reason in answer["not_listening"].items() if reason != "in_use"
        },
    )


def _clean(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one_line(value, 200) if isinstance(value, str) else value for key, value in entry.items()}
