import hashlib
import json
import re
import shutil
import sys

import pytest

from tests.kit.runner import RECORD_SCHEMA, SUCCEED, stage, until


@pytest.fixture
def pod(node, tmp_path):
    """Run the entry point of one container; returns exit code, output and the termination message."""
    termination = tmp_path / "termination"

    def pod(name, *options, variables=None, **more):
        termination.unlink(missing_ok=True)
        environment = {"GPUVAL_TERMINATION_LOG": str(termination), **(variables or {})}
        done = node.call("pod", "--stage", name, *options, environment=environment, **more)
        return done, json.loads(termination.read_text()) if termination.exists() else None

    return pod


def printed(done, name):
    found = re.findall(
        f"^-----BEGIN GPUVAL RECORD {name}-----\n(.*)\n-----END GPUVAL RECORD {name}-----$", done.stdout, re.MULTILINE
    )
    assert len(found) == 1
    record = json.loads(found[0])
    RECORD_SCHEMA.validate(record)
    return record


def test_every_container_ends_well_and_the_last_tells(node, pod):
    node.put_plan(stage("a", "printf 'no newline'; exit 3"), stage("b"), stage("c", needs=["a"]), runtime="pod")
    done, message = pod("a")
    assert done.returncode == 0
    assert "no newline\n" in done.stdout
    assert printed(done, "a")["state"] == "crash"
    assert message == {
        "stage": "a",
        "state": "crash",
        "exit_code": 3,
        "signal": None,
        "digests": {
            f"{kind}/a": [hashlib.sha256(node.files.result(f"{kind}/a").read_bytes()).hexdigest()]
            for kind in ("records", "logs")
        },
        "message": "exit code 3 without a result; last output: no newline",
    }
    done, message = pod("b")
    assert (done.returncode, message["state"]) == (0, "success")
    done, message = pod("c", "--last")
    assert (done.returncode, message["state"]) == (1, "skipped")
    assert node.states() == {"a": "crash", "b": "success", "c": "skipped"}


def test_the_last_container_of_a_good_plan_ends_well(node, pod):
    node.put_plan(stage("a"), stage("b"), runtime="pod")
    assert pod("a")[0].returncode == 0
    assert node.states() == {"a": "success", "b": "pending"}
    assert pod("b", "--last")[0].returncode == 0


def test_a_plan_stopped_by_an_earlier_container(node, pod):
    node.put_plan(stage("a", "exit 1", on_failure="stop"), stage("b"), runtime="pod")
    pod("a")
    done, message = pod("b", "--last")
    assert (done.returncode, message["state"]) == (1, "skipped")
    assert "stops the plan" in message["message"]


def test_a_container_killed_with_its_runner_is_a_crash(node, pod):
    node.put_plan(stage("a", "sleep 30"), stage("b"), runtime="pod")
    process = node.begin("pod", "--stage", "a")
    node.wait_for("a", "running")
    process.kill()
    process.wait()
    done, _ = pod("b", "--last")
    assert done.returncode == 1
    record = node.record("a")
    assert record["state"] == "crash"
    assert "its container ended without a final record" in record["message"]
    assert node.states()["b"] == "success"


def test_a_pod_asked_to_end_records_it(node, tmp_path):
    node.put_plan(stage("a", "sleep 30"), runtime="pod")
    process = node.begin("pod", "--stage", "a", environment={"GPUVAL_TERMINATION_LOG": str(tmp_path / "t")})
    node.wait_for("a", "running")
    process.terminate()
    out, _ = process.communicate(timeout=15)
    assert process.returncode == 0
    assert node.record("a")["state"] == "cancelled"
    assert "SIGTERM" in json.loads((tmp_path / "t").read_text())["message"]
    assert "BEGIN GPUVAL RECORD a" in out


def test_read_only_mounts_and_a_store(node, pod, store, tmp_path):
    node.put_plan(stage("a"), runtime="pod")
    node.put_store(store.url, ["a"])
    source = tmp_path / "mounted"
    (source / "..data").mkdir(parents=True)
    for name in ("plan.json", "store.json"):
        (node.files.root / name).rename(source / "..data" / name)
        (source / name).symlink_to(f"..data/{name}")
    (source / "..data" / "store.json").chmod(0o644)
    done, message = pod("a", "--last", "--source", str(source))
    assert done.returncode == 0, done.stderr
    assert message["state"] == "success"
    assert "BEGIN GPUVAL RECORD" not in done.stdout
    until(lambda: json.loads(store.objects["records/a"])["state"] == "success")


def test_the_termination_message_stays_short(node, pod):
    script = (
        "import json, os, pathlib; result = json.dumps({'state': 'failure', 'message': '\\u00e4' * 4000});"
        "pathlib.Path(os.environ['GPUVAL_RESULT_FILE']).write_text(result)"
    )
    node.put_plan(stage("a", ["{python}", "-c", script]), runtime="pod")
    done, message = pod("a")
    assert done.returncode == 0
    assert message["state"] == "failure"
    assert len(json.dumps(message)) <= 2048
    assert len(printed(done, "a")["message"]) == 4000


def test_an_unknown_stage_is_refused(node, pod):
    node.put_plan(stage("a"), runtime="pod")
    done, message = pod("b")
    assert done.returncode == 2
    assert "it has a" in done.stderr
    assert message is None


def test_a_missing_termination_log_is_no_failure(node):
    node.put_plan(stage("a"), runtime="pod")
    done = node.call("pod", "--stage", "a", environment={"GPUVAL_TERMINATION_LOG": "/no/such/place"})
    assert done.returncode == 0
    assert node.record("a")["state"] == "success"


def test_the_images_interpreter_and_the_names_of_the_mounts(node, pod, tmp_path):
    python = tmp_path / "images-python"
    python.symlink_to(sys.executable)
    for name in ("runner.pyz", "workloads.zip"):
        (node.files.root / f"..{name}").touch()
        (node.files.root / name).symlink_to(f"..{name}")
    command = ["sh", "-c", f"echo python {{python}} {{runner}} {{workloads}}; {SUCCEED}"]
    node.put_plan(stage("a", command, image="any", container={"python": str(python)}), runtime="pod")
    done, _ = pod("a")
    assert f"python {python} {node.files.runner} {node.files.workloads}\n" in done.stdout
    assert node.record("a")["image"] == "any"


def test_shared_memory_that_an_earlier_stage_left_is_cleared(node, pod, tmp_path):
    shared = tmp_path / "shm"
    shared.mkdir()
    (shared / "left").write_text("x")
    node.put_plan(stage("a", f"ls {shared}; touch {shared}/own; {SUCCEED}"), runtime="pod")
    done, _ = pod("a", "--clear", str(shared))
    assert "left" not in done.stdout
    assert [path.name for path in shared.iterdir()] == ["own"]
    assert pod("a", "--clear", str(tmp_path / "none"))[0].returncode == 0


def test_a_second_attempt_in_a_new_pod_knows_the_first(node, pod):
    """The state of the first pod is gone: what the controller has of it comes beside the plan."""
    node.put_plan(stage("a_b", "exit 1"), stage("b"), stage("c", needs=["b"]), runtime="pod")
    for name in ("a_b", "b", "c"):
        pod(name)
    earlier = node.records()
    for folder in ("records", "logs", "work"):
        shutil.rmtree(node.files.root / folder)
    for path in (node.files.state, node.files.lock):
        path.unlink(missing_ok=True)
    for name, record in earlier.items():
        (node.files.root / f"record-{name.replace('_', '-')}.json").write_text(json.dumps(record))
    node.put_plan(stage("a_b"), stage("c", needs=["b"]), runtime="pod", attempt=2)
    assert pod("a_b")[0].returncode == 0
    record = node.record("a_b")
    assert (record["state"], record["attempt"]) == ("success", 2)
    assert [kept["state"] for kept in record["attempts"]] == ["crash"]
    assert pod("c", "--last")[0].returncode == 0, "what it needs succeeded in the first pod"
    assert node.record("b")["attempt"] == 1


def test_a_secret_of_the_container_is_hidden_in_its_output(node, pod):
    node.put_plan(stage("a", "cat secrets.json", secrets=["HF_TOKEN"]), runtime="pod")
    done, message = pod("a", variables={"HF_TOKEN": "hf_abcdefgh"})
    assert '{"HF_TOKEN": "***"}' in done.stdout
    assert "hf_abcdefgh" not in done.stdout + done.stderr + json.dumps(message)
    assert not list(node.files.root.rglob("secrets.json"))
