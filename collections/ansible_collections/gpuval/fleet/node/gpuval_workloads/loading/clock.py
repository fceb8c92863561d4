"""How far this node's clock is from the store's, by the Date of an answer: for messages only."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import time
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 5.0
NOTABLE_SECONDS = 60.0


def seconds_ahead(endpoint: str) -> float | None:
    """Ask the store for its time; None without an answer.

    Its certificate is not verified: a wrong clock may be the reason why it is invalid. Nothing secret is sent.
    """
    try:
        parts = urlsplit(endpoint)
        place = (parts.hostname or "", parts.port)
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                *place, timeout=TIMEOUT_SECONDS, context=context
            )
        else:
            connection = http.client.HTTPConnection(*place, timeout=TIMEOUT_SECONDS)
        with contextlib.closing(connection):
            connection.request("HEAD", "/")
            date = connection.getresponse().headers.get("Date", "")
        return time.time() - parsedate_to_datetime(date).timestamp()
    except (OSError, ValueError, TypeError, IndexError, http.client.HTTPException):
        return None


def in_words(ahead: float) -> str:
    """Return the difference with its two largest units and its side: `3 h 5 min ahead of`."""
    hours, minutes = divmod(round(abs(ahead) / 60), 60)
    days, hours = divmod(hours, 24)
    parts = [f"{count} {unit}" for count, unit in ((days, "d"), (hours, "h"), (minutes, "min")) if count]
    return f"{' '.join(parts[:2])} {'ahead of' if ahead > 0 else 'behind'}"
