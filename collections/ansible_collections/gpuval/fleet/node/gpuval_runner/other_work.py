"""Other work on the accelerators: a plan for idle nodes ends because of it, other plans name it in their records."""

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

#: Seconds between two looks. A process counts if both looks saw it: one that is ending loses its environment first.
LOOK_SECONDS = 3.0
#: Start of the message, by which the controller recognises other work, as at launch.
IN_THE_WAY = "others use this node's accelerators or run here:"
MOST_NAMED = 4


class OtherWork:
    """Finds other work by calling `users`, which returns the accelerators' users (None: never looks). With `gives_way`,
    a thread keeps looking, and `found` names the work once there is some."""

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
        """Look for other work now and return `found`: work that began just before a stage's end may be its cause."""
        if not self.found:
            named = ", ".join(self.beside()[:MOST_NAMED])
            self.found = self.found or named  # a look of the other thread may have ended meanwhile
        return self.found

    def beside(self) -> list[str]:
        """Return the processes of others that use the accelerators now, at the end of a stage."""
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
    """Return what looks for other work on a plan's node; in a pod or without accelerators it never looks."""
    if plan.accelerator.vendor == "cpu" or plan.runtime == "pod":
        return OtherWork(None)
    run = toolbox()
    return OtherWork(lambda: {*_not_ours(accelerator_users(Tree(), run, plan.run_id))}, gives_way=plan.gives_way)


def _not_ours(users: list[User]) -> list[User]:
    """Return the users without this runner's descendants, even if they overwrote their environment by setting a title
    (vLLM), and without processes that ended or are of another PID namespace, whose owner is unknown."""
    processes = snapshot() if users else {}
    living = [user for user in users if user.pid in processes]
    return [user for user in living if os.getpid() not in descendants.ancestors(processes, user.pid)]
