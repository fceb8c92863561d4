"""What the watch makes of records and silence."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils import watching
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watching import NodeView


def view(launch=None, stages=("training", "loading"), **states):
    plan = {"stages": [{"name": name, "expected_seconds": 30} for name in stages]}
    node = NodeView("n1", plan, launch if launch is not None else {"state": "started", "attempt": 1})
    for stage, state in states.items():
        watching.note(node, stage, record(state), now=0.0)
    return node


def record(state, attempt=1, message="", seconds=2.0):
    return {"state": state, "attempt": attempt, "message": message, "duration_seconds": seconds}


def test_a_change_makes_a_line_and_a_heartbeat_does_not():
    node = view()
    assert watching.note(node, "training", record("running"), 1.0) == "n1 training: running"
    assert watching.note(node, "training", record("running", seconds=9.0), 2.0) is None
    line = watching.note(node, "training", record("crash", message="killed by SIGKILL"), 3.0)
    assert line == "n1 training: crash after 2.0 s: killed by SIGKILL"
    assert node.changed_at == 3.0


def test_a_second_attempt_is_told_apart():
    node = view(training="crash")
    assert "attempt 2" in watching.note(node, "training", record("running", attempt=2), 1.0)


@pytest.mark.parametrize("state", sorted(watching.FINAL_STATES))
def test_a_node_is_over_when_every_stage_has_ended(state):
    assert not view(training="success").over
    assert not view(training="success", loading="running").over
    assert view(training="success", loading=state).over


def test_a_node_relaunched_is_not_over_with_the_records_of_the_first_attempt():
    node = view({"state": "started", "attempt": 2, "stages": ["training"]}, training="crash", loading="success")
    assert not node.over
    watching.note(node, "training", record("success", attempt=2), 1.0)
    assert node.over


@pytest.mark.parametrize("state", ["unreachable", "refused", "failed", "unknown"])
def test_a_node_that_was_not_started_is_not_waited_for(state):
    assert view({"state": state}).over


def test_silent_and_mute_nodes_are_asked_at_the_interval():
    silent, mute, lively = view(), view({"state": "started", "store_reachable": False}), view()
    silent.name, mute.name, lively.name = "silent", "mute", "lively"
    lively.changed_at = 95.0

    def ask(now):
        return watching.to_ask([silent, mute, lively], now, silence=60, interval=15)

    assert ask(10) == []
    assert ask(20) == ["mute"]
    mute.asked_at = 20.0
    assert ask(30) == []
    assert ask(100) == ["silent", "mute"]


def test_a_runner_that_is_gone_is_restarted_only_so_often():
    node = view({"state": "started", "runner": "gone"}, training="success")
    assert watching.to_restart([node]) == ["n1"]
    node.restarts = 2
    assert watching.to_restart([node]) == []
    assert (
        watching.to_restart([view({"state": "started", "runner": "gone"}, training="success", loading="success")]) == []
    )


def test_progress_counts_stages_by_state_and_tells_what_is_left():
    nodes = [view(training="running", loading="pending"), view(training="success", loading="failure")]
    line = watching.progress(nodes, elapsed=65)
    assert line.startswith("0:01:05 nodes 1/2 done, about 0:00:58 left")
    assert "training 1 running, 1 success" in line
    assert "loading 1 failure" in line


def test_status_has_a_line_for_each_node():
    lines = watching.status_lines(
        [view(training="running"), view({"state": "unreachable", "message": "no route"})], {"n1": 4.0}
    )
    assert "training running" in lines[0]
    assert "heard 4 s ago" in lines[0]


def test_a_node_whose_runner_ends_whenever_it_is_started_is_given_up():
    node = view({"state": "started", "runner": "gone"}, training="running")
    node.restarts = watching.MAX_RESTARTS - 1
    assert watching.to_restart([node]) == ["n1"]
    node.restarts += 1
    assert node.given_up
    assert node.over
    assert watching.to_restart([node]) == []


def test_a_runner_that_is_gone_with_its_plan_done_was_not_given_up():
    node = view({"state": "finished", "runner": "gone"}, training="success", loading="success")
    node.restarts = watching.MAX_RESTARTS
    assert not node.given_up


STARTED = {"state": "started", "attempt": 1, "directory": "/d", "message": "started"}


def test_a_failed_launch_does_not_forget_a_runner_that_may_be_at_work():
    kept = watching.keep_started(STARTED, {"state": "unreachable", "attempt": 1, "message": "no route"})
    assert (kept["state"], kept["directory"]) == ("started", "/d")
    assert "no route" in kept["message"]


def test_a_relaunch_that_failed_is_not_waited_for_and_its_evidence_is_still_found():
    kept = watching.keep_started(STARTED, {"state": "unreachable", "attempt": 2, "message": "no route"})
    assert (kept["state"], kept["attempt"], kept["directory"]) == ("unreachable", 2, "/d")


@pytest.mark.parametrize("known", [{}, {"state": "failed", "attempt": 1}])
def test_a_first_launch_is_taken_as_it_went(known):
    launch = {"state": "refused", "attempt": 1, "message": "no"}
    assert watching.keep_started(known, launch) == launch
