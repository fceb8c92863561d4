"""Files of the controller are replaced whole, and changed by one process at a time."""

import errno
import multiprocessing
import os
import stat
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import errors, files
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps import serve_store

from tests.kit.actions import run_action


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_replaced_with_the_mode_asked_for(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(b"old")
    path.chmod(0o644)
    files.replace(path, b"new", files.PRIVATE)
    assert path.read_bytes() == b"new"
    assert mode_of(path) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


def test_without_a_mode_the_umask_decides(tmp_path):
    before = os.umask(0o027)
    try:
        files.replace(tmp_path / "report", b"text")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "report") == 0o640


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path):
    path = tmp_path / "state"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        files.replace(path, b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


def hold(path, taken, end):
    with files.locked(path, 5, TimeoutError("not in the test")):
        taken.set()
        end.wait(30)


def test_a_lock_is_waited_for_and_then_refused(tmp_path):
    context = multiprocessing.get_context("fork")
    taken, end = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(tmp_path / "lock", taken, end))
    holder.start()
    try:
        assert taken.wait(30)
        with (
            pytest.raises(TimeoutError, match="end the other"),
            files.locked(tmp_path / "lock", 0.2, TimeoutError("end the other")),
        ):
            pytest.fail("two processes hold one lock")
        with files.locked(tmp_path / "lock", 0, None):
            pass
        end.set()
        with files.locked(tmp_path / "lock", 30, TimeoutError("never let go")):
            pass
    finally:
        end.set()
        holder.join(30)


@pytest.mark.parametrize("number", files.NO_LOCKS)
def test_a_file_system_without_locks_stops_nobody(tmp_path, monkeypatch, number):
    def flock(_descriptor, _operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.fcntl, "flock", flock)
    with files.locked(tmp_path / "lock", 0, TimeoutError("never said")):
        pass


@pytest.mark.parametrize(
    ("number", "path", "told"),
    [
        (
            errno.EROFS,
            "/srv/results/r1/run.json",
            "Read-only file system: set gpuval_results_dir to a folder",
        ),
        (errno.EACCES, "/srv/state/store", "Permission denied: set gpuval_state_dir to a folder"),
        (
            errno.ENOSPC,
            "/srv/state/store/a",
            "No space left on device: free space, or set gpuval_state_dir to a folder on",
        ),
        (errno.ENOSPC, None, "No space left on device: free space, or set gpuval_results_dir or gpuval_state_dir to"),
        (errno.ENOENT, "/srv/results", "No such file or directory: set gpuval_results_dir to a folder"),
        (errno.ESTALE, "/srv/results/r1/run.json", "Stale file handle: set gpuval_results_dir to a folder"),
        (errno.ENOENT, "/srv/results/r1/run.json", ""),
        (errno.ECONNREFUSED, None, ""),
    ],
)
def test_an_error_of_the_disk_names_the_setting_to_change(number, path, told):
    folders = {"gpuval_results_dir": Path("/srv/results"), "gpuval_state_dir": Path("/srv/state")}
    problem = errors.disk_problem(OSError(number, os.strerror(number), path), folders)
    assert problem.removeprefix(f"{path}: ").startswith(told)
    assert bool(problem) == bool(told)


def test_an_action_that_meets_a_full_disk_says_what_to_change(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "store"))

    monkeypatch.setattr(serve_store, "open_store", full)
    outcome = run_action("serve_store", {"store": {"bucket": "b", "state_dir": str(tmp_path)}})
    assert outcome.failed
    assert outcome.text.strip() == (
        f"{tmp_path}/store: No space left on device: free space, or set gpuval_state_dir to a folder on another disk"
    )
