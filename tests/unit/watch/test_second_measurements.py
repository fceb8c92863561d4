"""The watch measures nodes again that their peers show to be doubtful, beside two good ones."""

import time

import goals
import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import checks_without_criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.attempts import Attempts
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.launcher import Launcher, Window
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.placement import Placement, PlannedAttempt
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.watched_run import WatchedRun

from tests.kit.builders import SHIPPED

#: The stage took 25 s: half as much again, a start of 120 s, and 600 s in a queue.
AGAIN = PlannedAttempt(2, ["diagnostics"], 757.5)
#: The slow node, and the two good ones that are most ahead.
ORDERED = ["node-000", "node-014", "node-013"]
SLOW = goals.Fault("slow", "", goals.ALL_REDUCE, 0.945)


@pytest.fixture(scope="module")
def fleet():
    return goals.Fleet(16, goals.SETTINGS["normal"], goals.FIGURE_STAGES, "watch", SLOW)


@pytest.fixture
def watch(tmp_path, fleet):
    """Makes the watch of a controller over the run of the fleet, all nodes of which are done."""
    folder = RunFolder(tmp_path / "run-1")
    folder.write_run({**fleet.run, "created_at": run_folder.now(), "deadline_seconds": 7200})

    def of(retries=1, retry=("slow",), wait=0.0):
        lines = []
        watched = WatchedRun(folder, None, lines.append)
        for name, records in fleet.evidence.records.items():
            watched.evidence.records[name] = {stage: dict(record) for stage, record in records.items()}
        for name, view in watched.views.items():
            launch = folder.read_launch(name) or {"state": "started", "attempt": 1, "message": "", "stages": []}
            watched.know_launch(view, launch)
            stages = [{"name": stage, "expected_seconds": 30, "retry": list(retry)} for stage in view.stages]
            view.plan, view.records = {"stages": stages}, watched.evidence.records[name]
        return Attempts(watched, None, SHIPPED, retries, wait), watched, lines

    return of


def test_the_doubtful_node_and_two_good_ones_are_ordered_once(watch):
    attempts, _, lines = watch()
    now = time.monotonic()
    assert attempts.second_measurements(now) == dict.fromkeys(ORDERED, AGAIN)
    assert lines == ["1 nodes differ from their peers; measured again, with good ones: " + ", ".join(ORDERED)]
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


class Queue(Placement):
    """A scheduler that keeps every attempt waiting, but for those of `begun`."""

    def __init__(self, watched):
        self.watched, self.present, self.everyone = watched, set(watched.views), set(watched.views)
        self.launched, self.begun, self.withdrawn = {}, set(), []

    busy = False

    def launch(self, view, attempt, seconds):
        self.launched[view.name] = seconds
        launch = {
            **attempt.launch(view.name, view.launch),
            "state": "started",
            "message": "job 7 is pending (Resources)",
        }
        self.watched.write_launch(view, launch)
        view.busy = ""

    def withdraw(self, view):
        self.withdrawn.append(view.name)
        return view.name not in self.begun

    def fetch(self, view):
        raise AssertionError

    def wait(self, seconds):
        raise AssertionError

    def close(self):
        raise AssertionError


@pytest.fixture
def ordered(watch):
    """A run whose second measurements have been ordered at `now`, one after the other with `at_once`."""

    def of(at_once=0, wait=0.0, now=None):
        attempts, watched, lines = watch(wait=wait)
        now = time.monotonic() if now is None else watched.begun + now
        queue = Queue(watched)
        launcher = Launcher(watched, queue, Window(at_once, 0), lines.append)
        launcher.relaunch(attempts.second_measurements(now, at_once), now)
        return launcher, queue, watched, lines, now

    return of


def test_what_does_not_begin_in_time_is_given_up_with_a_warning(ordered):
    launcher, queue, watched, lines, now = ordered()
    assert queue.launched == dict.fromkeys(ORDERED, 757.5)
    view = watched.views["node-000"]
    watched.views[ORDERED[1]].records["diagnostics"] |= {"attempt": 2, "state": "running"}
    queue.begun.add(ORDERED[2])  # its record has not come yet
    launcher.end_second_measurements(now + 599)
    assert queue.withdrawn == [] and not view.done
    launcher.end_second_measurements(now + 601)
    assert queue.withdrawn == [ORDERED[0], ORDERED[2]], "what has begun goes on"
    assert [name for name in ORDERED if watched.views[name].done] == ["node-000"]
    assert lines[-1] == "node-000: not measured again: job 7 is pending (Resources); its first measurement stands"
    (warning,) = checks_without_criteria.interruption_checks("node-000", watched.folder.read_launch("node-000"))
    assert (warning["name"], warning["verdict"], warning["severity"]) == ("not_measured_again", "warn", "advisory")
    assert warning["reason"] == "not measured again: job 7 is pending (Resources)"
    launcher.end_second_measurements(now + 602)
    assert queue.withdrawn[2:] == [ORDERED[2]]
    launcher.plan_starts(now)
    assert not view.to_start, "a controller that resumes the run leaves it so"


def test_the_option_limits_the_waiting(ordered):
    launcher, queue, watched, _, now = ordered(wait=20.0)
    assert queue.launched == dict.fromkeys(ORDERED, 177.5)
    launcher.end_second_measurements(now + 21)
    assert all(watched.views[name].done for name in ORDERED)


def test_waiting_leaves_the_measurement_its_time_before_the_end_of_the_run(ordered):
    launcher, queue, _, _, now = ordered(now=7000)  # 157.5 of 200 s are for the measurement
    assert queue.launched["node-000"] == pytest.approx(200, abs=1)
    launcher.end_second_measurements(now + 41)
    assert queue.withdrawn == []
    launcher.end_second_measurements(now + 44)
    assert queue.withdrawn == ORDERED


def test_those_that_wait_for_their_turn_have_longer(ordered):
    launcher, queue, watched, lines, now = ordered(at_once=1)
    assert list(queue.launched) == ["node-000"]
    launcher.end_second_measurements(now + 900)  # two turns of 157.5 s more
    assert queue.withdrawn == []
    launcher.end_second_measurements(now + 920)
    assert not launcher.ordered and all(watched.views[name].done for name in ORDERED)
    assert f"{ORDERED[1]}: not measured again: the second one did not start in time" in "".join(lines)


def test_a_launch_that_fails_is_a_second_measurement_that_did_not_begin(ordered):
    launcher, queue, watched, _, now = ordered()
    view = watched.views["node-000"]
    watched.write_launch(view, {**view.launch, "state": "refused", "message": "the disk is full"})
    launcher.end_second_measurements(now + 1)
    (warning,) = checks_without_criteria.interruption_checks("node-000", view.launch)
    assert warning["reason"] == "not measured again: the disk is full"
    assert queue.withdrawn == []


def test_a_node_that_is_lost_in_its_second_measurement_has_no_warning_in_place_of_that(ordered):
    launcher, queue, watched, _, now = ordered()
    view = watched.views["node-000"]
    contact = {"class": "slurm_node_failed", "message": "job 7 lost node-000", "remedy": "replace it"}
    watched.write_launch(view, {**view.launch, "message": "", "contact": contact})
    view.attempt_ended = True
    launcher.end_second_measurements(now + 1)
    assert view.done and checks_without_criteria.interruption_checks("node-000", view.launch) == []
    launcher.end_second_measurements(now + 601)
    assert view.name not in queue.withdrawn and not view.not_measured_again
