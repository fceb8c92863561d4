"""The embedded store: a real rclone, spoken to by boto3 and plain HTTP."""

import multiprocessing
import os
import re
import signal
import socket
import stat
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils import store as module
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Connection, Store, StoreError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import embedded as embedded_store
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.embedded import EmbeddedStore
from botocore import utils

from tests.kit.ports import free_port
from tests.kit.run_commands import clean_run, killed, lay_out, opened
from tests.kit.runner import until


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    store = EmbeddedStore(tmp_path_factory.mktemp("store"), "gpuval")
    store.start()
    yield store
    store.stop()


def put(url, data):
    request = urllib.request.Request(url, data=data, method="PUT")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.status


def test_starting_again_changes_nothing(embedded):
    before = embedded.connection()
    assert embedded.start() is False
    assert embedded.connection() == before


def test_what_is_put_is_listed_read_and_deleted(embedded):
    store = Store(embedded.connection())
    store.put("run/records/training/n1.json", b"{}")
    (entry,) = list(store.list("run/"))
    assert (entry.key, entry.size) == ("run/records/training/n1.json", 2)
    assert store.get(entry.key, max_bytes=10) == b"{}"
    assert store.get(entry.key, max_bytes=1) == b"{}"  # one byte more than allowed tells that it is too large
    assert store.delete_prefix("run/") == 1
    assert list(store.list("run/")) == []


def test_a_changed_object_has_another_stamp(embedded):
    store = Store(embedded.connection())
    store.put("etag/x", b"1")
    before = next(iter(store.list("etag/"))).stamp
    store.put("etag/x", b"2")
    assert next(iter(store.list("etag/"))).stamp != before


def test_files_are_listed_and_read_as_the_server_does(embedded, monkeypatch):
    by_requests, by_files = Store(embedded.connection()), embedded.store()
    for key in ("run/records/b/n1.json", "run/records/a/n1.json", "run/records/a-b/n2.json", "run/run.json"):
        by_requests.put(key, key.encode())
    (embedded.objects / "run/records/a/.rclone_temp_half").write_text("an upload under way")
    for prefix in ("run/", "run/records/", "run/records/a", "run/run.json", "none/"):
        listed = [(one, one.stamp) for one in by_requests.list(prefix)]
        assert [(one, one.stamp) for one in by_files.list(prefix)] == listed
    monkeypatch.setattr(by_files, "client", None)  # no request
    assert by_files.get("run/records/a/n1.json", max_bytes=2) == b"run"
    monkeypatch.undo()
    assert by_files.get_if_there("run/records/a/n3.json", max_bytes=2) is None


def test_files_of_a_store_that_does_not_answer_are_not_listed(tmp_path):
    """Nodes could not write: it is to be restarted."""
    embedded = EmbeddedStore(tmp_path, "gpuval")
    embedded.start()
    store = embedded.store()
    embedded.stop()
    with pytest.raises(StoreError, match="connect"):
        list(store.list("run/"))


@pytest.mark.parametrize(
    ("text", "by_botocore"),
    [
        ("2026-11-23T18:46:02.123Z", False),
        ("Mon, 23 Nov 2026 18:46:02 GMT", False),
        ("2026-11-23T18:46:02Z", True),
        ("2026-11-23T18:46:02.123456789Z", True),
        ("2026-11-23T18:46:02+01:00", True),
        (1795459562, True),
    ],
)
def test_times_are_what_botocore_makes_of_them_and_its_slow_parser_reads_odd_ones_only(text, by_botocore, monkeypatch):
    wanted, asked = utils.parse_timestamp(text), []
    monkeypatch.setattr(module, "parse_timestamp", lambda odd: asked.append(odd) or wanted)
    found = module._moment(text)
    assert found == wanted and found.isoformat() == wanted.isoformat()
    assert bool(asked) == by_botocore


def test_a_listing_and_an_answer_have_their_times_without_the_slow_parser(embedded, monkeypatch):
    """Half of the processor time of a poll of 100 nodes."""
    monkeypatch.setattr(module, "parse_timestamp", None)
    store = Store(embedded.connection())
    store.put("times/x", b"1")
    (entry,) = store.list("times/")
    assert abs(entry.modified.timestamp() - time.time()) < 60
    assert store.get(entry.key, max_bytes=10) == b"1"


def test_listing_a_large_object_does_not_read_it(embedded):
    large = embedded.data / "gpuval" / "models" / "large"
    large.mkdir()
    with (large / "weights").open("wb") as stream:
        stream.truncate(200 << 30)  # sparse: reading it would take minutes
    reader = Store(embedded.reader(), timeout=60, attempts=1)
    (entry,) = until(lambda: [*reader.list("models/large/")])
    assert entry.size == 200 << 30
    (large / "weights").unlink()


def test_a_signed_url_writes_its_key_and_nothing_else(embedded):
    store = Store(embedded.connection())
    url = store.sign_put("signed/a", 60)
    assert put(url, b"hello") == 200
    assert store.get("signed/a", max_bytes=100) == b"hello"
    with pytest.raises(urllib.error.HTTPError) as refused:
        put(url.replace("signed/a", "signed/b"), b"x")
    assert refused.value.code == 403
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url.split("?")[0], timeout=10)
    assert refused.value.code in (400, 401, 403)


def test_the_reader_reads_and_cannot_write(embedded):
    Store(embedded.connection()).put("models/m/config.json", b"{}")
    reader = Store(embedded.reader(), attempts=1)
    until(lambda: [*reader.list("models/m/")])  # it looks at the folder anew every second
    assert reader.get("models/m/config.json", max_bytes=10) == b"{}"
    with pytest.raises(StoreError):
        reader.put("models/m/config.json", b"evil")
    with pytest.raises(StoreError):
        Store(
            Connection("gpuval", embedded.reader().endpoint, access_key="GV0000000000000000", secret_key="x" * 40)
        ).get("models/m/config.json", max_bytes=10)
    assert Store(embedded.connection()).get("models/m/config.json", max_bytes=10) == b"{}"


def test_the_reader_sees_models_alone(embedded):
    for key in ("models/seen/a", "run9/records/training/n1.json", "images/training.tar"):
        Store(embedded.connection()).put(key, b"1")
    reader = Store(embedded.reader(), attempts=1)
    until(lambda: [*reader.list("models/seen/")])
    keys = {entry.key for entry in reader.list("")}
    assert "models/seen/a" in keys
    assert all(key.startswith("models/") for key in keys)
    with pytest.raises(StoreError):
        reader.get("run9/records/training/n1.json", max_bytes=10)


def test_the_environment_sends_nothing_through_a_proxy(embedded, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert list(Store(embedded.connection(), attempts=1).list("nothing/")) == []


def test_keys_are_in_no_argument_and_the_file_is_private(embedded):
    secrets = {embedded.connection().secret_key, embedded.reader().secret_key}
    for process in psutil.process_iter(["cmdline"]):
        for word in process.info["cmdline"] or ():
            assert not any(secret in word for secret in secrets)
    file = embedded.directory / "store.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for log in embedded.directory.glob("*.log"):
        assert not any(secret in log.read_text() for secret in secrets)


def test_killed_and_started_again_it_is_the_same_store(embedded):
    store = Store(embedded.connection())
    store.put("kept/x", b"1")
    url = store.sign_put("kept/y", 60)
    processes = [p for p in psutil.process_iter(["cmdline"]) if str(embedded.data) in (p.info["cmdline"] or ())]
    assert len(processes) == 2
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    psutil.wait_procs(processes, timeout=60)
    assert not embedded.running()
    assert embedded.start() is True
    assert put(url, b"2") == 200
    assert {entry.key for entry in Store(embedded.connection()).list("kept/")} == {"kept/x", "kept/y"}


def test_the_urls_of_nodes_end_and_nothing_else_does(embedded):
    store = Store(embedded.connection())
    old, before = store.sign_put("ended/a", 60), embedded.reader()
    assert put(old, b"1") == 200
    embedded.end_urls()
    with pytest.raises(urllib.error.HTTPError) as refused:
        put(old, b"2")
    assert refused.value.code == 403
    assert store.get("ended/a", max_bytes=10) == b"1", "a command that is at work keeps its connection"
    assert embedded.reader() == before
    assert embedded.start() is False
    assert put(Store(embedded.connection()).sign_put("ended/a", 60), b"2") == 200


def test_stopping_is_idempotent_and_rotation_voids_the_keys(tmp_path):
    store = EmbeddedStore(tmp_path, "gpuval")
    assert store.stop() is False
    store.start()
    old = store.connection()
    Store(old).put("r1/x", b"1")
    assert store.stop() is True
    assert store.stop() is False
    assert not store.running()
    assert store.rotate() is True
    assert store.rotate() is False
    store.start()
    try:
        assert store.connection().secret_key != old.secret_key
        assert [entry.key for entry in Store(store.connection()).list("r1/")] == ["r1/x"]
    finally:
        store.stop()
    assert store.delete_run("r1") == 1
    assert store.delete_run("r1") == 0
    assert store.delete_run("../..") == 0


def test_a_store_that_another_clean_removes_meanwhile_has_nothing_to_stop(tmp_path, monkeypatch):
    store = EmbeddedStore(tmp_path, "gpuval")
    (store.directory / "store.json").write_text("{}")

    @contextmanager
    def held():
        (store.directory / "store.json").unlink()
        yield

    monkeypatch.setattr(store, "held", held)
    assert store.stop() is False


def test_before_the_first_start_the_message_says_what_to_do(tmp_path):
    with pytest.raises(StoreError, match="make validate"):
        EmbeddedStore(tmp_path, "gpuval").connection()


def test_an_outgoing_connection_never_takes_a_port_of_the_store(tmp_path):
    store = EmbeddedStore(tmp_path, "gpuval")
    store.start()
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        assert max(store.ports()) < min(lowest, 32768)
    finally:
        store.stop()


def test_a_port_in_use_is_reported_with_what_to_do(tmp_path):
    store = EmbeddedStore(tmp_path, "gpuval")
    store.start()
    port = int(store.connection().endpoint.rsplit(":", 1)[1])
    store.stop()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(StoreError, match="Is the port in use"):
            store.start()


@contextmanager
def occupied():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.mark.parametrize("runs", [True, False])
def test_a_start_on_a_port_in_use_leaves_the_store_where_it_was(tmp_path, runs):
    plain = EmbeddedStore(tmp_path, "gpuval")
    plain.start()
    try:
        before, ports = plain.connection(), plain.ports()
        url = plain.store().sign_put("kept/x", 60)
        if not runs:
            plain.stop()
        with occupied() as port, pytest.raises(StoreError, match=f"did not start on 127.0.0.1, port {port}: .*in use"):
            EmbeddedStore(tmp_path, "gpuval", port=port).start()
        assert plain.running() == runs
        assert plain.start() is not runs
        assert (plain.connection(), plain.ports()) == (before, ports)
        assert put(url, b"1") == 200
    finally:
        plain.stop()


def test_a_store_goes_back_to_where_it_was_even_if_a_server_elsewhere_does_not_end(tmp_path, monkeypatch):
    plain = EmbeddedStore(tmp_path, "gpuval", port=free_port())
    plain.start()
    plain.stop()
    monkeypatch.setattr(embedded_store, "STOP_SECONDS", 0)  # no process ends in this time
    port = free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port + 1))
        other.listen()
        with pytest.raises(StoreError, match=f"did not start on 127.0.0.1, port {port + 1}: "):
            EmbeddedStore(tmp_path, "gpuval", port=port).start()
    assert plain.ports() == (plain.wanted_port, plain.wanted_port + 1)


def test_a_store_moves_to_the_port_that_its_reader_had(tmp_path):
    store = EmbeddedStore(tmp_path, "gpuval", port=free_port())
    store.start()
    try:
        moved = EmbeddedStore(tmp_path, "gpuval", port=store.ports()[1])
        assert moved.start()
        assert moved.ports() == (store.wanted_port + 1, store.wanted_port + 2)
    finally:
        store.stop()


def test_a_first_start_on_a_port_in_use_leaves_nothing_and_shows_the_log_of_this_attempt_from_a_lines_start(tmp_path):
    log = tmp_path / "writer.log"
    log.write_text("2026/11/23 18:46:02 ERROR : of an earlier attempt" + " and more" * 200 + "\n")
    with occupied() as port, pytest.raises(StoreError) as refused:
        EmbeddedStore(tmp_path, "gpuval", port=port).start()
    shown = str(refused.value).partition(f"port {port}: ")[2].partition(". Is the port in use")[0]
    assert re.match(r"\d{4}/\d\d/\d\d [\d:]+ (CRITICAL|NOTICE|ERROR)", shown) and "in use" in shown
    assert "earlier" not in shown
    assert str(refused.value).endswith("Free it, or set another gpuval_store_port.")
    with log.open("a") as stream:
        stream.write("cut" * 100 + "\n" + "whole " * 50)
    assert embedded_store._end_of(log, 0) == ("whole " * 50).strip()
    assert embedded_store._end_of(log, 1 << 20).endswith("whole"), "it was replaced since"
    assert not (tmp_path / "store.json").exists()


def test_an_active_run_keeps_the_store_where_it_is(tmp_path):
    results, directory = lay_out(tmp_path), tmp_path / "state/store"
    stays = EmbeddedStore(directory, "b", port=free_port(), results=results)
    moves = EmbeddedStore(directory, "b", port=free_port(), results=results)
    stays.start()
    try:
        own = opened(results, "active")
        assert moves.start(), "no node has a URL of a run that its only controller has just opened"
        assert stays.start()
        own.advance("working")
        killed(own)
        opened(results, "active")
        assert own.read_run()["state"]["workers"][0]["pid"] == os.getppid(), "it is resumed"
        with pytest.raises(StoreError) as refused:
            moves.start()
        assert str(refused.value) == (
            f"run active uses the embedded store on 127.0.0.1, port {stays.wanted_port}, and gpuval_store_port "
            f"{moves.wanted_port} would move it: leave that out, or wait for the end of the run; after a change of "
            "the controller's address, end the run: "
            f"`make clean INVENTORY={tmp_path / 'a'} RUN=active`"
        )
        assert stays.start() is False, "nothing was restarted"
        with pytest.raises(StoreError, match=r"gpuval_store_address 192\.0\.2\.1 would move it"):
            EmbeddedStore(directory, "other", "192.0.2.1", results=results).start()
        clean_run(results, run_id="active")
        assert moves.start()
    finally:
        stays.stop()


def start_and_stay(store, said):
    store.start()
    said.set()
    time.sleep(60)


def test_a_server_that_is_a_zombie_has_ended(tmp_path):
    """Another controller started it, and does not ask for its end."""
    fork, store = multiprocessing.get_context("fork"), EmbeddedStore(tmp_path, "gpuval")
    said = fork.Event()
    controller = fork.Process(target=start_and_stay, args=(store, said))
    controller.start()
    try:
        assert said.wait(30)
        assert store.stop()
        servers = psutil.Process(controller.pid).children()
        assert [server.status() for server in servers] == [psutil.STATUS_ZOMBIE] * 2
    finally:
        controller.kill()
        controller.join()


def test_deleting_the_whole_bucket_is_refused(embedded):
    with pytest.raises(ValueError, match="whole bucket"):
        Store(embedded.connection()).delete_prefix("/")


def test_a_mistyped_bucket_is_not_made_beside_another(tmp_path):
    (tmp_path / "data/gpuval").mkdir(parents=True)
    with pytest.raises(StoreError, match="no bucket gpuvla, it has gpuval: correct gpuval_bucket, or set"):
        EmbeddedStore(tmp_path, "gpuvla").start()
    assert not (tmp_path / "data/gpuvla").exists()
    store = EmbeddedStore(tmp_path, "other", creates_bucket=True)
    try:
        assert store.start() and (tmp_path / "data/other").is_dir()
    finally:
        store.stop()


def test_a_bucket_is_made_once(embedded):
    store = Store(Connection(**{**vars(embedded.connection()), "bucket": "other"}))
    with pytest.raises(StoreError, match=r"no bucket .*: correct gpuval_bucket, or set gpuval_create_bucket: true"):
        store.ensure_bucket(create=False)
    assert store.ensure_bucket(create=True) is True
    assert store.ensure_bucket(create=False) is False
    assert (Path(embedded.data) / "other").is_dir()
