"""An S3 service by endpoint and keys, which the operator runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...module_utils.store import Connection, StoreError
from . import stored_runs
from .backend import StoreBackend


class S3Service(StoreBackend):
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
