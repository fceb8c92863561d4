"""Where a run stands: states, order, expected ends and lines, all by the store's clock."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import brief as stage_brief
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import publishing
from ansible_collections.gpuval.fleet.plugins.plugin_utils.status import lines as status_lines
from ansible_collections.gpuval.fleet.plugins.plugin_utils.status import status as run_status
from ansible_collections.gpuval.fleet.plugins.plugin_utils.status.status import Ahead, StoredStatus

from tests.kit.builders import make_record, make_run, metric

NOW = datetime(2026, 11, 2, 11, 0, 0, tzinfo=timezone.utc)
STAGES = ["facts", "training", "loading"]
EXPECTED = {"facts": 10.0, "training": 100.0, "loading": 40.0}
PLAN = {
    "heartbeat_seconds": 10,
    "stages": [{"name": name, "expected_seconds": seconds} for name, seconds in EXPECTED.items()],
}
STARTED = {"state": "started", "message": "started", "attempt": 1, "stages": [], "at": "2026-11-02T10:00:00Z"}
AWAY = {
    "state": "unreachable",
    "class": "refused",
    "message": "port 22 refused the connection",
    "directory": "/var/lib/gpuval/run-1",
}


def known(nodes, *, launches=None, waits=(), window=0, ended=False, sign=4.0, plan=PLAN, begun=60.0, **fields):
    """`nodes`: by name {stage: (state, seconds since the store took it in, more of the record)}."""
    run = make_run(nodes, stages=STAGES, **fields)
    launches = dict.fromkeys(nodes, STARTED) | (launches or {})
    watch = publishing.watch_document(
        run,
        {name: publishing.NodeUpdate(plan, launches[name], name in waits) for name in nodes},
        [],
        run_seconds=begun,
        begun_seconds=begun,
        window=(window, 0),
        silence_seconds=90,
        ended=ended,
    )
    briefs = {
        name: {stage: brief(name, stage, *words) for stage, words in stages.items()} for name, stages in nodes.items()
    }
    return StoredStatus(run, NOW, briefs, watch, NOW - timedelta(seconds=sign))


def brief(node, stage, state, age, more=None):
    more = {"duration_seconds": None if state == "pending" else 5.0, **(more or {})}
    if state == "pending":
        more["started_at"] = None
    return stage_brief.brief(make_record(node, stage, state=state, **more), NOW - timedelta(seconds=age))


def status(nodes, **options):
    return run_status.Status(known(nodes, **options))


def node_of(found, name):
    return next(node for node in found.nodes if node.name == name)


DONE = dict.fromkeys(STAGES, ("success", 50))
TRAINS = {"facts": ("success", 40), "training": ("running", 3, {"duration_seconds": 37.0})}


def test_nodes_are_shown_in_the_order_in_which_they_need_a_look():
    found = status(
        {
            "done": DONE,
            "waits": {},
            "runs": TRAINS,
            "silent": {"facts": ("success", 400), "training": ("running", 300)},
            "away": {},
            "broke": {"facts": ("success", 10), "training": ("crash", 5), "loading": ("running", 5)},
            "lost": {"facts": ("running", 4000)},
        },
        launches={
            "away": AWAY,
            "waits": None,
            "lost": {**STARTED, "contact": {"class": "lost_contact", "message": "x"}},
        },
        waits=["waits"],
    )
    assert [(node.name, node.state) for node in found.nodes] == [
        ("broke", "failed"),
        ("away", "not started"),
        ("lost", "lost"),
        ("silent", "silent"),
        ("runs", "running"),
        ("waits", "waiting"),
        ("done", "done"),
    ]
    assert [node.name for node in found.nodes if node.matters] == ["broke", "away", "lost", "silent"]


def test_what_to_do_about_nodes_that_were_not_started_is_below_the_table_once():
    away = {**AWAY, "remedy": "start sshd, then validate again with --limit {node}"}
    found = status({"a": {}, "b": {}, "runs": TRAINS}, launches={"a": away, "b": away})
    lines = status_lines.table_lines(found, found.nodes, complete=False)
    assert [line for line in lines if "sshd" in line] == ["a: start sshd, then validate again with --limit a"]


def test_a_node_that_was_not_started_says_why():
    found = status({"away": {}}, launches={"away": AWAY})
    assert found.nodes[0].message == "unreachable (refused): port 22 refused the connection"
    assert found.nodes[0].age is None


def test_the_age_is_by_the_stores_clock_alone():
    node = status({"n": TRAINS}).nodes[0]
    assert node.age == 3
    assert node.elapsed == 40  # 37 s when it was told, 3 s ago


def test_a_record_that_was_written_while_the_store_was_listed_is_of_now():
    assert status({"n": {"facts": ("running", -2)}}).nodes[0].age == 0


@pytest.mark.parametrize(("age", "state"), [(89, "running"), (91, "silent")])
def test_silence_begins_at_the_limit_of_the_run(age, state):
    assert status({"n": {"facts": ("running", age)}}).nodes[0].state == state


def test_silence_is_never_shorter_than_three_heartbeats():
    plan = {**PLAN, "heartbeat_seconds": 60}
    assert status({"n": {"facts": ("running", 150)}}, plan=plan).nodes[0].state == "running"


@pytest.mark.parametrize(("seconds", "state"), [(80, "running"), (3600, "silent")])
def test_a_node_that_was_launched_and_never_reported_is_silent_after_a_while(seconds, state):
    at = (datetime.now(timezone.utc) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = status({"a": {}, "b": TRAINS}, launches={"a": {**STARTED, "at": at}})
    node = node_of(found, "a")
    assert node.state == state
    assert node.age == pytest.approx(seconds + 4, abs=3)
    assert (node.ahead is None, node.matters) == (state == "silent", state == "silent")
    assert found.end.exact == (state == "running")
    assert node.message == ("it was launched, but no record has arrived" if state == "silent" else "")


def test_a_node_that_is_launched_again_is_not_silent_for_its_records_of_before():
    at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    again = {"facts": ("success", 400), "training": ("pending", 300)}
    assert status({"a": again}, launches={"a": {**STARTED, "at": at}}).nodes[0].state == "running"


def test_a_node_ends_when_what_is_open_is_done():
    assert status({"n": TRAINS}).nodes[0].ahead == Ahead(100 - 40 + 40, exact=True)


def test_a_stage_over_its_time_gives_the_least_only():
    slow = {"facts": ("success", 1), "training": ("running", 5, {"duration_seconds": 200.0})}
    node = status({"n": slow}).nodes[0]
    assert node.ahead == Ahead(40, exact=False)
    assert node.matters
    assert "over time" in status_lines.table_lines(status({"n": slow}), [node], complete=True)[1]


def test_of_a_silent_node_no_end_is_expected_and_the_run_ends_not_before():
    found = status({"a": TRAINS, "b": {"facts": ("running", 300)}})
    assert node_of(found, "b").ahead is None
    assert found.end == Ahead(100, exact=False)


def test_without_expectations_nothing_is_made_up():
    plan = {**PLAN, "stages": [{"name": name, "expected_seconds": None} for name in STAGES]}
    found = status({"n": TRAINS}, plan=plan)
    assert found.nodes[0].ahead is None
    assert found.end is None
    assert "expected end unknown" in "\n".join(status_lines.head_lines(found))


def test_those_that_wait_begin_when_a_place_is_free():
    found = status({"a": TRAINS, "b": {}, "c": {}}, launches={"b": None, "c": None}, waits=["b", "c"], window=1)
    assert [node_of(found, name).ahead.seconds for name in "abc"] == [100, 250, 400]
    assert found.end == Ahead(400)
    assert "waiting for their turn (1 at once): b, c" in status_lines.head_lines(found)


def test_without_a_window_those_that_wait_begin_now():
    found = status({"a": TRAINS, "b": {}}, launches={"b": None}, waits=["b"])
    assert node_of(found, "b").ahead.seconds == 150


def test_who_waits_behind_a_silent_node_has_no_end():
    found = status({"a": {"facts": ("running", 300)}, "b": {}}, launches={"b": None}, waits=["b"], window=1)
    assert node_of(found, "b").ahead is None


def test_an_end_beyond_the_deadline_is_reported():
    text = "\n".join(status_lines.head_lines(status({"n": TRAINS}, deadline_seconds=100)))
    assert "expected end 11:01:40 (in 0:01:40): after the deadline, which cancels open stages" in text
    assert "deadline 11:00:36 (in 0:00:36)" in text  # 60 s when it was told, 4 s ago


def test_the_controllers_sign_tells_whether_anybody_watches():
    assert status({"n": TRAINS}).watched
    gone = status({"n": TRAINS}, sign=200)
    assert not gone.watched
    text = "\n".join(status_lines.head_lines(gone))
    assert "controller lost: last heartbeat" in text and "nodes continue: its command resumes it" in text
    assert not gone.over  # the node goes on
    assert gone.accepted


def test_a_run_that_did_not_end_is_not_passed():
    found = status({"n": DONE}, sign=1000)
    assert found.over
    assert not found.accepted
    assert "was never ended" in status_lines.conclusion(found)


def test_a_run_that_was_watched_to_the_end_is_waited_for_while_it_is_judged():
    assert not status({"n": DONE}, ended=True, sign=100).over
    assert status({"n": DONE}, ended=True, sign=1000).over


def verdict(word, nodes, judged_at="2026-11-02T10:59:30Z"):
    counts = {"expected": len(nodes), "PASS": 0, "FAIL": 0, "INCOMPLETE": 0, "flaky": 0, word: len(nodes)}
    return {"run_id": "run-1", "judged_at": judged_at, "verdict": word, "counts": counts, "nodes": nodes}


@pytest.mark.parametrize(
    ("word", "accepted"), [("PASS", True), ("PARTIAL", True), ("FAIL", False), ("INCOMPLETE", False)]
)
def test_a_run_that_has_ended_is_accepted_by_its_verdict(word, accepted):
    base = known({"n": DONE}, finished_at="2026-11-02T10:59:00Z")
    found = run_status.Status(replace(base, verdict=verdict(word, {"n": "PASS"})))
    assert (found.over, found.accepted, found.verdict) == (True, accepted, word)
    assert f"has ended: {word}" in status_lines.conclusion(found)


def test_a_verdict_from_before_the_end_is_none():
    base = known({"n": DONE}, finished_at="2026-11-02T10:59:00Z")
    early = verdict("PASS", {"n": "PASS"}, judged_at="2026-11-02T10:30:00Z")
    found = run_status.Status(replace(base, verdict=early))
    assert found.verdict is None
    assert not found.accepted


def test_a_node_that_failed_by_its_figures_is_shown_as_failed():
    base = known({"n": DONE}, finished_at="2026-11-02T10:59:00Z")
    node = run_status.Status(replace(base, verdict=verdict("FAIL", {"n": "FAIL"}))).nodes[0]
    assert (node.state, node.message) == ("failed", "FAIL by its checks: the report says which")


def test_of_many_nodes_those_that_matter_are_shown():
    nodes = {f"n{number:04}": TRAINS for number in range(1000)}
    nodes |= {f"x{number:04}": {"facts": ("crash", 1)} for number in range(150)}
    found = status(nodes)
    lines = status_lines.table_lines(found, found.nodes, complete=False)
    assert len(lines) == 1 + status_lines.MAX_ROWS + 2
    assert lines[-2].startswith("... and 50 more")
    assert lines[-1].startswith("1000 node(s) without problems")
    assert len(status_lines.table_lines(found, found.nodes, complete=True)) == 1151
    assert "nodes: 150 failed, 1000 running" in status_lines.head_lines(found)


def test_nodes_are_chosen_by_name_and_pattern():
    found = status({"a1": TRAINS, "a2": TRAINS, "b1": TRAINS})
    assert [node.name for node in run_status.chosen(found, ["a*"])] == ["a1", "a2"]
    assert [node.name for node in run_status.chosen(found, ["a[1-2]"])] == ["a1", "a2"]
    assert [node.name for node in run_status.chosen(found, ["?[1:2]"])] == ["a1", "a2", "b1"]
    assert len(run_status.chosen(found, [])) == 3
    with pytest.raises(KeyError, match="c"):
        run_status.chosen(found, ["a1", "c"])


def test_the_lines_of_what_is_done():
    figures = {
        "training": [metric("training_duration_seconds", 811.93, "seconds")],
        "loading": [
            metric("loading_bytes", 16.07e9, "bytes"),
            metric("loading_duration_seconds", 22.2, "seconds"),
            metric("loading_bytes_per_second", 16.07e9 / 22.2, "bytes/s"),
        ],
    }
    done = {stage: ("success", 5, {"metrics": figures.get(stage, [])}) for stage in STAGES}
    found = status({"X": done, "Y": TRAINS})
    assert status_lines.done_lines(found, found.nodes) == [
        "Node: X, Facts Time: 5 seconds",
        "Node: Y, Facts Time: 5 seconds",
        "Node: X, Training Time: 811.93 seconds",
        "Node: X, Data Size: 16.07 GB, Duration: 22.2 seconds, Throughput: 5.79 Gbps",
    ]


def test_what_is_new_is_reported_once():
    before = status({"n": TRAINS, "m": TRAINS})
    silent = {"facts": ("success", 240), "training": ("running", 200)}
    after = status({"n": {**TRAINS, "training": ("success", 1)}, "m": silent})
    lines = status_lines.changes(before, after, after.nodes, lines=False)
    assert lines == ["m: silent", "n training: success after 5.0 s"]
    assert status_lines.changes(after, after, after.nodes, lines=False) == []
    assert "Node: n, Training Time: 5 seconds" in status_lines.changes(before, after, after.nodes, lines=True)


def test_what_a_node_wrote_is_one_line_of_the_table():
    evil = {"facts": ("crash", 1, {"message": "a\x1b[31m\nb" + "c" * 3000})}
    found = status({"n": evil})
    (line,) = status_lines.table_lines(found, found.nodes, complete=True)[1:]
    assert "\x1b" not in line
    assert "\n" not in line
    assert len(line) < 300
