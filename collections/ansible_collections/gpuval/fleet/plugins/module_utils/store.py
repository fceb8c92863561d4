"""Access to the object store (S3) that holds records, logs, series and models."""

from __future__ import annotations

import hashlib
import mimetypes
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import cache, cached_property, partial
from math import inf
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

from .errors import StoreError

try:
    import boto3
    import botocore.session
    from boto3.exceptions import Boto3Error
    from botocore.awsrequest import AWSResponse
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
    from botocore.response import StreamingBody
    from botocore.utils import parse_timestamp
    from urllib3.exceptions import HTTPError

    BOTO3_ERROR = None
except ImportError as error:  # the caller reports it, with the library's name
    BOTO3_ERROR = error
    BotoCoreError = ClientError = Boto3Error = NoCredentialsError = PartialCredentialsError = OSError
    HTTPError = OSError  # type: ignore[misc, assignment]

#: Errors for which Store raises StoreError. boto3 passes on urllib3's errors when an error's body breaks off.
CLIENT_ERRORS = (BotoCoreError, ClientError, Boto3Error, HTTPError)

#: AWS signature version 4 allows at most seven days.
MAX_SIGNED_SECONDS = 7 * 24 * 3600
#: An answer's body is read in pieces. If it takes longer than the timeout and is slower than this, it counts as none.
PIECE_BYTES, MIN_BYTES_PER_SECOND = 1 << 14, 1 << 12
#: S3's code of a request whose time is too far from the store's.
SKEWED = "RequestTimeTooSkewed"


@contextmanager
def as_store_error() -> Iterator[None]:
    try:
        yield
    except CLIENT_ERRORS as error:
        answer = getattr(error, "response", None) or {}  # no response after a timeout
        code = answer.get("Error", {}).get("Code")
        messages = {"NoSuchBucket": "the store has no such bucket: correct gpuval_bucket", SKEWED: _skew_in(answer)}
        raised = StoreError(messages.get(code) or str(error))
        raised.code, raised.subject = code, "store"
        raise raised from error


@cache
def session() -> Any:
    """Return this process's cached boto3 session, with botocore's S3 descriptions: it takes a third of a second."""
    botocore_session = botocore.session.get_session()
    botocore_session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_moment)
    loader = botocore_session.get_component("data_loader")
    for name in ("endpoints", "partitions", "sdk-default-configuration"):
        loader.load_data(name)
    for kind in ("service-2", "endpoint-rule-set-1"):
        loader.load_service_model("s3", kind)
    return boto3.session.Session(botocore_session=botocore_session)


@dataclass(frozen=True)
class Connection:
    """How to reach a bucket. `endpoint` None is AWS; keys None use boto3's chain (environment, profile, role).
    `public_endpoint` is the service's URL for nodes, if it differs: signed URLs contain it. `signing` is another pair
    of keys for signed URLs. A `direct` connection ignores the proxies in the controller's environment."""

    bucket: str
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: str | None = None
    secret_key: str | None = None
    session_token: str | None = None
    ca_file: str | None = None
    public_endpoint: str | None = None
    signing: tuple[str, str] | None = None
    direct: bool = False

    def __repr__(self) -> str:
        return f"Connection(bucket={self.bucket!r}, endpoint={self.endpoint!r})"


@dataclass(frozen=True)
class Entry:
    """One object in a listing of the store. `size` in bytes, `modified` by the store's clock."""

    key: str
    etag: str
    size: int
    modified: datetime

    @property
    def stamp(self) -> str:
        """Text that changes whenever the object is written. Some services give no ETag; times are in milliseconds."""
        return f"{self.etag} {self.size} {self.modified.isoformat()}"


#: In annotations of Store, `list` would be the method Store.list.
Entries = list[Entry]
Names = list[str]


class Store:
    """A bucket of the object store, with the operations that gpuval needs. `timeout`: seconds without an answer."""

    def __init__(self, connection: Connection, *, timeout: float = 10.0, attempts: int = 3) -> None:
        if BOTO3_ERROR is not None:
            raise StoreError(f"boto3 is needed on the controller: pip install boto3 ({BOTO3_ERROR})")
        self.connection = connection
        self._timeout, self._attempts = timeout, attempts
        self.client = self._client(connection.endpoint)

    @cached_property
    def signer(self) -> Any:
        """The S3 client that signs URLs for nodes."""
        connection = self.connection
        return self._client(connection.public_endpoint or connection.endpoint, connection.signing)

    @as_store_error()
    def _client(self, endpoint: str | None, keys: tuple[str, str] | None = None) -> Any:
        connection = self.connection
        access_key, secret_key = keys or (connection.access_key, connection.secret_key)
        client = session().client(
            "s3",
            endpoint_url=endpoint,
            region_name=connection.region,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            aws_session_token=connection.session_token,
            verify=connection.ca_file,
            config=Config(
                signature_version="s3v4",
                user_agent="gpuval",  # botocore would compose its own for each request, a seventh of the request's time
                s3={"addressing_style": "path"},
                connect_timeout=self._timeout,
                read_timeout=self._timeout,
                retries={"max_attempts": self._attempts, "mode": "standard"},
                proxies={} if connection.direct else None,
                # Signed URLs are used by plain HTTP clients, and not every S3 service knows the newer checksums.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        client.meta.events.register("before-send.s3.ListObjectsV2", partial(self._send, client))
        return client

    def _send(self, client: Any, request: Any, **_: Any) -> Any:
        """Send a listing's request and read its answer in bounded time: botocore waits for ever for a stalled body."""
        request.stream_output = True
        answer = client._endpoint.http_session.send(request)
        data = self._read(StreamingBody(answer.raw, answer.headers.get("content-length")))
        body = SimpleNamespace(stream=lambda: iter([data]))  # the data, in the form that botocore reads
        return AWSResponse(answer.url, answer.status_code, answer.headers, body)

    def _read(self, body: Any, limit_bytes: float = inf) -> bytes:
        """Return the first `limit_bytes` of an answer's body. Raises StoreError for a body that stalls."""
        stream, data = body._raw_stream, bytearray()
        stream.read = getattr(stream, "read1", stream.read)  # urllib3's read waits for all; read1 is of version 2
        began = monotonic()
        try:
            while piece := body.read(int(min(PIECE_BYTES, limit_bytes - len(data)))):  # the end checks the length
                data += piece
                if monotonic() - began > self._timeout + len(data) / MIN_BYTES_PER_SECOND:
                    raise StoreError(f"the store sends fewer than {MIN_BYTES_PER_SECOND} bytes per second")
            return bytes(data)
        finally:
            body.close()

    @as_store_error()
    def ensure_bucket(self, *, create: bool) -> bool:
        """Check that the bucket exists, or create it. Returns whether it was created. Raises StoreError."""
        bucket, region = self.connection.bucket, self.connection.region
        try:
            self.client.head_bucket(Bucket=bucket)
        except ClientError as error:
            remedy = "Check gpuval_bucket, gpuval_s3_endpoint and the keys."
            problem = f"the bucket {bucket} cannot be used: {error}. {remedy}"
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404:
                remedy = "correct gpuval_bucket, or set gpuval_create_bucket: true"
                problem = "" if create else f"the S3 service has no bucket {bucket}: {remedy}"
            if problem:
                raise StoreError(problem) from error
            needs_name = not self.connection.endpoint and region != "us-east-1"  # AWS asks for other regions by name
            location = {"CreateBucketConfiguration": {"LocationConstraint": region}} if needs_name else {}
            self.client.create_bucket(Bucket=bucket, **location)
            return True
        except (NoCredentialsError, PartialCredentialsError) as error:
            remedy = "set gpuval_s3_access_key and gpuval_s3_secret_key"
            raise StoreError(f"no keys for the S3 service ({error}): {remedy}") from error
        except BotoCoreError as error:
            remedy = "Check gpuval_s3_endpoint and the network to it."
            raise StoreError(f"the store does not answer: {error}. {remedy}") from error
        return False

    def list(self, prefix: str) -> Iterator[Entry]:
        """Yield all objects under `prefix`, in key order."""
        for page in self._pages(Prefix=prefix):
            yield from _entries(page)

    def listing(self, prefix: str) -> tuple[Entries, datetime | None]:
        """Return all objects under `prefix`, in key order, and the store's present time (or None): the objects' times
        are by the store's clock."""
        entries, moment = [], None
        for page in self._pages(Prefix=prefix):
            entries += _entries(page)
            moment = _date(page) or moment
        return entries, moment

    def level(self, prefix: str = "") -> tuple[Names, Entries]:
        """Return store folders (as prefixes) and objects directly under `prefix`, which is empty or ends in a slash."""
        folders, entries = [], []
        for page in self._pages(Prefix=prefix, Delimiter="/"):
            folders += [item["Prefix"] for item in page.get("CommonPrefixes", ())]
            entries += _entries(page)
        return folders, entries

    def _pages(self, **arguments: str) -> Iterator[dict[str, Any]]:
        with as_store_error():
            yield from self.client.get_paginator("list_objects_v2").paginate(Bucket=self.connection.bucket, **arguments)

    def get_if_there(self, key: str, *, max_bytes: int) -> bytes | None:
        """Return an object's content as `get` does; None for a missing object."""
        try:
            return self.get(key, max_bytes=max_bytes)
        except StoreError as error:
            if error.code in ("NoSuchKey", "404"):
                return None
            raise

    @as_store_error()
    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Return an object's first `max_bytes` + 1 bytes: the extra byte shows that the object is too large. Raises
        StoreError for a body that ends early or stalls."""
        return self._read(self.client.get_object(Bucket=self.connection.bucket, Key=key)["Body"], max_bytes + 1)

    @as_store_error()
    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return an object's bytes from `start` up to, but without, `end`."""
        span = f"bytes={start}-{end - 1}"
        answer = self.client.get_object(Bucket=self.connection.bucket, Key=key, Range=span)
        return self._read(answer["Body"], end - start)

    @as_store_error()
    def put(self, key: str, data: bytes, content_type: str = "application/octet-stream") -> None:
        self.client.put_object(Bucket=self.connection.bucket, Key=key, Body=data, ContentType=content_type)

    def delete_prefix(self, prefix: str) -> int:
        """Delete every object under `prefix` (which must not be empty). Returns how many were deleted."""
        if not prefix.strip("/"):
            raise ValueError("refusing to delete the whole bucket")
        return self.delete(entry.key for entry in self.list(prefix))

    @as_store_error()
    def delete(self, keys: Iterable[str]) -> int:
        """Delete objects by key. Returns how many. Raises StoreError for objects that the service did not delete."""
        keys, errors = list(keys), []
        for start in range(0, len(keys), 1000):
            chunk = [{"Key": key} for key in keys[start : start + 1000]]
            answer = self.client.delete_objects(Bucket=self.connection.bucket, Delete={"Objects": chunk, "Quiet": True})
            errors += answer.get("Errors", ())  # S3 reports them in an answer with HTTP 200
        if errors:
            reason = f"{errors[0].get('Key')}: {errors[0].get('Message') or errors[0].get('Code')}"
            raise StoreError(f"the store keeps {len(errors)} of {len(keys)} objects that were to be deleted: {reason}")
        return len(keys)

    def sign_put(self, key: str, seconds: int) -> str:
        """Return a signed URL that allows only to write one object of the store, for `seconds`."""
        return self._sign(self.signer, "put_object", key, seconds)

    def sign_own_put(self, key: str, seconds: int) -> str:
        """Return a signed URL as `sign_put` does, but with the store's endpoint that the controller uses."""
        client = self._client(self.connection.endpoint, self.connection.signing)
        return self._sign(client, "put_object", key, seconds)

    def sign_get(self, key: str, seconds: int) -> str:
        """Return a signed URL that allows only to read one object of the store, for `seconds`."""
        return self._sign(self.signer, "get_object", key, seconds)

    @as_store_error()
    def _sign(self, client: Any, operation: str, key: str, seconds: float) -> str:
        target, limit = {"Bucket": self.connection.bucket, "Key": key}, min(int(seconds), MAX_SIGNED_SECONDS)
        return client.generate_presigned_url(operation, Params=target, ExpiresIn=limit)


def _entries(page: dict[str, Any]) -> Entries:
    items = page.get("Contents", ())
    return [Entry(item["Key"], item.get("ETag", "").strip('"'), item["Size"], item["LastModified"]) for item in items]


def _moment(text: Any) -> datetime:
    """Parse a time in the store's answer. botocore's parser of any form of time would take half of a listing's time."""
    try:
        if text.endswith("Z"):
            return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
        if text.endswith("GMT"):
            return parsedate_to_datetime(text).replace(tzinfo=timezone.utc)
    except (AttributeError, TypeError, ValueError):
        pass
    return parse_timestamp(text)


def _skew_in(answer: dict[str, Any]) -> str:
    """Return a message on the clocks of controller and store, from the answer to a request refused for its time."""
    moment = _date(answer)
    if moment is None:
        return f"the clocks of this controller and of the store differ ({SKEWED})"
    ahead = (datetime.now(timezone.utc) - moment).total_seconds()
    side = "ahead of" if ahead > 0 else "behind"
    return f"the clock of this controller is {abs(ahead):.0f} s {side} the store's ({SKEWED})"


def _date(answer: dict[str, Any]) -> datetime | None:
    """Return the store's time in an answer (header Date), in whole seconds; None without one."""
    try:
        moment = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    except (KeyError, TypeError, ValueError):
        return None
    return moment if moment.tzinfo else None


def upload(connection: Connection, sources: Iterable[str], prefix: str, *, check_mode: bool) -> dict[str, Any]:
    """Upload new and changed files or folders (`sources`) under `prefix`; return a task's result with the keys that
    were uploaded and those that were unchanged."""
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
    """Yield path and store key (below the prefix) of all files in `sources`, which are files or folders."""
    for source in map(Path, sources):
        if source.is_dir():
            for directory, _folders, names in sorted(os.walk(source)):
                for name in sorted(names):
                    path = Path(directory) / name
                    yield path, path.relative_to(source.parent).as_posix()
        else:
            yield source, source.name


def _is_same(store: Store, entry: Entry | None, path: Path) -> bool:
    """Whether an object of the store equals a file: by ETag (MD5, if it was uploaded in one piece), else by content."""
    if entry is None or entry.size != path.stat().st_size:
        return False
    data = path.read_bytes()
    if entry.etag:
        return hashlib.md5(data, usedforsecurity=False).hexdigest() == entry.etag
    return store.get(entry.key, max_bytes=entry.size) == data
