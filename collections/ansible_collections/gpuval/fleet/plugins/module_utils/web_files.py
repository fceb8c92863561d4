"""Files from a package index or a store over HTTP, with the standard library alone."""

from __future__ import annotations

import base64
import html
import re
import ssl
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from .node_directory import NodeError

ANSWER_SECONDS = 30
PIECE_BYTES = 1 << 20


def find_file(page: str, name: str) -> str:
    """Return the URL of the file that matches the pattern `name`, from `page`, the URL of a package in an index (PEP
    503). Raises NodeError."""
    shown = _without_login(page)[0]
    try:
        with _open(page) as answer:
            links = [html.unescape(link) for link in re.findall(r"href=[\"']([^\"']+)", answer.read().decode())]
    except (OSError, ValueError, HTTPException) as error:
        raise NodeError(f"no package index answers at {shown}: {getattr(error, 'reason', error)}") from error
    files = {unquote(urlsplit(link).path).rpartition("/")[2]: urljoin(page, link) for link in links}
    url = next((url for file, url in files.items() if re.fullmatch(name, file)), "")
    if not url:
        raise NodeError(f"the package index has no file {name} at {shown}")
    return url


def download(url: str, path: Path, until: float, authority: str = "") -> None:
    """Download a URL into a file, at latest `until` (monotonic). `authority`: certificate (PEM) of the server's CA.
    Raises NodeError."""
    try:
        with _open(url, authority) as answer, path.open("wb") as stream:
            while piece := answer.read1(PIECE_BYTES):
                stream.write(piece)
                if time.monotonic() > until:
                    raise TimeoutError("it did not end in time")
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise NodeError(f"the download from {urlsplit(url).hostname} broke off: {reason}") from error


def _without_login(url):
    """Return a URL without `user:password@`, and that login."""
    scheme, login, rest = re.fullmatch(r"(\w+://|)(?:([^/]*)@|)(.*)", url, re.DOTALL).groups()
    return scheme + rest, unquote(login or "")


def _open(url, authority=""):
    bare, login = _without_login(url)
    request = urllib.request.Request(bare)  # noqa: S310 - the operator's own index or store, whatever its scheme
    if login:
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    context = ssl.create_default_context(cadata=authority or None)
    return urllib.request.urlopen(request, timeout=ANSWER_SECONDS, context=context)  # noqa: S310 - as the line above
