"""The runner's stages in containers of real engines, and the image stage over a real S3 service."""

import functools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import boto3
import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import payload
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import extensions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.jobs import stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans
from botocore.client import Config
from gpuval_node.engines import engine_of, probe, select
from gpuval_node.engines._engine import EngineError, labels

from tests.kit import host_image, jobs, runner
from tests.kit.model_server import ModelServer
from tests.kit.needs import needs_root
from tests.kit.runner import SUCCEED, Node, until

ROOT = Path(__file__).resolve().parents[2]
RUN_SECONDS = 120
BUCKET = "gpuval"
READY = """echo under way; trap 'echo told; exit 3' TERM; while :; do sleep 0.1; done"""
DEAF = """trap '' TERM; echo under way; while :; do sleep 0.1; done"""
#: An engine under load may take half a minute to start a container, and podman starts it again without a limit.
stage = functools.partial(runner.stage, timeout_seconds=RUN_SECONDS)


#: What asks the engine for nothing that others do not ask: with one of them.
ONCE = pytest.mark.parametrize("engine", ["docker"], indirect=True)


@pytest.fixture(scope="module", params=["docker", "podman"])
def engine(request, tmp_path_factory):
    """An engine that answers and can run a container here."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "podman" and "CONTAINERS_CONF" not in os.environ:
            runtime = next((name for name in ("crun", "runc") if shutil.which(name)), "crun")
            file = tmp_path_factory.mktemp("podman") / "containers.conf"
            file.write_text(f'[engine]\nruntime = "{runtime}"\n')
            patch.setenv("CONTAINERS_CONF", str(file))
        try:
            yield probe(engine_of(request.param))
        except EngineError as error:
            pytest.skip(str(error))


@pytest.fixture(scope="module")
def image(engine, tmp_path_factory):
    """A small image under a name of its own."""
    name = f"localhost/gpuval-test-{secrets.token_hex(4)}:1"
    archive = tmp_path_factory.mktemp("image") / "root.tar"
    host_image.write_root(archive)
    host_image.import_image(engine.command, name, archive)
    archive.unlink()
    yield name
    ask(engine, "rmi", "--force", name)


@pytest.fixture
def node(tmp_path, engine):
    made = Node(tmp_path / "base", f"t{secrets.token_hex(5)}")
    made.files.runner.write_bytes(b"")
    made.files.workloads.write_bytes(b"")
    yield made
    made.close()
    engine.stop(labels(made.run_id, made.name))


def ask(engine, *arguments):
    done = subprocess.run(
        [engine.command, *arguments], capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    return done.stdout.strip()


def containers(engine, node):
    return ask(engine, "ps", "--all", "--quiet", f"--filter=label=gpuval.run={node.run_id}").split()


def plan_for(node, engine, *stages, **changes):
    node.put_plan(*stages, runtime=engine.command, deadline_seconds=RUN_SECONDS, **changes)


def carried_out(node, engine, *stages, **changes):
    plan_for(node, engine, *stages, **changes)
    done = node.call("run", seconds=RUN_SECONDS)
    return done.returncode


def test_a_stage_hands_over_from_its_container(engine, image, node):
    script = (
        "import json, os, resource\n"
        "print('variables', json.dumps(dict(os.environ)))\n"
        "result = {'state': 'success', 'message': 'measured', 'metrics': ["
        "{'name': 'open_files', 'value': resource.getrlimit(resource.RLIMIT_NOFILE)[0], 'unit': 'files', "
        "'scope': 'node'}]}\n"
        "open(os.environ['TMPDIR'] + '/x', 'w').close()\n"
        "open(os.environ['GPUVAL_MODELS_DIR'] + '/kept', 'w').close()\n"
        "open(os.environ['GPUVAL_RESULT_FILE'], 'w').write(json.dumps(result))\n"
    )
    node.files.store.write_text('{"schema": "gpuval.store/1", "put": {}}')
    node.files.store.chmod(0o600)
    (node.files.root / "rclone.conf").write_text("[models]\n")
    listing = stage("list", f"ls /opt/gpuval; test ! -e /opt/gpuval/store.json; {SUCCEED}", image=image)
    code = carried_out(node, engine, stage("a", ["{python}", "-c", script], image=image), listing)
    record = node.record("a")
    assert (code, record["state"], record["message"], record["exit_code"]) == (0, "success", "measured", 0)
    assert record["image"] == image
    assert record["metrics"][0]["value"] >= 1024
    (line,) = [line for line in node.log("a").splitlines() if line.startswith("variables ")]
    variables = json.loads(line.partition(" ")[2])
    assert variables["PYTHONPATH"] == "/opt/gpuval/workloads.zip"
    assert variables["GPUVAL_RESULT_FILE"] == "/opt/gpuval/work/result.json"
    assert variables["GPUVAL_RUN_ID"] == node.run_id
    assert variables["PATH"] != os.environ["PATH"], "the host's search path has no place in an image"
    assert "LD_LIBRARY_PATH" not in variables
    for name in ("models", "rclone.conf", "runner.pyz", "work", "workloads.zip"):
        assert name in node.log("list").splitlines()
    assert (node.files.models / "kept").exists()
    assert not node.files.work("a").exists(), "what it wrote is gone"
    assert containers(engine, node) == []


def test_only_a_stage_that_asks_sees_the_keys_of_the_run(engine, image, node):
    keys = node.files.root / "ssh"
    keys.mkdir(mode=0o700)
    (keys / "id_ed25519").write_text("a key")
    look = f"cat /opt/gpuval/ssh/id_ed25519; echo more >>/opt/gpuval/ssh/id_ed25519; {SUCCEED}"
    asks = stage("asks", look, image=image, container={"ssh_keys": True})
    assert carried_out(node, engine, asks, stage("other", look, image=image)) == 0
    assert "a key" in node.log("asks")
    assert "a key" not in node.log("other")
    assert (keys / "id_ed25519").read_text() == "a key", "mounted read-only"


def test_limits_hold_and_are_named(engine, image, node):
    big = ["{python}", "-c", "x = bytearray(400 << 20); print(len(x))"]
    code = carried_out(
        node,
        engine,
        stage("big", big, image=image, container={"memory_bytes": 64 << 20}),
        stage(
            "files",
            ["sh", "-c", f"ulimit -n; {SUCCEED}"],
            image=image,
            container={"ulimits": {"nofile": "1111:1111"}, "shm_bytes": 32 << 20},
        ),
    )
    assert code == 1
    record = node.record("big")
    assert (record["state"], record["exit_code"]) == ("crash", 137)
    assert "out of memory" in record["message"]
    assert node.record("files")["state"] == "success"
    assert "1111" in node.log("files").splitlines()


def test_a_timeout_ends_the_container(engine, image, node):
    begun = time.monotonic()
    limit = 12  # long enough for an engine under load to start the container
    carried_out(node, engine, stage("a", READY, image=image, timeout_seconds=limit, grace_seconds=2))
    record = node.record("a")
    assert (record["state"], record["exit_code"]) == ("timeout", 3)
    assert "timeout_seconds" in record["message"]
    assert "told" in node.log("a")
    assert time.monotonic() - begun < RUN_SECONDS / 2
    assert containers(engine, node) == []


@pytest.mark.parametrize(("script", "code", "said"), [(READY, 3, "told"), (DEAF, 137, "under way")])
def test_a_cancel_ends_the_container(engine, image, node, script, code, said):
    waits = stage("a", script, image=image, grace_seconds=2)
    plan_for(node, engine, waits, stage("b", image=image))
    running = node.begin("run")
    until(lambda: node.files.result("logs/a").exists() and "under way" in node.log("a"), RUN_SECONDS)
    assert node.ask("cancel", "--wait", "60")["running"] is False
    running.wait(30)
    assert node.states() == {"a": "cancelled", "b": "cancelled"}
    assert node.record("a")["exit_code"] == code
    assert said in node.log("a")
    assert containers(engine, node) == []


def test_a_runner_killed_leaves_nothing_to_the_next(engine, image, node):
    script = f"test -e /opt/gpuval/models/second && {{ {SUCCEED}; exit 0; }}; {DEAF}"
    plan_for(node, engine, stage("a", script, image=image))
    running = node.begin("run")
    until(lambda: node.files.result("logs/a").exists() and "under way" in node.log("a"), RUN_SECONDS)
    os.kill(running.pid, signal.SIGKILL)
    running.wait(10)
    (left,) = containers(engine, node)
    assert ask(engine, "inspect", "--format={{.State.Running}}", left) == "true", "nobody told the container"
    (node.files.models / "second").touch()
    assert node.call("run", seconds=RUN_SECONDS).returncode == 0
    record = node.record("a")
    assert record["state"] == "success"
    assert "run again" in record["message"]
    assert containers(engine, node) == []


@pytest.mark.parametrize(("code", "state"), [(0, "success"), (3, "crash")])
def test_a_job_stays_in_its_container_until_it_is_cleaned(engine, image, node, tmp_path, code, state):
    script = f"echo $$ > here; echo performance: 12.5 examples/sec; exit {code}"
    steps = [{"name": "work", "run": ["sh", "-c", script]}]
    job = jobs.write(tmp_path, steps=steps, stay_alive=True, needs=[], timeout_seconds=RUN_SECONDS)
    declared = {**stages.workloads([job])["mine"], "image": image}
    node.files.workloads.write_bytes(payload.workloads_zip())
    plan_for(node, engine, plans.stage("mine", declared, ["mine"]))
    running = node.begin("run")
    until(lambda: node.files.record("mine").exists() and node.record("mine")["state"] == state, RUN_SECONDS)
    record = node.record("mine")
    assert (record["exit_code"], record["image"]) == (code, image)
    assert [one["value"] for one in record["metrics"] if one["name"] == "mine_samples_per_second"] == [12.5]
    (left,) = containers(engine, node)
    assert ask(engine, "exec", left, "sh", "-c", "test -s /opt/gpuval/work/job/here && echo found") == "found"
    assert running.poll() is None
    told = node.ask("clean")
    assert told["left"] == []
    assert containers(engine, node) == []
    running.wait(30)


def test_clean_ends_what_a_killed_runner_left(engine, image, node):
    plan_for(node, engine, stage("a", DEAF, image=image))
    running = node.begin("run")
    until(lambda: node.files.result("logs/a").exists() and "under way" in node.log("a"), RUN_SECONDS)
    os.kill(running.pid, signal.SIGKILL)
    running.wait(10)
    told = node.ask("clean")
    assert any(name.startswith("container ") for name in told["killed"])
    assert told["left"] == []
    assert containers(engine, node) == []
    assert not node.files.root.exists()
    assert node.ask("clean") == {"removed": [], "killed": [], "left": []}


@ONCE
def test_an_engine_of_an_extension_runs_and_is_cleaned(engine, image, node, tmp_path):
    site, bin_folder = tmp_path / "site", tmp_path / "bin"
    for made in (site / "engines", bin_folder):
        made.mkdir(parents=True, mode=0o755)
    (site / "engines/wrapped.py").write_text(
        'from .docker import Docker\n\n\nclass Wrapped(Docker):\n    name = "wrapped"\n'
    )
    (bin_folder / "wrapped").write_text(f'#!/bin/sh\nexec {engine.command} "$@"\n')
    (bin_folder / "wrapped").chmod(0o755)
    extensions.use([site])
    try:
        node.files.runner.write_bytes(payload.runner_pyz())
    finally:
        extensions.use(())
    environment = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": str(node.files.runner)}
    node.put_plan(
        stage("a", f"test -e /opt/gpuval/models/second && {{ {SUCCEED}; exit 0; }}; {DEAF}", image=image),
        runtime="wrapped", deadline_seconds=RUN_SECONDS,
    )  # fmt: skip
    running = node.begin("run", environment=environment)
    until(lambda: node.files.result("logs/a").exists() and "under way" in node.log("a"), RUN_SECONDS)
    os.kill(running.pid, signal.SIGKILL)
    running.wait(10)
    (node.files.models / "second").touch()
    done = node.call("run", seconds=RUN_SECONDS, environment=environment)
    assert (done.returncode, node.record("a")["state"]) == (0, "success"), done.stderr
    assert containers(engine, node) == []
    left = ask(
        engine, "create", "--label", f"gpuval.run={node.run_id}", "--label", f"gpuval.node={node.name}", image, "x"
    )
    told = json.loads(node.call("clean", environment=environment).stdout)
    assert (told["killed"], told["left"]) == ([f"container {left[:12]}"], [])
    assert containers(engine, node) == []


def test_the_client_of_the_engine_killed_is_distinguished(engine, image, node):
    plan_for(node, engine, stage("a", READY, image=image, grace_seconds=2))
    running = node.begin("run")
    until(lambda: node.files.result("logs/a").exists() and "under way" in node.log("a"), RUN_SECONDS)
    state = json.loads(node.files.state.read_text())
    os.kill(state["current"]["pid"], signal.SIGKILL)
    running.wait(60)
    record = node.record("a")
    assert (record["state"], record["signal"]) == ("crash", "SIGKILL")
    assert "the engine's client" in record["message"]
    assert containers(engine, node) == []


def test_a_client_that_leaves_its_container_is_no_success(engine, image, node, tmp_path, monkeypatch):
    """As when the engine is restarted and its containers live on: the client is gone, and has nothing to report."""
    real = shutil.which(engine.command)
    leaving = tmp_path / "bin" / engine.command
    leaving.parent.mkdir()
    leaving.write_text(
        f'#!/bin/sh\nif [ "$1 $2" = "start --attach" ]; then {real} start "$3"; sleep 1; exit 0; fi\nexec {real} "$@"\n'
    )
    leaving.chmod(0o755)
    monkeypatch.setenv("PATH", f"{leaving.parent}:{os.environ['PATH']}")
    working = f"{SUCCEED}; trap 'exit 0' TERM; while :; do sleep 0.1; done"  # told to end, it ends well
    assert carried_out(node, engine, stage("a", working, image=image), stage("b")) == 1
    record = node.record("a")
    assert (record["state"], record["exit_code"]) == ("crash", None)
    assert "its container was still running" in record["message"]
    assert containers(engine, node) == []
    assert node.record("b")["state"] == "success"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"image": "localhost/gpuval-no-such-image:1"},
            ["is not on this node", "gpuval-no-such-image:1` there"],
        ),
        ({"command": ["{python}"], "container": {"python": "no-such-python"}}, ["container.python"]),
        ({"command": ["/etc/passwd"]}, ["may not be executed"]),
        ({"container": {"arguments": ["--no-such-option"]}}, ["no-such-option"]),
        ({"container": {"devices": ["/dev/no-such-device"]}}, ["no-such-device"]),
    ],
)
def test_what_cannot_start_says_why(engine, image, node, changes, said):
    assert carried_out(node, engine, stage("a", **{"image": image, **changes})) == 1
    record = node.record("a")
    assert record["state"] == "crash"
    for text in (*said, "cannot start"):
        assert text in record["message"]
    assert containers(engine, node) == []


def test_an_image_for_another_machine_is_named(engine, node, tmp_path):
    name = f"localhost/gpuval-test-foreign-{secrets.token_hex(4)}:1"
    archive = tmp_path / "foreign.tar"
    host_image.write_foreign_root(archive)
    try:
        host_image.import_image(engine.command, name, archive)
        assert carried_out(node, engine, stage("a", ["{python}", "-V"], image=name)) == 1
        record = node.record("a")
        assert record["state"] == "crash"
        assert "another processor architecture" in record["message"]
        # and where the image says so itself, before anything is started
        other = "arm64" if engine.facts.architecture != "arm64" else "amd64"
        ask(engine, "rmi", "--force", name)
        host_image.write_archive(tmp_path / "other.tar", name, archive, other)
        ask(engine, "load", f"--input={tmp_path / 'other.tar'}")
        carried_out(node, engine, stage("b", ["{python}", "-V"], image=name), attempt=2)
        assert f"is for {other} and this node is" in node.record("b")["message"]
    finally:
        ask(engine, "rmi", "--force", name)


def test_another_image_under_the_planned_name_is_refused(engine, image, node):
    images = {image: {"id": f"sha256:{'0' * 64}", "archive": None}}
    assert carried_out(node, engine, stage("a", image=image), images=images) == 1
    assert "image stage" in node.record("a")["message"]


def test_auto_takes_an_engine_that_answers(engine, image, node):
    if select("auto").command != engine.command:
        pytest.skip("auto takes docker here")
    node.put_plan(stage("a", image=image), stage("b"), runtime="auto", deadline_seconds=RUN_SECONDS)
    assert node.call("run", seconds=RUN_SECONDS).returncode == 0
    assert (node.record("a")["image"], node.record("b")["image"]) == (image, None)


def test_files_of_another_user_are_removed(engine, image, node):
    needs_root("to change the user")
    write = f"id -u; echo x > $TMPDIR/mine; {SUCCEED}"
    stages = [stage("a", write, image=image, container={"user": "12345:12345"})]
    assert carried_out(node, engine, *stages) == 0, node.log("a")
    assert "12345" in node.log("a").splitlines()
    assert not node.files.work("a").exists()


@ONCE
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (util-linux)")
def test_a_runner_that_is_not_root_gets_its_files_back(engine, image):
    """With podman each user has containers and images of its own."""
    needs_root("to change the user")
    socket = Path("/var/run/docker.sock").stat().st_gid
    home = Path(tempfile.mkdtemp(prefix="gpuval-", dir="/var/tmp"))
    node = Node(home / "base", f"t{secrets.token_hex(5)}")
    try:
        node.files.runner.write_bytes(payload.runner_pyz())
        (node.files.root / "rclone.conf").write_text("[models]\n")
        (node.files.root / "rclone.conf").chmod(0o600)
        own = f"id -u; cat /opt/gpuval/rclone.conf; touch $HOME/x; {SUCCEED}"
        closed = f"mkdir -m 700 $TMPDIR/d; echo 1 > $TMPDIR/d/f; {SUCCEED}; chmod 600 $GPUVAL_RESULT_FILE"
        node.put_plan(
            stage("own", own, image=image),
            stage("root", closed, image=image, container={"user": "0:0"}),
            runtime="docker",
            deadline_seconds=RUN_SECONDS,
        )
        subprocess.run(["chown", "-R", "12345:12345", home], check=True)
        system = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")
        user = ["setpriv", "--reuid=12345", "--regid=12345", f"--groups={socket}", "env", f"HOME={home}", system]
        runner = [*user, str(node.files.runner)]
        ran = subprocess.run([*runner, "run", "--dir", node.files.root], cwd="/", timeout=RUN_SECONDS, check=False)
        assert ran.returncode == 0, node.log("own") + node.log("root")
        assert {"12345", "[models]"} <= set(node.log("own").splitlines())
        assert not node.files.work("root").exists()
        subprocess.run([*runner, "clean", "--dir", node.files.root], cwd="/", timeout=RUN_SECONDS, check=True)
        assert list(home.iterdir()) == []
    finally:
        node.close()
        shutil.rmtree(home)


# The image stage


class Source:
    """An S3 service with one archived image, and the plan's words for it."""

    def __init__(self, folder, engine, image):
        self.server = ModelServer(folder)
        self.reference = image
        self.engine = engine
        self.path = folder / BUCKET / "images" / "small.tar"
        self.path.parent.mkdir(parents=True)
        form = ["--format=docker-archive"] if engine.name == "podman" else []
        subprocess.run([engine.command, "save", *form, f"--output={self.path}", image], check=True, timeout=RUN_SECONDS)
        self.bytes = self.path.stat().st_size
        self.sha256 = host_digest(self.path)
        self.id = engine.image(image).id
        self.server.start()

    def planned(self, **changes):
        archive = {"key": "images/small.tar", "sha256": self.sha256, "bytes": self.bytes, **changes}
        return {self.reference: {"id": self.id, "archive": archive}}

    def url(self):
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.server.port}",
            aws_access_key_id=self.server.access_key,
            aws_secret_access_key=self.server.secret_key,
            region_name="us-east-1",
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )
        return client.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "images/small.tar"}, 600)

    def give(self, node, **changes):
        """Put plan and signed URL on a node that lacks the image."""
        ask(self.engine, "rmi", "--force", self.reference)
        command = [sys.executable, "-m", "gpuval_runner", "image", "--dir", "{run_dir}"]
        environment = {"PYTHONPATH": str(ROOT / "collections/ansible_collections/gpuval/fleet/node")}
        own = stage("image", command, environment=environment, timeout_seconds=100)
        boxed = stage("a", image=self.reference, needs=["image"])
        node.put_plan(own, boxed, runtime=self.engine.command, images=self.planned(**changes), deadline_seconds=110)
        node.put_store("http://127.0.0.1:9", [], downloads={"images/small.tar": self.url()})


def host_digest(path):
    return subprocess.run(["sha256sum", path], check=True, capture_output=True, text=True).stdout.split()[0]


@pytest.fixture(scope="module")
def source(engine, image, tmp_path_factory):
    made = Source(tmp_path_factory.mktemp("store"), engine, image)
    yield made
    made.server.stop()
    if engine.image(image) is None:  # for the tests that come later
        ask(engine, "load", f"--input={made.path}")


def metric(record, name):
    return next((m["value"] for m in record["metrics"] if m["name"] == name), None)


def test_an_image_comes_by_signed_url_once_and_leaves_on_request(source, node):
    source.give(node)
    assert node.call("run", seconds=RUN_SECONDS).returncode == 0
    record = node.record("image")
    assert record["state"] == "success"
    assert metric(record, "image_bytes") == source.bytes
    assert metric(record, "image_bytes_per_second") > 0
    assert record["environment"]["images"][source.reference] == source.id
    assert node.record("a")["state"] == "success"
    assert list(node.files.images.glob("*.tar*")) == [], "the archive has done its work"
    assert "Signature" not in json.dumps(record) + node.log("image")

    source_plan = json.loads(node.files.plan.read_text())
    node.files.plan.write_text(json.dumps({**source_plan, "attempt": 2}))
    assert node.call("run", seconds=RUN_SECONDS).returncode == 0
    record = node.record("image")
    assert metric(record, "image_bytes") == 0
    assert "already here" in record["message"]

    told = node.ask("clean", "--remove-images")
    assert f"image {source.reference}" in told["removed"]
    assert told["left"] == []
    assert source.engine.image(source.reference) is None


def test_an_image_leaves_with_the_last_run_that_means_it(source, node):
    later = Node(node.base, f"t{secrets.token_hex(5)}")
    later.files.runner.write_bytes(b"")
    later.files.workloads.write_bytes(b"")
    source.give(node)
    assert node.call("run", seconds=RUN_SECONDS).returncode == 0
    later.put_plan(stage("a", image=source.reference), runtime=source.engine.command, images=source.planned())
    try:
        told = node.ask("clean", "--remove-images")
        assert told["left"] == []
        assert source.engine.image(source.reference).id == source.id, "the later run means it too"
        told = later.ask("clean", "--remove-images")
        assert f"image {source.reference}" in told["removed"]
        assert told["left"] == []
        assert source.engine.image(source.reference) is None
    finally:
        later.close()


def test_an_image_that_was_there_before_stays(source, node):
    source.give(node)
    ask(source.engine, "load", f"--input={source.path}")
    assert node.call("run", seconds=RUN_SECONDS).returncode == 0
    assert node.ask("clean", "--remove-images")["left"] == []
    assert source.engine.image(source.reference).id == source.id


@ONCE
def test_a_download_goes_on_where_it_was_cut_off(source, node):
    source.give(node)
    node.files.images.mkdir()
    half = source.bytes // 2
    with source.path.open("rb") as stream:
        (node.files.images / f"{source.sha256}.tar.part").write_bytes(stream.read(half))
    assert node.call("run", seconds=RUN_SECONDS).returncode == 0
    assert metric(node.record("image"), "image_bytes") == source.bytes - half


@ONCE
def test_a_part_that_is_not_of_this_archive_is_found_out(source, node):
    source.give(node)
    node.files.images.mkdir()
    part = node.files.images / f"{source.sha256}.tar.part"
    part.write_bytes(b"x" * 1000)
    assert node.call("run", seconds=RUN_SECONDS).returncode == 1
    record = node.record("image")
    assert record["state"] == "crash"
    assert "SHA-256" in record["message"]
    assert not part.exists()
    assert node.record("a")["state"] == "skipped"


@ONCE
def test_a_corrupted_archive_in_the_store_never_reaches_the_engine(source, node):
    source.give(node)
    whole = source.path.read_bytes()
    try:
        source.path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert node.call("run", seconds=RUN_SECONDS).returncode == 1
    finally:
        source.path.write_bytes(whole)
    record = node.record("image")
    assert record["state"] == "crash"
    assert "it was removed" in record["message"]
    assert record["environment"]["fault"] == "store_away"
    assert source.engine.image(source.reference) is None
    assert list(node.files.images.glob("*.tar*")) == []


@ONCE
def test_an_archive_brought_before_is_checked_and_used(source, node):
    source.give(node)
    node.put_store("http://127.0.0.1:9", [])
    node.files.images.mkdir()
    path = node.files.images / f"{source.sha256}.tar"
    shutil.copy(source.path, path)
    assert node.call("run", seconds=RUN_SECONDS).returncode == 0
    assert metric(node.record("image"), "image_bytes") == 0
    ask(source.engine, "rmi", "--force", source.reference)
    document = json.loads(node.files.plan.read_text())
    node.files.plan.write_text(json.dumps({**document, "attempt": 2}))
    path.write_bytes(bytes(source.bytes))
    assert node.call("run", seconds=RUN_SECONDS).returncode == 1
    assert "no signed URL" in node.record("image")["message"]
    assert "corrupted" in node.log("image")
    assert not path.exists()


@ONCE
def test_a_store_that_is_away_for_a_while_is_waited_for(source, node):
    source.give(node)
    source.server.stop()

    def come_back():
        node.wait_for("image", "running")
        time.sleep(3.5)
        source.server.start()

    returning = threading.Thread(target=come_back)
    returning.start()
    code = node.call("run", seconds=RUN_SECONDS).returncode
    returning.join()
    assert code == 0, node.log("image")
    assert node.record("image")["duration_seconds"] >= 3


@ONCE
def test_what_the_store_refuses_is_not_tried_again(source, node):
    source.give(node)
    node.put_store("http://127.0.0.1:9", [], downloads={"images/small.tar": f"{source.url()}x"})
    begun = time.monotonic()
    assert node.call("run", seconds=RUN_SECONDS).returncode == 1
    assert time.monotonic() - begun < RUN_SECONDS / 2
    message = node.record("image")["message"]
    assert "refuses" in message
    assert node.record("image")["environment"]["fault"] == "store_away"
    assert "Signature" not in message


@ONCE
def test_two_runs_bring_an_image_once(source, node):
    source.give(node)
    other = Node(node.base, f"t{secrets.token_hex(5)}", "n2")
    try:
        document = json.loads(node.files.plan.read_text())
        other.files.plan.write_text(json.dumps({**document, "run_id": other.run_id, "node": other.name}))
        shutil.copy(node.files.store, other.files.store)
        begun = [each.begin("run") for each in (node, other)]
        assert [each.wait(RUN_SECONDS) for each in begun] == [0, 0]
        came = [metric(each.record("image"), "image_bytes") for each in (node, other)]
        assert sorted(came) == [0, source.bytes]
    finally:
        other.close()


@ONCE
def test_a_disk_without_room_is_found_before_the_download(source, node, as_root, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", small], check=True)
    try:
        cramped = Node(small / "base", f"t{secrets.token_hex(5)}")
        source.give(cramped)
        assert cramped.call("run", seconds=RUN_SECONDS).returncode == 1
        message = cramped.record("image")["message"]
        assert "no room" in message
        assert "make room" in message
        assert cramped.record("image")["environment"]["fault"] == "disk_full"
        assert list(cramped.files.images.glob("*.part")) == []
        cramped.close()
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)
