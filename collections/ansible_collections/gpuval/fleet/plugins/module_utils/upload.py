"""Files and folders put below a prefix of the store."""

from __future__ import annotations

import hashlib
import mimetypes
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .store import Connection, Entry, Store, StoreError


def upload(connection: Connection, sources: Iterable[str], prefix: str, *, check_mode: bool) -> dict[str, Any]:
    """Put what is not there yet; return the result of a task, with the keys that were written and those left alone."""
    prefix = prefix.strip("/")
    uploaded: list[str] = []
    unchanged: list[str] = []
    result = {"uploaded": uploaded, "unchanged": unchanged}
    try:
        store = Store(connection)
        present = {entry.key: entry for entry in store.list(f"{prefix}/")}
        for path, name in _files_below(sources):
            key = f"{prefix}/{name}"
            if _is_same(store, present.get(key), path):
                unchanged.append(key)
                continue
            uploaded.append(key)
            if not check_mode:
                kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
                store.put(key, path.read_bytes(), kind)
    except StoreError as error:
        return {**result, "failed": True, "msg": f"the store cannot be used: {error}"}
    except OSError as error:
        return {**result, "failed": True, "msg": f"{error.filename} cannot be read: {error.strerror}"}
    return {**result, "changed": bool(uploaded)}


def _files_below(sources: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """Pairs of path and key below the prefix."""
    for source in map(Path, sources):
        if source.is_dir():
            for directory, _folders, names in sorted(os.walk(source)):
                for name in sorted(names):
                    path = Path(directory) / name
                    yield path, path.relative_to(source.parent).as_posix()
        else:
            yield source, source.name


def _is_same(store: Store, entry: Entry | None, path: Path) -> bool:
    """Whether an object holds the file: by its ETag, the MD5 of what was put in one piece, else by reading it."""
    if entry is None or entry.size != path.stat().st_size:
        return False
    data = path.read_bytes()
    if entry.etag:
        return hashlib.md5(data, usedforsecurity=False).hexdigest() == entry.etag
    return store.get(entry.key, max_bytes=entry.size) == data
