"""Reports the end of a run to a webhook: a CloudEvent 1.0, signed by Standard Webhooks, sent with a few retries."""

import base64
import hashlib
import hmac
import http.client
import json
import queue
import random
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from ...module_utils.redaction import SecretRedactor
from ..core.errors import SettingError
from ..core.escape import one_line
from ..core.urls import NoRedirects, in_clear
from ..judge.entries import headline
from .problems import part_text
from .summary import bad_nodes

SCHEMA, TYPE = "gpuval.event/1", "io.gpuval.run.judged"
CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
#: Maximum nodes in an event: a receiver need not accept more than 64 KiB. report.json has all nodes.
MAX_NODES = 50
MAX_PARTS = 16
#: Minimum characters of a key in plain text. `openssl rand -hex 32` prints 64.
SHORTEST_KEY = 16
_hidden = SecretRedactor()
ATTEMPT_SECONDS = 10.0
#: Pauses before the second and each further attempt.
PAUSES_SECONDS = (1.0, 3.0, 9.0)
#: HTTP statuses after which another attempt may succeed: busy, too early, temporarily broken.
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class Delivery(NamedTuple):
    """The result of sending an event; ``problem`` is empty if the receiver accepted it."""

    attempts: int
    problem: str = ""


def event_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """The CloudEvent on a judged run. Equal content has the same id, so that a receiver can drop duplicates."""
    run, bad = report["run"], bad_nodes(report)
    data = {
        "schema": SCHEMA,
        **{key: run[key] for key in ("run_id", "profile", "created_at", "finished_at", "narrowed_by")},
        "store": f"{run['bucket']}/{run['folder']}",
        "verdict": report["verdict"],
        "counts": dict(report["counts"]),
        "nodes": [_node_entry(node) for node in bad[:MAX_NODES]],
        "nodes_left_out": max(0, len(bad) - MAX_NODES),
    }
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
    return {
        "specversion": "1.0",
        "id": f"{run['run_id']}-{digest}",
        "source": f"/gpuval/{quote(run['bucket'], safe='')}",
        "type": TYPE,
        "subject": run["run_id"],
        "time": run["judged_at"],
        "datacontenttype": "application/json",
        "data": data,
    }


def _node_entry(node: Mapping[str, Any]) -> dict[str, Any]:
    """A node that is not PASS, as the event lists it: why, and what to do. ``node``: the node's entry in the report."""
    check, action = headline(node), node.get("action") or {"name": "inspect", "parts": []}
    cause = check or {"stage": "", "reason": "no required check passed", "remedy": "", "part": "node"}
    return {
        "name": one_line(node["name"], 253),
        "id": one_line(node["id"], 253) if node["id"] else None,
        "verdict": node["verdict"],
        "class": one_line(node["class"], 96) if node["class"] else None,
        "stage": one_line(cause["stage"], 64),
        "reason": one_line(_hidden(cause["reason"]), 240),
        "remedy": one_line(_hidden(cause["remedy"]), 240),
        "action": action["name"],
        "parts": [one_line(part_text(node, part), 300) for part in action["parts"][:MAX_PARTS]],
    }


def check_key(key: str) -> None:
    """Check the signing key. Raises SettingError, whose message does not repeat the key."""
    if len(key) < SHORTEST_KEY:
        problem = f"gpuval_webhook_key has less than {SHORTEST_KEY} characters"
        raise SettingError(f"{problem}: make one with `openssl rand -hex 32`")


def headers_of(event_id: str, body: bytes, key: str, timestamp: int) -> dict[str, str]:
    """The HTTP headers of one attempt to send an event, with its signature; ``timestamp``: seconds since 1970."""
    signed = hmac.digest(key.encode(), f"{event_id}.{timestamp}.".encode() + body, "sha256")
    return {
        "Content-Type": CONTENT_TYPE, "User-Agent": "gpuval", "webhook-id": event_id,
        "webhook-timestamp": str(timestamp), "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }  # fmt: skip


def check_url(url: str) -> None:
    """Check the webhook's URL. Raises SettingError, which repeats only the host: paths of webhooks hold tokens."""
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
    """Send an event to a webhook, with retries after transient errors. Raises SettingError for unusable settings."""
    check_url(url)
    check_key(key)
    body = json.dumps(event, allow_nan=False).encode()
    attempts = 0
    for attempts, pause in enumerate((0.0, *PAUSES_SECONDS), 1):  # noqa: B007 - how many there were
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads senders, hides nothing
        headers = headers_of(event["id"], body, key, int(time.time()))
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310 - checked
        # in a thread: neither a slow name server nor a slow answer may delay the run
        answers: queue.Queue[tuple[str, bool]] = queue.Queue()
        threading.Thread(target=lambda asked, put: put(_ask(asked)), args=(request, answers.put), daemon=True).start()
        try:
            problem, is_final = answers.get(timeout=ATTEMPT_SECONDS)
        except queue.Empty:
            problem, is_final = f"no answer within {ATTEMPT_SECONDS:.0f} s", False
        if is_final:
            break
    return Delivery(attempts, problem)


def _ask(request: urllib.request.Request) -> tuple[str, bool]:
    """Send one request. Returns the problem as text (empty on success), and whether a retry would be useless."""
    try:
        with urllib.request.build_opener(NoRedirects).open(request, timeout=ATTEMPT_SECONDS):
            return "", True
    except urllib.error.HTTPError as error:
        with error:
            return f"HTTP {error.code}", error.code not in PASSING
    except urllib.error.URLError as error:
        return one_line(str(error.reason), 200), isinstance(error.reason, ssl.SSLCertVerificationError)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return one_line(f"{type(error).__name__}: {error}", 200), False
