"""Datasets of a stage: where it finds them, on hosts and in containers, and what a clean leaves of them."""

import json
import stat

import pytest

from tests.kit.runner import Node, stage

FOLDER = "datasets--gpuval--cifar10"
READ = (
    """printf '{"state":"success","message":"%s"}' "$(cat "$GPUVAL_DATASET_CIFAR10/data")" > "$GPUVAL_RESULT_FILE" """
)
#: Notes what it is asked for, and ends well.
ENGINE = """#!/bin/sh
here=$(dirname "$0"); for word in "$@"; do echo "$word" >> "$here/asked"; done
case "$1" in
info) echo '{"ServerVersion": "1"}';;
image) echo '[{"Id": "sha256:%s", "Architecture": "", "Config": {}}]';;
create) echo c0ffee;;
inspect) echo '{"StartedAt": "2026", "Running": false, "Status": "exited", "ExitCode": 0}';;
esac
"""


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path / "base", "r1")
    yield made
    made.close()


@pytest.fixture
def cached(node):
    """The dataset in the node's cache, as loading leaves it."""
    folder = node.files.models / FOLDER
    folder.mkdir(parents=True)
    (node.files.models / ".gpuval-cache").touch()
    (folder / "data").write_text("pixels")
    (folder / "data").chmod(0o444)
    folder.chmod(0o555)
    return folder


def test_a_stage_on_the_host_finds_its_dataset_and_others_do_not(node, cached):
    plain = """printf '{"state":"success","message":"%s"}' "${GPUVAL_DATASET_CIFAR10-none}" > "$GPUVAL_RESULT_FILE" """
    node.put_plan(stage("a", READ, datasets=["cifar10"]), stage("b", plain))
    assert node.call("run").returncode == 0
    assert node.record("a")["message"] == "pixels"
    assert node.record("b")["message"] == "none"


def test_a_dataset_that_is_not_there_is_named_with_its_stage(node):
    node.put_plan(stage("a", READ, datasets=["cifar10"]))
    assert node.call("run").returncode == 1
    record = node.record("a")
    assert record["state"] == "crash"
    assert "dataset cifar10 is not on this node: run the stage dataset_cifar10 (--tags" in record["message"]


def test_a_container_has_its_dataset_read_only_wherever_it_sees_it(node, cached, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(ENGINE % ("a" * 64))
    (folder / "docker").chmod(0o755)
    asked = {"datasets": ["cifar10"], "container": {"user": "4321:4321"}}
    node.put_plan(stage("a", image="i:1", **asked), runtime="docker")
    node.call("run", environment={"PATH": f"{folder}:/usr/bin:/bin"})
    words = (folder / "asked").read_text()
    mounts = [line for line in words.splitlines() if FOLDER in line and str(cached) in line]
    assert len(mounts) == 2, words
    assert all("ro" in line.replace(":", ",").split(",") or "readonly" in line for line in mounts)
    assert any("/opt/gpuval/datasets/cifar10" in line for line in mounts)
    assert any(f"/opt/gpuval/models/{FOLDER}" in line for line in mounts)
    assert "GPUVAL_DATASET_CIFAR10=/opt/gpuval/datasets/cifar10" in words
    assert stat.S_IMODE(cached.stat().st_mode) == 0o555, "the container's user can read it, and nobody can write it"


def test_a_clean_removes_datasets_with_the_models_unless_they_are_kept(node, cached):
    node.put_plan(stage("a", READ, datasets=["cifar10"]))
    node.call("run")
    kept = json.loads(node.call("clean", "--keep-models").stdout)
    assert not kept["left"]
    assert (cached / "data").read_text() == "pixels"
    node.files.root.mkdir(parents=True)
    node.put_plan(stage("a", READ, datasets=["cifar10"]))
    gone = json.loads(node.call("clean").stdout)
    assert not gone["left"]
    assert not node.files.models.exists()
