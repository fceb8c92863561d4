"""Event loops that have a thread of their own."""

from __future__ import annotations

import asyncio
from contextlib import suppress


def run_to_end(loop: asyncio.AbstractEventLoop, main: asyncio.Task) -> None:
    """Run the task until it is done or cancelled, cancel what is left, close the loop. Raises what the task does."""
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(main)
    pending = asyncio.all_tasks(loop)
    for task in pending:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
    loop.close()
