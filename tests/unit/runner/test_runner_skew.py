"""Nodes whose clock is off: uploads go on while the store takes them, and what is wrong is said with its amount."""

import json
import shutil
import ssl
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import certificates
from gpuval_node import clock_skew

from tests.kit.runner import StoreServer

NODE = Path(clock_skew.__file__).resolve().parents[2] / "node"
UPLOAD = """
import json, sys
from pathlib import Path
from gpuval_runner.upload import Ledger, Uploader, UploadPace
folder = Path(sys.argv[1])
uploader = Uploader(folder / "store.json", Ledger(folder / "uploaded.json"), pace=UploadPace(first_timeout=5))
uploader.put("records/a", b"{}")
left = uploader.flush(5, 5)
print(json.dumps({"left": left, "problems": uploader.problems()}))
"""


@pytest.fixture
def faketime():
    """A command that runs another with a clock that is off."""
    found = shutil.which("faketime")
    if found is None:
        pytest.skip("needs faketime (Debian: faketime)")
    return lambda offset, *command: [found, "-f", offset, *command]


def upload(node, command):
    done = subprocess.run(
        command(sys.executable, "-c", UPLOAD, str(node.files.root)),
        env={"PYTHONPATH": str(NODE), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def in_hours(hours):
    return (datetime.now(timezone.utc) + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("offset", ["+9h", "-9h", "-10000d"])
def test_a_wrong_clock_keeps_nothing_from_a_store_that_takes_it(node, store, faketime, offset):
    node.put_store(store.url, ["a"], expires_at=in_hours(1))
    said = upload(node, lambda *command: faketime(offset, *command))
    assert said == {"left": [], "problems": []}
    assert store.objects == {"records/a": b"{}"}


def test_what_is_void_by_the_stores_clock_is_not_sent(node, store, faketime):
    node.put_store(store.url, ["a"], expires_at=in_hours(-1))
    for offset in ("+0", "+9h"):
        said = upload(node, lambda *command, at=offset: faketime(at, *command))
        assert "expired" in said["problems"][0]
    assert store.requests == []


@pytest.fixture
def tls_store(node):
    files = certificates.CertificateFiles(node.files.root)
    certificates.ensure(files, ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server, files.server_key)
    made = StoreServer(context)
    yield made
    made.close()


@pytest.mark.parametrize("offset", ["-47h", "+2000h"])
def test_hours_do_not_void_the_embedded_stores_certificate(node, tls_store, faketime, offset):
    node.put_store(tls_store.url, ["a"], ca_file="ca.pem", expires_at=in_hours(1))
    assert upload(node, lambda *command: faketime(offset, *command)) == {"left": [], "problems": []}


@pytest.mark.parametrize(
    "offset, told",
    [
        ("-50d", "not yet valid); this node's clock is 50 d behind the store's: set it (`timedatectl"),
        ("+1000d", "expired); this node's clock is 1000 d ahead of the store's: set it"),
    ],
)
def test_a_certificate_that_a_clock_voids_names_the_clock(node, tls_store, faketime, offset, told):
    node.put_store(tls_store.url, ["a"], ca_file="ca.pem", expires_at=in_hours(48000))
    said = upload(node, lambda *command: faketime(offset, *command))
    assert said["left"] == ["records/a"]
    assert told in said["problems"][0]
    assert "5ecret" not in said["problems"][0]


def test_no_clock_is_named_where_none_was_reported(store):
    assert abs(clock_skew.seconds_ahead(store.url)) < 60, "it is this machine's own clock"
    store.close()
    assert clock_skew.seconds_ahead(store.url) is None
    assert clock_skew.seconds_ahead("https://[bad") is None
    assert clock_skew.in_words(None) == clock_skew.in_words(30.0) == ""


@pytest.mark.parametrize(
    "seconds, told",
    [(61, "1 min"), (3 * 3600, "3 h"), (-(86400 + 3600 * 2 + 65), "1 d 2 h"), (3 * 3600 + 300, "3 h 5 min")],
)
def test_spans_are_identified_by_their_two_largest_units(seconds, told):
    words = clock_skew.in_words(seconds)
    assert f"is {told} {'ahead of' if seconds > 0 else 'behind'}" in words
