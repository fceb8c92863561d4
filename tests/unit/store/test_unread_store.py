"""What a store that cannot be read is called, and that half an object is none."""

import json
import os
import time
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import PIECE_BYTES, Connection, Store, StoreError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import evidence, launch_errors
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import unread
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.backend import S3Service
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import decisions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.exchange import AWAY_SECONDS, StorePoller
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.watched_run import WatchedRun

from tests.kit.builders import make_record, make_run
from tests.kit.odd_s3 import OddS3
from tests.kit.spoiling_proxy import SLOW_BYTES_PER_SECOND, SpoilingProxy


@pytest.fixture
def proxied():
    """A client of a store behind a proxy, and the proxy."""
    with OddS3() as odd, SpoilingProxy(urlsplit(odd.endpoint).port) as proxy:
        connection = Connection("gpuval", f"http://127.0.0.1:{proxy.port}", access_key="WRITER", secret_key="w")
        # answers that are not spoiled come from a thread of this process; what is spoiled is to pass the limit
        yield Store(connection, timeout=1.0, attempts=1), proxy


@pytest.mark.parametrize(
    ("how", "words"),
    [("truncate", "read, but total bytes expected is"), ("reset", "Connection"), ("slow", "fewer than")],
)
def test_half_an_object_is_none(proxied, how, words):
    client, proxy = proxied
    client.put("run/records/facts/n1.json", b"x" * 8192)
    assert client.get("run/records/facts/n1.json", max_bytes=8192) == b"x" * 8192
    assert client.get("run/records/facts/n1.json", max_bytes=99) == b"x" * 100
    proxy.spoil(how)
    with pytest.raises(StoreError, match=words):
        client.get("run/records/facts/n1.json", max_bytes=8192)


def test_a_trickle_ends_at_its_limit_and_not_with_its_piece(proxied):
    client, proxy = proxied
    client.put("run/records/facts/n1.json", b"x" * PIECE_BYTES)
    proxy.spoil("slow")
    began = time.monotonic()
    with pytest.raises(StoreError, match="fewer than"):
        client.get("run/records/facts/n1.json", max_bytes=PIECE_BYTES)
    assert time.monotonic() - began < PIECE_BYTES / SLOW_BYTES_PER_SECOND / 2, "8 s for the piece, 1 s for the limit"


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.get_range("run/records/facts/n1.json", 0, 900),
        lambda client: list(client.list("run/")),
        lambda client: client.listing("run/"),
        lambda client: client.level("run/"),
    ],
)
def test_no_answer_may_trickle(proxied, ask):
    client, proxy = proxied
    client.put("run/records/facts/n1.json", b"x" * 900)
    ask(client)
    proxy.spoil("trickle", lambda *_: True)
    with pytest.raises(StoreError, match="fewer than"):
        ask(client)


@pytest.mark.parametrize("how", ["reset", "truncate"])
def test_half_a_listing_is_none(proxied, how):
    client, proxy = proxied
    client.put("run/records/facts/n1.json", b"x")
    proxy.spoil(how, lambda *_: True)
    with pytest.raises(StoreError, match=r"Connection|total bytes expected"):
        list(client.list("run/"))


def test_an_answer_that_breaks_off_is_the_stores_also_where_it_is_an_error(proxied):
    client, proxy = proxied
    assert client.get_if_there("run/absent", max_bytes=9) is None
    proxy.spoil("reset", lambda *_: True)
    with pytest.raises(StoreError, match="Connection"):
        client.get_if_there("run/absent", max_bytes=9)


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("403", "store_denied"),
        ("500", "store_away"),
        ("507", "store_full"),
        ("away", "store_away"),
        ("skewed", "store_clock"),
    ],
)
@pytest.mark.parametrize("begins", ["the store cannot be read", "Task failed: the store cannot be used"])
def test_the_answer_of_a_store_has_its_class(proxied, how, name, begins):
    client, proxy = proxied
    proxy.spoil(how, lambda *_: True)
    with pytest.raises(StoreError) as caught:
        next(client.list("run/"), None)
    assert launch_errors.classify("failed", f"{begins}: {caught.value}").name == name


@pytest.mark.parametrize(
    ("arrived_after", "words"),
    [
        (5.0, "; 2 of 2 node(s) agree with this controller: the store's clock is wrong"),
        (-3600.0, "; 2 of 2 node(s) are ahead of this controller: this controller's clock is wrong"),
        (3600.0, "; whose clock is wrong is unknown: compare them"),
        (None, ""),
    ],
)
def test_nodes_say_whose_clock_is_wrong(proxied, tmp_path, arrived_after, words):
    client, proxy = proxied
    proxy.seconds_ahead = -1000.0
    proxy.spoil("skewed", lambda *_: True)
    with pytest.raises(StoreError) as caught:
        next(client.list("run/"), None)
    folder, written = RunFolder(tmp_path / "run-1"), time.time()
    folder.write_run(make_run(["n1", "n2"], stages=["facts"]))
    for node in ("n1", "n2") if arrived_after else ():
        path = folder.evidence_file(node, "facts")
        path.parent.mkdir(parents=True)
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(written))
        path.write_text(json.dumps(make_record(node, "facts", updated_at=at)))
        os.utime(path, (written + arrived_after, written + arrived_after))
    reason, steps = unread.in_words(caught.value, folder)
    assert reason.startswith("the clock of this controller is 100") and reason.endswith(
        f"(RequestTimeTooSkewed){words}"
    )
    assert "ahead of the store's" in reason and steps.startswith("set the wrong clock")


def test_a_clock_is_not_blamed_on_the_nodes_read_key(proxied):
    client, proxy = proxied
    proxy.spoil("skewed", lambda *_: True)
    service = S3Service(client.connection, "READER", "r")
    with pytest.raises(StoreError, match="RequestTimeTooSkewed") as caught:
        service.check()
    assert "gpuval_s3_read_access_key" not in str(caught.value)


def test_a_record_without_an_end_does_not_replace_a_later_end():
    run = make_run(["n1"], stages=["facts"])
    known = evidence.RunEvidence(launches={})
    key = f"{run['folder']}/records/facts/n1.json"
    ended = make_record("n1", "facts", updated_at="2026-11-28T10:00:09Z")
    changes = {"state": "running", "finished_at": None, "exit_code": None, "duration_seconds": None}
    for at, state in (("2026-11-28T10:00:05Z", "success"), ("2026-11-28T10:00:10Z", "running")):
        assert evidence.take_record(known, run, key, json.dumps(ended).encode())["state"] == "success"
        late = make_record("n1", "facts", updated_at=at, **changes)
        assert evidence.take_record(known, run, key, json.dumps(late).encode())["state"] == state


class Records:
    """A run whose nodes have a record each in a store behind a proxy, which may refuse that of one node."""

    def __init__(self, folder, client, proxy):
        self.client, self.proxy, self.folder, self.lines = client, proxy, folder, []
        self.nodes = [f"n{number}" for number in range(6)]
        folder.write_run(make_run(self.nodes, stages=["facts"]))
        for node in self.nodes:
            self.put(node)

    def put(self, node, **fields):
        record = make_record(node, "facts", **fields)
        self.client.put(f"folder/records/facts/{node}.json", json.dumps(record).encode())

    def poller(self):
        watched = WatchedRun(self.folder, self.client, self.lines.append)
        backend, progress = SimpleNamespace(guard=lambda *_: lambda _now: []), SimpleNamespace(note=lambda *_: None)
        return StorePoller(watched, backend, progress), watched


@pytest.fixture
def records(store, tmp_path):
    with SpoilingProxy(urlsplit(store.connection.endpoint).port) as proxy:
        connection = replace(store.connection, endpoint=f"http://127.0.0.1:{proxy.port}")
        yield Records(RunFolder(tmp_path / "run-1"), Store(connection, attempts=1), proxy)


def test_an_object_that_alone_is_refused_is_a_problem_of_its_node_alone(records):
    poller, watched = records.poller()
    records.proxy.spoil("403", lambda _method, path: "/n0.json" in path)
    lines = poller.read(0.0)
    assert sorted(node for node, view in watched.views.items() if view.records) == records.nodes[1:]
    (line,) = (line for line in lines if line.startswith("n0"))
    assert "AccessDenied" in line and poller.unread_nodes == {"n0"} and poller.by_store
    (problem,) = watched.evidence.problems
    assert (problem["node"], problem["stage"]) == ("n0", "facts") and problem["reason"].startswith(evidence.UNREAD)
    asked = records.proxy.spoiled
    assert poller.read(1.0) == [] and records.proxy.spoiled == asked, "each attempt may take its timeout"
    assert poller.read(AWAY_SECONDS) == [] and records.proxy.spoiled > asked, "said once"
    records.proxy.spoil("")
    assert poller.read(2 * AWAY_SECONDS) == ["n0 facts: success after 25.0 s"] and not poller.unread_nodes


def test_a_store_that_gives_no_record_is_away(records):
    poller, watched = records.poller()
    records.proxy.spoil("403")
    with pytest.raises(StoreError, match="AccessDenied"):
        poller.read(0.0)
    assert not watched.evidence.problems and not poller.unread_nodes
    records.proxy.spoil("403", lambda _method, path: "/n0.json" in path)
    poller.read(1.0)
    records.put("n1", message="later")
    records.proxy.spoil("403")
    with pytest.raises(StoreError, match="AccessDenied"):
        poller.read(2.0)


def test_a_node_whose_record_the_store_refuses_is_asked_itself(records):
    poller, watched = records.poller()
    running = {"state": "running", "finished_at": None, "exit_code": None, "duration_seconds": None}
    for node in records.nodes:
        records.put(node, **running)
    records.proxy.spoil("403", lambda _method, path: "/n0.json" in path)
    poller.read(0.0)
    for view in watched.views.values():
        view.launch, view.changed_at = {"state": "started", "message": ""}, 0.0
    due = {"now": 100.0, "silence": 600, "interval": 15, "unread": poller.unread_nodes}
    assert decisions.to_fetch(list(watched.views.values()), **due) == ["n0"]
