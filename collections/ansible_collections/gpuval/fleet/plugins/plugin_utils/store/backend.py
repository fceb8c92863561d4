"""What a store is to the rest: an S3 bucket that the controller writes and nodes read models from."""

from __future__ import annotations

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
    """A kind of store, made from the `store` option. What is here holds for a service that gpuval does not run."""

    #: Whether an object may be sent in parts; a server that keeps parts in memory takes one piece.
    takes_parts = True
    #: Whether a bucket that is missing is created.
    creates_bucket: bool
    #: Where objects are files on this machine, by their keys.
    objects: Path | None = None

    @classmethod
    @abstractmethod
    def of(cls, options: Mapping[str, Any]) -> StoreBackend: ...

    @abstractmethod
    def connection(self) -> Connection:
        """The controller's connection: reads and writes everything. Raises StoreError."""

    @abstractmethod
    def reader(self) -> Connection:
        """The nodes' connection: reads models only. Raises StoreError."""

    def start(self) -> bool:
        """Make it answer, where that is ours to do. Returns whether anything had to be started."""
        return False

    def stop(self) -> bool:
        """Returns whether anything was stopped."""
        return False

    def rotate(self) -> bool:
        """Make earlier signatures void, once it is stopped. Returns whether that changed anything."""
        return False

    def end_urls(self) -> None:
        """Make the URLs void that nodes have. Those of a service end by themselves, after the run's deadline."""
        return

    def held(self) -> AbstractContextManager[None]:
        """A context in which no other command starts, stops or restarts it."""
        return nullcontext()

    def known(self) -> bool:
        """Whether there is a store to look for runs in."""
        return True

    def running(self) -> bool:
        """Whether it can be asked without starting it."""
        return True

    def reachable_from_nodes(self, transport: str) -> bool:
        """Whether nodes with such a connection can reach it at all."""
        return True

    def firewall_hint(self) -> str:
        """What to check if a node cannot reach the store; may be empty."""
        return ""

    def link_bits_per_second(self) -> float | None:
        """Speed of this machine's interface through which nodes load; None where that is another machine's."""
        return None

    def check(self) -> None:
        """Raises StoreError where nodes could not read models with the key that they are to get."""
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
        """What holds nodes to their limits: called with the time, again and again, it returns lines for the operator.
        `store` gives the client to use. Raises StoreError."""
        return ObjectGuard(store, folder).look

    def shortage(self, further: int = 0) -> str:
        """What to warn of before a run, where the store's disk is nearly full, or `further` bytes would fill it."""
        return ""

    @contextmanager
    def naming_full_disk(self, sent: int) -> Iterator[None]:
        """A StoreError from within names the store's disk first where it has no room for the bytes that are sent: the
        server answers 500 and no reason, and removes what it has of them."""
        try:
            yield
        except StoreError as error:
            lacking = self.shortage(sent)
            if not lacking:
                raise
            raise StoreError(f"{lacking} ({error})") from error

    @abstractmethod
    def delete_run(self, folder: str) -> int:
        """Remove a run's objects, and nothing of runs below its folder. Returns how many."""

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
    def of(cls, options: Mapping[str, Any]) -> S3Service:
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
