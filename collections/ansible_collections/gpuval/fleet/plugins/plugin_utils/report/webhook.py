"""Deliver an event to a webhook by a few attempts, each of which ends in time."""

from __future__ import annotations

import http.client
import queue
import random
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ..core.errors import SettingError
from ..core.escape import one_line
from ..core.urls import NoRedirects, in_clear
from . import event as events

ATTEMPT_SECONDS = 10.0
#: Before the second attempt and the following ones.
PAUSES_SECONDS = (1.0, 3.0, 9.0)
#: Answers after which another attempt may succeed: busy, too early, broken for now.
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Delivery:
    """``problem`` is empty where the receiver accepted the event."""

    attempts: int
    problem: str = ""


@dataclass(frozen=True)
class _WebhookAnswer:
    problem: str = ""
    final: bool = False


def check_url(url: str) -> None:
    """Raises SettingError. No message repeats more than the host: paths of webhooks hold tokens."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme.lower() not in ("http", "https") or not host or re.search(r"[^!-~]", url):
        raise SettingError("gpuval_webhook_url is no URL: write https://HOST/PATH")
    if parts.username or parts.password:
        raise SettingError("gpuval_webhook_url has a user or password: remove it, gpuval_webhook_key signs the event")
    if in_clear(url):
        raise SettingError(f"gpuval_webhook_url leads to {host} without TLS: use https://")


def deliver(url: str, key: str, event: Mapping[str, Any]) -> Delivery:
    """Send the event, again where an attempt may help. Raises SettingError for settings that cannot be used."""
    check_url(url)
    events.check_key(key)
    body = events.body_of(event)
    attempts = 0
    for pause in (*PAUSES_SECONDS, None):
        attempts += 1
        headers = events.headers_of(event["id"], body, key, int(time.time()))
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310 - checked
        answer = _attempt(request)
        if not answer.problem or answer.final or pause is None:
            break
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads senders, hides nothing
    return Delivery(attempts, answer.problem)


def _attempt(request: urllib.request.Request) -> _WebhookAnswer:
    """One attempt in a thread: neither a slow name server nor an answer byte by byte holds the run up."""
    answers: queue.Queue[_WebhookAnswer] = queue.Queue()
    threading.Thread(target=lambda: answers.put(_ask(request)), daemon=True).start()
    try:
        return answers.get(timeout=ATTEMPT_SECONDS)
    except queue.Empty:
        return _WebhookAnswer(f"no answer within {ATTEMPT_SECONDS:.0f} s")


def _ask(request: urllib.request.Request) -> _WebhookAnswer:
    try:
        with urllib.request.build_opener(NoRedirects).open(request, timeout=ATTEMPT_SECONDS):
            return _WebhookAnswer()
    except urllib.error.HTTPError as error:
        with error:
            return _WebhookAnswer(f"HTTP {error.code}", error.code not in PASSING)
    except urllib.error.URLError as error:
        final = isinstance(error.reason, ssl.SSLCertVerificationError)
        return _WebhookAnswer(one_line(str(error.reason), 200), final)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _WebhookAnswer(one_line(f"{type(error).__name__}: {error}", 200))
