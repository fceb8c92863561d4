"""How far this node's clock is off the store's, by the Date header of the store's answer; only for messages."""

from __future__ import annotations

import contextlib
import functools
import http.client
import ssl
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Optional
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 3.0
#: Minimum difference of clocks to report: less may come from the network and the header's whole seconds.
NOTABLE_SECONDS = 60.0


def seconds_ahead(url: str) -> Optional[float]:
    """Return by how many seconds this node's clock is ahead of a URL's server; None without an answer. Sends the URL's
    host alone. The certificate is not verified: a wrong clock may be the reason why it is invalid."""
    try:
        parts = urlsplit(url)
        connect: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            connect = functools.partial(http.client.HTTPSConnection, context=context)
        with contextlib.closing(connect(parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS)) as connection:
            connection.request("HEAD", "/")
            date = connection.getresponse().headers.get("Date", "")
        return time.time() - parsedate_to_datetime(date).timestamp()
    except (OSError, ValueError, TypeError, IndexError, http.client.HTTPException):
        return None


def in_words(ahead_seconds: Optional[float], whose: str = "this node's") -> str:
    """Return a message for a clock that is notably off; empty for a clock that is right or unknown."""
    if ahead_seconds is None or abs(ahead_seconds) < NOTABLE_SECONDS:
        return ""
    side = "ahead of" if ahead_seconds > 0 else "behind"
    return (
        f"{whose} clock is {span(abs(ahead_seconds))} {side} the store's: set it "
        "(`timedatectl set-ntp true`, or `chronyc makestep`)"
    )


def span(seconds: float) -> str:
    """Return a time span in its two largest units, such as `2 d 3 h`."""
    minutes = round(seconds / 60)
    days, minutes = divmod(minutes, 24 * 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{count} {unit}" for count, unit in ((days, "d"), (hours, "h"), (minutes, "min")) if count]
    return " ".join(parts[:2])
