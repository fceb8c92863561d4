"""Follows changes of Kubernetes objects, by one list and one watch for each kind of object.

No change is lost or reported twice when connections break: a watch resumes from the last resource version. If the
server no longer has that version, the kind is listed again and compared with the objects reported before.
"""

import queue
import random
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .api import Cluster, ClusterError, EventStream, Exists, Forbidden, Gone, Missing, ObjectRefused
from .kinds import Manifest, trim

#: Seconds after which the server ends a watch; a new watch costs one request.
WATCH_SECONDS = 900.0
#: Seconds of silence after which a watch counts as broken: the server sends bookmarks each minute.
SILENCE_SECONDS = 180.0
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.2, 20.0
#: A watch that breaks within these seconds counts as failed: the next try waits longer.
SOON_SECONDS = 5.0
STOP_SECONDS = 5.0

#: Seconds for which HTTP 401 and 403 are retried for a kind that was watched before: tokens are renewed meanwhile.
REFUSED_SECONDS = 60.0

#: Errors for which a retry does not help.
_FINAL = (Forbidden, ObjectRefused, Missing, Exists)
#: Kinds for which the server sends no bookmarks: their watches are silent while nothing happens.
_NO_BOOKMARKS = frozenset({"Event"})

Change = tuple[str, str, Manifest]


@dataclass
class _Stream:
    kind: str
    selector: str = ""
    fields: str = ""
    #: Reported objects by uid, with the resource version and the fields that a DELETED change needs.
    known: dict[str, Manifest] = field(default_factory=dict)
    version: str = ""
    watch: EventStream | None = None
    thread: threading.Thread | None = None
    #: Monotonic time since which the kind cannot be watched, and why. One tuple, since another thread reads it.
    trouble: tuple[float, str] | None = None
    #: Number of changes reported so far.
    changes: int = 0
    #: Whether a watch was ever opened, which shows that no RBAC rule is missing.
    followed: bool = False
    #: Monotonic time since which the server answers with HTTP 401 or 403; None if it does not.
    refused_at: float | None = None


class Streams:
    """Follows Kubernetes objects until ``stop``. `kinds`: (kind, label selector[, field selector]) to watch."""

    def __init__(self, cluster: Cluster, kinds: Iterable[Sequence[str]]) -> None:
        self._cluster = cluster
        self._queue: queue.SimpleQueue[Change | ClusterError] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._streams = [_Stream(kind[0], kind[1], "".join(kind[2:])) for kind in kinds]
        for stream in self._streams:
            name = f"watch-{stream.kind}"
            stream.thread = threading.Thread(target=self._follow, args=(stream,), name=name, daemon=True)
            stream.thread.start()

    def __enter__(self) -> "Streams":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def take(self, timeout: float) -> list[Change]:
        """Changes since the last call: (kind, ADDED, MODIFIED, DELETED or SYNC, object).

        Waits at most `timeout` seconds for the first; may be empty. SYNC: all existing objects of a kind have been
        reported. A DELETED found by a list has name, namespace, uid, labels and annotations only. Raises ``Forbidden``
        and other final answers, after the changes before them.
        """
        changes: list[Change] = []
        try:
            while True:
                item = self._queue.get(timeout=timeout) if not changes else self._queue.get_nowait()
                if isinstance(item, ClusterError):
                    if changes:
                        self._queue.put(item)  # the next call raises the error; its stream has ended
                        return changes
                    raise item
                changes.append(item)
        except queue.Empty:
            return changes

    def trouble(self) -> dict[str, tuple[float, str]]:
        """Kinds that cannot be watched now: {kind: (seconds for which this lasts, reason)}."""
        now, troubles = time.monotonic(), {stream.kind: stream.trouble for stream in self._streams}
        return {kind: (now - trouble[0], trouble[1]) for kind, trouble in troubles.items() if trouble}

    def stop(self) -> None:
        """End the watches; returns after at most `STOP_SECONDS`."""
        with self._lock:
            self._stopped.set()
            watches = [stream.watch for stream in self._streams if stream.watch]
        for watch in watches:
            watch.close()
        ends = time.monotonic() + STOP_SECONDS
        for stream in self._streams:
            if stream.thread:
                stream.thread.join(max(0.0, ends - time.monotonic()))

    # Methods below run in the thread of a stream.

    def _follow(self, stream: _Stream) -> None:
        failures = 0  # consecutive, without any change between them
        while not self._stopped.is_set():
            began, before = time.monotonic(), stream.changes
            try:
                if not stream.version:
                    self._list(stream)
                self._watch(stream)
            except Gone:
                stream.version = ""
                failures += 1  # do not flood a server whose lists are too old for its watches
            except ClusterError as error:
                if self._stopped.is_set():
                    return
                if self._is_final(stream, error):
                    self._queue.put(error)
                    return
                progress = stream.changes > before or time.monotonic() - began >= SOON_SECONDS
                failures = 1 if progress else failures + 1
                if failures > 1:  # a single broken connection is normal
                    stream.trouble = (stream.trouble[0] if stream.trouble else began, str(error))
            else:
                failures = 0 if time.monotonic() - began >= SOON_SECONDS or stream.changes > before else failures + 1
            if failures > 1:
                seconds = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(failures, 16))
                self._stopped.wait(seconds * random.uniform(0.5, 1.0))  # noqa: S311  (jitter)

    def _is_final(self, stream: _Stream, error: ClusterError) -> bool:
        """Whether retries do not help against an error."""
        if error.code not in (401, 403):
            stream.refused_at = None
            return isinstance(error, _FINAL)
        if stream.refused_at is None:
            stream.refused_at = time.monotonic()
        return not stream.followed or time.monotonic() - stream.refused_at >= REFUSED_SECONDS

    def _list(self, stream: _Stream) -> None:
        items, version = self._cluster.list(stream.kind, stream.selector, fields=stream.fields)
        listed = {item["metadata"]["uid"]: item for item in items}
        # Report objects that are gone first: a new object may have the name of an old one.
        for uid in [uid for uid in stream.known if uid not in listed]:
            self._queue.put((stream.kind, "DELETED", stream.known.pop(uid)))
        for item in items:
            self._report(stream, item)
        stream.version = version
        self._queue.put((stream.kind, "SYNC", {"metadata": {"resourceVersion": version}}))

    def _watch(self, stream: _Stream) -> None:
        # With jitter: otherwise all watches end and begin together.
        seconds = WATCH_SECONDS * random.uniform(0.8, 1.0)  # noqa: S311
        silence = seconds + 30.0
        if stream.kind not in _NO_BOOKMARKS:
            silence = min(SILENCE_SECONDS, silence)
        chosen = (stream.kind, stream.selector, stream.fields, stream.version)
        watch = self._cluster.watch(*chosen, seconds=seconds, silence_seconds=silence)
        with self._lock:
            stream.watch = watch
            if self._stopped.is_set():
                watch.close()
        stream.trouble, stream.followed, stream.refused_at = None, True, None
        try:
            for event in watch:
                self._note(stream, event)
        finally:
            stream.watch = None

    def _note(self, stream: _Stream, event: Mapping[str, Any]) -> None:
        name, item = event["type"], event["object"]
        if name == "ERROR":
            message = str(item.get("message") or "the watch ended with an error")
            if item.get("code") == 410 or item.get("reason") in ("Expired", "Gone"):
                raise Gone(message, 410)
            raise ClusterError(message, int(item.get("code") or 0))
        version = item["metadata"]["resourceVersion"]
        if name == "DELETED":
            if stream.known.pop(item["metadata"]["uid"], None) is not None:
                stream.changes += 1
                self._queue.put((stream.kind, "DELETED", trim(stream.kind, item)))
        elif name in ("ADDED", "MODIFIED"):
            self._report(stream, trim(stream.kind, item))
        stream.version = version

    def _report(self, stream: _Stream, item: Manifest) -> None:
        meta = item["metadata"]
        before = stream.known.get(meta["uid"])
        if before and before["metadata"]["resourceVersion"] == meta["resourceVersion"]:
            return
        keys = ("name", "namespace", "uid", "labels", "annotations", "resourceVersion")
        stream.known[meta["uid"]] = {"metadata": {key: meta[key] for key in keys if key in meta}}
        stream.changes += 1
        self._queue.put((stream.kind, "MODIFIED" if before else "ADDED", item))
