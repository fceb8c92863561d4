"""Many objects of the store read at once, a bounded number of bytes at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from ...module_utils.store import Entry, Store, StoreError

READERS = 8
#: Objects read ahead of their intake.
AHEAD_BYTES = 64 << 20


def read_all(
    store: Store,
    entries: Iterable[Entry],
    limit_of: Callable[[Entry], int],
    unread: Callable[[Entry, StoreError], object] | None = None,
) -> Iterator[tuple[Entry, bytes | None]]:
    """Each entry with its first bytes, up to one more than `limit_of` allows; None if it was deleted meanwhile.

    In the order of the entries. Raises StoreError of a read, or calls `unread` with it, for an entry without bytes.
    """
    waiting: deque[tuple[Entry, int, Future[bytes | None]]] = deque()
    ahead = 0

    def bytes_of(entry: Entry, future: Future[bytes | None]) -> bytes | None:
        try:
            return future.result()
        except StoreError as error:
            if unread is None:
                raise
            unread(entry, error)
            return None

    with ThreadPoolExecutor(READERS) as pool:
        try:
            for entry in entries:
                limit = limit_of(entry)
                size = min(entry.size, limit + 1)
                while waiting and (len(waiting) >= 4 * READERS or ahead + size > AHEAD_BYTES):
                    first, its_size, future = waiting.popleft()
                    ahead -= its_size
                    yield first, bytes_of(first, future)
                waiting.append((entry, size, pool.submit(store.get_if_there, entry.key, max_bytes=limit)))
                ahead += size
            while waiting:
                first, _, future = waiting.popleft()
                yield first, bytes_of(first, future)
        finally:
            for _, _, future in waiting:
                future.cancel()
