"""The states of a run, which commands choose it, and who works on it: through the actions of a validate."""

import json
import multiprocessing
import os
import shutil
import time
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.callback.acceptance import CallbackModule
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.page import next_steps
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.summary import final_block
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import opening, origin, overview, publishing
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import state as run_state
from ansible_collections.gpuval.fleet.plugins.plugin_utils.status import lines as status_lines
from ansible_collections.gpuval.fleet.plugins.plugin_utils.status import status as run_status
from ansible_collections.gpuval.fleet.plugins.plugin_utils.status.status import StoredStatus
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps import show_status
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.access import open_store, put_run
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.embedded import EmbeddedStore

from tests.kit.actions import run_action
from tests.kit.builders import healthy, judge, make_run, write_report
from tests.kit.run_commands import at_work, clean_run, find_run, killed, lay_out, open_run, opened, started, variables

STEPS = ["opened", "preparing", "working", "collecting", "judged"]


@pytest.fixture
def results(tmp_path):
    return lay_out(tmp_path)


def conclusion(folder):
    run = folder.read_run()
    known = StoredStatus(run, run_folder.datetime.now(run_folder.timezone.utc), controller=folder.seen())
    status = run_status.Status(known)
    return status, "\n".join([*status_lines.head_lines(status), status_lines.conclusion(status)])


def test_a_run_passes_through_its_states_and_names_who_works_on_it(results):
    folder = opened(results, "r1")
    seen = [folder.seen().name]
    for step in STEPS[1:]:
        folder.advance(step)
        seen.append(folder.seen().name)
    assert seen == STEPS
    (worker,) = folder.read_run()["state"]["workers"]
    assert worker["pid"] == os.getppid() and folder.seen().attended


@pytest.mark.parametrize("step", ["collecting", "judged", "opened"])
def test_a_state_is_never_skipped(results, step):
    folder = opened(results, "r1")
    assert folder.advance(step) is None
    assert folder.seen().name == "opened"


def test_another_command_changes_no_state(results):
    folder = started(results, "r1")
    assert folder.advance("collecting", pid=os.getpid()) is None
    assert folder.seen().name == "working"


def test_a_controller_that_died_before_a_node_began_is_a_failure_and_status_ends(results):
    folder = killed(opened(results, "r1"))
    folder_state = folder.seen()
    assert (folder_state.name, folder_state.never_started) == ("failed", True)
    status, text = conclusion(folder)
    assert status.over and not status.accepted
    assert "its controller ended while it was opened" in text and "watches it" not in text
    assert "make validate" in text


def test_a_run_that_prepares_is_in_progress(results):
    folder = opened(results, "r1")
    folder.advance("preparing")
    status, text = conclusion(folder)
    assert not status.over
    assert f"preparing since {folder.seen().since}, controller " in text and f"pid {os.getppid()}" in text


def test_a_dead_controller_of_working_nodes_is_noticed_at_once(results):
    folder = killed(started(results, "r1"))
    assert folder.seen().attended is False
    status, _ = conclusion(folder)
    assert not status.watched


def test_a_controller_on_another_host_counts_by_its_last_heartbeat(results):
    run = started(results, "r1").read_run()
    workers = [{**worker, "host": "elsewhere"} for worker in run["state"]["workers"]]
    run = {**run, "state": {**run["state"], "workers": workers}}
    seen = [run_state.seen(run, age).attended for age in (10.0, run_state.LOST_SECONDS + 1, None)]
    assert seen == [True, False, None]


def test_the_callback_keeps_why_a_playbook_failed(results):
    done = open_run(results, "r1")
    folder = run_folder.find(results, "r1")
    run = folder.read_run()  # the worker of a play is a child of ansible-playbook, in which the callback is
    folder.write_run({**run, "state": {**run["state"], "workers": [run_state.this_process(os.getpid(), "x")]}})
    callback = CallbackModule()
    callback.v2_runner_on_ok(SimpleNamespace(result=done.result))
    callback.v2_runner_on_failed(SimpleNamespace(result={"msg": "ignored"}), ignore_errors=True)
    callback.v2_runner_on_failed(SimpleNamespace(result={"msg": "the store is away."}))
    callback.v2_playbook_on_stats(None)
    assert (folder.seen().name, folder.seen().reason) == ("failed", "the store is away.")
    assert "failed before any node began: the store is away. Fix that, then" in conclusion(folder)[1]
    assert opened(results, "r1").seen().name == "opened", "the same command tries again"


@pytest.mark.parametrize("known", [True, False])
def test_status_of_a_run_that_never_started_needs_no_store(results, known):
    """It may have failed since the store could not be started."""
    folder = opened(results, "r1")
    folder.advance("failed", "port 9555 is in use")
    store = {"bucket": "b", "state_dir": str(results.parent / "state")}
    if known:
        open_store({"endpoint": "", "address": "", "port": 0, **store}).start()
        open_store({"endpoint": "", "address": "", "port": 0, **store}).stop()
    options = {"run_id": "", "results_dir": str(results), "store": store, "folder": ""}
    done = run_action("show_status", options, task_vars=variables(results, "a"))
    assert done.failed
    assert "run r1 failed before any node began: port 9555 is in use. Fix that, then `make validate`" in done.text


def test_latest_does_not_move_to_a_run_that_never_started(results):
    started(results, "r1")
    opened(results, "r2")
    assert run_folder.latest_run(results).path.name == "r1"
    assert run_folder.latest_run(results, opened=True).path.name == "r2"


def test_a_second_console_says_that_it_attaches(results):
    folder = started(results, "r1")
    run = folder.read_run()
    first = run_state.this_process(os.getpid(), "2026-11-23T10:00:00Z")
    folder.write_run({**run, "state": {**run["state"], "workers": [first]}})
    done = open_run(results)
    assert done.result["run"]["run_id"] == "r1"
    assert f"working already, controller {first['host']} (pid {os.getpid()}, since 2026-11-23T10:00:00Z)" in done.text
    assert "this console attaches to it" in done.text
    assert len(folder.read_run()["state"]["workers"]) == 2
    assert "attaches" not in open_run(results, "new").text


def test_two_consoles_at_once_open_one_run(results):
    context = multiprocessing.get_context("fork")
    together = context.Barrier(2)

    def console():
        together.wait(60)
        assert not open_run(results).failed

    consoles = [context.Process(target=console) for _ in range(2)]
    for process in consoles:
        process.start()
    for process in consoles:
        process.join()
    assert [process.exitcode for process in consoles] == [0, 0]
    assert len(run_folder.known_runs(results)) == 1


@pytest.mark.parametrize("finished", [True, False])
def test_a_controller_killed_before_its_report_goes_on_there(results, finished):
    folder = started(results, "r1")
    folder.advance("collecting")
    run = folder.read_run()
    folder.write_run({**run, "finished_at": run_folder.now() if finished else None})
    killed(folder)
    done = open_run(results)
    assert done.result["run"]["run_id"] == "r1"
    assert ("resumed at its collection" in done.text) is finished
    assert folder.seen().name == "collecting"
    assert folder.advance("judged"), "the new controller works on it"
    assert run_folder.is_unreported(run) is False
    run = folder.read_run()
    folder.write_run({**run, "finished_at": run_folder.now()})
    assert open_run(results).result["run"]["run_id"] != "r1", "what was judged is over"


def aged(folder, minutes):
    """The run as if its controller had opened it so long ago."""
    run, at = folder.read_run(), datetime.now(timezone.utc) - timedelta(minutes=minutes)
    folder.write_run({**run, "state": {**run["state"], "opened_at": at.strftime("%Y-%m-%dT%H:%M:%SZ")}})
    return folder


def concluded(folder):
    """The run, ended and judged by its controller."""
    folder.write_run({**folder.read_run(), "finished_at": run_folder.now()})
    for step in ("collecting", "judged"):
        folder.advance(step)


def limited(results, run_id=""):
    return open_run(results, run_id, limit="node-1")


def test_the_same_command_resumes_its_run_though_another_was_opened_since(results):
    lost = aged(killed(started(results, "r1")), 3)
    assert limited(results, "r2").result["run"]["narrowed_by"] == ["limit"]
    second = run_folder.find(results, "r2")
    second.advance("working")
    aged(killed(second), 2)
    shown = "\n".join(overview.lines(overview.rows(results, [str(results.parent / "a")])))
    command = f"`make validate INVENTORY={results.parent / 'a'} RUN=r1` resumes it"
    assert f"r1: its controller is gone, {command}" in shown and command in lost.seen().line()
    assert open_run(results).result["run"]["run_id"] == "r1"
    assert limited(results).result["run"]["run_id"] == "r2", "and so does the other one"
    assert open_run(results, "new").result["run"]["run_id"] not in ("r1", "r2")


def test_a_run_is_not_resumed_once_a_newer_one_of_the_same_request_has_ended(results):
    aged(killed(started(results, "r1")), 3)
    concluded(started(results, "r2"))
    assert open_run(results).result["run"]["run_id"] not in ("r1", "r2")


def test_how_to_resume_names_the_command_of_a_narrowed_run_and_the_id_of_an_earlier_one(results):
    limited(results, "r1")
    folder = run_folder.find(results, "r1")
    folder.advance("working")
    aged(killed(folder), 3)
    assert folder.seen().line().endswith("its controller is gone, its command resumes it")
    started(results, "r2")
    assert folder.seen().line().endswith("its controller is gone, its command with RUN=r1 resumes it")


def test_an_earlier_run_that_failed_before_a_node_began_is_not_resumed(results):
    aged(killed(opened(results, "r1")), 3)
    assert open_run(results).result["run"]["run_id"] == "r1", "as the latest it is tried again"
    aged(killed(run_folder.find(results, "r1")), 3)
    concluded(started(results, "r2"))
    assert open_run(results).result["run"]["run_id"] not in ("r1", "r2")


def test_a_report_by_another_command_concludes_a_run_whose_controller_is_gone(results):
    folder = started(results, "r1")
    folder.advance("collecting")
    folder.write_run({**folder.read_run(), "finished_at": run_folder.now()})
    workers = [run_state.this_process(os.getpid(), "x")]  # another command's
    run = folder.read_run()
    folder.write_run({**run, "state": {**run["state"], "workers": workers}})
    assert folder.conclude()["state"]["name"] == "collecting", "its controller reports it"
    killed(folder)
    assert "its controller is gone, `make validate` resumes it" in folder.seen().line()
    assert folder.conclude()["state"]["name"] == "judged"
    assert open_run(results).result["run"]["run_id"] != "r1"


def test_the_watch_of_a_run_that_is_to_be_reported_is_over(results):
    folder = started(results, "r1")
    folder.advance("collecting")
    folder.write_run({**folder.read_run(), "finished_at": run_folder.now()})
    store = {"bucket": "b", "state_dir": str(results.parent / "state")}
    options = {"placement": "ssh", "run_id": "r1", "results_dir": str(results), "store": store}
    done = run_action("watch_run", options, task_vars=variables(results, "a"))
    assert not done.failed and done.result["started"] == []
    assert folder.seen().name == "collecting" and not folder.watch_file.exists()


def test_each_inventory_has_its_latest_run(results):
    started(results, "r1", "a")
    started(results, "r2", "b")
    of_a, of_b = ([str(results.parent / name)] for name in "ab")
    assert [run_folder.latest_run(results, one).path.name for one in (of_a, of_b, [])] == ["r1", "r2", "r2"]
    assert open_run(results, inventory="a").result["run"]["run_id"] == "r1"
    assert run_folder.of_others(results, of_a) == {origin.shown(of_b): ["r2"]}


def test_a_run_of_another_inventory_is_named_not_used(results):
    started(results, "r2", "b")
    done = find_run(results, "a", "r2")
    assert done.failed and "run r2 is one of the inventory " in done.text
    with pytest.raises(
        run_folder.RunError, match=r"no run of .*a in .*; .* inventory: r2 \(`make runs INVENTORY=.*b`\)"
    ):
        run_folder.resolve(results, "", [str(results.parent / "a")])
    assert "the inventory" in open_run(results, "r2", "a").text
    (results.parent / "b").unlink()
    run_folder.ensure_of(run_folder.find(results, "r2"), [str(results.parent / "a")])  # its inventory was renamed


def test_status_of_a_run_that_a_clean_ended_names_its_state_and_what_comes_next(results):
    folder = killed(started(results, "r1"))
    state = {**folder.read_run()["state"], "name": "failed", "reason": "it was ended by `make clean`"}
    folder.write_run({**folder.read_run(), "finished_at": run_folder.now(), "state": state})
    options = {"results_dir": str(results), "store": {"bucket": "b", "state_dir": str(results.parent / "state")}}
    done = run_action("show_status", options, task_vars=variables(results, "a"))
    assert done.failed
    assert done.text.startswith("run r1 has no verdict, it is failed since ")
    assert "it was ended by `make clean" in done.text and "starts another" in done.text


def test_status_and_report_of_an_inventory_without_runs_name_those_of_others(results):
    started(results, "r2", "b")
    store = {"bucket": "b", "state_dir": str(results.parent / "state")}
    options = {"results_dir": str(results), "store": store}
    asked = run_action("show_status", options, task_vars=variables(results, "a"))
    for done in (asked, find_run(results, "a")):
        assert done.failed and f"r2 (`make runs INVENTORY={results.parent / 'b'}`)" in done.text


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("show_status", {}),
        ("find_run", {}),
        ("find_run", {"store": None}),
        ("set_window", {"store": None, "max_nodes_at_once": 2}),
        ("bundle_logs", {"placement": "ssh"}),
    ],
)
def test_a_newer_run_of_another_inventory_is_named_beside_the_own_one(results, command, options):
    for age, run_id, inventory in ((3, "older", "b"), (2, "own", "a"), (1, "newer", "b")):
        folder = started(results, run_id, inventory)
        at = (datetime.now(timezone.utc) - timedelta(minutes=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
        folder.write_run({**folder.read_run(), "state": {**folder.read_run()["state"], "opened_at": at}})
    store = {"bucket": "b", "state_dir": str(results.parent / "state")}
    options = {key: value for key, value in {"store": store, **options}.items() if value is not None}

    def named(inventory, **more):
        options_of_it = {"results_dir": str(results), **options, **more}
        done = run_action(command, options_of_it, task_vars=variables(results, inventory))
        return [line for line in done.lines if line.startswith("newer")]

    assert named("a") == [
        f"newer runs of other inventories: newer (`make runs INVENTORY={origin.shown([str(results.parent / 'b')])}`)"
    ]
    assert named("a", run_id="own") == named("b") == []


def test_status_tells_the_end_of_a_run_whose_store_was_cleaned_away(results):
    folder = started(results, "r1")
    options = {"results_dir": str(results), "store": {"bucket": "b", "state_dir": str(results.parent / "state")}}
    done = run_action("show_status", options, task_vars=variables(results, "a"))
    assert done.failed and "there is no embedded store" in done.text, "its end is not known"
    folder.write_run({**folder.read_run(), "finished_at": run_folder.now()})
    run = make_run()
    publishing.keep_verdict(folder, judge(run, healthy(run)))
    done = run_action("show_status", options, task_vars=variables(results, "a"))
    assert not done.failed
    assert f"run r1 has ended: PASS (1 PASS, 0 FAIL, 0 INCOMPLETE): {folder.path / 'report.html'}" in done.text


@pytest.mark.parametrize("is_read_from_store", [False, True])
def test_a_watched_run_that_is_judged_and_cleaned_between_two_looks_ends(results, monkeypatch, is_read_from_store):
    folder = at_work(started(results, "r1"))
    options = {"bucket": "b", "state_dir": str(results.parent / "state")}
    store = open_store({"endpoint": "", "address": "", "port": 0, **options})
    if is_read_from_store:
        store.start()
        put_run(store.store(), folder.read_run())
    else:
        updates = {"node-1": publishing.NodeUpdate(None, folder.read_launch("node-1"))}
        document = publishing.watch_document(
            folder.read_run(),
            updates,
            [],
            run_seconds=1,
            begun_seconds=1,
            window=(0, 0),
            silence_seconds=9,
            ended=False,
        )
        run_folder.write_json(folder.watch_file, document)

    def judge_and_clean(_seconds):
        assert folder.read_run()["finished_at"] is None, "the watch ends with the next look"
        folder.write_run({**folder.read_run(), "finished_at": run_folder.now()})
        run = make_run()
        report = judge(run, healthy(run))
        publishing.keep_verdict(folder, {**report, "run": {**report["run"], "judged_at": run_folder.now()}})
        folder.mark_cleaned()
        store.stop()
        store.rotate()

    monkeypatch.setattr(show_status, "time", SimpleNamespace(sleep=judge_and_clean, monotonic=time.monotonic))
    try:
        arguments = {"results_dir": str(results), "store": options, "watch": True}
        done = run_action("show_status", arguments, task_vars=variables(results, "a"))
    finally:
        store.stop()
    assert not done.failed
    assert f"run r1 has ended: PASS (1 PASS, 0 FAIL, 0 INCOMPLETE): {folder.path / 'report.html'}" in done.text


def test_a_report_in_the_middle_of_a_run_is_refused(results):
    folder = started(results, "r1")
    done = find_run(results)
    assert done.failed and "run r1 is working since " in done.text and "make status" in done.text
    assert not find_run(killed(folder).results).failed, "its controller is gone: it is judged as it stands"


def test_a_report_of_a_run_that_has_not_ended_is_not_in_the_store(results):
    folder = killed(started(results, "r1"))
    run = make_run()
    write_report(judge(run, healthy(run)), folder.path)
    store = {"bucket": "b", "state_dir": str(results.parent / "state")}
    done = run_action("report_run", {"results_dir": str(results), "store": store}, task_vars=variables(results, "a"))
    assert not done.failed and (folder.path / "report.html").exists()
    assert "run r1 has not ended: its report is here as it stands, and not in the store" in done.text
    assert "not uploaded" not in done.text, "there is no store, and none was asked"


def test_a_window_holds_from_the_next_round_or_once_the_run_is_resumed(results):
    folder = started(results, "r1")
    options = {"results_dir": str(results), "max_nodes_at_once": 2}

    def said():
        return run_action("set_window", options, task_vars=variables(results, "a")).result["msg"]

    assert said() == "run r1: 2 node(s) at once, from the next round of its watch"
    killed(folder)
    assert said() == "run r1: 2 node(s) at once, once `make validate` resumes it: no controller works on it"


@pytest.mark.parametrize(
    ("subject", "name", "begins"),
    [("store", "store_away", "the store cannot be read: "), ("", "not_prepared", "the run cannot be prepared: ")],
)
def test_a_preparation_that_fails_is_why_no_node_began_and_leaves_a_run_that_has_started_alone(
    results, subject, name, begins
):
    options = {"results_dir": str(results), "run_id": "r1", "preparation_error": "no answer", "failed_subject": subject}
    folder = opened(results, "r1")
    outcome = run_action("update_run", options, task_vars=variables(results, "a"))
    assert outcome.result["reason"] == f"{begins}no answer"
    launch = folder.read_launch("node-1")
    assert (launch["state"], launch["class"], launch["message"]) == ("failed", name, f"{begins}no answer")
    assert "then validate again: it resumes this run" in launch["remedy"]
    assert [problem["reason"] for problem in folder.read_problems()] == [f"{begins}no answer"]

    probe = {"nodes": {"node-1": {"state": "timeout", "message": "no answer to TCP", "remedy": "look at it"}}}
    run_folder.write_json(folder.state / "probe.json", probe)
    run_action("update_run", options, task_vars=variables(results, "a"))
    assert (folder.read_launch("node-1")["class"], folder.read_launch("node-1")["state"]) == ("timeout", "unreachable")

    folder = at_work(started(results, "r2"))
    outcome = run_action("update_run", {**options, "run_id": "r2"}, task_vars=variables(results, "a"))
    assert "reason" not in outcome.result and folder.read_launch("node-1")["state"] == "started"
    assert folder.read_problems() == []


def past_deadline(folder, seconds):
    """The run, so many seconds after its deadline."""
    run = folder.read_run()
    at = datetime.now(timezone.utc) - timedelta(seconds=run["deadline_seconds"] + seconds)
    folder.write_run({**run, "created_at": at.strftime("%Y-%m-%dT%H:%M:%SZ")})
    return folder


def test_a_run_whose_deadline_passed_without_its_controller_is_judged_by_a_report(results):
    folder = past_deadline(killed(started(results, "r1")), run_folder.DEADLINE_SLACK_SECONDS + 5)
    window = run_action(
        "set_window", {"results_dir": str(results), "max_nodes_at_once": 2}, task_vars=variables(results, "a")
    )
    inventory = [str(results.parent / "a")]
    shown = [
        window.text,
        conclusion(folder)[1],
        overview.without_verdict(folder, folder.read_run()),
        "\n".join(overview.lines(overview.rows(results, inventory))),
    ]
    for text in shown:
        assert "`make report`" in text and "resume" not in text, text
    assert window.failed
    assert "`make validate` starts another" in shown[2]
    assert opening.choose_run_id(results, "", folder.read_run()["nodes"], "quick", [], inventory) != "r1"

    done = reported(results)
    assert not done.failed and "has not ended" not in done.text
    assert folder.seen().name == "judged" and folder.read_run()["finished_at"]
    verdict = publishing.judged(folder)
    assert verdict["verdict"] == "INCOMPLETE" and publishing.is_final(folder.read_run(), verdict)


@pytest.mark.parametrize(
    ("seconds", "told"), [(-60, "`make validate` resumes it"), (5, "ends it from 120 s after its deadline")]
)
def test_a_report_does_not_end_a_run_that_is_resumed_or_still_gets_records(results, seconds, told):
    folder = past_deadline(killed(started(results, "r1")), seconds)
    store = EmbeddedStore(results.parent / "state/store", "b")
    store.start()
    try:
        signed = store.connection()
        done = reported(results)
        assert store.connection() == signed, "what nodes still send is signed by this key"
    finally:
        store.stop()
    assert "run r1 has not ended: " in done.text and told in done.text
    assert folder.seen().name == "working" and folder.read_run()["finished_at"] is None


def begun(folder, **launch):
    """The run at work on its node, which has sent no record."""
    document = {"node": "node-1", "state": "started", "at": run_folder.now(), "stages": ["facts"], **launch}
    folder.write_launch("node-1", document)
    return folder


def test_of_a_run_whose_controller_is_gone_every_command_names_the_same_next_step(results):
    folder = killed(begun(started(results, "r1")))
    done = reported(results)
    report = run_folder.read_report(folder)
    (step,) = [step for step in next_steps.of_report(report, "a") if "not ended" in step[0]]
    assert step == ("The run has not ended: make validate resumes it", "make validate INVENTORY=a")
    texts = [
        done.text,
        *(line for line in report["summary"] if "node-1" in line),
        final_block(report).splitlines()[-2],
        overview.without_verdict(folder, folder.read_run()),
        "\n".join(overview.lines(overview.rows(results, [str(results.parent / "a")]))),
    ]
    assert len(texts) == 5
    for text in texts:
        assert text.count("`make validate` resumes it") == 1, text
    block = final_block(report, inventory="a")
    assert "The run has not ended: `make validate INVENTORY=a` resumes it" in block
    for other in ("gpuval_deadline_seconds", "make rerun", "retest", "make report"):
        assert other not in block


def test_status_names_how_to_resume_a_run_that_is_not_the_latest(results):
    folder = aged(killed(begun(started(results, "r1"))), 3)
    started(results, "r2")
    at = datetime.now(timezone.utc)
    run = folder.read_run()
    watch = publishing.watch_document(
        run, {}, [], run_seconds=1, begun_seconds=1, window=(0, 0), silence_seconds=9, ended=False
    )
    seen = StoredStatus(run, at, watch=watch, watch_modified=at - timedelta(seconds=200), controller=folder.seen())
    status = run_status.Status(seen)
    command = f"`make validate INVENTORY={results.parent / 'a'} RUN=r1` resumes it"
    assert any(command in line for line in status_lines.head_lines(status))


def test_a_report_after_a_clean_names_the_clean_and_blames_no_node(results):
    folder = killed(begun(started(results, "r1")))
    assert not clean_run(results).failed
    contact = {"class": "lost_contact", "message": "its folder is gone", "remedy": "check whether sshd restarted"}
    begun(folder, contact=contact)  # what a report finds of a node that was cleaned
    assert not reported(results).failed
    (node,) = run_folder.read_report(folder)["nodes"]
    assert node["class"] == "facts_missing" and node["action"]["name"] == "retest"
    (check,) = [check for check in node["checks"] if check["name"] == "facts_state"]
    assert check["reason"] == "missing: the run was ended by another command (clean)"
    assert check["remedy"] == "validate again with --limit node-1"


def reported(results):
    """`make report` of the latest run, without a store."""
    task_vars = variables(results, "a")
    assert not run_action("judge_run", {"results_dir": str(results), "finish": False}, task_vars=task_vars).failed
    store = {"bucket": "b", "state_dir": str(results.parent / "state")}
    return run_action("report_run", {"results_dir": str(results), "store": store}, task_vars=task_vars)


def test_a_report_of_a_run_that_never_started_says_why_there_is_none(results):
    killed(opened(results, "r1"))
    done = find_run(results)
    assert done.failed and "no run started yet: run r1 is failed since" in done.text


def test_a_report_goes_to_the_store_of_its_run_alone(results):
    killed(started(results, "r1"))
    done = find_run(results, bucket="other")
    assert done.failed and "bucket b" in done.text and "bucket other" in done.text


def test_what_is_the_controllers_own_is_not_in_the_store(results, store):
    folder = started(results, "r1")
    run = folder.read_run()
    assert run["origin"]["inventory"] == ["../a"]
    put_run(store, run)
    assert "origin" not in json.loads(store.get(f"{run['folder']}/run.json", max_bytes=10_000))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (["/x/a"], ["/x/a"], True),
        (["/x/a"], ["/x/a/hosts.yml"], True),
        (["/x/a", "/x/more"], ["/x/a"], True),
        (["/x/a", "/x/common"], ["/x/b", "/x/common"], False),
        (["/x/a"], ["/x/ab"], False),
        (["h1,h2"], ["h1,"], False),
        ([], ["/x/a"], True),
    ],
)
def test_two_inventories_are_one_where_either_has_all_of_the_other(one, other, same):
    assert origin.is_same(one, other) is same
    assert origin.is_same(other, one) is same


def test_results_that_were_moved_with_their_inventory_keep_it(results, tmp_path_factory):
    started(results, "r1")
    moved = tmp_path_factory.mktemp("moved") / "checkout"
    results.parent.rename(moved)
    assert run_folder.find(moved / "results", "r1").inventory == [str(moved / "a")]


def test_a_report_of_another_controllers_run_says_that_it_started_the_store(results):
    store = {"bucket": "b", "state_dir": str(results.parent / "state")}
    try:
        run_action("serve_store", {"store": store})
        put_run(open_store({"endpoint": "", **dict.fromkeys(("address", "port"), ""), **store}).store(), make_run())
        assert find_run(results).result["store_started"] is False
        shutil.rmtree(results)
        run_action("serve_store", {"store": store, "state": "stopped"})
        assert find_run(results).result["store_started"] is True
    finally:
        run_action("serve_store", {"store": store, "state": "stopped"})


def test_a_store_that_another_command_started_goes_on_for_a_run_and_ends_after_it(results):
    folder, store = started(results, "r1"), {"bucket": "b", "state_dir": str(results.parent / "state")}
    stop = {"store": store, "state": "stopped", "unless_needed_in": str(results)}
    try:
        assert run_action("serve_store", {"store": store}).result["changed"]
        assert not run_action("serve_store", stop).result["stopped"]
        folder.write_run({**folder.read_run(), "finished_at": run_folder.now()})
        killed(folder)
        options = {"results_dir": str(results), "store": store, "whole": True}
        status = run_action("show_status", options, task_vars=variables(results, "a"))
        assert status.failed and status.text.count(status.result["msg"]) == 1, "the console prints it"
        assert run_action("serve_store", stop).result["stopped"]
    finally:
        run_action("serve_store", {"store": store, "state": "stopped"})
