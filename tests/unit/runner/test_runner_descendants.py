import os
import signal
import subprocess

import pytest
from gpuval_node.process_stat import Process, look, parse_stat, snapshot, variable_of
from gpuval_runner import descendants
from gpuval_runner.descendants import belonging

from tests.kit.runner import until


def process(pid, parent=1, session=None, name="x"):
    return Process(pid=pid, start_ticks=pid * 10, parent=parent, session=session or pid, state="S", name=name)


def members(processes, marker="r/n/s/1", markers=None, own_pid=10, **options):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(descendants.os, "getpid", lambda: own_pid)
        patched.setattr(descendants, "variable_of", lambda pid, _name: (markers or {}).get(pid, ""))
        found = belonging({p.pid: p for p in processes}, marker, **options)
    return sorted(p.pid for p in found)


RUNNER = [process(1, 0), process(5, 1), process(10, 5)]


def test_a_name_may_hold_anything():
    line = "42 (a) b (c)) S 1 42 40 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 98765 0 0"
    assert parse_stat(line) == Process(42, 98765, 1, 40, "S", "a) b (c)")
    assert parse_stat("garbage") is None


def test_marker_session_parent_and_descent_belong():
    others = [
        process(20, parent=1, session=99),  # marked
        process(21, parent=20, session=77),  # child of a marked one
        process(22, parent=1, session=77),  # in the session of that child
        process(23, parent=1, session=50),  # in the stage's session
        process(24, parent=10, session=60),  # adopted by the runner
        process(30, parent=1, session=30),  # nobody's
    ]
    assert members([*RUNNER, *others], markers={20: "r/n/s/1"}, session=50, parent=10) == [20, 21, 22, 23, 24]


def test_another_stage_or_run_does_not_belong():
    others = [process(20), process(21), process(22)]
    markers = {20: "r/n/s/2", 21: "r2/n/s/1", 22: "r/n/s/1/more"}
    assert members([*RUNNER, *others], markers=markers) == []
    assert members([*RUNNER, *others], marker="r/n/", markers=markers) == [20, 22]


def test_the_runner_its_ancestors_and_their_sessions_are_spared():
    shell = process(5, 1, session=5)
    neighbour = process(40, parent=1, session=5)
    processes = [process(1, 0), shell, process(10, 5, session=5), neighbour]
    marked = {10: "r/n/s/1", 5: "r/n/s/1", 1: "r/n/s/1"}
    assert members(processes, markers=marked, session=5) == []


def test_in_a_pod_pid_2_is_no_kernel_thread():
    inside = [process(1, 0), process(2, 1), process(3, 2)]
    assert members(inside, session=2, own_pid=1) == [2, 3]


@pytest.fixture
def sleeper():
    child = subprocess.Popen(["sleep", "60"], env={descendants.MARKER_VARIABLE: "r-x/n/s/1"}, start_new_session=True)
    until(lambda: variable_of(child.pid, descendants.MARKER_VARIABLE) == "r-x/n/s/1")
    yield child
    child.kill()
    child.wait()


def test_a_real_process_is_found_and_signalled(sleeper):
    found = belonging(snapshot(), "r-x/n/")
    assert [p.pid for p in found] == [sleeper.pid]
    assert descendants.send(found[0], signal.SIGTERM)
    assert sleeper.wait(30) == -signal.SIGTERM


def test_a_later_process_of_the_same_pid_is_not_signalled(sleeper):
    present = look(sleeper.pid)
    stale = Process(present.pid, present.start_ticks - 1, present.parent, present.session, present.state, present.name)
    assert not descendants.send(stale, signal.SIGKILL)
    assert sleeper.poll() is None


def test_zombies_do_not_count():
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert look(child.pid) is None
    child.wait()
