"""Place a node's plan and start its runner, where a connection takes no program on its input."""

from __future__ import annotations

import base64
from typing import Any, TypedDict

from .. import placement

#: Result of the start: `started`, `finished` when the plan was complete already, or `refused`, and why.
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
    """Launch with the parameters of `placement.answer`; runner and workloads are zip archives as base64."""
    return placement.answer(parameters, base64.b64decode(runner), base64.b64decode(workloads))
