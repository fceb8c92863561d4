import json
import ssl
import subprocess
import threading
import time

import pytest
from gpuval_runner.errors import StoreFileError
from gpuval_runner.files import digest
from gpuval_runner.store import load_store
from gpuval_runner.upload import Ledger, Uploader, UploadPace, read_ledger

from tests.kit.runner import StoreServer, until

#: A PUT that a busy machine keeps longer than 2 s is tried again until the end of flush().
FAST = UploadPace(first=0.05, longest=0.2, refused=0.6, first_timeout=2.0, timeout=2.0)


@pytest.fixture
def uploader(node, store):
    node.put_store(store.url, ["a", "b"])
    made = Uploader(node.files.store, Ledger(node.files.uploaded), pace=FAST)
    yield made
    made.close()


def test_what_is_put_arrives_with_its_type_and_is_remembered(uploader, node, store, tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"text\n")
    uploader.put("records/a", b"{}")
    uploader.put("logs/a", log)
    assert uploader.flush(30, 30) == []
    assert store.objects == {"records/a": b"{}", "logs/a": b"text\n"}
    assert store.types == {"records/a": "application/json", "logs/a": "text/plain; charset=utf-8"}
    assert read_ledger(node.files.uploaded) == {"records/a": digest(b"{}"), "logs/a": digest(b"text\n")}
    assert uploader.reachable is True


def test_only_the_latest_version_waits(uploader, store):
    store.held = "records/"
    for number in range(50):
        uploader.put("records/a", b"%d" % number)
    store.released.set()
    assert uploader.flush(30, 30) == []
    assert store.objects["records/a"] == b"49"
    assert len(store.history) <= 3


@pytest.mark.parametrize("answer", [500, 503, 429])
def test_a_failing_store_is_tried_again(uploader, store, answer):
    store.answer = answer
    uploader.put("records/a", b"1")
    until(lambda: uploader.reachable is False)
    assert str(answer) in uploader.problems()[0]
    store.answer = 200
    assert uploader.flush(30, 30) == []
    assert store.objects["records/a"] == b"1"
    assert uploader.problems() == []


def test_a_store_that_is_away_is_waited_for(uploader, store):
    store.close()
    begun = time.monotonic()
    for number in range(1000):
        uploader.put("records/a", b"%d" % number)
    assert time.monotonic() - begun < 30, "putting never waits for the store: 1000 tries with their pauses take longer"
    until(uploader.problems)
    assert "Connection refused" in uploader.problems()[0]
    store.open()
    assert uploader.flush(30, 30) == []
    assert store.objects["records/a"] == b"999"


def test_a_refused_url_is_noted_and_left_alone(uploader, store):
    store.answer = 403
    uploader.put("records/a", b"1")
    until(uploader.problems)
    begun = time.monotonic()
    for number in range(10):
        uploader.put("records/a", b"%d" % number)
        time.sleep(0.03)
    assert len(store.requests) <= 1 + (time.monotonic() - begun) / FAST.refused
    assert "403" in uploader.problems()[0]
    store.answer = 200
    until(lambda: store.objects.get("records/a") == b"9", what="another try after a while")


def test_new_urls_are_resumed(node, store):
    node.put_store(store.url, ["a"])
    uploader = Uploader(node.files.store, Ledger(node.files.uploaded), pace=UploadPace(refused=600))
    store.answer = 403
    uploader.put("records/a", b"1")
    until(uploader.problems)
    store.answer = 200
    node.put_store(f"{store.url}/new", ["a"])
    until(lambda: store.objects.get("new/records/a") == b"1")
    uploader.close()


def test_a_flush_without_an_answer_ends(uploader, store):
    store.close()
    uploader.put("records/a", b"1")
    begun = time.monotonic()
    assert uploader.flush(20, 0.5) == ["records/a"]
    assert time.monotonic() - begun < 15


def test_expired_urls_are_not_used(node, store):
    node.put_store(store.url, ["a"], expires_at="2020-01-01T00:00:00Z")
    uploader = Uploader(node.files.store, Ledger(node.files.uploaded), pace=FAST)
    uploader.put("records/a", b"1")
    until(lambda: uploader.reachable is False)
    assert "expired" in uploader.problems()[0]
    assert store.requests == []
    uploader.close()


def test_a_large_log_does_not_hold_up_records(uploader, store, tmp_path):
    store.held = "logs/"
    log = tmp_path / "log"
    log.write_bytes(b"x" * 1000)
    uploader.put("logs/a", log)
    until(lambda: store.requests)
    uploader.put("records/a", b"1")
    until(lambda: "records/a" in store.objects)
    assert "logs/a" not in store.objects
    store.released.set()


@pytest.mark.parametrize(
    "problem",
    [OSError(111, "refused"), ssl.SSLError("x"), TimeoutError(), ValueError("https://h/?X-Amz-Signature=5ecret")],
)
def test_no_problem_tells_a_url(node, problem):
    node.put_store("https://store.example", ["a"])

    def failing(_ca):
        def send(url, *_):
            raise problem if isinstance(problem, OSError) else OSError(str(type(problem)))

        return send

    uploader = Uploader(node.files.store, Ledger(node.files.uploaded), pace=FAST, sender=failing)
    uploader.put("records/a", b"1")
    said = until(uploader.problems)
    assert "5ecret" not in said[0]
    assert "store.example" not in said[0]
    assert "5ecret" not in repr(load_store(node.files.store))
    uploader.close()


def test_a_store_file_that_others_may_read_is_refused(node):
    node.put_store("http://h", ["a"])
    node.files.store.chmod(0o644)
    with pytest.raises(StoreFileError, match="chmod 600"):
        load_store(node.files.store)
    assert load_store(node.files.store, private=False)


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "gpuval.store/1"}', "[" * 100_000])
def test_a_store_file_that_is_none_is_refused_without_showing_it(node, text):
    node.files.store.write_text(text)
    node.files.store.chmod(0o600)
    with pytest.raises(StoreFileError, match="anew"):
        load_store(node.files.store)


def test_only_http_is_spoken(node):
    document = {
        "schema": "gpuval.store/1",
        "expires_at": None,
        "ca_file": None,
        "put": {"records/a": "file:///etc/passwd"},
    }
    node.files.store.write_text(json.dumps(document))
    node.files.store.chmod(0o600)
    assert load_store(node.files.store).put == {}


@pytest.fixture
def tls_store(tmp_path):
    """A store with a certificate of its own making."""
    certificate, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    subject = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(certificate))
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject, *files],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("needs openssl")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = StoreServer(context)
    yield server
    server.close()


@pytest.mark.parametrize("given", [True, False])
def test_a_ca_made_for_the_run_is_trusted_only_when_given(node, tls_store, tmp_path, given):
    node.put_store(tls_store.url, ["a"], ca_file=str(tmp_path / "ca.pem") if given else None)
    uploader = Uploader(node.files.store, Ledger(node.files.uploaded), pace=FAST)
    uploader.put("records/a", b"1")
    until(lambda: uploader.reachable is not None)
    if given:
        assert tls_store.objects == {"records/a": b"1"}
    else:
        assert tls_store.objects == {}
        assert "certificate is not trusted" in uploader.problems()[0]
    uploader.close()


def test_a_missing_ca_file_is_named(node):
    node.put_store("https://127.0.0.1:1", ["a"], ca_file="gone.pem")
    uploader = Uploader(node.files.store, Ledger(node.files.uploaded), pace=FAST)
    uploader.put("records/a", b"1")
    assert "CA file" in until(uploader.problems)[0]
    uploader.close()


def test_closed_it_has_no_threads_left(node, store):
    """In an image without libgcc_s, Python aborts when it has to end threads at its own end."""
    others = set(threading.enumerate())  # an uploader of another test may still wait for its store

    def sending():
        return set(threading.enumerate()) - others

    node.put_store(store.url, ["a"])
    uploader = Uploader(node.files.store, Ledger(node.files.uploaded), pace=FAST)
    uploader.put("records/a", b"{}")
    assert uploader.flush(30, 30) == []
    own = {thread for thread in sending() if thread.name == "upload"}
    assert own
    uploader.close()
    assert until(lambda: not own & sending())  # close waits for a second; a busy machine may need more
