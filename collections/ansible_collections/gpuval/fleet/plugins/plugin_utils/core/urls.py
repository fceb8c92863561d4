"""What a URL says about its way."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def in_clear(url: str) -> bool:
    """Whether an HTTP URL leads over a network without TLS."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = host == "localhost"
    return parts.scheme.lower() == "http" and not here
