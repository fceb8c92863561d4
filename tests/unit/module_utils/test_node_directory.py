"""What on a node is taken for ours: it is run, and removed."""

import fcntl
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils import node_directory
from ansible_collections.gpuval.fleet.plugins.module_utils.node_steps import clean_node


def put_run(base, run_id="r1", node="n1", **plan):
    folder = base / run_id / node
    node_directory.make_private(folder)
    document = {"schema": "gpuval.plan/1", "run_id": run_id, "node": node, **plan}
    (folder / "plan.json").write_text(json.dumps(document))
    (folder / "runner.pyz").write_text("")
    return folder


def test_runs_are_found_by_id_and_all_of_them(tmp_path):
    first, second = put_run(tmp_path), put_run(tmp_path, "r2")
    (tmp_path / "models" / "llama").mkdir(parents=True)
    assert list(node_directory.run_folders(tmp_path, "r1")) == [first]
    assert list(node_directory.run_folders(tmp_path)) == [first, second]


OTHER = '{"schema": "gpuval.plan/1", "run_id": "r1", "node": "other"}'


@pytest.mark.parametrize("text", ["{}", "[]", "not JSON", OTHER])
def test_a_folder_with_a_plan_of_something_else_is_not_ours(tmp_path, text):
    folder = tmp_path / "home" / "alice"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "plan.json").write_text(text)
    (folder / "runner.pyz").write_text("")
    assert list(node_directory.run_folders(tmp_path)) == []
    assert list(node_directory.run_folders(tmp_path, "home")) == []


def test_links_are_not_followed(tmp_path):
    put_run(tmp_path / "elsewhere")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "r1").symlink_to(tmp_path / "elsewhere" / "r1")
    assert list(node_directory.run_folders(tmp_path / "base")) == []


def test_a_folder_that_others_may_write_is_refused(tmp_path):
    put_run(tmp_path).chmod(0o777)
    with pytest.raises(node_directory.NodeError, match="user alone"):
        list(node_directory.run_folders(tmp_path))


def test_a_launch_that_died_at_its_first_file_is_found_and_removed(tmp_path):
    folder = tmp_path / "base" / "r1" / "n1"
    node_directory.make_private(folder)
    (folder / "runner.pyz.new").write_text("half")
    assert list(node_directory.run_folders(tmp_path / "base")) == [folder]
    assert list(node_directory.run_folders(tmp_path / "base", "r1")) == [folder]
    assert node_directory.holds_only_launch(folder)
    clean_node.remove_launch(folder)
    assert not (tmp_path / "base").exists()


def test_another_run_at_work_is_known_by_its_lock(tmp_path):
    mine, other, ended = (put_run(tmp_path, run_id=run_id) for run_id in ("mine", "other", "ended"))
    for path in (mine, other, ended):
        (path / "lock").write_text('{"pid": 7, "since": "2026-11-23T10:00:00Z"}')
        (path / "controller").write_text("ann@laptop")
    with (other / "lock").open("rb") as held, (mine / "lock").open("rb") as own:
        fcntl.flock(held, fcntl.LOCK_EX)
        fcntl.flock(own, fcntl.LOCK_EX)
        assert node_directory.runs_at_work(tmp_path, but="mine") == {
            "other": " since 2026-11-23T10:00:00Z, started by ann@laptop"
        }
    assert node_directory.runs_at_work(tmp_path, but="mine") == {}


def test_what_hangs_on_a_node_ends_the_launch_in_time(tmp_path):
    begun = time.monotonic()
    with pytest.raises(node_directory.NodeError, match="did not answer within 1 s"):
        node_directory.within(1, time.sleep, 60)
    assert time.monotonic() - begun < 45


def test_what_a_launch_says_comes_back_whole():
    assert node_directory.within(30, lambda: {"text": "x" * 1_000_000})["text"] == "x" * 1_000_000


def test_what_goes_wrong_in_a_launch_is_reported():
    def refused():
        raise node_directory.NodeError("set gpuval_node_dir")

    with pytest.raises(node_directory.NodeError, match="set gpuval_node_dir"):
        node_directory.within(30, refused)
    with pytest.raises(node_directory.NodeError, match="ZeroDivisionError on the node"):
        node_directory.within(30, lambda: 1 // 0)


def test_one_machine_under_two_names_of_a_run_is_seen_while_the_first_works(tmp_path):
    first = put_run(tmp_path, node="n1")
    put_run(tmp_path, node="n2")
    assert node_directory.names_in_run(tmp_path, "r1", "n2") == []
    with (first / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert node_directory.names_in_run(tmp_path, "r1", "n2") == ["n1"]
        assert node_directory.names_in_run(tmp_path, "r1", "n1") == []
        assert node_directory.names_in_run(tmp_path, "r2", "n2") == []


def test_one_machine_under_two_names_is_seen_when_the_first_has_ended(tmp_path):
    boot = tmp_path / "boot_id"
    boot.write_text("this-boot\n")
    first = put_run(tmp_path / "base", node="n1")
    for known, names in (("this-boot", ["n1"]), ("another-boot", []), ("", [])):
        (first / "state.json").write_text(json.dumps({"boot": known}))
        assert node_directory.names_in_run(tmp_path / "base", "r1", "n2", boot) == names
    (first / "state.json").write_text("torn")
    assert node_directory.names_in_run(tmp_path / "base", "r1", "n2", boot) == []


def test_a_folder_that_another_machine_works_in_is_no_twin_and_says_so(tmp_path):
    boot = tmp_path / "boot_id"
    boot.write_text("this-boot\n")
    first = put_run(tmp_path / "base", node="n1")
    (first / "state.json").write_text('{"boot": "of-another-machine"}')
    with (first / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(node_directory.NodeError, match="is shared with another machine, on which n1"):
            node_directory.names_in_run(tmp_path / "base", "r1", "n2", boot)


def test_two_launches_on_one_machine_take_turns_and_leave_nothing(tmp_path):
    base = tmp_path / "base"
    with node_directory.one_launch_at_once(base):
        descriptor = os.open(base, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        busy = pytest.raises(node_directory.NodeError, match="another launch or clean")
        with busy, node_directory.one_at_once(base, 0.2):
            pass
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    assert list(base.iterdir()) == []


def test_a_folder_removed_while_a_launch_waits_is_made_again_and_held(tmp_path):
    base = tmp_path / "base"
    with ThreadPoolExecutor(1) as pool:
        with node_directory.one_launch_at_once(base):
            waiting = pool.submit(held_inode, base)
            time.sleep(0.2)
            base.rmdir()
        assert waiting.result(10) == base.stat().st_ino


def held_inode(base):
    with node_directory.one_launch_at_once(base):
        return base.stat().st_ino


def test_a_clean_of_nothing_makes_nothing(tmp_path):
    with pytest.raises(FileNotFoundError), node_directory.one_at_once(tmp_path / "base"):
        pass
    assert not (tmp_path / "base").exists()


PLACED = ["runner.pyz.new", "runner.pyz", "workloads.zip.new", "store.json.new", "store.json", "plan.json.new"]


@pytest.mark.parametrize("files", [PLACED[: 1 + count] for count in range(len(PLACED))], ids=PLACED)
def test_a_launch_is_known_at_whatever_file_it_died(tmp_path, files):
    folder = tmp_path / "base" / "r1" / "n1"
    node_directory.make_private(folder)
    for name in files:
        (folder / name).write_text("half")
    assert list(node_directory.run_folders(tmp_path / "base")) == [folder]
    assert node_directory.holds_only_launch(folder)


@pytest.mark.parametrize("files", [[], ["notes.new"], ["runner.pyz.new", "notes"], ["store.json"]])
def test_what_is_not_named_as_by_a_launch_is_left_alone(tmp_path, files):
    folder = tmp_path / "base" / "r1" / "n1"
    node_directory.make_private(folder)
    for name in files:
        (folder / name).write_text("whose?")
    assert list(node_directory.run_folders(tmp_path / "base")) == []


def test_a_user_without_a_name_has_a_folder_by_number(monkeypatch):
    monkeypatch.setattr(node_directory.os, "geteuid", lambda: 4_000_000_001)
    assert str(node_directory.base_directory("")) == "/var/tmp/gpuval-4000000001"
