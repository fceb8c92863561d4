"""Runs whose folders lie below another run's: all are found, and each is deleted by itself."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Store
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import stored_runs

from tests.kit.builders import make_run

FOLDERS = ("site", "site/weekly", "a/b/c/d/e")
KEYS = ("run.json", "verdict.json", "records/facts/node-1.json", "logs/facts/node-1.log", "plans/node-1.json")


@pytest.fixture
def embedded(embedded):
    store = Store(embedded.connection())
    for number, folder in enumerate(FOLDERS):
        run = make_run([], run_id=f"run-{number}", folder=folder, created_at=f"2026-11-02T1{number}:00:00Z")
        for key in KEYS:
            store.put(f"{folder}/{key}", json.dumps(run).encode())
    return embedded


def test_runs_are_found_at_any_depth(embedded, monkeypatch):
    store = Store(embedded.connection())
    counts = []
    assert sorted(folder for folder, _ in stored_runs.run_files(store, counts.append)) == sorted(FOLDERS)
    assert sum(counts) > 0
    monkeypatch.setattr(stored_runs, "MAX_FOLDERS", 2)
    with pytest.raises(run_folder.RunError, match="more than 2 folders"):
        list(stored_runs.run_files(store))


def test_a_run_is_deleted_without_those_below_it(embedded):
    store = Store(embedded.connection())
    assert stored_runs.delete(store, "site") == len(KEYS)
    assert [entry.key for entry in store.list("site/")] == sorted(f"site/weekly/{key}" for key in KEYS)
    store.put("site/run.json", b"{}")
    embedded.stop()
    assert embedded.delete_run("site") == 1
    assert embedded.delete_run("a/b") == 0
    bucket = embedded.data / embedded.bucket
    assert all((bucket / folder / key).is_file() for folder in FOLDERS[1:] for key in KEYS)
    assert embedded.delete_run("site/weekly") == len(KEYS)
    assert not (bucket / "site/weekly").exists()


@pytest.mark.parametrize("folder", ["site/records", "site/logs/x", "a/report"])
def test_a_run_cannot_lie_where_another_one_has_its_own(folder):
    with pytest.raises(run_folder.RunError, match="gpuval_folder"):
        run_folder.check_folder(folder)
