"""The embedded store beyond the loopback: real TLS, spoken by boto3, the runner's uploads and the loading workload."""

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Store, StoreError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import model_source
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import address as store_address
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import certificates
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import embedded as embedded_store
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.access import models_prefix, open_store, signed_urls
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.certificates import CertificateFiles
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.embedded import EmbeddedStore
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.rclone import find_rclone, rclone_config
from gpuval_runner.files import to_json, write_atomically
from gpuval_runner.upload import Ledger, Uploader, UploadPace

from tests.kit.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
#: A PUT that a busy machine keeps longer than 5 s is tried again.
FAST = UploadPace(first=0.05, longest=0.2, refused=0.6, first_timeout=5.0, timeout=5.0)


def outward():
    """IP addresses by which this machine calls others: they stay while containers on it come and go."""
    found = []
    for family, elsewhere in ((socket.AF_INET, "198.51.100.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))  # sends nothing
            found.append(probe.getsockname()[0])
    return [own for own in found if own in store_address.own_addresses() and not own.startswith(("127.", "fe80"))]


@pytest.fixture(scope="module")
def address():
    found = outward()
    if not found:
        pytest.skip("needs an address beside the loopback")
    return found[0]


def options(directory, **more):
    keys = ("endpoint", "access_key", "secret_key", "session_token", "read_access_key", "read_secret_key", "ca_file")
    given = {"bucket": "gpuval", "region": "us-east-1", "state_dir": str(directory), "address": "", "port": 0}
    return {**dict.fromkeys(keys, ""), **given, **more}


@pytest.fixture(scope="module")
def access(tmp_path_factory, address):
    made = open_store(options(tmp_path_factory.mktemp("state"), address=address))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def other_authority(tmp_path):
    files = CertificateFiles(tmp_path)
    certificates.ensure(files, ["controller"])
    return files.authority


def listeners(process):
    return {(entry.laddr.ip, entry.laddr.port) for entry in process.net_connections("tcp") if entry.status == "LISTEN"}


def servers(embedded):
    found = [p for p in psutil.process_iter(["cmdline"]) if str(embedded.data) in (p.info["cmdline"] or ())]
    return sorted(found, key=lambda process: "--read-only" in process.info["cmdline"])


def put(url, data, context):
    request = urllib.request.Request(url, data=data, method="PUT")
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:
        return answer.status


def test_it_listens_on_the_address_and_the_loopback_alone(access, address):
    writer, reader = servers(access)
    ports = access.ports()
    assert listeners(writer) == {("127.0.0.1", ports[0]), (address, ports[0])}
    assert listeners(reader) == {("127.0.0.1", ports[1]), (address, ports[1])}


def test_boto3_trusts_it_by_its_authority(access):
    store = access.store()
    assert store.connection.endpoint.startswith("https://127.0.0.1:")
    store.put("run/a", b"1")
    assert store.get("run/a", max_bytes=5) == b"1"


def test_a_signed_url_names_the_address_and_works_there(access, address):
    store = access.store()
    url = store.sign_put("run/signed", 60)
    host = store_address.bracketed(address)
    assert url.startswith(f"https://{host}:{access.ports()[0]}/gpuval/run/signed?")
    context = ssl.create_default_context(cadata=access.ca())
    assert put(url, b"hello", context) == 200
    with urllib.request.urlopen(store.sign_get("run/signed", 60), timeout=10, context=context) as answer:
        assert answer.read() == b"hello"
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(store.sign_get("run/other", 60), timeout=10, context=context)


def test_plain_http_gets_nothing(access):
    url = access.store().sign_put("run/plain", 60).replace("https://", "http://")
    with pytest.raises((urllib.error.HTTPError, OSError)):
        put(url, b"x", None)
    assert [entry.key for entry in access.store().list("run/plain")] == []


def test_old_versions_of_tls_are_refused(access, address):
    command = ["openssl", "s_client", "-connect", f"{store_address.bracketed(address)}:{access.ports()[0]}"]
    done = subprocess.run(
        [*command, "-tls1_1", "-cipher", "ALL@SECLEVEL=0"],
        input="",
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode != 0, done.stdout


def test_an_authority_of_someone_else_is_refused(access, other_authority):
    url = access.store().sign_put("run/wrong", 60)
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        put(url, b"x", ssl.create_default_context(cafile=other_authority))
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        put(url, b"x", ssl.create_default_context())


@pytest.fixture
def uploader(access, tmp_path):
    """The runner's uploader of a node: its signed URLs, and an authority to trust."""
    made = []

    def make(authority):
        write_atomically(tmp_path / "ca.pem", authority.encode())
        urls = signed_urls(access.store(), "run", "node-1", ["facts"], 600)
        assert urls["ca_file"] == "ca.pem"
        write_atomically(tmp_path / "store.json", to_json(urls))
        made.append(Uploader(tmp_path / "store.json", Ledger(tmp_path / "uploaded.json"), pace=FAST))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_runner_uploads(access, uploader):
    sender = uploader(access.ca())
    sender.put("records/facts", b"{}")
    assert sender.flush(10, 10) == [], sender.problems()
    assert access.store().get("run/records/facts/node-1.json", max_bytes=10) == b"{}"


def test_the_runner_sends_nothing_to_a_store_it_does_not_trust(access, uploader, other_authority):
    sender = uploader(other_authority.read_text())
    sender.put("logs/facts", b"secret")
    assert sender.flush(3, 1) == ["logs/facts"]
    assert "certificate is not trusted" in sender.problems()[0]
    assert "Signature" not in sender.problems()[0]
    assert list(access.store().list("run/logs/")) == []


@pytest.fixture(scope="module")
def model(access, tmp_path_factory):
    """A model in the store, as preloading puts it there."""
    root = tmp_path_factory.mktemp("model")
    (root / "config.json").write_text("{}")
    (root / "weights").write_bytes(os.urandom(3 << 20))
    made = model_source.resolve(str(root), root)
    model_source.upload(made, access.connection())
    access.store().put(f"models/{made.folder}/SHA256SUMS", model_source.make_manifest(made).encode())
    return made


def load(access, model, place, authority):
    (place / "rclone.conf").write_text(rclone_config(access.reader()))
    (place / "ca.pem").write_text(authority)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "collections/ansible_collections/gpuval/fleet/node"),
        "GPUVAL_RCLONE": find_rclone(),
        "GPUVAL_RCLONE_CONFIG": str(place / "rclone.conf"),
        "GPUVAL_MODELS_PREFIX": models_prefix("gpuval"),
        "GPUVAL_MODELS_DIR": str(place / "cache"),
        "GPUVAL_RESULT_FILE": str(place / "result.json"),
    }
    command = [sys.executable, "-m", "gpuval_workloads.loading", "--model-folder", model.folder]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_node_loads_the_model(access, model, tmp_path):
    done = load(access, model, tmp_path, access.ca())
    assert done.returncode == 0, done.stdout + done.stderr
    for name, path in model.files.items():
        assert (tmp_path / "cache" / model.folder / name).read_bytes() == path.read_bytes()


def test_a_node_loads_nothing_from_a_store_it_does_not_trust(access, model, tmp_path, other_authority):
    done = load(access, model, tmp_path, other_authority.read_text())
    assert done.returncode != 0
    assert "the store's certificate is not trusted by this node" in done.stdout
    assert not (tmp_path / "cache" / model.folder / "weights").exists()


def test_killed_and_started_again_it_keeps_ports_keys_and_authority(access):
    embedded = access
    before = (embedded.connection(), embedded.reader(), embedded.ports(), access.ca())
    url = access.store().sign_put("run/later", 600)
    killed = servers(embedded)
    for process in killed:
        os.kill(process.pid, signal.SIGKILL)
    psutil.wait_procs(killed, timeout=60)
    assert embedded.start() is True
    assert (embedded.connection(), embedded.reader(), embedded.ports(), access.ca()) == before
    assert put(url, b"1", ssl.create_default_context(cadata=access.ca())) == 200
    assert embedded.start() is False


def test_a_run_without_an_address_leaves_the_store_where_it_is(access, address):
    plain = EmbeddedStore(access.directory, access.bucket)
    assert plain.start() is False
    assert plain.reachable_from_nodes("ssh")
    assert address in plain.reader().endpoint


def test_an_address_added_and_changed_keeps_data_and_keys(tmp_path, address):
    def at(name, port=0):
        return open_store(options(tmp_path, address=name, port=port))

    plain = at("")
    plain.start()
    try:
        assert plain.connection().endpoint.startswith("http://127.0.0.1:")
        assert not plain.reachable_from_nodes("ssh")
        assert plain.reachable_from_nodes("local")
        assert plain.firewall_hint() == ""
        plain.store().put("kept/x", b"1")
        keys = plain.connection().secret_key, plain.reader().secret_key

        secured = at(address)
        assert secured.start() is True
        assert secured.reachable_from_nodes("ssh")
        authority = secured.ca()
        assert secured.store().get("kept/x", max_bytes=5) == b"1"
        assert (secured.connection().secret_key, secured.reader().secret_key) == keys
        assert len(servers(secured)) == 2, "the old ones are gone"

        others = [other for other in outward() if other != address]
        if others:
            moved = at(others[0])
            assert moved.start() is True
            assert moved.ca() == authority
            assert others[0] in moved.reader().endpoint
            assert Store(moved.reader()).list("models/")
            assert (moved.connection().secret_key, moved.reader().secret_key) == keys

        free = free_port()
        fixed = at(address, free)
        assert fixed.start() is True
        assert fixed.ports() == (free, free + 1)
        assert str(free + 1) in fixed.firewall_hint()
        assert at(address).start() is False, "the port is remembered"

        fixed.stop()
        assert fixed.rotate() is True
        assert not list((tmp_path / "store").glob("*.pem")) + list((tmp_path / "store").glob("*.key"))
        fixed.start()
        assert fixed.ca() != authority
        assert fixed.connection().secret_key != keys[0]
        assert fixed.store().get("kept/x", max_bytes=5) == b"1"
    finally:
        plain.stop()
        shutil.rmtree(tmp_path)


def test_a_foreign_address_starts_nothing(tmp_path):
    with pytest.raises(StoreError, match="no address of this controller"):
        EmbeddedStore(tmp_path, "gpuval", "203.0.113.77").start()
    assert not (tmp_path / "store.json").exists()
    with pytest.raises(StoreError, match="gpuval_store_port 70000"):
        EmbeddedStore(tmp_path, "gpuval", port=70000).start()


def test_a_store_whose_machine_moved_goes_on_for_the_controller(tmp_path, address, monkeypatch):
    """A laptop in another network: its old address is gone, and the run is not asked for a new one."""
    store = EmbeddedStore(tmp_path, "gpuval", address)
    store.start()
    try:
        store.stop()
        monkeypatch.setattr(store_address, "own_addresses", lambda: {"127.0.0.1"})
        with pytest.raises(StoreError, match="no address of this controller"):
            store.start()
        later = EmbeddedStore(tmp_path, "gpuval")
        assert later.start() is True
        assert list(Store(later.connection()).list("")) == []
        assert later.address() == ""
    finally:
        EmbeddedStore(tmp_path, "gpuval").stop()


def test_the_keys_of_certificates_are_in_no_log(access):
    for log in access.directory.glob("*.log"):
        assert "PRIVATE" not in log.read_text()


@pytest.mark.slow
def test_refused_handshakes_do_not_fill_the_disk(tmp_path, address, monkeypatch):
    monkeypatch.setattr(embedded_store, "LOG_LIMITS", ("--log-file-max-size", "1M", "--log-file-max-backups", "1"))
    store = EmbeddedStore(tmp_path, "gpuval", address)
    store.start()
    try:
        while len(list(tmp_path.glob("writer-*.log"))) < 1:
            for _handshake in range(500):
                with socket.create_connection(("127.0.0.1", store.ports()[0])) as plain:
                    plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    plain.recv(100)
        assert sum(log.stat().st_size for log in tmp_path.glob("writer*.log")) < 3 << 20
    finally:
        store.stop()
