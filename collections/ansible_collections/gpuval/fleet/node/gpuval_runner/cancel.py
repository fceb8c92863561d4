"""``cancel``: the running stage is stopped, the rest never starts."""

from __future__ import annotations

import contextlib
from typing import Any

from gpuval_runner import lock
from gpuval_runner import plan as plans
from gpuval_runner.errors import LockHeldError
from gpuval_runner.files import write_atomically
from gpuval_runner.runner import RunnerOptions, run
from gpuval_runner.start import is_finished

WAIT_SECONDS = 30.0


def cancel(options: RunnerOptions, wait_seconds: float = WAIT_SECONDS) -> dict[str, Any]:
    """Cancel a run and wait until its runner has ended; without a runner, close the records here.

    Raises ``NodePlanError``, and ``OSError`` when the request cannot be left.
    """
    directory = options.directory
    plan = plans.load(options.plan)
    if lock.holder(directory.lock) is None and is_finished(directory, plan):
        return {"cancelled": False, "running": False, "message": "nothing is left to cancel"}
    write_atomically(directory.cancel, f"{plan.attempt}\n".encode())
    lock.wait_until_free(directory.lock, wait_seconds)
    if lock.holder(directory.lock) is None and not is_finished(directory, plan):
        with contextlib.suppress(LockHeldError):  # a runner that began just now sees the request
            run(options)
    running = lock.holder(directory.lock) is not None
    message = f"the runner still ends its stage after {wait_seconds:.0f} s" if running else "cancelled"
    return {"cancelled": True, "running": running, "message": message}
