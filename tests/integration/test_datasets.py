"""Datasets over SSH: from an archive and from the bucket to a node that verifies them, to the stage that reads them."""

import hashlib
import json
import tarfile

import pytest

from tests.kit.cluster_fleet import own_address
from tests.kit.needs import needs_programs
from tests.kit.ports import free_port
from tests.kit.ssh import Sshd

#: Its message is what it reads.
COUNT = """
cat "$GPUVAL_DATASET_PIXELS/a/data_batch_1" "$GPUVAL_DATASET_TEXTS/words.txt" > seen
printf '{"state": "success", "message": "%s"}' "$(tr '\\n' ' ' < seen)" > "$GPUVAL_RESULT_FILE"
"""
FOLDER = "datasets--gpuval--"


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    needs_programs({"sshd": "openssh-server"})
    server = Sshd(tmp_path_factory.mktemp("sshd"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """An archive with one file, and a folder with another."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "texts").mkdir()
    (folder / "texts/words.txt").write_text("words\n")
    (folder / "data_batch_1").write_text("pixels\n")
    with tarfile.open(folder / "pixels.tar.gz", "w:gz") as packed:
        packed.add(folder / "data_batch_1", "a/data_batch_1")
    return folder


@pytest.fixture(scope="module")
def fleet(new_fleet, sshd, data):
    archive = data / "pixels.tar.gz"
    declared = [
        {"name": "pixels", "source": str(archive), "sha256": hashlib.sha256(archive.read_bytes()).hexdigest()},
        {"name": "texts", "source": str(data / "texts")},
    ]
    settings = {
        "gpuval_store_address": own_address(),
        "gpuval_store_port": free_port(),
        "gpuval_datasets": declared,
        "gpuval_stages": ["facts", "count", "other"],
        "count_workload": {"command": ["sh", "-c", COUNT], "datasets": ["pixels", "texts"]},
        "other_workload": {"command": ["sh", "-c", 'printf \'{"state":"success"}\' > "$GPUVAL_RESULT_FILE"']},
    }
    node = {"ansible_connection": "ssh", "ansible_ssh_args": "-o ControlMaster=no", **sshd.variables}
    with new_fleet("datasets", nodes={"node-1": node}, settings=settings) as made:
        yield made


def test_a_misspelled_dataset_stops_the_run_before_it_is_opened(fleet):
    wrong = {"count_workload": {"command": ["true"], "datasets": ["pixel"]}}
    done = fleet.play("gpuval.fleet.validate", "-e", json.dumps(wrong))
    assert done.code != 0
    assert "datasets of count: no dataset pixel; is it pixels?" in done.told
    assert not (fleet.results / "latest").exists()


def test_a_stage_reads_its_datasets_and_each_is_verified_before(fleet):
    done = fleet.play()
    assert done.code == 0, done
    assert "dataset pixels: in the store, 1 files" in done.output
    fleet.assert_evidence(
        "node-1", dict.fromkeys(["facts", "dataset_pixels", "dataset_texts", "count", "other"], "success")
    )
    assert fleet.record("node-1", "count")["message"].split() == ["pixels", "words"]
    kept = fleet.node_base("node-1") / "models" / f"{FOLDER}pixels"
    assert (kept / "a/data_batch_1").stat().st_mode & 0o222 == 0
    listed = fleet.play("gpuval.fleet.models", "-e", "model_preload_list=true")
    assert "dataset pixels: 1 files, 7 B, sha256 " in listed.output
    assert "0 model(s) and 2 dataset(s) in bucket gpuval" in listed.output


def test_a_damaged_dataset_is_the_stores_and_leaves_other_stages_alone(fleet):
    stored = fleet.store_data / f"models/{FOLDER}texts/words.txt"
    stored.write_text("wards\n")
    cached = fleet.node_base("node-1") / f"models/{FOLDER}texts"
    cached.chmod(0o755)
    (cached / "words.txt").unlink()
    done = fleet.play("gpuval.fleet.validate", "-e", "gpuval_run_id=new")
    assert done.code != 0
    verdict = fleet.verdict("node-1")
    assert verdict["verdict"] == "INCOMPLETE"
    assert "dataset texts: the store sends words.txt with other bytes than SHA256SUMS has" in done.told
    assert "upload it again (-e model_preload_force=true)" in done.told
    states = {stage["name"]: stage["state"] for stage in verdict["stages"]}
    assert states == {
        "facts": "success",
        "dataset_pixels": "success",
        "dataset_texts": "failure",
        "count": "skipped",
        "other": "success",
    }
    again = fleet.play("gpuval.fleet.validate", "-e", "gpuval_run_id=new", "-e", "model_preload_force=true")
    assert again.code == 0, again


def test_a_clean_keeps_datasets_where_models_are_kept_and_else_removes_them(fleet):
    models = fleet.node_base("node-1") / "models"
    kept = fleet.play("gpuval.fleet.clean", "-e", "cleanup_all_runs=true", "-e", "cleanup_keep_models=true")
    assert kept.code == 0, kept
    assert (models / f"{FOLDER}pixels/a/data_batch_1").read_text() == "pixels\n"
    assert fleet.play("gpuval.fleet.validate", "-e", "gpuval_run_id=new").code == 0
    gone = fleet.play("gpuval.fleet.clean", "-e", "cleanup_all_runs=true")
    assert gone.code == 0, gone
    assert not models.exists()
