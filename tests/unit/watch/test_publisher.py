"""What the watch puts into the store beside the nodes' own records."""

import json
from types import SimpleNamespace

from ansible_collections.gpuval.fleet.plugins.module_utils.store import StoreError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.exchange import WatchPublisher
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.launcher import Window
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.watched_run import WatchedRun

from tests.kit.builders import make_run


def test_the_plan_of_each_launched_node_comes_into_the_store_once(store, tmp_path, monkeypatch):
    folder = run_folder.RunFolder(tmp_path / "run-1")
    folder.write_run(make_run(["n", "m"], stages=["facts"]))
    plan = {"heartbeat_seconds": 10, "stages": [{"name": "facts", "expected_seconds": 5}]}
    for node, state in (("n", "started"), ("m", "refused")):
        run_folder.write_json(folder.plan_file(node), plan)
        folder.write_launch(node, {"node": node, "state": state, "attempt": 1, "stages": [], "message": ""})
    watched = WatchedRun(folder, store, lambda _line: None)
    publisher = WatchPublisher(watched, 90, SimpleNamespace(warning=lambda _text: None))
    put, keys = store.put, []

    def away(*_arguments):
        raise StoreError("the store does not answer")

    monkeypatch.setattr(store, "put", away)
    publisher.publish(0.0, Window(0, 16))  # the launch does not fail, and nothing is forgotten
    monkeypatch.setattr(store, "put", lambda key, *rest: (keys.append(key), put(key, *rest)))
    for now in (10.0, 20.0):
        publisher.publish(now, Window(0, 16))
    folder_of_run = watched.info["folder"]
    assert [key for key in keys if "/plans/" in key] == [f"{folder_of_run}/plans/n.json"]
    assert json.loads(store.get(f"{folder_of_run}/plans/n.json", max_bytes=10_000)) == plan
