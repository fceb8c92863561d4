"""What a URL says about its way, and requests that stay on it."""

import ipaddress
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler


class NoRedirects(HTTPRedirectHandler):
    """Follows no redirects: requests that are signed, or have a token, go to one host only."""

    def redirect_request(self, *_: Any) -> None:
        return None


def in_clear(url: str) -> bool:
    """Whether an HTTP URL leads over a network without TLS."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    return parts.scheme.lower() == "http" and not is_local
