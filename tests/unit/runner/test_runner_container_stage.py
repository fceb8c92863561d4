"""How a container's stage ends when its engine stops to answer as it should."""

import json
import multiprocessing
import os
import stat
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest
from gpuval_runner import runner as runners
from gpuval_runner.containers import stage as container_stage

from tests.kit.runner import PACKAGES, Node, stage

IMAGE = [{"Id": "sha256:" + "a" * 64, "Architecture": "", "Config": {}}]
#: An engine as far as these tests go; the files beside it say what it does.
ENGINE = """#!/bin/sh
here=$(dirname "$0"); echo "$*" >> "$here/asked"
case "$1" in
info) echo '{"ServerVersion": "1"}';;
image) cat "$here/image";;
create) [ -e "$here/gone" ] && { echo 'Error response from daemon: No such image: i:1' >&2; exit 1; }
    echo c0ffee; touch "$here/there";;
start) while [ -e "$here/held" ]; do sleep 0.05; done
    cat "$here/result" > "$(cat "$here/place")"; exit "$(cat "$here/code")";;
stop) rm -f "$here/held";;
inspect) cat "$here/state" || exit 1;;
rm) [ -e "$here/stuck" ] || rm -f "$here/there";;
ps) [ -e "$here/silent" ] && { echo 'Cannot connect' >&2; exit 1; }; [ -e "$here/there" ] && echo c0ffee; exit 0;;
esac
"""
OVER = {"StartedAt": "2026", "Running": False, "Status": "exited", "ExitCode": 0}
NEVER = {**OVER, "StartedAt": "0001-01-01T00:00:00Z", "Status": "created"}
FILES = {"image": json.dumps(IMAGE), "code": "0", "result": '{"state": "success"}'}
UNDER_WAY = {**OVER, "Running": True, "Status": "running"}


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """A folder with an engine called docker, before all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "docker"
    command.write_text(ENGINE)
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(container_stage, "RELEASE_SECONDS", 0.3)
    monkeypatch.setattr(runners, "RELEASE_SECONDS", 0.3)
    monkeypatch.setattr(container_stage, "SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(container_stage, "PAUSE_SECONDS", 0.05)
    return folder


@pytest.fixture
def node(tmp_path, engine):
    made = Node(tmp_path / "base", "r1")
    made.put_plan(stage("a", image="i:1"), stage("b"), runtime="docker")
    (engine / "place").write_text(str(made.files.work("a") / "result.json"))
    yield made
    made.close()


def carried_out(node):
    """In a process of its own, which has what the fixture changed: a runner ends all children of its process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        return pool.submit(runners.run, runners.RunnerOptions(node.files)).result(30)


def test_an_end_that_the_engine_confirms_counts(engine, node):
    (engine / "state").write_text(json.dumps(OVER))
    assert carried_out(node) == 0
    assert node.record("a")["state"] == "success"
    assert not (engine / "there").exists()


@pytest.mark.parametrize(("of_engine", "of_client", "code"), [(0, 137, 137), (137, 0, 137), (3, 1, 3)])
def test_an_error_that_the_engine_or_its_client_knows_is_no_success(engine, node, of_engine, of_client, code):
    (engine / "state").write_text(json.dumps({**OVER, "ExitCode": of_engine}))
    (engine / "code").write_text(str(of_client))
    assert carried_out(node) == 1
    record = node.record("a")
    assert (record["state"], record["exit_code"]) == ("crash", code)


@pytest.mark.parametrize("of_client", [1, 125])
def test_an_error_of_the_client_itself_is_none_of_the_container(engine, node, of_client):
    (engine / "state").write_text(json.dumps(OVER))
    (engine / "code").write_text(str(of_client))
    assert carried_out(node) == 0
    assert (node.record("a")["state"], node.record("a")["exit_code"]) == ("success", 0)


def test_a_container_that_did_not_start_within_its_limit_has_no_exit_code(engine, node):
    node.put_plan(stage("a", image="i:1", timeout_seconds=1, grace_seconds=1), runtime="docker")
    (engine / "state").write_text(json.dumps(NEVER))
    (engine / "held").touch()
    (engine / "code").write_text("125")
    assert carried_out(node) == 1
    record = node.record("a")
    assert (record["state"], record["exit_code"]) == ("timeout", None)
    assert "its container had not started" in record["message"]


def test_an_image_that_is_removed_before_its_container_is_made_is_missing(engine, node):
    (engine / "gone").touch()
    assert carried_out(node) == 1
    record = node.record("a")
    assert (record["state"], record["exit_code"], record["environment"]["fault"]) == ("crash", None, "no_image")
    assert "cannot start: image i:1 is not on this node: `docker pull i:1` there" in record["message"]


def test_an_engine_is_given_no_secret(engine, node):
    """The stage's file has it; what the engine is asked, and shows of a container, has not."""
    node.put_plan(stage("a", image="i:1", secrets=["HF_TOKEN"]), runtime="docker")
    file = node.files.secrets("a")
    file.parent.mkdir()
    file.write_text(json.dumps({"HF_TOKEN": "hf_abcdefgh"}))
    (engine / "state").write_text(json.dumps(OVER))
    (engine / "result").unlink()
    (engine / "result").symlink_to(node.files.work("a") / "secrets.json")
    assert carried_out(node) == 1, "its result is the file of secrets, which says no state"
    assert "result file: state is none of" in node.record("a")["message"]
    assert "hf_abcdefgh" not in (engine / "asked").read_text() + node.log("a") + json.dumps(node.record("a"))
    assert not file.exists()


@pytest.mark.parametrize("state", [UNDER_WAY, {**OVER, "Status": "paused"}, None])
def test_a_client_that_leaves_its_container_is_never_success(engine, node, state):
    """It left with 0, and the stage even reported success: the work may still go on, or nobody knows."""
    if state:
        (engine / "state").write_text(json.dumps(state))
    assert carried_out(node) == 1
    record = node.record("a")
    assert (record["state"], record["exit_code"]) == ("crash", None)
    assert "docker lost the container's output" in record["message"]
    assert not (engine / "there").exists()
    assert node.record("b")["state"] == "success"


@pytest.mark.parametrize("how", ["stuck", "silent"])
def test_nothing_runs_beside_a_container_that_stays(engine, node, how):
    (engine / "state").write_text(json.dumps(OVER))
    (engine / how).touch()
    assert carried_out(node) == 1
    record = node.record("a")
    assert record["state"] == "crash"
    assert "could not be removed" in record["message"]
    later = node.record("b")
    assert later["state"] == "cancelled"
    assert "container c0ffee may still hold the accelerators" in later["message"]
    assert "docker rm --force c0ffee" in later["message"]

    document = json.loads(node.files.plan.read_text())
    node.files.plan.write_text(json.dumps({**document, "attempt": 2}))
    assert carried_out(node) == 1
    assert {node.record(name)["state"] for name in "ab"} == {"cancelled"}, "nor in a later attempt"

    (engine / how).unlink()
    node.files.plan.write_text(json.dumps({**document, "attempt": 3}))
    assert carried_out(node) == 0


@pytest.mark.parametrize(("source", "code"), [("data", 0), ("/usr", 0), ("/no/such", 1)])
def test_a_folder_that_the_node_lacks_is_not_made_by_the_engine(engine, node, source, code):
    node.put_plan(stage("a", image="i:1", container={"volumes": [f"{source}:/data:ro"]}), runtime="docker")
    (engine / "state").write_text(json.dumps(OVER))
    assert carried_out(node) == code
    told = "cannot start: container.volumes: the node has no /no/such: mount or create it"
    assert node.record("a")["message"] == (told if code else "")


def modes_of(folder):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}


@pytest.mark.parametrize(("user", "modes"), [("4321:4321", (0o755, 0o644)), (None, (0o700, 0o600))])
def test_the_keys_of_a_gang_can_be_read_by_the_containers_user(engine, node, user, modes):
    keys = node.files.root / "ssh"
    keys.mkdir(mode=0o700)
    for name in ("token", "id_ed25519"):
        (keys / name).touch(mode=0o600)
    node.put_plan(stage("a", image="i:1", container={"ssh_keys": True, "user": user}), runtime="docker")
    (engine / "state").write_text(json.dumps(OVER))
    assert carried_out(node) == 0
    assert str(keys) in (engine / "asked").read_text()
    folder, file = modes
    assert modes_of(keys) == {"ssh": folder, "token": file, "id_ed25519": file}


def test_orphans_are_reaped_without_waiting_for_a_child_that_lasts():
    """Else every stage in a container took five seconds more, for the telemetry's helper."""
    program = (
        "import subprocess, time\n"
        "from gpuval_node.process_stat import snapshot\n"
        "from gpuval_runner import descendants\n"
        "from gpuval_runner.containers.stage import reap\n"
        "lasting = subprocess.Popen(['sleep', '60'])\n"
        "descendants.LASTING.add(lasting.pid)\n"
        "subprocess.Popen(['sleep', '0.3'])\n"
        "begun = time.monotonic()\n"
        "reap(30)\n"
        "took = time.monotonic() - begun\n"
        "children = [p.name for p in snapshot().values() if p.parent == descendants.os.getpid()]\n"
        "lasting.kill()\n"
        "print(took, children)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    took, _, children = done.stdout.partition(" ")
    assert 0.2 < float(took) < 25 and children.strip() == "['sleep']"
