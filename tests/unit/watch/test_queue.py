"""How launches end: refused or queued while another run is at work, started without the store."""

from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import document
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import launch_errors
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import decisions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.launcher import Launcher, Window
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.placement import LaunchEnd
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.watched_run import WatchedRun

from tests.kit.run_commands import at_work, killed, lay_out, started

REFUSED = {"state": "refused", "class": "other_run", "message": "run first is at work on this node", "attempt": 1}
STARTED = {"state": "started", "message": "", "attempt": 1}


@pytest.fixture
def queue(tmp_path):
    """Launches of one node: `refuse(now)` and `start(now)` are how they end; `lines` is what the console shows."""
    plan = {"stages": [{"name": "facts", "expected_seconds": 1}]}
    view = decisions.NodeView("n1", plan, {"state": "unknown"})
    lines = []
    watched = SimpleNamespace(
        folder=RunFolder(tmp_path), memory=SimpleNamespace(window=None), say=lines.append, views={"n1": view}
    )

    def of(seconds):
        launcher = Launcher(watched, None, Window(0, 0), lines.append, seconds)

        def end(now, launch):
            before, view.launch = view.launch, launch
            launcher.ended(view, LaunchEnd("n1", "launch", started=launch is STARTED), before, now)

        return SimpleNamespace(view=view, lines=lines, end=end)

    return of


def due(view, now):
    return decisions.to_launch([view], now) == ["n1"]


def test_without_a_wait_it_is_refused_at_once(queue):
    one = queue(0)
    one.end(100, REFUSED)
    assert one.view.done and not due(one.view, 1e6)
    assert one.lines == ["n1: not started (refused): run first is at work on this node"]


def test_what_to_do_about_a_refusal_is_said_once(queue):
    one = queue(0)
    for run in ("first", "second"):
        one.end(100, {**REFUSED, "message": f"run {run} is at work on this node", "remedy": "wait with --limit {node}"})
    assert one.lines == [
        "n1: not started (refused): run first is at work on this node: wait with --limit n1",
        "n1: not started (refused): run second is at work on this node",
    ]


def refused_for_the_first(results, *, in_round=False):
    """A second run whose node n1 answers, in a round of gangs perhaps, that the first is at work there: the folder of
    run or round, and the console's last line."""
    folder = started(results, "second")
    if in_round:
        run_folder.write_json(folder.gangs_file, {})
        run, folder = folder.read_run(), document.round_folder(folder, "gangs-1")
        run_folder.write_json(folder.run_file, run)
    view, lines = decisions.NodeView("n1", {"stages": []}, {"state": "unknown"}), []
    watched = WatchedRun(folder, None, lines.append)
    launcher = Launcher(watched, None, Window(0, 0), lines.append)
    message = "run first is at work on this node since 2026-11-26T10:00:00Z, started by ann@laptop"
    launch = {"node": "n1", "state": "refused", "message": message, "attempt": 1, "at": "x", "stages": []}
    view.launch = launch_errors.described(launch)
    launcher.ended(view, LaunchEnd("n1", "launch"), {}, 100)
    return folder, lines[-1]


@pytest.mark.parametrize(
    ("known", "advice"),
    [
        ("orphan", "resume that run (`make validate {its} RUN=first`), wait for it (-e gpuval_wait_for_node=SECONDS"),
        ("at work", "wait for that run (-e gpuval_wait_for_node=SECONDS"),
        ("elsewhere", "wait for that run (-e gpuval_wait_for_node=SECONDS"),
    ],
)
def test_a_refusal_names_the_run_at_work_with_the_commands_that_resume_and_end_it(tmp_path, known, advice):
    results = lay_out(tmp_path)
    if known != "elsewhere":
        first = started(results, "first")
        run = first.read_run()
        first.write_run({**run, "state": {**run["state"], "opened_at": "2026-11-26T10:00:00Z"}})
        at_work(first, "n1")
        if known == "orphan":
            killed(first)
    folder, line = refused_for_the_first(results)
    its = f"INVENTORY={tmp_path / 'a'}"
    for text in (line, folder.read_launch("n1")["remedy"]):
        assert advice.format(its=its) in text
        assert f"end it (`make clean {its} RUN=first`)" in text and "RUN=ID" not in text


@pytest.mark.parametrize("in_round", [False, True])
@pytest.mark.parametrize("first", ["on another node", "ended"])
def test_a_node_does_not_choose_which_run_the_operator_ends(tmp_path, first, in_round):
    results = lay_out(tmp_path)
    known = at_work(started(results, "first"), "n1" if first == "ended" else "n2")
    if first == "ended":
        known.write_run({**known.read_run(), "finished_at": "2026-11-26T10:00:00Z"})
    folder, line = refused_for_the_first(results, in_round=in_round)
    for text in (line, folder.read_launch("n1")["remedy"]):
        assert "end it (`make clean RUN=ID`)" in text and "RUN=first" not in text


def test_it_is_tried_again_and_starts_when_the_other_run_has_ended(queue):
    one = queue(600)
    one.end(100, REFUSED)
    assert not one.view.done and not due(one.view, 101) and due(one.view, 131)
    one.end(131, REFUSED)
    assert one.lines == ["n1: queued for 600 s: run first is at work on this node"], "said once"
    one.end(170, STARTED)
    assert one.view.queued_until is None and one.view.launched


def test_the_wait_is_bounded_and_ends_with_the_refusal(queue):
    one = queue(60)
    for now in (100, 130, 159):
        one.end(now, REFUSED)
        assert not one.view.done
    assert due(one.view, 160)
    one.end(160, REFUSED)
    assert one.view.done and not due(one.view, 1e6)
    assert one.lines[-1] == "n1: not started (refused): run first is at work on this node"


def test_another_refusal_is_not_queued(queue):
    one = queue(600)
    one.end(100, {**REFUSED, "class": "foreign_work", "message": "others use this node's accelerators"})
    assert one.view.done


def test_a_reason_why_nodes_do_not_reach_the_store_is_shown_once_and_counted(queue):
    one = queue(0)
    away = {**STARTED, "store_reachable": False, "message": "the store answers 500"}
    for launch in (away, away, {**away, "message": "the store does not answer: timed out"}):
        one.end(100, launch)
    assert one.lines == [
        "n1: the store answers 500; records of such nodes are fetched from them",
        "n1: the store does not answer: timed out; records of such nodes are fetched from them",
    ]
    assert decisions.progress([one.view], 65).endswith("| 1 without the store")
    one.end(100, STARTED)
    assert len(one.lines) == 2 and "without" not in decisions.progress([one.view], 65)


def test_without_time_for_a_launch_nothing_waits_for_its_turn(tmp_path):
    folder = started(lay_out(tmp_path), "run-1")
    watched, lines = WatchedRun(folder, None, print), []
    view = watched.views["node-1"]
    launcher = Launcher(watched, None, Window(0, 0), lines.append)
    view.to_start = True
    launcher.end_waiting(100)
    assert view.done and not view.to_start
    assert folder.read_launch("node-1")["state"] == "failed"
    assert "raise gpuval_deadline_seconds" in lines[0]
    view.launch, view.queued_until = REFUSED, 1e6
    launcher.end_waiting(100)
    assert view.done
