"""The end of a run as a CloudEvent 1.0 (structured mode), signed as Standard Webhooks has it. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from ...module_utils.redaction import SecretRedactor
from ..core.errors import SettingError
from ..core.escape import one_line
from ..judge.verdict import headline
from .problems import part_text
from .summary import bad_nodes

SCHEMA = "gpuval.event/1"
TYPE = "io.gpuval.run.judged"
CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
#: A receiver need not accept more than 64 KiB; report.json has all nodes.
MAX_NODES = 50
MAX_PARTS = 16
#: Of a key in plain text. What `openssl rand -hex 32` prints has 64 characters.
SHORTEST_KEY = 16

_hidden = SecretRedactor()


def event_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """The event on a judged run. Its id is the same for the same content: a receiver keeps one of several."""
    run, bad = report["run"], bad_nodes(report)
    data = {
        "schema": SCHEMA,
        **{key: run[key] for key in ("run_id", "profile", "created_at", "finished_at", "narrowed_by")},
        "store": f"{run['bucket']}/{run['folder']}",
        "verdict": report["verdict"],
        "counts": dict(report["counts"]),
        "nodes": [_node(node) for node in bad[:MAX_NODES]],
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


def _node(node: Mapping[str, Any]) -> dict[str, Any]:
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


def body_of(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event, allow_nan=False).encode()


def check_key(key: str) -> None:
    """Raises SettingError; no message repeats the key."""
    if len(key) < SHORTEST_KEY:
        raise SettingError(
            f"gpuval_webhook_key has less than {SHORTEST_KEY} characters: make one with `openssl rand -hex 32`"
        )


def headers_of(event_id: str, body: bytes, key: str, timestamp: int) -> dict[str, str]:
    """The headers of one attempt at ``timestamp``, in seconds since 1970."""
    signed = hmac.digest(key.encode(), f"{event_id}.{timestamp}.".encode() + body, "sha256")
    return {
        "Content-Type": CONTENT_TYPE,
        "User-Agent": "gpuval",
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }
