"""Which store the `store` option means."""

import os
import socket
import subprocess
import sys

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Connection, Store, StoreError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import COLLECTION
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.access import open_store
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.backend import S3Service
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.embedded import EmbeddedStore

KEYS = ("endpoint", "access_key", "secret_key", "session_token", "read_access_key", "read_secret_key", "ca_file")
OPTIONS = {**dict.fromkeys(KEYS, ""), "bucket": "b", "region": "eu", "state_dir": "/s", "address": "", "port": 0}


def test_without_an_endpoint_the_controller_serves_the_store():
    store = open_store(OPTIONS)
    assert isinstance(store, EmbeddedStore)
    assert str(store.objects) == "/s/store/data/b"
    assert not store.takes_parts


def test_a_boto3_that_fails_is_named_where_the_store_is_used(tmp_path):
    """It may be there and fail: an older botocore does beside a newer urllib3."""
    (tmp_path / "boto3.py").write_text("raise ImportError('no DEFAULT_CIPHERS in urllib3')")
    package = "ansible_collections.gpuval.fleet.plugins"
    code = (
        f"from {package}.module_utils.store import Connection, Store\n"
        f"from {package}.plugin_utils.artifacts import image_upload\n"
        f"from {package}.plugin_utils.store import access\n"
        "Store(Connection(endpoint=None, bucket='b'))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(COLLECTION.parents[2])])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "StoreError: boto3 is needed on the controller: pip install boto3 (no DEFAULT_CIPHERS" in done.stderr


def test_a_service_is_never_started_and_reached_by_every_node():
    store = open_store({**OPTIONS, "endpoint": "HTTPS://s3.example", "access_key": "a", "secret_key": "s"})
    assert isinstance(store, S3Service)
    assert (store.start(), store.stop(), store.rotate(), store.running()) == (False, False, False, True)
    assert store.reachable_from_nodes("ssh")
    assert store.objects is None
    assert (store.connection().region, store.connection().session_token) == ("eu", None)


@pytest.mark.parametrize(
    ("endpoint", "asked", "creates"),
    [("", False, False), ("", True, True), ("https://s", False, False), ("https://s", True, True)],
)
def test_no_bucket_is_created_that_was_not_asked_for(endpoint, asked, creates):
    assert open_store({**OPTIONS, "endpoint": endpoint, "create_bucket": asked}).creates_bucket is creates


def test_nodes_get_a_key_of_their_own_or_none():
    given = {**OPTIONS, "endpoint": "https://s3.example", "access_key": "a", "secret_key": "s", "session_token": "t"}
    with pytest.raises(StoreError, match="gpuval_s3_read_access_key"):
        open_store(given).reader()
    reader = open_store({**given, "read_access_key": "r", "read_secret_key": "q"}).reader()
    assert (reader.access_key, reader.secret_key, reader.session_token) == ("r", "q", None)


@pytest.mark.parametrize("endpoint", ["s3.example:9000", "ftp://s3.example"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint):
    with pytest.raises(StoreError, match="gpuval_s3_endpoint"):
        open_store({**OPTIONS, "endpoint": endpoint})


@pytest.mark.parametrize("wrong", ["read_access_key", "read_secret_key"])
def test_a_wrong_read_only_key_is_found_before_a_node_uses_it(served, wrong):
    there = served.connection()
    keys = {"access_key": there.access_key, "secret_key": there.secret_key}
    given = {**OPTIONS, **keys, "bucket": "gpuval", "endpoint": there.endpoint, "region": "us-east-1"}
    open_store(given).check()
    right = {"read_access_key": there.access_key, "read_secret_key": there.secret_key}
    open_store({**given, **right}).check()
    with pytest.raises(StoreError, match=r"read-only key cannot list models/.*gpuval_s3_read_access_key") as refused:
        open_store({**given, **right, wrong: "X" * 20}).check()
    assert there.secret_key not in str(refused.value)


def test_a_store_that_hangs_is_an_error_of_the_store():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = Store(
            Connection(bucket="b", endpoint=endpoint, access_key="a", secret_key="s"), timeout=0.2, attempts=1
        )
        with pytest.raises(StoreError, match="timeout"):
            store.level()
