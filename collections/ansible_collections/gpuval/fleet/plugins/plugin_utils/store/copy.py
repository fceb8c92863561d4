"""Whole folders of the store to the controller's disk and back, for a bundle that is carried to another site."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from .backend import StoreBackend
from .rclone import rclone_config, run_rclone

REMOTE = "carried"
TRANSFERS = 8


def fetch(access: StoreBackend, keys: Iterable[str], folder: Path) -> None:
    """Bring objects, or all below a key that ends with ``/``, to ``folder`` under their keys. Raises StoreError."""
    for key in keys:
        source = f"{REMOTE}:{access.connection().bucket}/{key}"
        _copy(access, source, folder / key, single=not key.endswith("/"))


def put(access: StoreBackend, folder: Path, prefix: str, *, last: str) -> None:
    """Put all files below ``folder`` under ``prefix``; those named ``last`` at the end: a model counts as
    whole with its manifest. Raises StoreError."""
    target = f"{REMOTE}:{access.connection().bucket}/{prefix}"
    _copy(access, str(folder), target, ["--exclude", last])
    _copy(access, str(folder), target, ["--include", last])


def _copy(
    access: StoreBackend, source: str, target: object, options: Iterable[str] = (), *, single: bool = False
) -> None:
    connection = access.connection()
    trusted = ["--ca-cert", str(Path(connection.ca_file).expanduser())] if connection.ca_file else []
    with tempfile.TemporaryDirectory(prefix="gpuval-carry-") as scratch:
        command = ["copyto" if single else "copy", source, str(target), "--checksum", "--transfers", str(TRANSFERS)]
        run_rclone([*trusted, *command, *options], rclone_config(connection, REMOTE), Path(scratch))
