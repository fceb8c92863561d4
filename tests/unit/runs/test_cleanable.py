"""Which runs a clean is about: those of its inventory and namespace that may have left something, and no other's."""

import os
import re
import time

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import state as run_state

from tests.kit.actions import run_action
from tests.kit.run_commands import at_work, find_run, killed, lay_out, open_run, opened, started, variables
from tests.kit.run_commands import clean_run as clean


@pytest.fixture
def results(tmp_path):
    return lay_out(tmp_path)


def reported(results, run_ids, nodes=(), inventory="a", result=None):
    task_vars = variables(results, inventory)
    task_vars["hostvars"]["node-1"]["cleanup_node"] = result or {"changed": False, "removed": []}
    task_vars["groups"] = {"all": ["node-1"]}
    store = {"bucket": "b", "state_dir": str(results.parent / "state")}
    options = {
        "state": "reported",
        "run_ids": run_ids,
        "nodes": list(nodes),
        "results_dir": str(results),
        "store": store,
    }
    return run_action("clean_run", options, task_vars=task_vars)


def ended(results, run_id, inventory="a", **options):
    folder = started(results, run_id, inventory) if not options else opened(results, run_id, inventory, **options)
    for step in ("working", "collecting", "judged"):
        folder.advance(step)
    folder.write_run({**folder.read_run(), "finished_at": run_folder.now()})
    return folder


def test_a_clean_does_not_grow_with_history(results):
    runs = [f"r{number:02}" for number in range(27)]
    for run_id in runs:
        ended(results, run_id)
    first = clean(results).result
    assert sorted(first["run_ids"]) == runs
    assert not reported(results, first["run_ids"]).failed
    assert len(clean(results).result["run_ids"]) == 1, "the latest run stands for all that is clean"
    ended(results, "r27")
    assert clean(results).result["run_ids"] == ["r27"]


def test_an_imported_run_stays_as_it_was_imported(results):
    folder = ended(results, "r1")
    run_folder.write_json(folder.import_file, {})
    before = folder.run_file.read_bytes()
    assert not reported(results, ["r1"]).failed
    assert folder.run_file.read_bytes() == before and not folder.cleaned_file.exists()


@pytest.mark.parametrize("all_runs", [False, True])
def test_without_a_terminal_a_run_whose_controller_lives_is_refused_in_one_line(results, all_runs):
    folder = started(results, "r1", "b" if all_runs else "a")
    asked = {"force": False, "all_runs": all_runs}
    refused = clean(results, **asked)
    assert refused.failed and folder.read_run()["finished_at"] is None
    line = r"run r1, working since \S+, controller .* works on it: press Ctrl-C there, or `make clean .*RUN=r1 FORCE=1`"
    assert re.search(line, refused.text) and sum("FORCE=1" in shown for shown in refused.lines) == 1
    assert not clean(results, check_mode=True, **asked).failed, "nothing is ended"
    killed(folder)
    assert not clean(results, **asked).failed


def test_the_folders_of_mad_models_go_with_their_run_and_those_that_are_being_written_stay(results):
    place = results.parent / "state/mad"
    for name, age in (("old", 3600), ("new", -3600)):
        (place / name / "repository").mkdir(parents=True)
        os.utime(place / name, (time.time() - age,) * 2)
    started(results, "other", "b")
    ended(results, "r1")
    assert "other" in clean(results).result["active"]
    assert {one.name for one in place.iterdir()} == {"old", "new"}, "another run may build from them"
    assert clean(results, "b", check_mode=True).result["run_ids"] == ["other"]
    assert {one.name for one in place.iterdir()} == {"old", "new"}
    assert clean(results, "b").result["changed"]
    assert {one.name for one in place.iterdir()} == {"new"}


def test_what_was_not_cleaned_whole_is_asked_for_again(results):
    for run_id in ("r1", "r2"):
        ended(results, run_id)
    away = {"failed": True, "unreachable": True, "msg": "Connection refused"}
    done = reported(results, ["r1", "r2"], nodes=["node-1"], result=away)
    assert done.failed and "node-1 not reached" in done.text
    assert sorted(clean(results).result["run_ids"]) == ["r1", "r2"]


def test_a_node_on_which_nothing_was_started_is_not_red_for_ever(results):
    ended(results, "r1")
    away = {"failed": True, "unreachable": True, "msg": "Connection refused"}
    done = reported(results, ["r1"], result=away)
    assert not done.failed and "node-1 not reached, and nothing is there" in done.text
    old = {"failed": True, "msg": "Python 3.6 is too old for the runner, which needs 3.9"}
    assert not reported(results, ["r1"], result=old).failed
    assert reported(results, ["r1"], nodes=["node-1"], result=old).failed


def test_a_clean_never_takes_the_run_of_another_inventory(results):
    ours, theirs = ended(results, "r1", "a"), started(results, "r2", "b")
    done = clean(results, "a")
    assert done.result["run_ids"] == ["r1"] and done.result["active"] == ["r2"]
    assert theirs.read_run()["finished_at"] is None and theirs.seen().name == "working"
    assert f"INVENTORY={results.parent / 'b'}" in done.text and "r2" in done.text
    assert "the embedded store goes on, since it serves run r2" in done.text
    assert clean(results, "a", "r2").failed, "not by its id either"
    assert ours.read_run()["finished_at"]


@pytest.mark.parametrize(("check_mode", "what"), [(False, "this clean ends"), (True, "a clean would end")])
def test_a_clean_names_the_run_that_it_ends_its_nodes_and_its_controller(results, check_mode, what):
    folder = at_work(started(results, "r1"))
    seen = folder.seen()
    ends = f"{what} run r1, working since {seen.since}, at work with 1 node, "
    assert f"{ends}controller {seen.who()}" in clean(results, check_mode=check_mode).lines
    assert (folder.read_run()["finished_at"] is None) is check_mode
    assert " run r1, " not in clean(results, run_id="r1").text or check_mode, "it has ended"


def test_a_clean_of_a_run_that_its_controller_left_says_so(results):
    killed(at_work(started(results, "r1")))
    assert ", at work with 1 node, without a controller" in clean(results).text
    killed(opened(results, "r2"))
    assert "this clean ends" not in clean(results).text, "no node began"


def test_a_clean_does_not_deny_a_controller_of_which_nothing_is_known(results):
    folder = at_work(started(results, "r1"))
    run = folder.read_run()
    folder.write_run({**run, "state": {**run["state"], "workers": []}})
    assert ", at work with 1 node, controller not known" in clean(results).text


def test_the_way_to_end_an_earlier_run_names_it_and_its_nodes_are_not_called_clean(results):
    at_work(started(results, "r1"))
    ended(results, "r2")
    command = f"`make clean INVENTORY={results.parent / 'a'} RUN=r1`"
    done = clean(results, run_id="r2")
    assert f"the embedded store goes on, since it serves run r1: to end that, {command}" in done.lines
    result = {"outcome": {"state": "clean", "message": "", "removed": ["/x"]}}
    done = reported(results, ["r2"], result=result)
    assert done.lines[0] == "CLEAN: run r2: removed from all of 1 nodes"
    assert f"- Run r1 goes on, on node-1: to end it, {command}" in done.lines
    clean(results, run_id="r1")
    assert "all of 1 nodes are clean" in reported(results, ["r1"], result=result).text


def test_a_store_that_no_run_needs_ends(results):
    killed(opened(results, "r2", "b"))  # its controller died before a node began
    ended(results, "r1", "a")
    assert clean(results, "a").result["active"] == []
    opened(results, "r3", "b", bucket="other").advance("working")
    assert clean(results, "a").result["active"] == [], "that run is in another store"


def test_without_a_run_of_the_inventory_the_store_of_others_stays(results):
    started(results, "r2", "b")
    done = clean(results, "a")
    assert (done.result["run_ids"], done.result["active"]) == ([], ["r2"])


def test_runs_of_other_namespaces_are_named_and_not_cleaned(results):
    ended(results, "r1", namespace="one")
    ended(results, "r2", namespace="two")
    done = clean(results, namespace="one")
    assert done.result["run_ids"] == ["r1"]
    assert "in two stay r2" in done.text
    assert clean(results, run_id="r2", namespace="one").failed
    assert clean(results, run_id="r2", namespace="two").result["run_ids"] == ["r2"]


def test_a_run_that_was_cleaned_is_not_resumed(results):
    folder = started(results, "r1")
    folder.advance("collecting")
    killed(folder)
    assert clean(results).result["changed"]
    assert (folder.seen().name, folder.seen().reason) == ("failed", "it was ended by `make clean`")
    assert open_run(results).result["run"]["run_id"] != "r1"
    assert not find_run(results).failed, "it can be reported"


def test_a_run_that_is_opened_again_after_a_clean_is_cleaned_again(results):
    folder = ended(results, "r1")
    folder.mark_cleaned()
    run = folder.read_run()
    assert not run_state.to_clean(run)
    run["state"]["opened_at"] = "2999-01-01T00:00:00Z"
    assert run_state.to_clean(run)


@pytest.mark.parametrize("namespace", ["", "one"])
def test_a_run_that_keeps_no_origin_belongs_to_any_inventory(results, namespace):
    folder = ended(results, "r1")
    run = folder.read_run()
    folder.write_run({key: value for key, value in run.items() if key not in ("origin", "state")})
    folder.path.rename(results / "r1")  # where the release that kept none wrote it
    assert clean(results, "b", namespace=namespace).result["run_ids"] == ["r1"]
