"""Which store the `store` option of an action means, and the keys of a run in it."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from ...module_utils.store import BOTO3_ERROR, MAX_SIGNED_SECONDS, Store, StoreError, session
from ..records.evidence import object_key
from ..runs.folder import RunError
from .backend import S3Service, StoreBackend
from .embedded import EmbeddedStore

if BOTO3_ERROR is None:  # else `Store` reports it: boto3 may be there and fail, as with an urllib3 that is too new
    session()  # with the import, which is before Ansible forks a worker for each task that needs them

#: Kinds of stores by the scheme of the endpoint's URL; without an endpoint the controller serves the store itself.
BACKENDS: dict[str, type[StoreBackend]] = {"": EmbeddedStore, "https": S3Service, "http": S3Service}

#: The store's certificate authority, next to store.json and rclone.conf on a node.
CA_FILE = "ca.pem"

#: Maximum bytes of a run.json; that of a run with some thousand nodes has a tenth.
MAX_RUN_BYTES = 64 << 20


def open_store(options: Mapping[str, Any]) -> StoreBackend:
    """The store of the `store` option. Raises StoreError for an endpoint that no backend knows."""
    return BACKENDS[check_endpoint(options["endpoint"])].of(options)


def check_endpoint(endpoint: str) -> str:
    """Check an endpoint and return its scheme, empty without an endpoint. Raises StoreError."""
    scheme, _, host = endpoint.partition("://")
    if endpoint and (scheme.lower() not in ("http", "https") or not host.strip("/")):
        raise StoreError(f"gpuval_s3_endpoint {endpoint!r} is no URL of an S3 service: write https://HOST:PORT")
    return scheme.lower()


def put_run(store: Store, run: Mapping[str, Any]) -> None:
    """Upload run.json, for controllers without its results/, except the fields about this controller itself."""
    public = {key: value for key, value in run.items() if key != "origin"}
    store.put(f"{run['folder']}/run.json", json.dumps(public, indent=1).encode(), "application/json")


def ensure_same_run(store: Store, run: Mapping[str, Any]) -> None:
    """Raise RunError if the store has another run with this id in this folder, opened by another controller or before
    the results were lost: its records would pass as evidence of this run."""
    raw = store.get_if_there(f"{run['folder']}/run.json", max_bytes=MAX_RUN_BYTES)
    if raw is None:
        return
    try:
        stored = json.loads(raw)
        run_id, opened = stored.get("run_id"), stored.get("created_at")
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
    """The folder of models in the bucket, as an rclone path below the remote."""
    return f"{bucket}/models"
