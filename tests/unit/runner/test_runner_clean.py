import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.runner import SUCCEED, Node, alive, stage, until


def test_clean_leaves_nothing_and_the_second_time_does_nothing(node):
    node.put_plan(stage("a", f"touch $GPUVAL_MODELS_DIR/weights; {SUCCEED}"))
    assert node.call("run").returncode == 0
    assert (node.base / "models" / "weights").exists()
    answer = node.ask("clean")
    assert answer["killed"] == answer["left"] == []
    assert answer["removed"] == [
        str(node.base / "models"),
        str(node.files.root),
        str(node.files.root.parent),
        str(node.base),
    ]
    assert not node.base.exists()
    assert node.ask("clean") == {"removed": [], "killed": [], "left": []}


def test_clean_ends_a_run_at_work(node):
    node.put_plan(stage("a", f"setsid sleep 41 & echo $! > {node.base}/pid; sleep 40", grace_seconds=0.5))
    assert node.ask("start")["started"]
    pid = int(until(lambda: (node.base / "pid").exists() and (node.base / "pid").read_text().strip()))
    runner = node.ask("status")["pid"]
    trial = node.ask("clean", "--dry-run")
    assert f"runner (pid {runner})" in trial["killed"] and f"sleep (pid {pid})" in trial["killed"]
    assert trial["removed"] == [] and alive(pid) and alive(runner) and node.files.root.exists()
    answer = node.ask("clean")
    assert answer["left"] == []
    assert sorted(answer["killed"]) == sorted(trial["killed"]), "a trial names what a clean ends"
    assert not alive(pid)
    until(lambda: not alive(runner), what="the end of the runner, which has given its lock back")
    assert not node.files.root.exists()


@pytest.mark.parametrize("stopped", [False, True])
def test_clean_finds_what_a_dead_or_stopped_runner_left(node, monkeypatch, stopped):
    node.put_plan(stage("a", f"setsid sleep 43 & echo $! > {node.base}/pid; sleep 42"))
    process = node.begin("run")
    pid = int(until(lambda: (node.base / "pid").exists() and (node.base / "pid").read_text().strip()))
    if stopped:
        process.send_signal(19)
        environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
        script = (
            "import sys; from pathlib import Path; from gpuval_runner.clean import clean; "
            "from gpuval_runner.layout import NodeDirectory; "
            "print(clean(NodeDirectory(Path(sys.argv[1])), cancel_seconds=0.5))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(node.files.root)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"runner (pid {process.pid})" in done.stdout
        assert "'left': []" in done.stdout
    else:
        process.kill()
        process.wait()
        answer = node.ask("clean")
        assert any("sleep" in line for line in answer["killed"])
        assert answer["left"] == []
    until(lambda: not alive(pid))
    assert not node.files.root.exists()


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A folder with an engine that has one container, and notes what is in the run's folder when it is asked. With
    `stuck` it removes none, with `silent` it stops to answer then."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = """#!/bin/sh
here=$(dirname "$0")
case "$1" in
ps) [ -e "$here/cut" ] && exit 1; echo $(ls "$(cat "$here/root")") >> "$here/seen"
    [ -e "$here/gone" ] || echo c0ffee;;
rm) if [ -e "$here/silent" ]; then touch "$here/cut"; elif [ ! -e "$here/stuck" ]; then touch "$here/gone"; fi;;
esac
"""
    (folder / "docker").write_text(script)
    (folder / "docker").chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.mark.parametrize("fault", ["", "stuck", "silent"])
def test_a_container_that_cannot_be_removed_is_left_and_not_named_as_ended(node, docker, fault):
    (docker / "root").write_text(str(node.files.root))
    node.put_plan(stage("a", image="i:1"), runtime="docker")
    if fault:
        (docker / fault).touch()
    assert node.ask("clean", "--dry-run")["killed"] == ["container c0ffee"]
    answer = node.ask("clean")
    assert answer["killed"] == ([] if fault else ["container c0ffee"])
    assert [line.split(":")[0] for line in answer["left"]] == (["container c0ffee"] if fault else [])


def test_a_run_is_cancelled_before_an_engine_is_asked(node, docker):
    (docker / "root").write_text(str(node.files.root))
    begun = node.base / "begun"
    node.put_plan(stage("a", f"touch {begun}; sleep 44", grace_seconds=0.5), stage("b", image="i:1"), runtime="docker")
    assert node.ask("start")["started"]
    until(begun.exists)
    (docker / "seen").unlink(missing_ok=True)
    assert node.ask("clean")["left"] == []
    first, *_later = (docker / "seen").read_text().splitlines()
    assert node.files.cancel.name in first.split()


def test_the_model_cache_stays_for_other_runs_and_on_request(node):
    other = Node(node.base, "other-run")
    for each in (node, other):
        each.put_plan(stage("a"))
        assert each.call("run").returncode == 0
    node.ask("clean")
    assert (node.base / "models").is_dir()
    assert other.record("a")["state"] == "success"
    other.ask("clean", "--keep-models")
    assert (node.base / "models").is_dir()
    assert sorted(p.name for p in node.base.iterdir()) == ["models"]


def test_nothing_outside_the_directory_is_touched(node, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    node.put_plan(stage("a", f"ln -s {precious} out; {SUCCEED}"), models_dir=str(precious / "models"))
    assert node.call("run").returncode == 0
    (node.files.root / "link").symlink_to(precious)
    (node.base / "models").symlink_to(precious)
    node.ask("clean")
    assert (precious / "file").exists()
    assert (precious / "models").exists(), "a cache that the operator chose is the operator's"


def test_models_that_lay_there_before_are_not_mistaken_for_the_cache(node):
    own = node.base / "models" / "of-the-operator"
    own.mkdir(parents=True)
    node.put_plan(stage("a", f"touch $GPUVAL_MODELS_DIR/weights; {SUCCEED}"))
    assert node.call("run").returncode == 0
    assert str(node.files.root) in node.ask("clean")["removed"]
    assert own.is_dir()


def test_a_directory_of_something_else_is_refused(node, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("x")
    node.files.root.rmdir()
    node.files.root.symlink_to(tmp_path / "mine")
    assert node.call("clean").returncode == 2
    node.files.root.unlink()
    node.files.root.mkdir()
    (node.files.root / "thesis").write_text("x")
    done = node.call("clean")
    assert done.returncode == 2
    assert "not the directory of a run" in done.stderr
    assert (node.files.root / "thesis").exists()


def test_a_directory_that_is_not_nested_as_expected_takes_no_parents_along(tmp_path):
    odd = Node(tmp_path / "x", "y", "z")
    odd.run_id = "another"
    odd.put_plan(stage("a"))
    (tmp_path / "x" / "models").mkdir()
    assert odd.ask("clean")["removed"] == [str(odd.files.root)]
    assert (tmp_path / "x" / "models").is_dir()
    assert (tmp_path / "x" / "y").is_dir()


def test_a_long_path_leaves_no_temporary_directory(tmp_path):
    deep = Node(tmp_path / ("d" * 60), "t-long", "n" * 60)
    deep.put_plan(stage("a", f"echo $TMPDIR; {SUCCEED}"))
    assert deep.call("run").returncode == 0
    place = next(line for line in deep.log("a").splitlines() if line.startswith("/tmp/gpuval-"))
    assert not Path(place).exists()
    deep.put_plan(stage("a", "sleep 30"), attempt=2)
    process = deep.begin("run")
    until(Path(place).exists)
    process.kill()
    process.wait()
    deep.put_plan(stage("b"), attempt=3)
    assert deep.ask("clean")["left"] == []
    assert not Path(place).exists()
    deep.close()
