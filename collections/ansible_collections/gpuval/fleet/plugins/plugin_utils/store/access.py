"""Opens the S3 store that an action's `store` option describes, and signs the URLs by which nodes upload to it."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from ...module_utils.store import BOTO3_ERROR, MAX_SIGNED_SECONDS, Store, StoreError, session
from ..records.evidence import object_key
from ..runs.folder import RunError
from .backend import S3Service, StoreBackend
from .embedded import EmbeddedStore

if BOTO3_ERROR is None:  # opening a `Store` reports a boto3 that is installed and cannot be imported
    session()  # made at import: the workers that Ansible forks for tasks inherit it

#: Class of a store by the URL scheme of gpuval_s3_endpoint; without an endpoint the controller serves the store itself.
BACKENDS: dict[str, type[StoreBackend]] = {"": EmbeddedStore, "https": S3Service, "http": S3Service}

#: File with the store's CA certificate on a node, in the folder of store.json and rclone.conf.
CA_FILE = "ca.pem"
#: Maximum size of a run.json in the store: one of 10,000 nodes with their cabling plan has 21 MiB.
MAX_RUN_BYTES = 64 << 20


def open_store(options: Mapping[str, Any]) -> StoreBackend:
    """The store that a step's `store` option describes. Raises StoreError for an endpoint that is no http(s) URL."""
    return BACKENDS[check_endpoint(options["endpoint"])].of(options)


def check_endpoint(endpoint: str) -> str:
    """Check the URL of an S3 endpoint. Returns `https` or `http`, or empty for an empty URL. Raises StoreError."""
    scheme, _, host = endpoint.partition("://")
    if endpoint and (scheme.lower() not in ("http", "https") or not host.strip("/")):
        raise StoreError(f"gpuval_s3_endpoint {endpoint!r} is no URL of an S3 service: write https://HOST:PORT")
    return scheme.lower()


def put_run(store: Store, run: Mapping[str, Any]) -> None:
    """Upload run.json for controllers that lack the run's results folder. Omits `origin`, which is about this one."""
    public = {key: value for key, value in run.items() if key != "origin"}
    store.put(f"{run['folder']}/run.json", json.dumps(public, indent=1).encode(), "application/json")


def ensure_same_run(store: Store, run: Mapping[str, Any]) -> None:
    """Raise RunError if the run's folder in the store holds an earlier run with the same id, opened at another time.
    Its records would pass as evidence of this run."""
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
    """The document `store.json` (gpuval.store/1) for one node: a signed PUT URL, valid for `seconds`, for each object
    that the node may write. Every URL is a secret. `folder`: the run's in the bucket; `stages`: names."""
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
    """Whether the S3 credentials that sign URLs stay valid for `seconds` from now. True if their expiry is unknown."""
    credentials = store.client._request_signer._credentials
    expiry = getattr(credentials, "_expiry_time", None)
    return expiry is None or expiry >= datetime.now(timezone.utc) + timedelta(seconds=seconds)


def models_prefix(bucket: str) -> str:
    """The folder of models in the bucket, as an rclone path below the remote."""
    return f"{bucket}/models"
