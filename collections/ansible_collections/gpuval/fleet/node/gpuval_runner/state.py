"""The runner's state in ``state.json``: start, deadline, interruptions, whether the store answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Optional

from gpuval_runner.clock import Instant
from gpuval_runner.files import read_json, to_json, write_atomically

SCHEMA = "gpuval.state/1"


@dataclass(frozen=True)
class ContainerMark:
    """Command of the container engine that made a run's containers; an image on the node, and the Python in it."""

    command: str = ""
    image: str = ""
    python: str = ""


@dataclass
class NodeRunState:
    """The runner's state of a run on this node. `started`: when a runner first started the plan made at
    `plan_created_at`; the deadline counts from then. `boot`: id of the boot in which a runner last started.
    `interruptions` counts by ``stage/attempt``. `current` identifies the running stage's session by pid and start ticks
    of its first process."""

    run_id: str = ""
    node: str = ""
    attempt: int = 0
    plan_created_at: str = ""
    started: Optional[Instant] = None
    boot: str = ""
    pid: int = 0
    instance: str = ""
    unit: str = ""
    interruptions: dict[str, int] = field(default_factory=dict)
    current: Optional[dict[str, int]] = None
    store_reachable: Optional[bool] = None
    store_message: str = ""
    outcome: Optional[str] = None
    #: OOM kills that the machine had counted when the runner started.
    oom_kills: Optional[int] = None
    container: Optional[ContainerMark] = None

    def save(self, path: Path) -> None:
        """Write the state. Raises ``OSError``."""
        write_atomically(path, to_json({"schema": SCHEMA, **asdict(self)}))


def load(path: Path) -> NodeRunState:
    """Read the state file; a new state when the file is missing or damaged."""
    try:
        document = read_json(path, 1 << 20)
        if document.pop("schema") != SCHEMA:
            return NodeRunState()
        for name, kind in (("started", Instant), ("container", ContainerMark)):
            document[name] = kind(**document[name]) if document.get(name) else None
        return NodeRunState(**document)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return NodeRunState()
