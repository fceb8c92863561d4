"""The store file: signed URLs of objects that this node may write or read. URLs are secrets and are never shown."""

from __future__ import annotations

import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Optional

from gpuval_runner.clock import parse
from gpuval_runner.errors import StoreFileError
from gpuval_runner.files import read_json

SCHEMA = "gpuval.store/1"
MAX_STORE_BYTES = 4 << 20


@dataclass(frozen=True)
class SignedStore:
    """Signed URLs by key: `put` for the objects that this node may write, `downloads` for those that it may read."""

    put: Mapping[str, str] = field(repr=False)
    downloads: Mapping[str, str] = field(default_factory=dict, repr=False)
    expires_at: Optional[datetime] = None
    ca_file: Optional[str] = None

    def expired(self, url: str) -> bool:
        """Whether the URLs have expired by the clock of the store at `url`: the node's clock may be hours ahead."""
        if self.expires_at is None or time.time() < self.expires_at.timestamp():
            return False
        from gpuval_node import clock_skew  # a launch reads the store file, too, and must not import HTTP

        return time.time() - (clock_skew.seconds_ahead(url) or 0.0) >= self.expires_at.timestamp()


def load_store(path: Path, private: bool = True) -> Optional[SignedStore]:
    """Read a store file; None when there is none. Raises ``StoreFileError``; with `private`, also for a file that
    others may read. (In a pod, the Secret's mount sets the permissions.)"""
    try:
        status = path.stat()
        document = read_json(path.resolve(), MAX_STORE_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise StoreFileError(f"{path} cannot be read as a store file: put it there anew") from None
    if private and stat.S_IMODE(status.st_mode) & 0o077:
        raise StoreFileError(f"{path} holds secrets and others may read it: chmod 600, and renew the signed URLs")
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or not isinstance(document.get("put"), dict):
        raise StoreFileError(f"{path} is not {SCHEMA}: put it there anew")
    expires, ca_file = document.get("expires_at"), document.get("ca_file")
    try:
        expires_at = parse(expires) if expires else None
    except (ValueError, AttributeError):
        raise StoreFileError(f"{path}: expires_at is not a time in UTC") from None
    put, downloads = _http_urls(document["put"]), _http_urls(document.get("downloads"))
    return SignedStore(put, downloads, expires_at, str(path.parent / ca_file) if ca_file else None)


def _http_urls(document: Any) -> dict[str, str]:
    pairs = document.items() if isinstance(document, dict) else ()
    return {k: v for k, v in pairs if isinstance(v, str) and v.startswith(("http://", "https://"))}
