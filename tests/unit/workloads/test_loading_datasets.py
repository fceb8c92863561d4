"""Datasets on a node: loaded and verified as models are, read-only, and exactly what the store has."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from gpuval_workloads.loading import program

from tests.kit.workload_process import Workload

FILES = {"a/data_batch_1": b"1" * 5000, "labels.pkl": b"labels"}


@pytest.fixture
def stored(store):
    folder = store.data / "gpuval/models/datasets--gpuval--cifar10"
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in FILES.items())
    (folder / "SHA256SUMS").write_text(sums)
    return folder


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "models/datasets--gpuval--cifar10"


@pytest.fixture
def load(tmp_path, store):
    config = tmp_path / "rclone.conf"
    config.write_text(store.config)
    variables = {
        "GPUVAL_RCLONE_CONFIG": str(config),
        "GPUVAL_MODELS_PREFIX": "gpuval/models",
        "GPUVAL_MODELS_DIR": str(tmp_path / "models"),
    }

    def run(name="cifar10"):
        return Workload(tmp_path, "gpuval_workloads.loading", "--dataset", name, **variables).end()

    return run


def read(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_dataset_is_loaded_made_read_only_and_kept_as_the_store_has_it(load, stored, copy, tmp_path):
    first = load()
    assert first.code == 0, first.err
    assert read(copy) == FILES
    assert {path.stat().st_mode & 0o222 for path in (copy, *copy.rglob("*"))} == {0}

    again = load()
    assert again.code == 0
    assert "already present and verified" in again.result["message"]

    for path in (copy, copy / "a", copy / "a/data_batch_1"):
        path.chmod(0o755)
    (copy / "a/data_batch_1").write_bytes(b"2" * 5000)
    (copy / "a/more").write_text("of another run")
    (tmp_path / "outside").mkdir()
    (copy / "elsewhere").symlink_to(tmp_path / "outside")
    assert load().code == 0
    assert read(copy) == FILES
    assert not os.path.lexists(copy / "elsewhere")
    assert copy.stat().st_mode & 0o222 == 0


def test_a_file_that_the_store_has_wrong_names_dataset_and_file(load, stored, copy):
    (stored / "labels.pkl").write_bytes(b"lqbels")
    ended = load()
    assert ended.code == 1
    assert ended.result["state"] == "failure"
    assert ended.result["message"].startswith(
        "dataset cifar10: the store sends labels.pkl with other bytes than SHA256"
    )
    assert ended.result["environment"]["fault"] == "store_incomplete"
    assert not (copy / "labels.pkl").exists()
    (stored / "labels.pkl").write_bytes(FILES["labels.pkl"])
    assert load().code == 0
    assert read(copy) == FILES


def test_nothing_is_deleted_where_a_link_stands_for_the_dataset(load, stored, copy, tmp_path):
    """Containers may write the cache: the loader would delete what they choose."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").touch()
    copy.parent.mkdir()
    copy.symlink_to(tmp_path / "outside")
    ended = load()
    assert ended.result["state"] == "failure"
    assert f"{copy} is a link: remove it from the node" in ended.result["message"]
    assert (tmp_path / "outside/kept").exists()


def test_a_dataset_that_the_store_lacks_is_named(load, stored):
    message = load("imagenet").result["message"]
    assert "the store has no dataset imagenet under models:gpuval/models/datasets--gpuval--imagenet" in message


@pytest.mark.parametrize("arguments", [[], ["--dataset", "a", "--model-folder", "b"]])
def test_a_model_or_a_dataset_is_loaded(arguments, capsys):
    with pytest.raises(SystemExit):
        program.parse_arguments(arguments)
    assert "--dataset" in capsys.readouterr().err


def test_a_name_cannot_leave_the_cache(load, tmp_path):
    assert load("../../x").result["state"] == "failure"
    assert not Path(tmp_path, "x").exists()
