"""The `store` option that several actions share: an S3 service by endpoint and keys, or the embedded store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from ...module_utils.store import BOTO3_ERROR, MAX_SIGNED_SECONDS, Connection, Store, StoreError, descriptions
from ..core.paths import project_path
from ..runs.folder import RunError
from .embedded import EmbeddedStore

if BOTO3_ERROR is None:
    descriptions()  # with the import, which is before Ansible forks a worker for each task that needs them

#: The store's certificate authority, next to store.json and rclone.conf on a node.
CA_FILE = "ca.pem"

#: A run of some thousand nodes has a tenth of that.
MAX_RUN_BYTES = 64 << 20


@dataclass(frozen=True)
class StoreAccess:
    """Both sides of the store: the controller's connection, and the nodes' read-only access to models."""

    options: Mapping[str, Any]

    @property
    def embedded(self) -> EmbeddedStore | None:
        if self.options["endpoint"]:
            return None
        options = self.options
        directory = project_path(options["state_dir"]) / "store"
        return EmbeddedStore(directory, options["bucket"], options["address"], options["port"])

    def reachable_from_nodes(self, transport: str) -> bool:
        """Whether the store may be reached from a node with such a connection: the loopback is this machine's alone."""
        return self.embedded is None or transport == "local" or bool(self.embedded.address())

    def firewall_hint(self) -> str:
        """What to check if a node cannot reach the store; empty for an external service."""
        if self.embedded is None or not self.embedded.address():
            return ""
        writer, reader = self.embedded.ports()
        return f"does the controller's firewall let TCP {writer} and {reader} to {self.embedded.address()} in?"

    def connection(self) -> Connection:
        if self.embedded:
            return self.embedded.writer()
        options = self.options
        return Connection(
            bucket=options["bucket"],
            endpoint=options["endpoint"],
            region=options["region"],
            access_key=options["access_key"] or None,
            secret_key=options["secret_key"] or None,
            session_token=options["session_token"] or None,
            ca_file=options["ca_file"] or None,
        )

    def store(self) -> Store:
        return Store(self.connection())

    def ca(self) -> str:
        """Text of the certificate authority that nodes need to trust the store; empty for the system's own."""
        path = self.connection().ca_file
        try:
            return Path(path).expanduser().read_text(encoding="utf-8") if path else ""
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"gpuval_s3_ca_file {path} cannot be read: {error}") from error

    def reader(self) -> Connection:
        """The nodes' access to models; never a key with write permission."""
        if self.embedded:
            return self.embedded.reader()
        if not self.options["read_access_key"]:
            raise StoreError(
                "nodes load models with a read-only key, and none is set: create one that can only read "
                "models/ in the bucket, and set gpuval_s3_read_access_key and gpuval_s3_read_secret_key"
            )
        own = self.connection()
        return Connection(
            bucket=own.bucket,
            endpoint=own.endpoint,
            region=own.region,
            access_key=self.options["read_access_key"],
            secret_key=self.options["read_secret_key"],
            ca_file=own.ca_file,
        )


def object_key(folder: str, kind: str, stage: str, node: str) -> str:
    """Key of one object of a run: kind is records, logs or series."""
    suffix = "log" if kind == "logs" else "json"
    return f"{folder}/{kind}/{stage}/{node}.{suffix}"


def put_run(store: Store, run: Mapping[str, Any]) -> None:
    """The run as stored, for a controller without its results/."""
    store.put(_run_key(run), json.dumps(run, indent=1).encode(), "application/json")


def _run_key(run: Mapping[str, Any]) -> str:
    return f"{run['folder']}/run.json"


def ensure_same_run(store: Store, run: Mapping[str, Any]) -> None:
    """Raises RunError where the store has a run of this name, in this folder, that was opened another time.

    Its records would pass for evidence of this one: another controller's, or of this one before its results went away.
    """
    key = _run_key(run)
    raw = store.get_if_there(key, max_bytes=MAX_RUN_BYTES)
    if raw is None:
        return
    try:
        there = json.loads(raw)
        run_id, opened = there.get("run_id"), there.get("created_at")
    except (ValueError, RecursionError, AttributeError):
        run_id, opened = run["run_id"], "a time that cannot be read"
    if run_id == run["run_id"] and opened != run["created_at"]:
        raise RunError(
            f"the store has a run {run['run_id']} already, in {run['folder']}/ of bucket {run['bucket']}, opened at "
            f"{opened}: its records would count for this one. Set another gpuval_run_id, or none; to resume that "
            "run, bring back its folder in gpuval_results_dir"
        )


def signed_urls(store: Store, folder: str, node: str, stages: list[str], seconds: float) -> dict[str, Any]:
    """The document `store.json` (gpuval.store/1): exactly the keys one node may write. Every URL is a secret."""
    valid = min(int(seconds), MAX_SIGNED_SECONDS)
    expires = datetime.now(timezone.utc) + timedelta(seconds=valid)
    return {
        "schema": "gpuval.store/1",
        "expires_at": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "ca_file": CA_FILE if store.connection.ca_file else None,
        "put": {
            f"{kind}/{stage}": store.sign_put(object_key(folder, kind, stage, node), valid)
            for stage in stages
            for kind in ("records", "logs", "series")
        },
    }


def credentials_outlive(store: Store, seconds: float) -> bool:
    """Whether the signing credentials live as long as the URLs they sign; unknown counts as yes."""
    credentials = store.client._request_signer._credentials
    expiry = getattr(credentials, "_expiry_time", None)
    return expiry is None or expiry >= datetime.now(timezone.utc) + timedelta(seconds=seconds)


def models_prefix(bucket: str) -> str:
    """Where models lie, as an rclone path below the remote."""
    return f"{bucket}/models"
