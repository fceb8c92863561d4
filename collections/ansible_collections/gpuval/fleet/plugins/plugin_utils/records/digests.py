"""Digests of evidence by another channel than the store: what a node states, against the bytes that were read. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .evidence import EvidenceRefused, accept_answer

#: The channel of a stage that nothing but the store confirms.
STORE_ONLY = "store only"
#: The channel of nodes that are asked by Ansible's own connection.
BY_NODE = "node"
#: The channel of what the controller itself concludes from a search.
CONTROLLER = "controller"
#: In place of a digest: the object came by the channel itself; it is too large to be read whole.
BY_CHANNEL, CUT = "", "*"


@dataclass
class NodeDigests:
    """SHA-256 digests, hexadecimal, of a node's objects by key such as ``records/facts``.

    ``stated``: what the node says by `channel`; two where the store lacks its last version. ``read``: of the bytes that
    are the evidence.
    """

    channel: str = ""
    stated: dict[str, list[str]] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "NodeDigests":
        """The digests of a file of the run; empty if it is damaged: its stages are then confirmed by the store only."""
        try:
            return cls(**accept_answer("node_digests", document))
        except EvidenceRefused:
            return cls()

    def is_confirmed(self, key: str) -> bool:
        return self.read.get(key) in (BY_CHANNEL, *self.stated.get(key, ()))

    def is_altered(self, key: str) -> bool:
        """Whether the node states another digest than that of the object which was read from the store."""
        return key in self.stated and self.read.get(key, CUT) != CUT and not self.is_confirmed(key)

    @property
    def has_open_keys(self) -> bool:
        """Whether something was read that the node may confirm, and has not."""
        return any(digest != CUT and not self.is_confirmed(key) for key, digest in self.read.items())

    def channel_of(self, stage: str) -> str:
        """The channel that confirms the record of a stage and all else that was read of it; else `STORE_ONLY`."""
        keys = [key for key in self.read if key.partition("/")[2] == stage]
        is_confirmed = f"records/{stage}" in keys and all(map(self.is_confirmed, keys))
        return self.channel if self.channel and is_confirmed else STORE_ONLY


def stated_in(document: Any) -> dict[str, list[str]]:
    """The field ``digests`` of what a node wrote at its end; empty if it is missing or malformed: it is untrusted."""
    stated = document.get("digests") if isinstance(document, dict) else None
    return NodeDigests.of({"channel": "", "stated": stated, "read": {}}).stated


def digest_of_bytes(raw: bytes, limit: int) -> str:
    """The digest of an object's bytes; `CUT` if only its first ``limit`` bytes were read."""
    return CUT if len(raw) > limit else hashlib.sha256(raw).hexdigest()
