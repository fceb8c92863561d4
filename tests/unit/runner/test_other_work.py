"""A plan that gives way ends when another process comes onto the accelerators."""

import itertools
import subprocess
import sys

import pytest
from gpuval_node.hardware.users import User
from gpuval_runner import other_work
from gpuval_runner.other_work import OtherWork

from tests.kit.runner import stage, until


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


def test_what_the_runner_started_is_its_own_whatever_its_environment():
    with subprocess.Popen(["sleep", "60"], env={}) as own:
        try:
            assert other_work._not_ours([User(own.pid, "VLLM::EngineCor"), User(1, "init")]) == [User(1, "init")]
        finally:
            own.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("gives_way", "script"), [(True, "sleep 20"), (True, "exit 1"), (False, "sleep 4")])
def test_a_runner_gives_way(node, gives_way, script):
    tool = node.base / "bin/nvidia-smi"
    tool.parent.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        tool.write_text(f"#!/bin/sh\necho '{other.pid}, /usr/bin/trainer'\n")
        tool.chmod(0o755)
        accelerator = {"vendor": "nvidia", "count": 8}
        changes = {"gives_way": True} if gives_way else {}
        node.put_plan(stage("a", script), stage("b"), accelerator=accelerator, **changes)
        node.call("run", environment={"PATH": f"{tool.parent}:/usr/bin:/bin"})
        other.stdin.close()
    if not gives_way:
        assert node.record("b")["state"] == "success"
        return
    assert node.states() == {"a": "cancelled", "b": "cancelled"}
    expected = f"gave way: others use this node's accelerators or run here: python (pid {other.pid})"
    assert node.record("a")["message"].startswith(expected[:60])
    assert f"(pid {other.pid})" in node.record("a")["message"]
