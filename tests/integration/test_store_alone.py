"""Status and report on a machine that has nothing but access to the store, while the run is on and when its controller
is gone."""

import json
import re
import shutil

import pytest

from tests.kit.fleet import Fleet, stored, until

NODES = ["node-1", "node-2", "away"]
TRAINED = "print('took: 811.93 seconds')"
CRITERIA = """
schema: gpuval.criteria/1
checks:
  - name: training_time
    stage: training
    metric: training_duration_seconds
    kind: max
    unit: seconds
    value: {limit}
    severity: required
    source: a test
    remedy: none
"""


class Reader(Fleet):
    """Another machine: results and state of its own, and keys of the store; the same nodes' names, or none."""

    @property
    def variables(self):
        return {**super().variables, "ansible_connection": "local"}


def keys_of(fleet):
    """What an operator copies: endpoint and keys of the store that the controller serves."""
    writer = json.loads((fleet.root / "state/store/store.json").read_text())["writer"]
    return {
        "gpuval_s3_endpoint": f"http://127.0.0.1:{writer['port']}",
        "gpuval_s3_access_key": writer["access_key"],
        "gpuval_s3_secret_key": writer["secret_key"],
    }


@pytest.fixture(scope="module")
def criteria(tmp_path_factory):
    path = tmp_path_factory.mktemp("criteria") / "site.yml"
    path.write_text(CRITERIA.format(limit=100))
    return path


@pytest.fixture(scope="module")
def sign(tmp_path_factory):
    """The nodes wait for it in their last stage."""
    return tmp_path_factory.mktemp("sign") / "go-on"


@pytest.fixture(scope="module")
def fleet(new_fleet, closed_port, criteria, sign):
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": closed_port}
    settings = {
        "gpuval_stages": ["facts", "training", "hold"],
        "gpuval_criteria": [str(criteria)],
        "training_workload": {
            "command": ["{python}", "-c", TRAINED],
            "patterns": [{"pattern": r"took: (?P<value>[\d.]+) (?P<unit>\w+)", "name": "training_duration_seconds"}],
        },
        "hold_workload": {
            "command": ["sh", "-c", f"echo held: 1 items; while [ ! -e {sign} ]; do sleep 0.2; done"],
            "patterns": [{"pattern": r"^held: (?P<value>\d+) (?P<unit>items)", "name": "held_items"}],
            "expected_seconds": 1200,  # more than the way to the look at it takes
        },
    }
    with new_fleet("served", nodes={"node-1": {}, "node-2": {}, "away": away}, settings=settings) as fleet:
        fleet.playing = fleet.start()
        fleet.playing.expect("node-1 hold: running")
        fleet.playing.expect("node-2 hold: running")
        yield fleet
        del fleet.nodes["away"]  # or the clean would miss it


@pytest.fixture(scope="module")
def reader(fleet, tmp_path_factory):
    return Reader(tmp_path_factory.mktemp("reader"), nodes={"localhost": {}}, settings=keys_of(fleet))


@pytest.fixture(scope="module")
def seen(fleet, reader, sign):
    """Status in the middle of the run, and what a watch that was begun then said to its end."""
    until(lambda: stored(fleet.folder_in_store / "run_watch.json").get("plans"), "what the plans expect")
    seen = {"status": reader.play("gpuval.fleet.status", "-e", "status_lines=true")}
    seen["report"] = reader.play("gpuval.fleet.report")
    watching = reader.start(
        "gpuval.fleet.status",
        "-e",
        "status_watch=true",
        "-e",
        "status_interval_seconds=0.5",
        "-e",
        "status_nodes=node-*",
    )
    watching.expect("node-1 +running")
    sign.touch()
    seen["validate"] = fleet.playing.wait()
    seen["watch"] = watching.wait()
    return seen


def test_status_in_the_middle(fleet, seen):
    done = seen["status"]
    assert done.code == 0, str(done)
    assert f"run {fleet.run_id}: the only one of the bucket gpuval" in done.output
    assert "its controller watches it (last heartbeat 0:0" in done.output
    assert "nodes: 1 not started, 2 running" in done.output
    assert "training 2 success, 1 open | hold 2 running, 1 open" in done.output
    rows = [line.split() for line in done.output.splitlines() if line.startswith(("away ", "node-"))]
    assert [(row[0], row[1]) for row in rows] == [("away", "not"), ("node-1", "running"), ("node-2", "running")]
    assert "unreachable (refused)" in done.output
    assert re.search(r"2/3, 0:\d\d:\d\d of 0:20:00 \(\d+%\)", done.output)
    assert "expected end not before" not in done.output
    assert "expected end " in done.output
    assert "Node: node-1, Training Time: 811.93 seconds" in done.output


def test_a_report_in_the_middle_is_of_what_there_is(fleet, seen):
    done = seen["report"]
    assert done.code != 0
    assert "FINAL ACCEPTANCE: FAIL" in done.output, str(done)
    assert "2 FAIL, 1 INCOMPLETE" in done.output
    assert "node-1, node-2 FAIL training" in done.output, "held against the criteria of the run's own controller"


def test_a_watch_tells_what_is_new_and_how_it_ended(fleet, seen):
    done = seen["watch"]
    assert "node-1 hold: success" in done.output, str(done)
    assert f"run {fleet.run_id} has ended: FAIL (0 PASS, 2 FAIL, 1 INCOMPLETE)" in done.output
    assert done.code != 0
    assert "away " not in done.output.split("stages:")[-1], "only the nodes that were asked for"


def stages_of(report):
    """The stages of all nodes that have evidence."""
    return [stage for node in report["nodes"] for stage in node["stages"] if "confirmed_by" in stage]


def test_report_with_the_controller_gone(fleet, reader, seen, criteria, tmp_path_factory):
    assert seen["validate"].code != 0
    theirs = fleet.report()
    assert "training_time" in json.dumps(theirs)
    kept = tmp_path_factory.mktemp("kept") / "results"
    shutil.move(fleet.results, kept)
    criteria.unlink()
    try:
        done = reader.play("gpuval.fleet.report")
        assert "FINAL ACCEPTANCE: FAIL" in done.output, str(done)
        assert done.code != 0
        ours = reader.report()
        assert {stage.pop("confirmed_by") for stage in stages_of(theirs)} >= {"node"}
        assert {stage.pop("confirmed_by") for stage in stages_of(ours)} == {"store only"}  # nobody here asked the nodes
        for report in (ours, theirs):
            del report["run"]["judged_at"]
        assert ours == theirs
        names = {path.name for path in reader.run_folder.iterdir()}
        assert {"report.html", "report.md", "junit.xml", "perf.csv", "failed_nodes.txt", "run.json"} <= names
        theirs = (kept / "latest").resolve()
        for path in (theirs / "nodes").rglob("*"):
            if path.is_file():
                copy = reader.run_folder / path.relative_to(theirs)
                assert copy.read_bytes() == path.read_bytes(), path
        again = reader.play("gpuval.fleet.report")
        assert "FINAL ACCEPTANCE: FAIL" in again.output
        status = reader.play("gpuval.fleet.status")
        assert "has ended: FAIL" in status.output
        assert status.code != 0
    finally:
        shutil.move(kept, fleet.results)


def test_the_store_was_left_as_it_was(fleet, reader, seen):
    """A copy of a run is read: its reports stay where they were made."""
    stored = json.loads((fleet.folder_in_store / "run.json").read_text())
    own = fleet.read_run()
    assert own.pop("origin")["inventory"], "where the run belongs is the controller's own"
    assert stored == own
    assert (fleet.folder_in_store / "report/report.json").read_text() == (fleet.run_folder / "report.json").read_text()


def test_a_copy_is_not_validated_nor_cleaned(reader, seen):
    done = reader.play("gpuval.fleet.validate", "-e", f"gpuval_run_id={reader.run_id}")
    assert done.code != 0
    assert "another controller's run, imported" in done.told
    folder = reader.run_folder
    before = (folder / "run.json").read_bytes()
    assert reader.play("gpuval.fleet.clean").code == 0
    assert (folder / "run.json").read_bytes() == before


def test_no_secret_and_no_signed_url_came_into_the_store(fleet, seen):
    secrets = [*keys_of(fleet).values()][1:]
    for path in fleet.folder_in_store.rglob("*"):
        if path.is_file():
            text = path.read_text(errors="replace")
            assert "X-Amz-Signature" not in text, path
            assert not any(secret in text for secret in secrets), path
    watch = (fleet.folder_in_store / "run_watch.json").read_text()
    assert str(fleet.root) not in watch, "folders of nodes are their own"


def test_a_run_that_is_not_there_is_reported_with_those_that_are(fleet, reader, seen):
    done = reader.play("gpuval.fleet.status", "-e", "gpuval_run_id=another")
    assert done.code != 0
    assert f"has no run another: the latest are {fleet.run_id}" in done.told
