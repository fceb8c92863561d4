"""Where runs lie: `results/<inventory>/<run_id>`; runs of release 1.0 move there once, or are read where they are."""

import multiprocessing
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery import log_bundle
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import cleanable, origin, overview
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit.actions import run_action
from tests.kit.needs import tmpfs
from tests.kit.run_commands import at_work, clean_run, killed, lay_out, open_run, opened, started, variables

RELEASE = Path(__file__).parents[2] / "data/release_1_0"
NAMES = [
    (["/x/inventories/baremetal/hosts.yml"], "baremetal"),
    (["/x/inventories/baremetal"], "baremetal"),
    (["/x/lab.yml"], "lab"),
    (["/x/rack.v2"], "rack.v2"),
    (["/hosts"], "hosts"),
    (["host-1,"], "host-1"),
    (["/x/a.yml", "/x/b.ini"], "a+b"),
    (["/x/a b/../'c.yml"], "c"),
    (["/x/latest", "/y" * 99], "latest+y"),
    ([], "unknown"),
]


@pytest.fixture
def results(tmp_path):
    return lay_out(tmp_path)


@pytest.fixture
def released(tmp_path):
    """The results of release 1.0, with its runs directly in them."""
    shutil.copytree(RELEASE / "ssh/results", tmp_path / "results", symlinks=True)
    return tmp_path / "results"


def as_released(folder):
    """Move a run to where release 1.0 wrote it."""
    results = folder.results
    shutil.rmtree(results / run_folder.LATEST, ignore_errors=True)
    (results / run_folder.LATEST).unlink(missing_ok=True)
    (results / run_folder.LATEST).symlink_to(folder.path.name)
    folder.path.rename(results / folder.path.name)
    shutil.rmtree(folder.path.parent)
    return run_folder.RunFolder(results / folder.path.name)


def ids(results, inventory=()):
    return [run.path.name for run in run_folder.known_runs(results, inventory)]


@pytest.mark.parametrize(("inventory", "name"), NAMES)
def test_a_folder_is_named_after_its_inventory(inventory, name):
    assert origin.folder_name(inventory) == name


def test_each_inventory_has_a_folder_with_its_latest_run(results):
    runs = [started(results, "r1", "a"), started(results, "r2", "b"), started(results, "r3", "a")]
    assert [str(run.path.relative_to(results)) for run in runs] == ["a/r1", "b/r2", "a/r3"]
    links = {name: str((results / name).readlink()) for name in ("latest", "a/latest", "b/latest")}
    assert links == {"latest": "a/r3", "a/latest": "r3", "b/latest": "r2"}
    assert (ids(results, runs[0].inventory), ids(results, runs[1].inventory)) == (["r1", "r3"], ["r2"])
    assert ids(results) == ["r1", "r2", "r3"]


def test_inventories_of_one_file_name_do_not_share_a_folder(results):
    places = []
    for number, name in enumerate(("x", "y", "x")):
        (results.parent / name / "lab").mkdir(parents=True, exist_ok=True)
        (results.parent / name / "lab/hosts.yml").write_text("")
        places.append(opened(results, f"r{number}", f"{name}/lab/hosts.yml").path.parent)
    assert places[0] == places[2] == results / "lab"
    assert places[1].name.startswith("lab-")
    assert ids(results, [str(results.parent / "y/lab/hosts.yml")]) == ["r1"]


@pytest.mark.parametrize("sources", [("lab", "lab/hosts.yml"), ("lab/hosts.yml", "lab")])
def test_an_inventorys_folder_and_its_file_are_one_inventory(results, sources):
    (results.parent / "lab").mkdir()
    (results.parent / "lab/hosts.yml").write_text("")
    places = [opened(results, f"r{number}", source).path.parent for number, source in enumerate(sources)]
    assert places == [results / "lab"] * 2


def test_files_of_one_folder_are_inventories_of_their_own_though_their_runs_lie_together(results):
    (results.parent / "lab").mkdir()
    for name in ("hosts.yml", "nodes.yml"):
        (results.parent / "lab" / name).write_text("")
    runs = [opened(results, f"r{number}", f"lab{end}") for number, end in enumerate(("", "/hosts.yml", "/nodes.yml"))]
    assert {run.path.parent for run in runs} == {results / "lab"}
    of_files = [str(results.parent / "lab" / name) for name in ("hosts.yml", "nodes.yml")]
    assert [ids(results, [file]) for file in of_files] == [["r0", "r1"], ["r0", "r2"]]
    with pytest.raises(run_folder.RunError, match="run r1 is one of the inventory"):
        run_folder.ensure_of(runs[1], of_files[1:])


def test_logs_of_a_run_do_not_come_into_the_folder_of_an_inventory_of_its_name(results):
    opened(results, "r1", "a")
    assert "no run in" in log_bundle.unknown_run(results, "a")
    assert log_bundle.run_folder_of(results, "a") == results / log_bundle.NO_RUN


@pytest.mark.parametrize("taken", ["latest", "models"])
def test_a_name_with_another_meaning_gets_a_digest(results, taken):
    (results.parent / taken).write_text("")
    assert opened(results, "r1", taken).path.parent.name.startswith(f"{taken}-")


def test_a_folder_that_is_no_inventorys_is_left_alone(results):
    (results / "a").mkdir(parents=True)
    (results / "a" / "notes.txt").write_text("mine")
    assert opened(results, "r1").path.parent.name.startswith("a-")


def test_runs_of_release_1_0_move_once_and_are_like_any_other(released):
    (run_id,) = ids(released)
    before = {path.relative_to(released / run_id): path.read_bytes() for path in files_of(released / run_id)}
    listed = run_action("list_runs", {"results_dir": str(released)})
    moved = run_folder.find(released, run_id)
    assert moved.path.parent.parent == released and f"run {run_id} is now in {moved.path}" in listed.text
    assert {path.relative_to(moved.path): path.read_bytes() for path in files_of(moved.path)} == before
    assert (released / "latest").resolve() == (moved.path.parent / "latest").resolve() == moved.path
    assert "is now in" not in run_action("list_runs", {"results_dir": str(released)}).text
    assert ids(released) == [run_id]


def files_of(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_trial_moves_nothing(released):
    (run_id,) = ids(released)
    run_action("list_runs", {"results_dir": str(released)}, check_mode=True)
    assert (released / run_id / "run.json").exists()


def test_a_run_that_its_controller_works_on_stays_until_that_has_ended(results):
    run = as_released(at_work(started(results, "r1")))
    assert run_folder.adopt(results) == []
    assert run.path.exists() and ids(results, run.inventory) == ["r1"] and ids(results, ["elsewhere"]) == []
    assert [row["state"] for row in overview.rows(results, run.inventory)] == ["working"]
    assert cleanable.command(results, "r1").endswith("RUN=r1`")
    assert clean_run(results, "a").result["run_ids"] == ["r1"]
    for step in ("collecting", "judged"):
        run.advance(step)
    killed(run)
    assert run_folder.adopt(results) == [run_folder.RunFolder(results / "a/r1")]


@pytest.mark.parametrize("is_of_1_0", [True, False])
def test_a_run_whose_controller_is_gone_moves_and_is_resumed_by_the_version_that_began_it(results, is_of_1_0):
    run = as_released(killed(started(results, "r1")))
    if is_of_1_0:
        run.write_run({key: value for key, value in run.read_run().items() if key != "version"})
    again = open_run(results)
    assert not run.path.exists() and run_folder.find(results, "r1").path == results / "a/r1"
    assert again.failed == is_of_1_0, again.text
    if is_of_1_0:
        assert "run r1 was begun by gpuval 1.0, and 2.0.0 does not resume it: run `make report`" in again.text


def test_a_damaged_run_stays_until_it_is_restored(released):
    (run_id,) = ids(released)
    (released / run_id / "run.json").write_text("{")
    assert run_folder.adopt(released) == []
    assert run_folder.find(released, run_id).path == released / run_id


def test_a_full_disk_leaves_runs_where_they_are(tmp_path):
    (tmp_path / "results").mkdir()
    with tmpfs(tmp_path / "results", "size=64m") as results:
        shutil.copytree(RELEASE / "ssh/results", results, symlinks=True, dirs_exist_ok=True)
        (run_id,) = ids(results)
        with suppress(OSError), (results / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(1 << 16)):
                pass
        with suppress(OSError), (results / "filler.end").open("wb", buffering=0) as filler:
            while filler.write(bytes(512)):
                pass
        listed = run_action("list_runs", {"results_dir": str(results)})
        assert not listed.failed and run_id in listed.text and (results / run_id / "run.json").exists(), listed
        (results / "filler").unlink()
        (moved,) = run_folder.adopt(results)
        assert "-" not in moved.path.parent.name, "what the first attempt left is no other inventory"


def test_a_move_that_broke_off_before_the_link_followed_is_read_all_the_same(released):
    (run_id,) = ids(released)
    run_folder.adopt(released)
    (released / "latest").unlink()
    (released / "latest").symlink_to(run_id)
    assert run_folder.latest_run(released) == run_folder.find(released, run_id)


def test_results_that_cannot_be_written_are_read_where_they_are(tmp_path):
    (tmp_path / "results").mkdir()
    with tmpfs(tmp_path / "results", "size=64m") as results:
        shutil.copytree(RELEASE / "ssh/results", results, symlinks=True, dirs_exist_ok=True)
        subprocess.run(["mount", "-o", "remount,ro", str(results)], check=True)
        (run_id,) = ids(results)
        listed = run_action("list_runs", {"results_dir": str(results)})
        assert not listed.failed and run_id in listed.text and (results / run_id).exists(), listed


def test_commands_that_start_at_once_move_each_run_once(tmp_path):
    results = tmp_path / "results"
    for place in ("ssh", "kubernetes", "local"):
        shutil.copytree(
            RELEASE / place / "results", results, ignore=shutil.ignore_patterns("latest"), dirs_exist_ok=True
        )
    known = ids(results)
    context = multiprocessing.get_context("fork")
    answers, go = context.Queue(), context.Event()

    def command():
        go.wait(60)
        listed = run_action("list_runs", {"results_dir": str(results)})
        answers.put((listed.failed, listed.text.count("is now in"), all(run_id in listed.text for run_id in known)))

    commands = [context.Process(target=command) for _ in range(4)]
    for process in commands:
        process.start()
    go.set()
    outcomes = [answers.get(timeout=60) for _ in commands]
    for process in commands:
        process.join()
    assert [failed for failed, *_ in outcomes] == [False] * 4
    assert all(complete for *_, complete in outcomes)
    assert sum(moved for _, moved, _ in outcomes) == len(known)
    assert ids(results) == known and not list(results.glob("2*"))


def test_the_store_of_a_run_of_another_inventory_is_needed(results):
    at_work(started(results, "r1", "b"))
    store = {"bucket": "b", "state_dir": str(results.parent / "state")}
    stopped = run_action(
        "serve_store",
        {"state": "stopped", "unless_needed_in": str(results), "store": store},
        task_vars=variables(results, "a"),
    )
    assert "a run needs the store" in stopped.text


def test_a_run_of_a_controller_on_another_host_stays_however_silent_it_is(results):
    run = as_released(started(results, "r1"))
    kept = run.read_run()
    workers = [{**worker, "host": "elsewhere"} for worker in kept["state"]["workers"]]
    run.write_run({**kept, "state": {**kept["state"], "workers": workers}})
    for path in (run.run_file, run.watch_file):
        if path.exists():
            os.utime(path, (0, 0))
    assert run.seen().attended is False and run_folder.adopt(results) == []


def test_a_run_that_is_there_twice_does_not_keep_others_from_moving(released):
    (run_id,) = ids(released)
    shutil.copytree(released / run_id, released / "another")
    run = run_folder.read_json(released / "another/run.json")
    run_folder.write_json(released / "another/run.json", {**run, "run_id": "another"})
    first, second = run_folder.adopt(released)
    shutil.copytree(first.path, released / first.path.name)
    shutil.copytree(second.path, released / second.path.name)
    shutil.rmtree(second.path)
    assert run_folder.adopt(released) == [second] and (released / first.path.name).exists()


def test_a_copy_of_another_controllers_run_moves_to_those_of_no_known_inventory(released):
    (run_id,) = ids(released)
    run_folder.write_json(run_folder.find(released, run_id).import_file, {})
    (copy,) = run_folder.adopt(released)
    assert copy.path == released / "unknown" / run_id and copy.is_imported and copy.inventory == []
    assert run_folder.known_runs(released, imported=True) == [copy] and ids(released) == []
