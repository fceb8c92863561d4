"""Base class of stores, an S3 bucket that the controller writes and nodes read models from; and S3 services."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...module_utils.store import SKEWED, Connection, Store, StoreError
from ..core.errors import reason_of
from . import stored_runs
from .guard import ObjectGuard


class StoreBackend(ABC):
    """Base of the embedded store and of S3 services. The default methods suit a service that gpuval does not run."""

    #: Whether large objects may be uploaded in parts. False for a server that keeps the parts in memory.
    takes_parts = True
    #: Whether a bucket that is missing is created.
    creates_bucket: bool
    #: Folder on the controller with the embedded store's objects as files, named by their keys; None for S3 services.
    objects: Path | None = None

    @classmethod
    @abstractmethod
    def of(cls, options: Mapping[str, Any]) -> "StoreBackend":
        """The store that the option `store` of a step describes."""

    @abstractmethod
    def connection(self) -> Connection:
        """Endpoint and keys of the controller, which reads and writes the whole bucket. Raises StoreError."""

    @abstractmethod
    def reader(self) -> Connection:
        """Endpoint and read-only keys of nodes, which read models/ alone. Raises StoreError."""

    def start(self) -> bool:
        """Start the store if gpuval runs it. Returns whether anything had to be started."""
        return False

    def stop(self) -> bool:
        """Stop the store if gpuval runs it. Returns whether anything was stopped."""
        return False

    def rotate(self) -> bool:
        """Delete a stopped store's keys, which voids URLs signed with them. Returns whether anything changed."""
        return False

    def end_urls(self) -> None:
        """Invalidate the signed URLs that nodes have. Those of an S3 service cannot be revoked: they expire."""
        return

    def held(self) -> AbstractContextManager[None]:
        """A context in which no other command starts, stops or restarts the store."""
        return nullcontext()

    def known(self) -> bool:
        """Whether there is a store that may contain runs."""
        return True

    def running(self) -> bool:
        """Whether the store answers without being started."""
        return True

    def reachable_from_nodes(self, transport: str) -> bool:
        """Whether nodes can reach the store. `transport`: Ansible's connection to them, such as `ssh` or `local`."""
        return True

    def firewall_hint(self) -> str:
        """Text on what to check if a node cannot reach the store; may be empty."""
        return ""

    def link_bits_per_second(self) -> float | None:
        """Speed of the controller's interface through which nodes load; None if another machine serves the store."""
        return None

    def check(self) -> None:
        """Raise StoreError if the nodes' read key cannot read models."""
        try:
            next(Store(self.reader(), attempts=2).list("models/"), None)
        except StoreError as error:
            if error.code == SKEWED:
                raise
            raise StoreError(
                f"no node could load a model, since the read-only key cannot list models/ in the bucket: {error}. "
                "Correct gpuval_s3_read_access_key and gpuval_s3_read_secret_key, which must list and read models/"
            ) from error

    def guard(self, folder: str, store: Callable[[], Store]) -> Callable[[float], list[str]]:
        """A function that limits the sizes of a run's objects in `folder`. Call it repeatedly with the monotonic time
        in seconds; it returns lines for the operator. `store` returns the client to use. Raises StoreError."""
        return ObjectGuard(store, folder).look

    def shortage(self, further: int = 0) -> str:
        """A warning if the store's disk is nearly full, or `further` bytes would fill it; else empty."""
        return ""

    @contextmanager
    def naming_full_disk(self, sent: int) -> Iterator[None]:
        """Within the context, a StoreError names the store's disk if it lacks space for `sent` bytes: the server only
        answers 500 without a reason, and removes the incomplete object."""
        try:
            yield
        except StoreError as error:
            lacking = self.shortage(sent)
            if not lacking:
                raise
            raise StoreError(f"{lacking} ({error})") from error

    @abstractmethod
    def delete_run(self, folder: str) -> int:
        """Delete the objects of the run in `folder`, but not those of runs below it. Returns the number deleted."""

    def store(self) -> Store:
        return Store(self.connection())

    def ca(self) -> str:
        """PEM text of the CA certificate by which nodes trust the store; empty if the system's own CAs suffice."""
        path = self.connection().ca_file
        try:
            return Path(path).expanduser().read_text(encoding="utf-8") if path else ""
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"gpuval_s3_ca_file {path} cannot be read: {reason_of(error)}") from error


class S3Service(StoreBackend):
    """An S3 service that gpuval does not run, by the endpoint and keys that the operator sets."""

    def __init__(
        self,
        connection: Connection,
        read_access_key: str = "",
        read_secret_key: str = "",
        *,
        creates_bucket: bool = False,
    ) -> None:
        self._connection = connection
        self.creates_bucket = creates_bucket
        self._read_keys = read_access_key, read_secret_key

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "S3Service":
        names = ("bucket", "endpoint", "region", "access_key", "secret_key", "session_token", "ca_file")
        fields: dict[str, Any] = {name: options[name] or None for name in names}
        keys = options["read_access_key"], options["read_secret_key"]
        return cls(Connection(**fields), *keys, creates_bucket=bool(options.get("create_bucket")))

    def connection(self) -> Connection:
        return self._connection

    def reader(self) -> Connection:
        access_key, secret_key = self._read_keys
        if not access_key:
            raise StoreError(
                "nodes load models with a read-only key, and none is set: create one that can only read "
                "models/ in the bucket, and set gpuval_s3_read_access_key and gpuval_s3_read_secret_key"
            )
        return replace(self._connection, access_key=access_key, secret_key=secret_key, session_token=None)

    def check(self) -> None:
        if self._read_keys[0]:  # runs without the loading stage need no read key; a launch that lacks one reports it
            super().check()

    def delete_run(self, folder: str) -> int:
        return stored_runs.delete(self.store(), folder)
