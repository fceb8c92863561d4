"""Digests by which a node itself confirms evidence that the controller read from the store. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .evidence import EvidenceRefused, accept_answer

#: The channel of a stage whose evidence nothing but the store confirms.
STORE_ONLY = "store only"
#: The channel of nodes that state their digests over Ansible's own connection.
BY_NODE = "node"
#: The channel of records that the controller itself writes about its search for a bad node.
CONTROLLER = "controller"
#: In place of a digest: the object did not come from the store (BY_CHANNEL), or is too large to be read whole (CUT).
BY_CHANNEL, CUT = "", "*"


@dataclass
class NodeDigests:
    """SHA-256 digests, hexadecimal, of a node's objects by key such as ``records/facts``.

    ``stated``: digests that the node sends over ``channel``; two where the store lacks the last version. ``read``: the
    digest of the bytes that the controller read as evidence.
    """

    channel: str = ""
    stated: dict[str, list[str]] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "NodeDigests":
        """The digests in a document of the results folder; empty if it is damaged: the store alone then confirms."""
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
        """Whether the controller read an object whose digest the node has not confirmed yet."""
        return any(digest != CUT and not self.is_confirmed(key) for key, digest in self.read.items())

    def channel_of(self, stage: str) -> str:
        """The channel that confirms all objects of a stage, its record among them; else STORE_ONLY."""
        keys = [key for key in self.read if key.partition("/")[2] == stage]
        is_confirmed = f"records/{stage}" in keys and all(map(self.is_confirmed, keys))
        return self.channel if self.channel and is_confirmed else STORE_ONLY


def stated_in(document: Any) -> dict[str, list[str]]:
    """The field ``digests`` of the file that a node's runner writes at its end; empty if missing or malformed."""
    stated = document.get("digests") if isinstance(document, dict) else None
    return NodeDigests.of({"channel": "", "stated": stated, "read": {}}).stated


def digest_of_bytes(raw: bytes, limit: int) -> str:
    """The digest of an object's bytes; `CUT` if only its first ``limit`` bytes were read."""
    return CUT if len(raw) > limit else hashlib.sha256(raw).hexdigest()
