"""Writes a node's plan and starts its runner, for connections that accept no program on standard input."""

from __future__ import annotations

import base64
from typing import Any, TypedDict

from .. import node_launch

#: Result of a launch: `started`, `finished` (the plan was complete already) or `refused`, and why.
LaunchOutcome = TypedDict(
    "LaunchOutcome",
    {
        "state": str,
        "class": str,
        "twin": str,
        "lacking_stages": "list[str]",
        "message": str,
        "pid": int,
        "store_reachable": bool,
    },
    total=False,
)


class LaunchAnswer(TypedDict, total=False):
    #: Folder of the run on the node.
    directory: str
    launch: LaunchOutcome


def launch_plan(_module: Any, runner: str, workloads: str, **parameters: Any) -> LaunchAnswer:
    """Launch a plan with the parameters of `node_launch.answer`; runner and workloads are zip archives as base64."""
    return node_launch.answer(parameters, base64.b64decode(runner), base64.b64decode(workloads))
