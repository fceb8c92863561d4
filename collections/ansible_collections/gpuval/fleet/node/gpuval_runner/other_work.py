"""Finds other users' work on the accelerators. A plan for idle nodes ends then; the records of others name it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Set as AbstractSet
from typing import Callable

from gpuval_node.hardware.tools import toolbox
from gpuval_node.hardware.tree import Tree
from gpuval_node.hardware.users import User, accelerator_users
from gpuval_node.process_stat import snapshot

from gpuval_runner import descendants
from gpuval_runner.plan import NodePlan

#: Seconds between two looks at the processes on the accelerators. Only a process that both looks saw counts: one that
#: is ending has lost its environment, by which the runner recognises its own processes.
LOOK_SECONDS = 3.0
#: Start of the message about other users' work: the controller recognises the message by it, as at launch.
IN_THE_WAY = "others use this node's accelerators or run here:"
MOST_NAMED = 4


class OtherWork:
    """Finds other users' work by calling `users`, which returns processes on the accelerators (None: never looks). With
    `gives_way`, a thread keeps looking, and `found` names the processes once there are some."""

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
        """Look for other users' work now; return `found`. Work that began just before a stage's end may cause it."""
        if not self.found:
            named = ", ".join(self.beside()[:MOST_NAMED])
            self.found = self.found or named  # the other thread may have found work meanwhile
        return self.found

    def beside(self) -> list[str]:
        """Return the processes of other users on the accelerators, as texts, at the end of a stage."""
        if self._users is None:
            return []
        before = self._users()
        if not before:
            return []
        time.sleep(self._seconds)
        return sorted(map(str, before & self._users()))

    def _watch(self) -> None:
        while not self.look():
            time.sleep(self._seconds)


def watch(plan: NodePlan) -> OtherWork:
    """Return the `OtherWork` of a plan's node. In a pod, or without accelerators, it never looks."""
    if plan.accelerator.vendor == "cpu" or plan.runtime == "pod":
        return OtherWork(None)
    run = toolbox()
    return OtherWork(lambda: {*_not_ours(accelerator_users(Tree(), run, plan.run_id))}, gives_way=plan.gives_way)


def _not_ours(users: list[User]) -> list[User]:
    """Return the processes without this runner's descendants, even if these overwrote their environment by setting a
    title (vLLM), and without processes that ended or are of another PID namespace, whose owner is unknown."""
    processes = snapshot() if users else {}
    living = [user for user in users if user.pid in processes]
    return [user for user in living if os.getpid() not in descendants.ancestors(processes, user.pid)]
