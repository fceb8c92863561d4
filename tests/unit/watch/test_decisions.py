"""What the watch makes of records and silence."""

from datetime import datetime, timezone

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import launch_errors
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.documents import FINAL_STATES
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.failure_classes import all_classes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import decisions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.decisions import NodeView


def view(launch=None, stages=("training", "loading"), **states):
    plan = {"stages": [{"name": name, "expected_seconds": 30} for name in stages]}
    node = NodeView("n1", plan, launch if launch is not None else {"state": "started", "attempt": 1})
    for stage, state in states.items():
        decisions.update(node, stage, record(state), now=0.0)
    return node


def record(state, attempt=1, message="", seconds=2.0):
    known = {"state": state, "attempt": attempt, "message": message, "duration_seconds": seconds}
    return {**known, "started_at": None}


def test_a_change_makes_a_line_and_a_heartbeat_does_not():
    node = view()
    assert decisions.update(node, "training", record("running"), 1.0) == "n1 training: running"
    assert decisions.update(node, "training", record("running", seconds=9.0), 2.0) is None
    line = decisions.update(node, "training", record("crash", message="killed by SIGKILL"), 3.0)
    assert line == "n1 training: crash after 2.0 s: killed by SIGKILL"
    assert node.changed_at == 3.0


def test_a_second_attempt_is_distinguished():
    node = view(training="crash")
    assert "attempt 2" in decisions.update(node, "training", record("running", attempt=2), 1.0)


@pytest.mark.parametrize("state", sorted(FINAL_STATES))
def test_a_node_is_over_when_every_stage_has_ended(state):
    assert not view(training="success").done
    assert not view(training="success", loading="running").done
    assert view(training="success", loading=state).done


def test_a_node_relaunched_is_not_over_with_the_records_of_the_first_attempt():
    node = view({"state": "started", "attempt": 2, "stages": ["training"]}, training="crash", loading="success")
    assert not node.done
    decisions.update(node, "training", record("success", attempt=2), 1.0)
    assert node.done


@pytest.mark.parametrize("state", ["unreachable", "refused", "failed", "unknown"])
def test_a_node_that_was_not_started_is_not_waited_for(state):
    assert view({"state": state}).done


def test_silent_and_cut_off_nodes_are_asked_at_the_interval():
    silent, cut_off, lively = view(), view({"state": "started", "store_reachable": False}), view()
    silent.name, cut_off.name, lively.name = "silent", "cut_off", "lively"
    lively.changed_at = 95.0

    def ask(now):
        return decisions.to_fetch([silent, cut_off, lively], now, silence=60, interval=15)

    assert ask(10) == []
    assert ask(20) == ["cut_off"]
    cut_off.fetched_at = 20.0
    assert ask(30) == []
    assert ask(100) == ["silent", "cut_off"]


def test_a_runner_that_is_gone_is_restarted_only_so_often():
    node = view({"state": "started", "runner": "gone"}, training="success")
    assert decisions.to_restart([node]) == ["n1"]
    node.restarts = 2
    assert decisions.to_restart([node]) == []
    assert (
        decisions.to_restart([view({"state": "started", "runner": "gone"}, training="success", loading="success")])
        == []
    )


def test_progress_counts_stages_by_state_and_tells_what_is_left():
    nodes = [view(training="running", loading="pending"), view(training="success", loading="failure")]
    line = decisions.progress(nodes, elapsed=65)
    assert line.startswith("0:01:05 nodes 1/2 done, about 0:00:58 left")
    assert "training 1 running, 1 success" in line
    assert "loading 1 failure" in line


@pytest.mark.parametrize(("spent", "left"), [(0, 60), (49, 11), (50, 10), (60, 12), (120, 24), (600, 120)])
def test_a_stage_that_takes_longer_than_expected_is_expected_to_go_on(spent, left):
    node = view(stages=["long"], long="running")
    node.plan = {"stages": [{"name": "long", "expected_seconds": 60}]}
    node.records["long"] = {**node.records["long"], "duration_seconds": spent}
    assert decisions.seconds_left(node) == left


def test_the_end_and_the_cost_by_the_plan_are_known_before_the_start():
    moment = datetime(2026, 11, 28, 22, 30, tzinfo=timezone.utc)
    nodes = [view(stages=["long"]) for _ in range(100)]
    for node in nodes:
        node.plan = {"stages": [{"name": "long", "expected_seconds": 3600}], "accelerator": {"count": 8}}
    line = decisions.forecast(nodes, 0, moment)
    assert line == "by the plan the last node ends about 2026-11-28 23:30 UTC, after 1 h 00 min; 800.0 GPU-hours"
    assert "2026-11-29 01:30 UTC, after 3 h 00 min; 800.0 GPU-hours" in decisions.forecast(nodes, 40, moment)
    decisions.update(nodes[0], "long", record("success"), 0.0)
    assert decisions.forecast(nodes, 0, moment).endswith("792.0 GPU-hours")
    nodes[1].plan = {**nodes[1].plan, "accelerator": {"count": None}}
    assert decisions.forecast(nodes, 0, moment).endswith("99.0 node-hours (gpuval_gpu_count is not declared)")
    nodes[1].plan = {"stages": [{"name": "long", "expected_seconds": None}]}
    assert decisions.forecast(nodes, 0, moment) == ""
    assert decisions.forecast(nodes[:1], 0, moment) == ""


def test_nodes_that_wait_for_their_launch_have_plans_like_that_of_the_first():
    nodes = [view(stages=["long"]) for _ in range(3)]
    for node in nodes:
        node.plan, node.launch, node.to_start = {"stages": [{"name": "long", "expected_seconds": None}]}, {}, True
    moment = datetime(2026, 11, 28, 22, 30, tzinfo=timezone.utc)
    assert decisions.forecast(nodes, 0, moment) == ""
    nodes[0].plan = {"stages": [{"name": "long", "expected_seconds": 3600}], "accelerator": {"count": 8}}
    nodes[0].launch, nodes[0].to_start = {"state": "started"}, False
    assert decisions.forecast(nodes, 0, moment).endswith("after 1 h 00 min; 24.0 GPU-hours")


@pytest.mark.parametrize("unknown", ["stage", "pull"])
def test_what_is_left_is_not_guessed(unknown):
    nodes = [view(training="running", loading="pending"), view(training="running", loading="pending")]
    if unknown == "pull":
        nodes[1].pulling = True
    else:
        stages = [{**stage, "expected_seconds": None} for stage in nodes[1].plan["stages"]]
        nodes[1].plan = {**nodes[1].plan, "stages": stages}
    assert "left" not in decisions.progress(nodes, elapsed=65)
    nodes[1].records |= {stage: {**record, "state": "success"} for stage, record in nodes[1].records.items()}
    assert "left" in decisions.progress(nodes, elapsed=65)


def test_a_node_whose_runner_ends_whenever_it_is_started_is_given_up():
    node = view({"state": "started", "runner": "gone"}, training="running")
    node.restarts = decisions.MAX_RESTARTS - 1
    assert decisions.to_restart([node]) == ["n1"]
    node.restarts += 1
    assert node.given_up
    assert node.done
    assert decisions.to_restart([node]) == []


def test_a_runner_that_is_gone_with_its_plan_done_was_not_given_up():
    node = view({"state": "finished", "runner": "gone"}, training="success", loading="success")
    node.restarts = decisions.MAX_RESTARTS
    assert not node.given_up


STARTED = {"state": "started", "attempt": 1, "directory": "/d", "message": "started"}


def test_a_failed_launch_does_not_forget_a_runner_that_may_be_at_work():
    kept = decisions.keep_started(STARTED, {"state": "unreachable", "attempt": 1, "message": "no route"})
    assert (kept["state"], kept["directory"]) == ("started", "/d")
    assert "no route" in kept["message"]


def test_a_relaunch_that_failed_is_not_waited_for_and_its_evidence_is_still_found():
    kept = decisions.keep_started(STARTED, {"state": "unreachable", "attempt": 2, "message": "no route"})
    assert (kept["state"], kept["attempt"], kept["directory"]) == ("unreachable", 2, "/d")


@pytest.mark.parametrize("known", [{}, {"state": "failed", "attempt": 1}])
def test_a_first_launch_is_accepted_as_it_went(known):
    launch = {"state": "refused", "attempt": 1, "message": "no"}
    assert decisions.keep_started(known, launch) == launch


def fleet(*names, stages=("image", "training")):
    """Nodes that wait for their turn."""
    nodes = [view({"state": "unknown"}, stages=stages) for _ in names]
    for node, name in zip(nodes, names, strict=True):
        node.name, node.to_start = name, True
    return nodes


def started(node, **states):
    node.to_start, node.launch = False, {"state": "started", "attempt": 1}
    for stage, state in states.items():
        decisions.update(node, stage, record(state), now=0.0)


def test_without_limits_all_nodes_start_at_once():
    assert decisions.to_launch(fleet("a", "b", "c"), 0.0) == ["a", "b", "c"]


def test_the_window_slides_as_nodes_are_done():
    a, b, c = nodes = fleet("a", "b", "c", stages=("training",))
    assert decisions.to_launch(nodes, 0.0, at_once=2) == ["a", "b"]
    for node in (a, b):
        node.to_start, node.busy = False, "launch"
    assert decisions.to_launch(nodes, 0.0, at_once=2) == []
    a.busy = b.busy = ""
    started(a, training="running")
    started(b, training="running")
    assert decisions.to_launch(nodes, 1.0, at_once=2) == []
    started(b, training="failure")
    assert decisions.to_launch(nodes, 2.0, at_once=2) == ["c"]
    assert c.to_start


def test_a_node_that_could_not_be_started_frees_its_place():
    a, _b = nodes = fleet("a", "b")
    a.to_start, a.launch = False, {"state": "failed"}
    assert decisions.to_launch(nodes, 0.0, at_once=1) == ["b"]


def test_a_place_for_transfers_is_held_until_the_image_stage_has_ended():
    a, b, c = nodes = fleet("a", "b", "c")
    assert decisions.to_launch(nodes, 0.0, transfers=1) == ["a"]
    started(a)
    assert decisions.to_launch(nodes, 0.0, transfers=1) == []
    started(a, image="running")
    assert decisions.to_launch(nodes, 0.0, transfers=1) == []
    started(a, image="success", training="running")
    assert decisions.to_launch(nodes, 0.0, transfers=1) == ["b"]
    started(b, image="crash")
    assert decisions.to_launch([a, b, c], 0.0, transfers=1) == ["c"]


def test_without_an_image_stage_transfers_are_no_limit():
    assert decisions.to_launch(fleet("a", "b", stages=("training",)), 0.0, transfers=1) == ["a", "b"]


def test_a_node_without_images_passes_those_that_wait_for_a_transfer():
    a, b = fleet("a", "b")
    (c,) = fleet("c", stages=("training",))
    assert decisions.to_launch([a, b, c], 0.0, transfers=1) == ["a", "c"]


def test_waiting_grows_from_15_seconds_to_5_minutes():
    assert [decisions.backoff(count) for count in (1, 2, 3, 4, 5, 6, 100)] == [15, 30, 60, 120, 240, 300, 300]


def test_an_unreachable_node_is_tried_again_while_others_work():
    (away,) = fleet("away")
    away.to_start, away.launch, away.tries, away.tried_at = False, {"state": "unreachable"}, 1, 100.0
    (other,) = fleet("other")
    started(other, training="running")
    assert decisions.to_launch([away, other], 110.0) == []
    assert decisions.to_launch([away, other], 116.0) == ["away"]
    away.tries = 3
    assert decisions.to_launch([away, other], 116.0) == []
    started(other, image="success", training="success")
    assert other.done
    assert away.done
    assert decisions.to_launch([away, other], 1000.0) == []


@pytest.mark.parametrize("reason", sorted(row.name for row in all_classes() if not row.retried))
def test_what_only_a_person_can_fix_is_not_tried_again(reason):
    (away,) = fleet("away")
    away.to_start, away.launch, away.tries = False, {"state": "unreachable", "class": reason}, 1
    (other,) = fleet("other")
    started(other, training="running")
    assert decisions.to_launch([away, other], 1000.0) == []


@pytest.mark.parametrize("reason", ["booting", "refused", "store_away"])
def test_what_may_pass_by_itself_is_tried_again(reason):
    (away,) = fleet("away")
    away.to_start, away.launch, away.tries = False, {"state": "unreachable", "class": reason}, 1
    (other,) = fleet("other")
    started(other, training="running")
    assert decisions.to_launch([away, other], 1000.0) == ["away"]


def test_nothing_is_over_while_its_turn_is_to_come_or_a_task_is_under_way():
    (node,) = fleet("a")
    assert not node.done
    node.to_start, node.busy = False, "launch"
    assert not node.done
    node.busy = ""
    assert node.done


def test_a_node_not_reached_is_asked_less_and_less_often():
    node = view({"state": "started", "store_reachable": False})
    node.fetched_at = 0.0

    def asked(now):
        return bool(decisions.to_fetch([node], now, silence=60, interval=15))

    assert asked(15)
    node.misses = 3
    assert not asked(59)
    assert asked(60)


def test_many_cut_off_nodes_are_asked_less_often_than_few():
    nodes = [view({"state": "started", "store_reachable": False}) for _ in range(100)]
    for node in nodes:
        node.fetched_at = 0.0
    assert decisions.to_fetch(nodes, 24.0, silence=600, interval=15) == []
    assert len(decisions.to_fetch(nodes, 25.0, silence=600, interval=15)) == 100


def test_a_node_with_a_task_under_way_is_neither_asked_nor_restarted():
    node = view({"state": "started", "store_reachable": False, "runner": "gone"})
    node.busy = "fetch"
    assert decisions.to_fetch([node], 1000.0, silence=60, interval=15) == []
    assert decisions.to_restart([node]) == []


def test_a_silent_node_that_cannot_be_asked_is_lost_and_no_longer_waited_for():
    node = view(training="running")
    node.changed_at = 10.0
    node.misses = 1
    assert not decisions.lost_contact(node, 1000.0, 600)
    node.misses = 2
    assert not decisions.lost_contact(node, 609.0, 600)
    assert decisions.lost_contact(node, 610.0, 600)
    assert decisions.last_heartbeat(node, 610.0) == "no heartbeat for 0:10:00 in training"
    node.lost = True
    assert node.done
    assert decisions.to_fetch([node], 1000.0, silence=60, interval=15) == ["n1"]


def test_a_silent_node_is_awaited_for_less_once_the_others_only_wait_for_it():
    silent, other = view(training="running"), view(training="running")
    silent.misses = 2
    assert decisions.lost_after([silent, other], 1800) == 1800, "the other works meanwhile"
    other.records["training"] = record("success")
    other.records["loading"] = record("success")
    assert other.done and decisions.lost_after([silent, other], 1800) == decisions.ALONE_SECONDS
    assert decisions.lost_after([silent, other], 300) == 300
    silent.misses = 1
    assert decisions.lost_after([silent, other], 1800) == 1800, "one fetch that failed is no silence"
    assert decisions.lost_after([silent], 1800) == 1800, "none waits for the only node"


def test_a_node_that_answers_over_its_connection_is_not_lost():
    node = view(training="running")
    node.misses, node.answered_at = 2, 500.0
    assert not decisions.lost_contact(node, 1000.0, 600)


def test_a_node_of_another_play_is_never_asked_and_lost_by_silence_alone():
    node = view(training="running")
    node.in_play = False
    assert decisions.to_fetch([node], 1000.0, silence=60, interval=15) == []
    assert decisions.lost_contact(node, 1000.0, 600)


def test_a_launch_that_ran_out_of_time_is_tried_again_but_not_for_ever():
    slow = view({"state": "failed", "class": decisions.SLOW})
    slow.to_start, slow.tries, slow.tried_at = False, 1, 100.0
    assert not slow.due_again(101.0)
    assert slow.due_again(100.0 + decisions.backoff(1))
    slow.tries = decisions.SLOW_TRIES
    assert not slow.due_again(1e6)
    broken = view({"state": "failed", "class": "disk_full"})
    broken.to_start, broken.tries, broken.tried_at = False, 1, 100.0
    assert not broken.due_again(1e6)


def test_a_further_attempt_waits_for_a_place_like_any_launch():
    done, gone, busy = (view(training="success", loading="crash") for _ in range(3))
    working = view(training="running")
    views = {"done": done, "gone": gone, "busy": busy, "working": working}
    for name, node in views.items():
        node.name = name
    busy.busy = "fetch"
    assert decisions.to_relaunch(views, ["done", "gone", "busy"]) == ["done", "gone"]
    assert decisions.to_relaunch(views, ["done", "gone"], at_once=3) == ["done"]
    assert decisions.to_relaunch(views, ["done"], at_once=1) == []
    assert decisions.to_relaunch(views, ["working", "done"], at_once=1) == ["working"]  # it has its place already


@pytest.mark.parametrize("state", ["refused", "failed", "unreachable"])
def test_a_further_attempt_that_was_refused_is_not_waited_for(state):
    known = {"state": state, "attempt": 2, "stages": ["loading"]}
    node = view(known, training="success", loading="crash")
    for stage in node.stages:
        node.records[stage]["started_at"] = "2026-11-28T10:00:00Z"
    assert node.launched and node.done and not node.complete
    node.launch = {**known, "state": "started"}
    assert not node.done
    node.launch, node.busy = known, "launch"
    assert not node.done


@pytest.mark.parametrize("failure_class", [decisions.SLOW, "lost_contact"])
def test_a_further_attempt_whose_answer_was_lost_may_be_at_work(failure_class):
    known = {"state": "unreachable", "class": failure_class, "attempt": 2, "stages": ["loading"]}
    node = view(known, training="success", loading="crash")
    for stage in node.stages:
        node.records[stage]["started_at"] = "2026-11-28T10:00:00Z"
    assert not node.done
    node.launch = {**known, "class": "disk_full"}
    assert node.done
    decisions.update(node, "loading", record("running", attempt=2), 1.0)
    assert not node.done, "its record shows that it began"


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("@ REMOTE HOST IDENTIFICATION HAS CHANGED! @", "wrong_host_key"),
        ("Permission denied (publickey)", "login_denied"),
        ("Connection timed out", "lost_contact"),
        ("", "lost_contact"),
    ],
)
def test_a_lost_node_has_the_class_that_only_an_operator_can_end(message, name):
    assert decisions.class_of_loss(launch_errors.contact(message)["class"]) == name
