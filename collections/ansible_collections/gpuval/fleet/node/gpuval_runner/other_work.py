"""Other work on the accelerators while a plan of an idle node is under way: the plan gives way to it."""

from __future__ import annotations

import os
import threading
import time
from typing import Callable

from gpuval_node.hardware.tools import toolbox
from gpuval_node.hardware.tree import Tree
from gpuval_node.hardware.users import User, accelerator_users

from gpuval_runner import descendants
from gpuval_runner.plan import Plan

#: Between two looks; a process counts that both saw, since one that ends has lost its environment first.
LOOK_SECONDS = 3.0
#: By these words the controller knows it, as at launch.
IN_THE_WAY = "others use this node's accelerators or run here:"


class OtherWork:
    """`found` names it, once it is there. ``users`` looks; without it nothing is looked for."""

    def __init__(self, users: Callable[[], set[str]] | None, look_seconds: float = LOOK_SECONDS) -> None:
        self.found = ""
        self._users, self._seconds = users, look_seconds
        if users:
            threading.Thread(target=self._watch, name="other work", daemon=True).start()

    def look(self) -> str:
        """Look now: what came shortly before the end of a stage may have ended or slowed it. Returns `found`."""
        if self._users and not self.found:
            before = self._users()
            if before:
                time.sleep(self._seconds)
                self._compare(before, self._users())
        return self.found

    def _watch(self) -> None:
        before: set[str] = set()
        while self._users and not self.found:
            now = self._users()
            self._compare(before, now)
            before = now
            time.sleep(self._seconds)

    def _compare(self, before: set[str], now: set[str]) -> None:
        self.found = self.found or ", ".join(sorted(before & now)[:4])


def watch(plan: Plan) -> OtherWork:
    """Looks from now on, if the plan gives way and has accelerators of the node's own."""
    if not plan.gives_way or plan.accelerator.vendor == "cpu" or plan.runtime == "pod":
        return OtherWork(None)
    run = toolbox()
    return OtherWork(lambda: {str(user) for user in _not_ours(accelerator_users(Tree(), run, plan.run_id))})


def _not_ours(users: list[User]) -> list[User]:
    """Without what this runner started: a process that sets its title (vLLM does) overwrites its environment."""
    processes = descendants.snapshot() if users else {}
    return [user for user in users if os.getpid() not in descendants.ancestors(processes, user.pid)]
