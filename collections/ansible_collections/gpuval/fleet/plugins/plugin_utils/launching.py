"""What every launch of a run shares, made once by the action that starts them all and inherited by its workers."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cache
from typing import Any

from ansible_collections.gpuval.fleet.plugins.module_utils.store import Connection, Store
from ansible_collections.gpuval.fleet.plugins.plugin_utils import payload, schemas

#: Where the reason lies why a node was not even tried.
PROBE_FILE = "probe.json"
REACHABLE = "reachable"


@cache
def archives() -> dict[str, bytes]:
    """The runner and the workloads, by the names that the module's arguments have."""
    return {"runner": payload.runner_pyz(), "workloads": payload.workloads_zip()}


def encoded_archives() -> dict[str, str]:
    """The same as base64, for a module's arguments."""
    return {name: base64.b64encode(data).decode() for name, data in archives().items()}


@cache
def client(connection: Connection) -> Store:
    """A client that no request was sent with before the fork: two processes must not share an open connection."""
    return Store(connection)


def warm(connection: Connection) -> None:
    """Do before the workers are forked what each of them would do for itself."""
    archives()
    client(connection).sign_put("warm", 60)  # opens no connection; the first signature costs as much as ten others
    schemas.validator("plan")


def away(probed: Mapping[str, Any], node: str) -> dict[str, Any] | None:
    """Why the node is not to be touched, by the probe (gpuval.probe/1); None when it answers or was not probed."""
    found = probed.get("nodes", {}).get(node)
    if not found or found.get("state") == REACHABLE:
        return None
    known = {"state": "unreachable", "class": str(found["state"]), "message": str(found.get("message") or "")}
    return {**known, "remedy": str(found["remedy"])} if found.get("remedy") else known


def remaining_seconds(run: Mapping[str, Any], begun_seconds_ago: float) -> float:
    """What is left of the run's time for a node whose turn comes now."""
    return float(run["deadline_seconds"]) - max(0.0, begun_seconds_ago)
