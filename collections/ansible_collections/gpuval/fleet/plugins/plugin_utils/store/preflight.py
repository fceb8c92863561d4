"""Tests the store before a run: uploads by signed URL, reads with the nodes' key, and whether clocks agree."""

import http.client
import secrets
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from ...module_utils import clock_skew
from ...module_utils.store import BotoCoreError, Store, StoreError
from ..core.urls import in_clear
from .access import credentials_outlive
from .backend import StoreBackend

UPLOAD_SECONDS = 10.0
#: Seconds within which the nodes' key must see an object that was written.
SEEN_SECONDS = 10.0
URL_SECONDS = 300
EXPIRE = (
    "the S3 credentials expire before the deadline: uploads signed with them will fail then, and records will be "
    "fetched over SSH. Use longer-lived keys, or a shorter gpuval_deadline_seconds."
)


@dataclass(frozen=True)
class Examined:
    """Result of testing a store. `changed`: it was started or its bucket created; each problem has a remedy."""

    store: Store
    changed: bool
    problems: list[str]
    remarks: list[str]


def examine(access: StoreBackend, deadline_seconds: float) -> Examined:
    """Start the store if gpuval runs it, and try uploads and reads as a run does. Stops an unusable store again.
    Raises StoreError for a store that does not answer."""
    started, usable = access.start(), False
    try:
        store = access.store()
        try:
            created = store.ensure_bucket(create=access.creates_bucket)
        except StoreError as error:
            raise StoreError(". ".join(filter(None, (str(error), clock(store))))) from error
        problems, remarks = findings(access, store), []
        lacking = access.shortage()
        if problems and lacking:
            problems = [f"{lacking} ({problems[0]})"]
        if not problems:
            writes = "" if access.objects else writing_reader(access, store)
            expire = "" if credentials_outlive(store, deadline_seconds) else EXPIRE
            remarks = [remark for remark in (lacking, clock(store), writes, expire) if remark]
        usable = not problems
    finally:
        if started and not usable:
            access.stop()
    return Examined(store, started or created, problems, remarks)


def tls_remark(endpoint: str) -> str:
    """A remark, with a remedy, if the endpoint is reached over a network without TLS; else empty."""
    if not in_clear(endpoint):
        return ""
    return (
        f"gpuval_s3_endpoint {endpoint} has no TLS: a listener on the network gets the signed URLs of all nodes, and "
        "can write evidence in their names and read models. Use https://, with gpuval_s3_ca_file for a certificate of "
        "your own."
    )


def findings(access: StoreBackend, store: Store) -> list[str]:
    """Problems of the store, each with a remedy: uploads an object, reads it with the nodes' key, deletes it."""
    key = f"models/preflight-{secrets.token_hex(8)}"
    problems = []
    try:
        problem = refused(upload(store, key))
    except StoreError as error:
        problem = str(error)
    if problem:
        problems.append(
            f"{problem}. {clock(store) or 'Check that the keys may write, and read the log of the S3 service.'}"
        )
    try:
        access.check()
        if not problem:
            _read(access, key)
    except StoreError as error:
        problems.append(str(error))
    try:
        store.delete([key])
    except StoreError as error:
        if not isinstance(error.__cause__, BotoCoreError):  # the service answers, and refuses
            problems.append(f"the key of gpuval_s3_access_key cannot delete objects: {error}. Allow s3:DeleteObject")
        elif not problems:
            problems.append(f"the store does not answer when an object is deleted: {error}")
    return problems


def _read(access: StoreBackend, key: str) -> None:
    """Raise StoreError if the nodes' key cannot read the uploaded object."""
    try:
        reader = access.reader()
    except StoreError:  # runs without the loading stage need no read key; a launch that lacks one reports it
        return
    client, until, read = Store(reader, attempts=2), time.monotonic() + SEEN_SECONDS, None
    try:
        while read is None and time.monotonic() < until:  # a service may list new objects only after a moment
            read = client.get_if_there(key, max_bytes=len(key))
            time.sleep(0.0 if read else 0.3)
    except StoreError as error:
        raise StoreError(
            f"the read-only key lists models/ and cannot read what is in it: {error}. Allow s3:GetObject for "
            "gpuval_s3_read_access_key"
        ) from error
    if read != key.encode():
        raise StoreError(
            "the read-only key does not find an object that the other key has written: give gpuval_s3_read_access_key "
            "access to the same bucket of the same service"
        )


def writing_reader(access: StoreBackend, store: Store) -> str:
    """A problem, with a remedy, if the nodes' read-only key (of ``access``) can write to an S3 service; else empty.
    ``store``: a client with the controller's key, which deletes what the nodes' key wrote."""
    key = f"models/preflight-{secrets.token_hex(8)}"
    try:
        Store(access.reader(), attempts=1).put(key, b"")
    except StoreError:
        return ""
    store.delete([key])
    return "gpuval_s3_read_access_key can write, and every node gets it: let it list and read models/ alone"


def upload(store: Store, key: str) -> int:
    """Upload an object by a signed URL, as nodes do. Its content is its key. Returns the HTTP status. Raises StoreError
    if there is no answer; the message leaves out the URL, which is a secret."""
    connection = store.connection
    try:
        context = ssl.create_default_context(cafile=connection.ca_file)
    except OSError as error:
        reason = error.strerror or error
        raise StoreError(f"gpuval_s3_ca_file {connection.ca_file} cannot be used: {reason}") from error
    handlers: list[Any] = [urllib.request.HTTPSHandler(context=context)]
    if connection.direct:
        handlers.append(urllib.request.ProxyHandler({}))
    url = store.sign_own_put(key, URL_SECONDS)
    request = urllib.request.Request(url, data=key.encode(), method="PUT")  # noqa: S310 - http(s) only
    request.add_header("Content-Type", "text/plain")
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=UPLOAD_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except (OSError, http.client.HTTPException) as error:
        kind = type(getattr(error, "reason", error)).__name__
        raise StoreError(f"the store does not answer an upload by signed URL: {kind}") from None


def refused(status: int) -> str:
    """The problem that the HTTP status of an upload by signed URL shows; empty if it succeeded."""
    return "" if 200 <= status < 300 else f"the store answers an upload by signed URL with HTTP {status}"


def clock(store: Store) -> str:
    """A problem, with a remedy, if the clocks of controller and store differ by more than a minute; else empty."""
    return clock_skew.in_words(clock_skew.seconds_ahead(store.client.meta.endpoint_url), "the controller's")
