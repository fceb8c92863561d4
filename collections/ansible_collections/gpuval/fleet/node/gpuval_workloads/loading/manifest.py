"""``SHA256SUMS``, as sha256sum writes it: ``<64 hex digits>  <path>`` a line. Its presence marks the model as whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

NAME = "SHA256SUMS"
MAX_BYTES = 16 * 1024 * 1024
#: Files of a model that run code when they are read: Python, libraries, weights as pickles. No node gets one.
RUNS_CODE = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth", ".py", ".pyc", ".sh", ".so")
#: In front of a dataset's name: its folder in the store and in the node's cache.
DATASET_FOLDER = "datasets--gpuval--"

_LINE = re.compile(r"(?P<digest>[0-9a-fA-F]{64}) [ *](?P<path>.+)")


class ModelManifestError(ValueError):
    """The manifest cannot be trusted; the message names the line."""


def parse(text: str) -> Mapping[str, str]:
    """Return path -> SHA-256 in lower-case hex.

    Paths are relative to the model's folder, with ``/``. Raises ``ModelManifestError`` for an empty manifest, a
    malformed or repeated line, and a path that leaves the folder: it comes over the network and names files to write.
    """
    digests: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if not match:
            raise ModelManifestError(f"line {number} is not '<sha256>  <path>': {line[:120]!r}")
        path = match["path"]
        _check_path(path, number)
        if path in digests:
            raise ModelManifestError(f"line {number} names {path!r} a second time")
        digests[path] = match["digest"].lower()
    if not digests:
        raise ModelManifestError("it names no file")
    return digests


def _check_path(path: str, number: int) -> None:
    parts = path.split("/")
    is_plain = not PurePosixPath(path).is_absolute() and all(part not in ("", ".", "..") for part in parts)
    if not is_plain or not path.isprintable() or "\\" in path or path == NAME:
        raise ModelManifestError(f"line {number} names {path[:120]!r}: want a relative path inside the model's folder")
