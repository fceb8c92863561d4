"""`make history` as an operator uses it: real playbooks, a real store, several runs in it."""

import csv
import json
import re
import subprocess

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Store
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.embedded import EmbeddedStore

from tests.kit.fleet import ANSIBLE_PLAYBOOK
from tests.kit.history import Run
from tests.kit.project import Project


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory):
    """Six runs in the bucket: a GPU that becomes slower, a node that goes back and forth, a record that lies."""
    project = Project(tmp_path_factory.mktemp("project"), nodes={"localhost": {}})
    project.lay_out()
    embedded = EmbeddedStore(project.root / ".gpuval/store", "gpuval")
    embedded.start()
    store = Store(embedded.connection())
    store.ensure_bucket(create=True)
    for number in range(6):
        run = Run(number)
        wobble = (0, 0.9, -0.8, 0.3, -0.5, 0.7)[number]
        for node in run.records:
            run.speed(node, [700 + wobble, 701 - wobble, 699 + wobble, 700])
        run.speed("node-2", [700, 700, (700 + wobble) * (1 - 0.012 * number), 700])
        if number in (1, 3):
            run.speed("node-3", [500, 700, 700, 700])
        if number == 0:
            run.refuse("node-1", "training", b'{"schema": "\x1b[31m"}')
        run.put(store)
    embedded.stop()  # the playbook starts it
    try:
        yield project
    finally:
        project.close()


@pytest.fixture(scope="module")
def first(laid_out):
    """The first history, which starts the store and reads it all."""
    return laid_out.play("gpuval.fleet.history")


@pytest.fixture
def project(laid_out, first):
    """The project after its first history."""
    assert first.code == 0, first
    return laid_out


def test_the_fleet_then_a_node_then_data(project, first):
    assert "history of the fleet: 6 runs, 2026-09-01 to 2026-10-06" in first.output
    assert re.search(r"node-2 gpu:2 \(serial node-2/2\) training_model_tflops -[56]\.\d+ % over 6 runs", first.told), (
        first
    )
    assert "node-3 (serial S-node-3) PFPFPP: 4 changes between PASS and FAIL on the same hardware" in first.output
    assert "run-0 node-1 training: " in first.output
    assert "\x1b" not in first.output
    assert re.search(rf"\({6 * (1 + 1)} of \d+ objects of 6 runs were read\)", first.output), first
    assert first.recap()["changed"] == 1, "the store was started"

    again = project.play("gpuval.fleet.history", "-e", "history_node=node-3")
    assert again.code == 0, again
    assert "(0 of " in again.output
    assert again.recap()["changed"] == 0
    assert again.output.count(" FAIL ") >= 2

    path = project.root / "out/history.json"
    for changed in (1, 0):
        done = project.play("gpuval.fleet.history", "-e", "history_serial=node-2/2", "-e", f"history_output={path}")
        assert done.code == 0, done
        assert done.recap()["changed"] == changed
    document = json.loads(path.read_text())
    schemas.validate("history", document, what="history")
    assert [row["part"] for row in document["rows"]] == ["gpu:2"] * 6
    assert document["drift_count"] == 1


def test_a_spreadsheet_and_check_mode(project):
    path = project.root / "out/sku.csv"
    options = ["-e", "history_sku=h200", "-e", f"history_output={path}"]
    done = project.play("gpuval.fleet.history", "--check", *options)
    assert done.code == 0, done
    assert not path.exists()
    assert done.recap()["changed"] == 1
    assert project.play("history.yml", *options, cwd="playbooks").code == 0
    rows = list(csv.DictReader(path.open()))
    assert [row["run_id"] for row in rows] == [f"run-{number}" for number in range(6)]
    drifts = list(csv.DictReader(path.with_suffix(".drifts.csv").open()))
    assert [row["node"] for row in drifts] == ["node-2"]
    records = path.with_name("records.jsonl")
    for changed in (1, 0):
        done = project.play("gpuval.fleet.history", "-e", f"history_output={records}", "-e", "history_node=node-3")
        assert (done.code, done.recap()["changed"]) == (0, changed), done
    found = {one["_id"]: one["verdict"] for one in map(json.loads, records.read_text().splitlines())}
    assert [found[f"run-{number}/node-3/training"] for number in range(6)] == [
        "PASS", "FAIL", "PASS", "FAIL", "PASS", "PASS",
    ]  # fmt: skip


def test_what_cannot_be_answered_says_why(project):
    done = project.play("gpuval.fleet.history", "-e", "history_node=node-9")
    assert done.code != 0
    assert "no run knows the node 'node-9'; known are node-1, node-2, node-3" in done.told
    done = project.play("gpuval.fleet.history", "-e", "history_output=x.txt")
    assert done.code != 0
    assert "the file's name must end in .json, .csv, .jsonl or .parquet" in done.told


def test_without_duckdb_a_remedy_is_given(project, tmp_path):
    (tmp_path / "duckdb.py").write_text("raise ImportError('no such library')")
    environment = {
        **project.environment,
        "PYTHONPATH": str(tmp_path),
        "ANSIBLE_CONFIG": str(project.root / "ansible.cfg"),
    }
    command = [str(ANSIBLE_PLAYBOOK), "gpuval.fleet.history", "-i", "inventories/local"]
    done = subprocess.run(
        command, cwd=project.root, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert "the history needs DuckDB on the controller" in " ".join(done.stdout.split())
