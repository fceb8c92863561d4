"""What a node may write into the embedded store, and what becomes of more."""

import http.client
import os
import time
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Store
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import MAX_BYTES, MAX_NODE_BYTES
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import embedded as embedded_store
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import guard
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.exchange import StorePoller

from tests.kit.actions import run_action

GB = 1 << 30


@pytest.fixture
def disk(monkeypatch):
    """The disk of the store, as it is reported."""
    usage = SimpleNamespace(total=1000 * GB, free=500 * GB)
    monkeypatch.setattr(guard.shutil, "disk_usage", lambda _path: usage)
    return usage


def written(root, key, size):
    path = root / "run" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        stream.truncate(size)
    return path


def sizes(root):
    return {path.relative_to(root / "run").as_posix(): path.stat().st_size for path in root.rglob("*.*")}


def test_an_object_over_the_limit_of_its_kind_is_cut_and_named(disk, tmp_path):
    for key in ("records/training/n1.json", "series/training/n1.json", "logs/training/n1.log"):
        written(tmp_path, key, 80 << 20)
    written(tmp_path, "records/training/n2.json", 500)
    written(tmp_path, "plans/n1.json", 80 << 20)
    (line,) = guard.FileGuard(tmp_path, "run").look(0)
    assert "logs/training/n1" in line
    assert sizes(tmp_path) == {
        "records/training/n1.json": MAX_BYTES["records"] + 1,
        "series/training/n1.json": MAX_BYTES["series"] + 1,
        "logs/training/n1.log": MAX_BYTES["logs"] + 1,
        "records/training/n2.json": 500,
        "plans/n1.json": 80 << 20,
    }


def test_a_node_over_its_quota_keeps_the_beginnings_and_costs_no_other_node(disk, tmp_path):
    for number in range(6):
        written(tmp_path, f"logs/stage{number}/n1.log", 60 << 20)
    written(tmp_path, "records/stage0/n1.json", 500)
    written(tmp_path, "logs/stage0/n2.log", 60 << 20)
    (line,) = guard.FileGuard(tmp_path, "run").look(0)
    assert "its node has written more than" in line
    left = sizes(tmp_path)
    assert sum(size for key, size in left.items() if "/n1." in key) <= MAX_NODE_BYTES
    assert min(left.values()) == 500
    assert left["logs/stage0/n2.log"] == 60 << 20


def test_on_a_full_disk_the_largest_are_cut_until_there_is_room(disk, tmp_path):
    for node in ("n1", "n2", "n3"):
        written(tmp_path, f"logs/training/{node}.log", {"n1": 60, "n2": 50, "n3": 2}[node] << 20)
    disk.free = guard.RESERVE_BYTES - (40 << 20)
    (line,) = guard.FileGuard(tmp_path, "run").look(0)
    assert line == "cut in the store, the disk of the store is full: logs/training/n1"
    disk.free = 0
    lines = guard.FileGuard(tmp_path, "run").look(0)
    assert lines[-1] == "the disk of the store has 0 B free: free space there"


def test_sizes_are_read_when_the_disk_fills_or_time_has_passed(disk, tmp_path):
    look = guard.FileGuard(tmp_path, "run").look
    assert look(0) == []
    written(tmp_path, "records/training/n1.json", 5 << 20)
    assert look(1) == []
    disk.free -= guard.LOOK_BYTES
    assert len(look(2)) == 1
    written(tmp_path, "records/training/n1.json", 5 << 20)
    assert len(look(2 + guard.LOOK_SECONDS)) == 1


def test_the_reserve_of_a_small_disk_is_a_part_of_it():
    assert guard.reserve_bytes(10 * GB) == 10 * GB // guard.RESERVE_PART
    assert guard.reserve_bytes(1000 * GB) == guard.RESERVE_BYTES


def test_an_upload_under_way_takes_no_more_space_than_it_may(disk, embedded):
    url = urlsplit(embedded.store().sign_put("run/records/training/n1.json", 600))
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=20)
    connection.putrequest("PUT", f"{url.path}?{url.query}")
    connection.putheader("Content-Length", str(20 << 20))
    connection.endheaders()
    connection.send(b"x" * (10 << 20))
    look = guard.FileGuard(embedded.objects, "run").look
    for _attempt in range(200):
        lines = look(time.monotonic() + 1000 * _attempt)
        if lines:
            break
        time.sleep(0.05)
    assert lines == ["cut in the store, larger than its kind may be: records/training/(upload)"]
    (path,) = (embedded.objects / "run/records/training").iterdir()
    assert path.stat().st_blocks * 512 <= 2 << 20
    connection.close()


def test_a_service_loses_whole_objects_that_are_over_a_limit(served, monkeypatch):
    monkeypatch.setitem(guard.MAX_BYTES, "records", 1000)
    monkeypatch.setattr(guard, "MAX_NODE_BYTES", 3000)
    monkeypatch.setattr(guard, "KEPT_BYTES", 100)
    store = Store(served.connection())
    for key, size in {
        "records/facts/n1.json": 2000,
        "records/facts/n2.json": 900,
        "logs/facts/n2.log": 5000,
        "logs/facts/n3.log": 2500,
        "plans/n1.json": 9000,
    }.items():
        store.put(f"guarded/{key}", b"x" * size)
    look = guard.ObjectGuard(lambda: store, "guarded").look
    assert look(0) == [
        "removed from the store, larger than its kind may be: records/facts/n1",
        "removed from the store, its node has written more than 3.00 kB: logs/facts/n2",
    ]
    left = {entry.key.removeprefix("guarded/") for entry in store.list("guarded/")}
    assert left == {"records/facts/n2.json", "logs/facts/n3.log", "plans/n1.json"}
    assert look(guard.LOOK_SECONDS / 2) == []


def test_a_disk_that_is_nearly_full_is_named_before_the_run(embedded, monkeypatch):
    assert "lacks" not in run_action("serve_store", {"store": store_options(embedded)}).text
    monkeypatch.setattr(embedded_store, "shortage", lambda _place: 2_000_000_000)
    outcome = run_action("serve_store", {"store": store_options(embedded)})
    assert not outcome.failed
    assert outcome.lines[-1].startswith("the disk of the store lacks 2.00 GB: free space at ")


def test_events_are_shown_in_the_order_in_which_they_were_written(embedded, monkeypatch):
    store = embedded.store()
    for stage, second in (("training", 1), ("diagnostics", 2)):
        store.put(f"run/records/{stage}/n1.json", b"{}")
        os.utime(embedded.objects / f"run/records/{stage}/n1.json", (second, second))
    watched = SimpleNamespace(info={"folder": "run"}, store=store, memory=SimpleNamespace(seen={}))
    poller = StorePoller(watched, embedded, None)
    monkeypatch.setattr(poller, "accept", lambda key, *_: key)
    assert [key.split("/")[2] for key in poller.read(0.0)] == ["training", "diagnostics"]


def store_options(embedded):
    return {"bucket": "gpuval", "state_dir": str(embedded.directory.parent)}


def test_each_look_of_the_watch_at_the_store_holds_nodes_to_their_limits(embedded):
    store = embedded.store()
    written(embedded.objects, "logs/training/n1.log", 80 << 20)
    watched = SimpleNamespace(info={"folder": "run"}, store=store, memory=SimpleNamespace(seen={}))
    lines = StorePoller(watched, embedded, None).read(0.0)
    assert lines == ["cut in the store, larger than its kind may be: logs/training/n1"]
