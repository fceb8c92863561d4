"""What a store is to the rest: an S3 bucket that the controller writes and nodes read models from."""

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
    """Base of the kinds of stores, made from the `store` option. The defaults are for a service not run by gpuval."""

    #: Whether objects may be uploaded in parts; not to a server that keeps the parts in memory.
    takes_parts = True
    #: Whether a bucket that is missing is created.
    creates_bucket: bool
    #: Folder on this machine in which objects are files named by their keys; None for other stores.
    objects: Path | None = None

    @classmethod
    @abstractmethod
    def of(cls, options: Mapping[str, Any]) -> "StoreBackend":
        """The store that the option `store` of a step describes."""

    @abstractmethod
    def connection(self) -> Connection:
        """The controller's connection: reads and writes everything. Raises StoreError."""

    @abstractmethod
    def reader(self) -> Connection:
        """The nodes' connection: reads models only. Raises StoreError."""

    def start(self) -> bool:
        """Start the store if gpuval runs it. Returns whether anything had to be started."""
        return False

    def stop(self) -> bool:
        """Stop the store if gpuval runs it. Returns whether anything was stopped."""
        return False

    def rotate(self) -> bool:
        """Invalidate earlier signatures of a stopped store. Returns whether that changed anything."""
        return False

    def end_urls(self) -> None:
        """Invalidate the signed URLs that nodes have. URLs of a service expire by themselves, after the deadline."""
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
        """Whether nodes can reach the store. `transport`: of the controller to them, such as `ssh`, `local`."""
        return True

    def firewall_hint(self) -> str:
        """Text on what to check if a node cannot reach the store; may be empty."""
        return ""

    def link_bits_per_second(self) -> float | None:
        """Speed of this machine's interface through which nodes load; None if another machine serves the store."""
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
        """A function that enforces the limits of objects: call it repeatedly with the monotonic time; it returns lines
        for the operator. `store` returns the client to use. Raises StoreError."""
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
        """Remove a run's objects, but no objects of runs below its folder. Returns the number removed."""

    def store(self) -> Store:
        return Store(self.connection())

    def ca(self) -> str:
        """Text of the certificate authority that nodes need to trust the store; empty for the system's own."""
        path = self.connection().ca_file
        try:
            return Path(path).expanduser().read_text(encoding="utf-8") if path else ""
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"gpuval_s3_ca_file {path} cannot be read: {reason_of(error)}") from error


class S3Service(StoreBackend):
    """An S3 service by endpoint and keys, which the operator runs."""

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
        if self._read_keys[0]:  # runs without loading need none; a launch with it says so
            super().check()

    def delete_run(self, folder: str) -> int:
        return stored_runs.delete(self.store(), folder)
