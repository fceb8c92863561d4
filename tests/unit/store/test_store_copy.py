"""What a bundle carries gets into an S3 service and out of it, byte for byte."""

import os

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import rclone
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.access import open_store
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.embedded import EmbeddedStore

FILES = {
    "models/models--a--b/config.json": b"{}",
    "models/models--a--b/deep/weights.safetensors": os.urandom(200_000),
    "models/models--a--b/SHA256SUMS": b"sums",
    "models/models--a--b.json": b"{}",
    "images/training-0123456789ab.tar": os.urandom(50_000),
}


@pytest.fixture
def access(tmp_path):
    """An S3 service of its own, as the inventory names one."""
    service = EmbeddedStore(tmp_path / "service", "gpuval")
    service.start()
    writer = service.connection()
    options = {
        name: getattr(writer, name) or "" for name in ("bucket", "endpoint", "region", "access_key", "secret_key")
    }
    yield open_store(
        {
            **options,
            "session_token": "",
            "ca_file": "",
            "read_access_key": "",
            "read_secret_key": "",
            "state_dir": str(tmp_path / "state"),
        }
    )
    service.stop()


def put(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def test_there_and_back(access, tmp_path):
    put(tmp_path / "here", FILES)
    for kind in ("models", "images"):
        rclone.put(access.connection(), tmp_path / "here" / kind, kind, last="SHA256SUMS")
    assert {entry.key: entry.size for entry in access.store().list("")} == {
        key: len(data) for key, data in FILES.items()
    }
    wanted = ["models/models--a--b/", "models/models--a--b.json", "images/training-0123456789ab.tar"]
    rclone.fetch(access.connection(), wanted, tmp_path / "there")
    found = {path.relative_to(tmp_path / "there").as_posix(): path for path in (tmp_path / "there").rglob("*.*")}
    found |= {"models/models--a--b/SHA256SUMS": tmp_path / "there/models/models--a--b/SHA256SUMS"}
    assert {key: found[key].read_bytes() for key in FILES} == FILES
