"""Other work on the accelerators: a plan of an idle node gives way to it, other plans name it in their records."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Set as AbstractSet
from typing import Callable

from gpuval_node.hardware.tools import toolbox
from gpuval_node.hardware.tree import Tree
from gpuval_node.hardware.users import User, accelerator_users

from gpuval_runner import descendants
from gpuval_runner.plan import HOST_STAGES, NodePlan

#: Between two looks; a process counts that both saw, since one that ends has lost its environment first.
LOOK_SECONDS = 3.0
#: By these words the controller knows it, as at launch.
IN_THE_WAY = "others use this node's accelerators or run here:"
MOST_NAMED = 4
#: They need no accelerators, so that work on these is not in their way.
OFF_ACCELERATORS = HOST_STAGES | {"loading", "storage", "endpoints"}
DATASET = "dataset_"


class OtherWork:
    """``users`` looks; without it nothing is looked for. Where a plan gives way, `found` names it once it is there."""

    def __init__(
        self,
        users: Callable[[], AbstractSet[object]] | None,
        look_seconds: float = LOOK_SECONDS,
        *,
        gives_way: bool = True,
    ) -> None:
        self.found = ""
        self._users, self._seconds = users, look_seconds
        if users and gives_way:
            threading.Thread(target=self._watch, name="other work", daemon=True).start()

    def look(self) -> str:
        """Look now: what came shortly before the end of a stage may have ended or slowed it. Returns `found`."""
        self.found = self.found or ", ".join(self.beside()[:MOST_NAMED])
        return self.found

    def beside(self, stage: str = "") -> list[str]:
        """Look at the end of a stage; returns who uses the accelerators beside it."""
        if self._users is None or stage in OFF_ACCELERATORS or stage.startswith(DATASET):
            return []
        before = self._users()
        if not before:
            return []
        time.sleep(self._seconds)
        return sorted(map(str, before & self._users()))

    def _watch(self) -> None:
        before: AbstractSet[object] = frozenset()
        while self._users and not self.found:
            now = self._users()
            self.found = self.found or ", ".join(sorted(map(str, before & now))[:MOST_NAMED])
            before = now
            time.sleep(self._seconds)


def watch(plan: NodePlan) -> OtherWork:
    """Looks on a node with accelerators of its own; from now on, if the plan gives way."""
    if plan.accelerator.vendor == "cpu" or plan.runtime == "pod":
        return OtherWork(None)
    run = toolbox()
    return OtherWork(lambda: {*_not_ours(accelerator_users(Tree(), run, plan.run_id))}, gives_way=plan.gives_way)


def _not_ours(users: list[User]) -> list[User]:
    """Without what this runner started: a process that sets its title (vLLM does) overwrites its environment. Nor what
    has ended, or has another namespace's pid, so that nothing tells whose it is."""
    processes = descendants.snapshot() if users else {}
    living = [user for user in users if user.pid in processes]
    return [user for user in living if os.getpid() not in descendants.ancestors(processes, user.pid)]
