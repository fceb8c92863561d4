"""Whole folders of the store to the controller's disk and back, for a bundle that is carried to another site."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...module_utils.store import Connection
from .rclone import run_rclone

TRANSFERS = ("--transfers", "8")


def fetch(connection: Connection, keys: Iterable[str], folder: Path) -> None:
    """Bring objects, or all below a key that ends with ``/``, to ``folder`` under their keys. Raises StoreError."""
    for key in keys:
        source = f"models:{connection.bucket}/{key}"
        run_rclone(connection, source, str(folder / key), *TRANSFERS, single=not key.endswith("/"))


def put(connection: Connection, folder: Path, prefix: str, *, last: str) -> None:
    """Put all files below ``folder`` under ``prefix``; those named ``last`` at the end: a model counts as
    whole with its manifest. Raises StoreError."""
    for choice in ("--exclude", "--include"):
        run_rclone(connection, str(folder), f"models:{connection.bucket}/{prefix}", choice, last, *TRANSFERS)
