"""Another process on the accelerators: a plan that gives way ends, the records of others name it."""

import itertools
import os
import pwd
import subprocess
import sys
import threading

import pytest
from gpuval_node.hardware.users import User
from gpuval_runner import other_work
from gpuval_runner.other_work import OtherWork

from tests.kit.runner import SUCCEED, stage, until


def seen(*looks):
    """What is found after these looks, the last of which repeats."""
    left = itertools.chain(looks, itertools.repeat(looks[-1]))
    count = itertools.count(1)
    looked = []

    def users():
        looked.append(next(count))
        return set(next(left))

    work = OtherWork(users, look_seconds=0.001)
    until(lambda: len(looked) > len(looks) or work.found)
    return work.found


def test_a_process_that_stays_is_found():
    assert seen([], ["a (pid 1)"], ["a (pid 1)", "b (pid 2)"]) == "a (pid 1)"


def test_one_that_just_ends_is_not():
    assert seen(["a (pid 1)"], ["b (pid 2)"], []) == ""


def test_nothing_is_looked_for_unless_asked():
    assert (OtherWork(None).look(), OtherWork(None).found) == ("", "")


@pytest.mark.parametrize(("stays", "found"), [(["b (pid 2)"], "b (pid 2)"), ([], "")])
def test_what_came_just_before_the_end_of_a_stage_is_found(monkeypatch, stays, found):
    looks = iter([["a (pid 1)", "b (pid 2)"], stays])
    monkeypatch.setattr(OtherWork, "_watch", lambda _self: None)
    assert OtherWork(lambda: set(next(looks)), look_seconds=0).look() == found


def test_what_one_look_found_stays_when_a_look_beside_it_ends_later_without():
    asked, found = threading.Event(), threading.Event()

    def users():
        if threading.current_thread() is threading.main_thread():
            return {"a (pid 1)"}
        asked.set()
        found.wait(10)
        return set()

    before = set(threading.enumerate())
    work = OtherWork(users, look_seconds=0.001)
    (watcher,) = set(threading.enumerate()) - before
    assert asked.wait(10)
    assert work.look() == "a (pid 1)"
    found.set()
    watcher.join(10)
    assert (watcher.is_alive(), work.found) == (False, "a (pid 1)")


def test_what_the_runner_started_is_its_own_whatever_its_environment():
    with subprocess.Popen(["sleep", "60"], env={}) as own:
        try:
            assert other_work._not_ours([User(own.pid, "VLLM::EngineCor"), User(1, "init")]) == [User(1, "init")]
        finally:
            own.kill()
    assert other_work._not_ours([User(own.pid, "sleep")]) == []  # it has ended


@pytest.mark.parametrize(
    ("looks", "named"),
    [([[]], []), ([["b", "c"], []], []), ([["b", "c"], ["c", "d"]], ["c"])],
)
def test_an_ordinary_plan_looks_at_the_end_of_a_stage_only(looks, named):
    left = iter(looks)
    work = OtherWork(lambda: set(next(left)), look_seconds=0, gives_way=False)
    assert work.beside() == named
    assert work.found == ""


def nvidia_smi(node, pid):
    """The fake tool; returns the variables of a runner that finds it."""
    tool = node.base / "bin/nvidia-smi"
    tool.parent.mkdir(parents=True)
    tool.write_text(f"""#!/bin/sh
case "$1" in
  --query-gpu=*) echo "GPU-b, 1" ;;
  *gpu_uuid) echo "{pid}, GPU-b" ;;
  *) echo "{pid}, /usr/bin/trainer" ;;
esac
""")
    tool.chmod(0o755)
    return {"PATH": f"{tool.parent}:/usr/bin:/bin"}


TITLED = "open('/proc/self/comm', 'w').write('tr\\x1b[31mainer'); print(flush=True); input()"


def test_a_record_names_who_uses_the_accelerators_beside_its_stage(node):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", TITLED], **pipes) as other:
        other.stdout.readline()
        ended = f"kill {other.pid}; while kill -0 {other.pid} 2>/dev/null && ! grep -q ') Z' /proc/{other.pid}/stat; "
        stages = [stage("a"), stage("hangs", "sleep 30", timeout_seconds=0.5), stage("loading", gpus="none")]
        stages.append(stage("b", f"{ended} do sleep 0.05; done; {SUCCEED}"))
        node.put_plan(*stages, accelerator={"vendor": "nvidia", "count": 8})
        node.call("run", environment=nvidia_smi(node, other.pid))
    states = {"a": "success", "hangs": "timeout", "loading": "success", "b": "success"}
    assert node.states() == states
    user = f"trainer (pid {other.pid}) of user {pwd.getpwuid(os.getuid()).pw_name} on gpu:1"
    for name in states:
        beside = name in ("a", "hangs")
        assert node.record(name)["environment"] == ({"accelerator_users": [{"process": user}]} if beside else {})
        assert node.record(name)["message"].endswith(f"; other work on the accelerators: {user}") is beside
    assert node.record("a")["duration_seconds"] < other_work.LOOK_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("script", ["sleep 20", "exit 1"])
def test_a_runner_gives_way(node, script):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        accelerator = {"vendor": "nvidia", "count": 8}
        node.put_plan(stage("a", script), stage("b"), accelerator=accelerator, gives_way=True)
        node.call("run", environment=nvidia_smi(node, other.pid))
        other.stdin.close()
    assert node.states() == {"a": "cancelled", "b": "cancelled"}
    expected = f"gave way: others use this node's accelerators or run here: python (pid {other.pid})"
    assert node.record("a")["message"].startswith(expected[:60])
    assert f"(pid {other.pid})" in node.record("a")["message"]
