"""The watch measures nodes again that their peers show to be doubtful, beside two good ones."""

import time

import goals
import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.attempts import Attempts
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.placement import Attempt
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.state import WatchedRun

from tests.kit.builders import SHIPPED

AGAIN = Attempt(2, ["diagnostics"])
SLOW = goals.Fault("slow", "", goals.ALL_REDUCE, 0.945)


@pytest.fixture(scope="module")
def fleet():
    return goals.Fleet(16, goals.SETTINGS["normal"], goals.FIGURE_STAGES, "watch", SLOW)


@pytest.fixture
def watch(tmp_path, fleet):
    """Makes the watch of a controller over the run of the fleet, all nodes of which are done."""
    folder = RunFolder(tmp_path / "run-1")
    folder.write_run({**fleet.run, "created_at": run_folder.now()})

    def of(retries=1, retry=("slow",)):
        lines = []
        watched = WatchedRun(folder, None, lines.append)
        watched.evidence.records = {name: dict(stages) for name, stages in fleet.evidence.records.items()}
        for name, view in watched.views.items():
            launch = folder.read_launch(name) or {"state": "started", "attempt": 1, "message": "", "stages": []}
            watched.know_launch(view, launch)
            stages = [{"name": stage, "expected_seconds": 30, "retry": list(retry)} for stage in view.stages]
            view.plan, view.records = {"stages": stages}, watched.evidence.records[name]
        return Attempts(watched, None, SHIPPED, retries), watched, lines

    return of


def test_the_doubtful_node_and_two_good_ones_are_ordered_once(watch):
    attempts, _, lines = watch()
    now = time.monotonic()
    assert attempts.second_measurements(now) == dict.fromkeys(["node-000", "node-001", "node-002"], AGAIN)
    assert lines == ["1 nodes differ from their peers; measured again, with good ones: node-000, node-001, node-002"]
    assert attempts.second_measurements(now) == {}


@pytest.mark.parametrize("options", [{"retries": 0}, {"retry": ("crash",)}])
def test_without_retries_of_what_is_slow_none_is_ordered(watch, options):
    assert watch(**options)[0].second_measurements(time.monotonic()) == {}


def test_what_takes_longer_than_the_run_has_left_is_not_ordered(watch):
    attempts, watched, lines = watch()
    late = watched.begun + watched.info["deadline_seconds"] - 100  # the stage took 25 s, and the start takes some
    assert attempts.second_measurements(late) == {}
    assert lines == ["1 nodes differ from their peers; to measure them again would take too long"]


def test_nodes_that_work_in_turns_need_the_time_of_each(watch):
    attempts, watched, _ = watch()
    late = watched.begun + watched.info["deadline_seconds"] - 300  # enough for one turn, not for three
    assert attempts.second_measurements(late, at_once=1) == {}
    attempts, watched, _ = watch()
    assert len(attempts.second_measurements(late, at_once=3)) == 3


def test_hours_of_a_burn_in_are_not_measured_again(watch):
    attempts, watched, _ = watch()
    for view in watched.views.values():
        for record in view.records.values():
            record["duration_seconds"] = 4 * 3600.0
    assert attempts.second_measurements(watched.begun + 1) == {}


def test_a_controller_that_resumes_orders_what_is_not_launched_yet(watch):
    _, watched, _ = watch()
    first = watched.views["node-000"]
    watched.write_launch(first, {**first.launch, **AGAIN.launch("node-000", first.launch)})
    attempts, watched, _ = watch()
    assert not watched.views["node-000"].complete  # its second attempt has no record yet
    assert attempts.second_measurements(time.monotonic()) == {}
