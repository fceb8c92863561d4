"""What has to be transferred: pure functions over the manifest, the store's listing and what is on the node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from . import manifest as manifest_module


@dataclass(frozen=True)
class LoadPlan:
    """Files of the manifest, by what is to be done with them; sizes in bytes."""

    transfer: Mapping[str, int]
    present: Mapping[str, int]

    @property
    def bytes_to_transfer(self) -> int:
        return sum(self.transfer.values())

    @property
    def is_complete(self) -> bool:
        return not self.transfer


def missing_in_store(digests: Mapping[str, str], listing: Mapping[str, int]) -> list[str]:
    """Return the files that the manifest names and the store does not have."""
    return sorted(path for path in digests if path not in listing)


def not_in_manifest(digests: Mapping[str, str], paths: Iterable[str]) -> list[str]:
    """Return the files without a checksum in the manifest; the manifest itself is expected."""
    return sorted(path for path in paths if path not in digests and path != manifest_module.NAME)


def same_size(digests: Mapping[str, str], listing: Mapping[str, int], local: Mapping[str, int]) -> list[str]:
    """Return the files on the node that are worth hashing: those of the size that the store gives."""
    return sorted(path for path in digests if path in local and local[path] == listing[path])


def make_plan(digests: Mapping[str, str], listing: Mapping[str, int], verified: Iterable[str]) -> LoadPlan:
    """Return the plan, given which files on the node have been verified."""
    verified = set(verified)
    return LoadPlan(
        transfer={path: listing[path] for path in sorted(digests) if path not in verified},
        present={path: listing[path] for path in sorted(digests) if path in verified},
    )
