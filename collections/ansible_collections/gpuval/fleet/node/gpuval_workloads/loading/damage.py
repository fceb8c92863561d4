"""Which part damaged a file on its way from the store to the node's disk. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

STORE, NETWORK, NODE, HEALED = "store", "network", "node", "healed"


@dataclass(frozen=True)
class FileDigests:
    """SHA-256 of one file; None where there was no file.

    ``announced`` is that of the manifest, ``first`` that of the file that did not match it, ``read_again`` that of
    the same file, read once more. ``sent`` is what the store sent next, past the disk; ``second`` is a second copy.
    """

    announced: str
    first: str | None
    read_again: str | None = None
    sent: str | None = None
    second: str | None = None


#: The first that applies counts.
RULES: tuple[tuple[str, Callable[[FileDigests], bool]], ...] = (
    (STORE, lambda file: file.first is None),  # it was listed, and did not come
    (NODE, lambda file: file.read_again != file.first),
    (STORE, lambda file: file.sent == file.first),
    (NETWORK, lambda file: file.sent != file.announced),
    (NODE, lambda file: file.second != file.announced),
    (HEALED, lambda file: True),
)


def origin_of(file: FileDigests) -> str:
    """Return what damaged a file: the store, the network, the node; or ``healed``, where a second copy is right."""
    return next(origin for origin, applies in RULES if applies(file))
