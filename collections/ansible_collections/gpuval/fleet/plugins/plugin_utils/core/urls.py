"""Detects URLs without TLS, and makes HTTP requests that follow no redirects."""

import ipaddress
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler


class NoRedirects(HTTPRedirectHandler):
    """Makes urllib follow no redirects, so that requests with a signature or token reach only the intended host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def in_clear(url: str) -> bool:
    """Whether a URL uses HTTP without TLS to another host than this one."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    return parts.scheme.lower() == "http" and not is_local
