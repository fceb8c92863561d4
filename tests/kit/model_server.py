"""A read-only S3 server over a folder, for the tests of the loading workload."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from pathlib import Path

from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.rclone import find_rclone

from tests.kit.ports import free_port

START_SECONDS = 60


class ModelServer:
    """`rclone serve s3` over `data`, whose folders are buckets. Sees every change at once."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.access_key = "GV" + secrets.token_hex(9).upper()
        self.secret_key = secrets.token_urlsafe(30)
        self._process: subprocess.Popen | None = None
        self.port = free_port()

    @property
    def config(self) -> str:
        return (
            f"[models]\ntype = s3\nprovider = Other\nendpoint = http://127.0.0.1:{self.port}\nregion = us-east-1\n"
            f"access_key_id = {self.access_key}\nsecret_access_key = {self.secret_key}\nforce_path_style = true\n"
        )

    def start(self) -> None:
        command = [find_rclone(), "serve", "s3", "--read-only", "--addr", f"127.0.0.1:{self.port}"]
        self._process = subprocess.Popen(
            [*command, "--dir-cache-time", "1ms", "--etag-hash", "", str(self.data)],
            env={**os.environ, "RCLONE_AUTH_KEY": f'"{self.access_key},{self.secret_key}"', "RCLONE_CONFIG": ""},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_SECONDS
        with socket.socket() as probe:
            while probe.connect_ex(("127.0.0.1", self.port)) != 0:
                assert time.monotonic() < deadline, "rclone serve s3 did not start"
                time.sleep(0.05)

    def stop(self) -> None:
        if self._process:
            self._process.terminate()
            self._process.wait(60)
