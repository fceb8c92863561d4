"""The embedded store as its own machine reads it: objects are files, and a file costs a thirtieth of a request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

from ...module_utils.store import Connection, Entry, Store, as_store_error
from .guard import UPLOAD

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class FileReads(Store):
    """Lists and gets objects from `objects`, the bucket's folder, as the server does. All else are requests to it."""

    def __init__(self, connection: Connection, objects: Path) -> None:
        super().__init__(connection)
        self._objects = f"{objects}/"

    def list(self, prefix: str) -> Iterator[Entry]:
        """Raises StoreError where the server does not answer: nodes could not write."""
        with as_store_error():
            self.client.head_bucket(Bucket=self.connection.bucket)
        beginning = self._objects + prefix
        paths = (
            f"{folder}/{name}"
            for folder, _, names in os.walk(beginning.rpartition("/")[0])
            for name in names
            if not name.startswith(UPLOAD)
        )
        for path in sorted(path for path in paths if path.startswith(beginning)):
            try:
                status = os.stat(path)  # noqa: PTH116 - Path takes as long again, for each record at each poll
            except FileNotFoundError:  # deleted meanwhile
                continue
            modified = EPOCH + timedelta(milliseconds=status.st_mtime_ns // 1_000_000)
            yield Entry(path.removeprefix(self._objects), "", status.st_size, modified)

    def get(self, key: str, *, max_bytes: int) -> bytes:
        try:
            with Path(self._objects + key).open("rb") as stream:
                return stream.read(max_bytes + 1)
        except OSError:  # the server's answer says why
            return super().get(key, max_bytes=max_bytes)
