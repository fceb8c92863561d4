"""The API of DigitalOcean, as far as provisioning needs it. Answers are untrusted: bounded, and cleaned in messages."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, build_opener

from ..core import schemas
from ..core.escape import one_line
from ..core.urls import NoRedirects
from . import ProvisionError

URL = "https://api.digitalocean.com"
#: Seconds that a connection may stall.
TIMEOUT = 30
#: Attempts of a GET; requests that create or delete are sent once.
ATTEMPTS = 4
BETWEEN_SECONDS = 2.0
MAX_BYTES = 16 << 20
MAX_PAGES = 100
CLUSTERS = "/v2/kubernetes/clusters"


class NoAnswerError(ProvisionError):
    """The API gave no answer, or cannot answer now. The creation or deletion may have happened all the same."""


def path_of(cluster: Mapping[str, Any], pool: Mapping[str, Any] | None = None) -> str:
    return "/".join([CLUSTERS, cluster["id"], *(["node_pools", pool["id"]] if pool is not None else [])])


class DigitalOceanApi:
    """Client of the DigitalOcean API. Messages never show its token."""

    def __init__(self, token: str) -> None:
        if not token:
            raise ProvisionError("no DigitalOcean token: set DO_API_TOKEN in the environment, or provision_token")
        self._token = token
        self._opener = build_opener(NoRedirects)

    def get(self, path: str, key: str) -> Any:
        """The value of `key` in the answer to a GET. Raises ProvisionError."""
        return self._document(path, self.get_bytes(path), key)[key]

    def pages(self, path: str, key: str) -> Iterator[dict[str, Any]]:
        """The entries of all pages of a list; `key`: the list's key in the answers."""
        for number in range(1, MAX_PAGES + 1):
            page = f"{path}?page={number}&per_page=200"
            answer = self._document(page, self.get_bytes(page), key)
            yield from answer[key] or ()
            if not answer[key] or "next" not in ((answer.get("links") or {}).get("pages") or {}):
                return

    def get_bytes(self, path: str) -> bytes:
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(NoAnswerError):
                return self._send("GET", path)
            time.sleep(BETWEEN_SECONDS)
        return self._send("GET", path)

    def order(self, path: str, document: Mapping[str, Any], key: str, label: str) -> Any:
        """Create something that costs money, by one POST without retry. Returns the value of `key` in the answer.

        Raises ProvisionError; if the answer is lost, the message says what to check before another order.
        """
        try:
            answer = self._send("POST", path, json.dumps(document))
            return self._document(path, answer, key, NoAnswerError)[key]
        except NoAnswerError as error:
            raise ProvisionError(
                f"{error}. {label} may exist and cost money: check `make provision LIST=1` for a few minutes, then run "
                "`make provision` again, which resumes"
            ) from None

    def delete(self, path: str) -> None:
        """Delete the object at `path`; an object that is gone already is no error."""
        self._send("DELETE", path, accept_missing=True)

    def _send(self, method: str, path: str, body: str | None = None, *, accept_missing: bool = False) -> bytes:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            request = Request(URL + path, body.encode() if body else None, headers, method=method)  # noqa: S310 - a fixed host
            with self._opener.open(request, timeout=TIMEOUT) as answer:
                data: bytes = answer.read(MAX_BYTES + 1)
        except HTTPError as error:
            if accept_missing and error.code == 404:
                return b""
            is_temporary = error.code == 429 or error.code >= 500
            raise (NoAnswerError if is_temporary else ProvisionError)(self._refusal(method, path, error)) from None
        except Exception as error:  # urllib, ssl and http.client raise errors of many types
            raise NoAnswerError(self._clean(f"{method} {path} has no answer: {error}")) from None
        if len(data) > MAX_BYTES:
            raise NoAnswerError(f"{method} {path}: the answer is over {MAX_BYTES:,} bytes")
        return data

    def _refusal(self, method: str, path: str, error: HTTPError) -> str:
        try:
            message = json.loads(error.read(MAX_BYTES))["message"]
        except Exception:  # the answer's body may be anything, or break off
            message = error.reason
        remedy = ": check provision_token and its scopes" if error.code in (401, 403) else ""
        return self._clean(f"{method} {path} is refused ({error.code}): {message}{remedy}")

    def _clean(self, text: str) -> str:
        return one_line(text.replace(self._token, "***"))

    @staticmethod
    def _document(path: str, data: bytes, key: str, failure: type[ProvisionError] = ProvisionError) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads(data)
            schemas.validate("doks", document, what=path)
        except (ValueError, RecursionError) as error:
            raise failure(f"{one_line(str(error))}: the API gives {path} another form than expected") from None
        if key not in document:
            raise failure(f"{path} has no {key}: the API answers in another form than expected")
        return document
