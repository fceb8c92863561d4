"""An S3 service that an operator brings: `rclone serve s3` over a folder, whose folders are its buckets."""

import os
import subprocess

from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.rclone import find_rclone

from tests.kit.fleet import until


class S3Service:
    """Has `data` and an `endpoint` at a port of its own, until `close`; a pair is an access key and its secret key."""

    def __init__(self, folder, *pairs, address="127.0.0.1"):
        self.data = folder / "data"
        self.data.mkdir()
        self._log = folder / "s3.log"
        keys = ",".join(f'"{access},{secret}"' for access, secret in pairs)
        with self._log.open("wb") as stream:
            self._process = subprocess.Popen(
                [find_rclone(), "serve", "s3", "--addr", f"{address}:0", "--dir-cache-time", "1s", str(self.data)],
                env={"PATH": os.environ["PATH"], "RCLONE_AUTH_KEY": keys, "RCLONE_CONFIG": ""},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
        self.endpoint = until(self._address, "the S3 service", 60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._process.kill()
        self._process.wait(10)

    def _address(self):
        _, found, after = self._log.read_text().partition("http://")
        return f"http://{after.split()[0].rstrip('/]')}" if found and after.strip() else None
